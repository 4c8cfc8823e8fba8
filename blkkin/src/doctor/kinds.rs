//! What each kind of probe makes of each probe, in words.

use blkkin_tracer::AttachKind;
use blkkin_tracer::tries::{Tried, Tries};

pub(super) fn word(tried: Tried) -> &'static str {
    match tried {
        Tried::Works => "works",
        Tried::Kept => "keeps",
        Tried::Missing => "missing",
        Tried::Refused => "refused",
    }
}

/// Its colour, as the terminal knows it.
pub(super) fn ink(tried: Tried) -> &'static str {
    match tried {
        Tried::Works => "32",
        Tried::Kept | Tried::Missing => "33",
        Tried::Refused => "31",
    }
}

/// The function that stands for a probe's tracepoint, or why it keeps that.
pub(super) fn remark(tries: &Tries) -> String {
    let of_functions = || tries.tries.iter().filter(|one| one.kind.is_at_functions());
    if let Some(kept) = of_functions().find(|one| one.tried == Tried::Kept) {
        return format!("keeps {}: {}", tries.probe.hook.tracepoint, kept.said);
    }
    let works = of_functions().find(|one| one.tried == Tried::Works);
    works.map(|one| one.said.clone()).unwrap_or_default()
}

/// Why a kind is refused, once for all that are so.
pub(super) fn refusals(tries: &[Tries]) -> Vec<String> {
    let mut said = Vec::new();
    for kind in AttachKind::ALL {
        let of_kind = tries.iter().flat_map(|one| &one.tries).filter(|one| one.kind == kind);
        for refused in of_kind.filter(|one| one.tried == Tried::Refused) {
            let words = format!("{kind} is refused: {}", refused.said);
            if !said.contains(&words) {
                said.push(words);
            }
        }
    }
    said
}
