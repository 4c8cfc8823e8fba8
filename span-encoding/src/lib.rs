//! Encodings of spans: Zipkin's JSON ([`json`]) and protobuf, and OpenTelemetry's protobuf ([`otlp`]).
//!
//! *In*: [`blkkin_wire::span::Span`]s. *Out*: bytes, appended to a buffer that the caller reuses. *Invariant*: the bytes
//! of a span are a function of the span, so a span that is sent twice is one span to its receiver.
//!
//! `blkkin-zipkin-export` makes requests of them and delivers these.
//!
//! *Rejected*: these modules in that crate. What only encodes would compile its clients of HTTP, gRPC and TLS too: the
//! instruction counts and the fuzz targets, each with flags of its own.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod format;
pub mod json;
pub mod otlp;
mod proto3;
mod protobuf;
mod tags;
#[cfg(test)]
#[allow(dead_code, reason = "the tests of blkkin-zipkin-export use the rest")]
mod testing;

pub use format::Format;
pub use protobuf::FRAME_MAX;
