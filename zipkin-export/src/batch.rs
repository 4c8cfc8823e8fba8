//! Encoded spans on their way, of which any part can be made a request of its own.
//!
//! *In*: spans as bytes of a [`Format`]. *Out*: requests of some of them. *Invariant*: spans are encoded once; a repeat
//! and a part of a batch have the same bytes for the same span.

use std::ops::Range;
use std::sync::Arc;

use crate::format::Format;
use crate::otlp;
use crate::protobuf::FRAME_MAX;

/// Between two spans of a JSON list. One span a line: a person can read the list, and `grep` finds a span in it.
pub(crate) const SEPARATOR: &[u8] = b",\n";
const BRACKETS: usize = 2;

pub(crate) struct Batch {
    format: Format,
    bytes: Vec<u8>,
    /// Where each span ends in `bytes`.
    ends: Vec<usize>,
    /// The place of each span's service.
    places: Vec<usize>,
    services: Vec<Arc<str>>,
    /// Bytes of the request of all, at the most.
    request_bytes: usize,
}

impl Batch {
    pub(crate) fn new(format: Format) -> Batch {
        let (bytes, ends, places, services) = Default::default();
        Batch { format, bytes, ends, places, services, request_bytes: BRACKETS }
    }

    pub(crate) fn format(&self) -> Format {
        self.format
    }

    pub(crate) fn push(&mut self, span: &[u8], service: &Arc<str>) {
        self.request_bytes = self.bytes_with(span, service);
        self.bytes.extend_from_slice(span);
        self.ends.push(self.bytes.len());
        if self.format == Format::Otlp {
            let known = self.services.iter().position(|known| known == service);
            self.places.push(known.unwrap_or(self.services.len()));
            if known.is_none() {
                self.services.push(Arc::clone(service));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.places.clear();
        self.services.clear();
        self.request_bytes = BRACKETS;
    }

    /// Spans.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Bytes of the request of all spans and `span`, at the most.
    pub(crate) fn bytes_with(&self, span: &[u8], service: &Arc<str>) -> usize {
        let around = match self.format {
            Format::Json if self.is_empty() => 0,
            Format::Json => SEPARATOR.len(),
            Format::Proto3 => 0,
            Format::Otlp if self.services.contains(service) => FRAME_MAX,
            Format::Otlp => FRAME_MAX + otlp::GROUP_BYTES_MAX + service.len(),
        };
        self.request_bytes + around + span.len()
    }

    /// Makes `request` the request of the spans of `range`.
    pub(crate) fn request(&self, range: &Range<usize>, request: &mut Vec<u8>) {
        request.clear();
        match self.format {
            Format::Json => {
                request.push(b'[');
                self.join(range, request);
                request.push(b']');
            }
            Format::Proto3 => request.extend_from_slice(self.bytes_of(range)),
            Format::Otlp => {
                let spans = range.clone().map(|at| (self.places[at], self.bytes_of(&(at..at + 1))));
                otlp::request(&self.services, spans, request);
            }
        }
    }

    /// Appends the spans of `range` with separators between them.
    pub(crate) fn join(&self, range: &Range<usize>, list: &mut Vec<u8>) {
        for at in range.clone() {
            if at > range.start {
                list.extend_from_slice(SEPARATOR);
            }
            list.extend_from_slice(self.bytes_of(&(at..at + 1)));
        }
    }

    fn bytes_of(&self, range: &Range<usize>) -> &[u8] {
        let end = |count: usize| count.checked_sub(1).map_or(0, |last| self.ends[last]);
        &self.bytes[end(range.start)..end(range.end)]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_part_is_a_list_of_its_own() {
        let mut batch = Batch::new(Format::Json);
        let (spans, service) = ([&b"{}"[..], b"{\"a\":1}", b"{\"bc\":2}"], Arc::from("s"));
        let mut list = Vec::new();
        for (at, span) in spans.into_iter().enumerate() {
            let expected = batch.bytes_with(span, &service);
            batch.push(span, &service);
            batch.request(&(0..at + 1), &mut list);
            assert_eq!(list.len(), expected);
        }
        for start in 0..=spans.len() {
            for end in start..=spans.len() {
                batch.request(&(start..end), &mut list);
                let parts = spans[start..end].join(SEPARATOR);
                assert_eq!(list, [b"[", &parts[..], b"]"].concat(), "{start}..{end}");
            }
        }
        batch.clear();
        assert!(batch.is_empty());
    }

    #[test]
    fn no_request_is_longer_than_was_said() {
        for format in [Format::Json, Format::Proto3, Format::Otlp] {
            let (mut batch, mut request) = (Batch::new(format), Vec::new());
            for n in 1..=300 {
                let mut span = crate::testing::span(n);
                span.service = format!("service {}", n % 7).into();
                let mut one = Vec::new();
                format.encode(&span, &mut one);
                let said = batch.bytes_with(&one, &span.service);
                batch.push(&one, &span.service);
                batch.request(&(0..batch.len()), &mut request);
                assert!(request.len() <= said, "{format:?}: {} of {said}", request.len());
            }
        }
    }
}
