//! Encoded spans on their way, of which any part can be made a list of its own.
//!
//! *In*: spans as JSON objects. *Out*: JSON lists of some of them. *Invariant*: spans are encoded once; a repeat
//! and a part of a batch have the same bytes for the same span.

use std::ops::Range;

/// Between two spans. One span a line: a person can read the list, and `grep` finds a span in it.
pub(crate) const SEPARATOR: &[u8] = b",\n";
const BRACKETS: usize = 2;

#[derive(Default)]
pub(crate) struct Batch {
    /// Spans with separators between them.
    bytes: Vec<u8>,
    /// Where each span ends in `bytes`.
    ends: Vec<usize>,
}

impl Batch {
    pub(crate) fn push(&mut self, span: &[u8]) {
        if !self.ends.is_empty() {
            self.bytes.extend_from_slice(SEPARATOR);
        }
        self.bytes.extend_from_slice(span);
        self.ends.push(self.bytes.len());
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Spans.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the list of all spans and `span`.
    pub(crate) fn bytes_with(&self, span: &[u8]) -> usize {
        let before = if self.is_empty() { 0 } else { self.bytes.len() + SEPARATOR.len() };
        before + span.len() + BRACKETS
    }

    /// The spans without brackets.
    pub(crate) fn inner(&self) -> &[u8] {
        &self.bytes
    }

    /// Makes `list` the JSON list of the spans of `range`.
    pub(crate) fn list(&self, range: &Range<usize>, list: &mut Vec<u8>) {
        let start = match range.start {
            0 => 0,
            first => self.ends[first - 1] + SEPARATOR.len(),
        };
        let end = range.end.checked_sub(1).map_or(0, |last| self.ends[last]);
        list.clear();
        list.push(b'[');
        list.extend_from_slice(self.bytes.get(start..end).unwrap_or_default());
        list.push(b']');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_a_list_of_its_own() {
        let mut batch = Batch::default();
        let spans = [&b"{}"[..], b"{\"a\":1}", b"{\"bc\":2}"];
        for span in spans {
            let expected = batch.bytes_with(span);
            batch.push(span);
            assert_eq!(batch.inner().len() + BRACKETS, expected);
        }
        let mut list = Vec::new();
        for start in 0..=spans.len() {
            for end in start..=spans.len() {
                batch.list(&(start..end), &mut list);
                let parts = spans[start..end].join(SEPARATOR);
                assert_eq!(list, [b"[", &parts[..], b"]"].concat(), "{start}..{end}");
            }
        }
        batch.clear();
        assert!(batch.is_empty());
    }
}
