//! Batch of encoded spans, of which any range can become a request.
//!
//! *In*: spans as bytes of a [`Format`]. *Out*: requests with some of them. *Invariant*: each span
//! is encoded once. A retry and a part of a batch have the same bytes for the same span.

use std::ops::Range;
use std::sync::Arc;

use blkkin_span_encoding::FRAME_MAX;
use blkkin_span_encoding::Format;
use blkkin_span_encoding::otlp;

/// Separator between two spans of a JSON list. One span per line keeps the list readable, and
/// `grep` finds a span.
pub(crate) const SEPARATOR: &[u8] = b",\n";
const BRACKETS: usize = 2;

pub(crate) struct Batch {
    format: Format,
    bytes: Vec<u8>,
    /// End of each span in `bytes`.
    ends: Vec<usize>,
    /// Index of each span's service in `services`.
    service_indices: Vec<usize>,
    services: Vec<Arc<str>>,
    /// Maximum bytes of a request with all spans.
    request_bytes: usize,
}

impl Batch {
    pub(crate) fn new(format: Format) -> Batch {
        let (bytes, ends, service_indices, services) = Default::default();
        Batch { format, bytes, ends, service_indices, services, request_bytes: BRACKETS }
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
            self.service_indices.push(known.unwrap_or(self.services.len()));
            if known.is_none() {
                self.services.push(Arc::clone(service));
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
        self.service_indices.clear();
        self.services.clear();
        self.request_bytes = BRACKETS;
    }

    /// Returns the number of spans.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Returns the maximum bytes of a request with all spans and `span`.
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

    /// Replaces the content of `request` with a request of the spans in `range`.
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
                let spans = range.clone().map(|at| (self.service_indices[at], self.bytes_of(&(at..at + 1))));
                otlp::request(&self.services, spans, request);
            }
        }
    }

    /// Appends the spans in `range` with separators between them.
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
    fn each_range_is_a_valid_list() {
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
    fn request_length_respects_the_announced_bound() {
        for format in [Format::Json, Format::Proto3, Format::Otlp] {
            let (mut batch, mut request) = (Batch::new(format), Vec::new());
            for n in 1..=300 {
                let mut span = crate::testing::span(n);
                span.service = format!("service {}", n % 7).into();
                let mut one = Vec::new();
                format.encode(&span, &mut one);
                let bound = batch.bytes_with(&one, &span.service);
                batch.push(&one, &span.service);
                batch.request(&(0..batch.len()), &mut request);
                assert!(request.len() <= bound, "{format:?}: {} of {bound}", request.len());
            }
        }
    }
}
