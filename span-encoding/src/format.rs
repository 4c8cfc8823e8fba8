//! Encodings of spans in a request: one for each kind of receiver.

use blkkin_wire::span::Span;

use crate::{json, otlp, proto3};

/// Encoding of a request with any number of spans.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Format {
    /// Zipkin v2 JSON: a list.
    Json,
    /// Zipkin's protobuf: a `ListOfSpans`.
    Proto3,
    /// OpenTelemetry's protobuf: an `ExportTraceServiceRequest`.
    Otlp,
}

impl Format {
    /// Returns the HTTP content type.
    pub fn content_type(self) -> &'static str {
        match self {
            Format::Json => "application/json",
            // Zipkin accepts this and application/x-protobuf (ZipkinHttpCollector.java); OTLP
            // accepts the latter only.
            Format::Proto3 | Format::Otlp => "application/x-protobuf",
        }
    }

    /// Appends the bytes of one span to `out`.
    pub fn encode(self, span: &Span, out: &mut Vec<u8>) {
        match self {
            Format::Json => json::encode(span, out),
            Format::Proto3 => proto3::encode(span, out),
            Format::Otlp => otlp::encode(span, out),
        }
    }
}
