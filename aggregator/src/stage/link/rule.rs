//! Reasons of links between a guest's requests and QEMU's operations (`disk.rs`).

use std::borrow::Cow;

/// Reason of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    Same,
    Merged(u64),
    Part,
    Rounded,
    Filled,
    Flush(u64),
}

impl Rule {
    /// Returns the text of the tag `blkkin.parent.evidence`.
    pub(super) fn text(self, in_clusters: bool) -> String {
        let inside = match in_clusters && !matches!(self, Rule::Flush(_)) {
            true => {
                "by the place of the image's cluster, which other requests have too, inside by both clocks"
            }
            false => "inside by both clocks",
        };
        let what: Cow<'static, str> = match self {
            Rule::Same => "disk, operation and range".into(),
            Rule::Merged(requests) => {
                format!("disk and operation, ranges of {requests} guest requests, the first is the parent")
                    .into()
            }
            Rule::Rounded => "disk and operation, range rounded to whole blocks".into(),
            Rule::Part => "disk and operation, part of the range".into(),
            Rule::Filled => "disk, rest of a cluster of which the request writes a part".into(),
            Rule::Flush(1) => "flush of the disk".into(),
            Rule::Flush(requests) => format!("flush of the disk for {requests} guest requests").into(),
        };
        ["rule: ", &what, ", ", inside].concat()
    }
}
