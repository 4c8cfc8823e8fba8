//! Spans to Zipkin and to OpenTelemetry's receivers.
//!
//! ```text
//! offer → queue ─ thread ─┬ sender: format → batch → delivery (repeat, halve) → http, grpc
//!                         └ json → batch → file → partial (a list at every moment)
//! ```
//!
//! *In*: [`blkkin_wire::span::Span`]s. *Out*: the same spans where a [`destination::Destination`] says, and
//! [`telemetry::ExportAccounts`] that say what became of each: `offered = sent + dropped + pending`.
//!
//! Whoever has a place of their own where spans wait (a topic of Kafka) needs no queue: [`Sender`] and [`SpanFile`] by
//! themselves tell a [`Ledger`] what became of each span.
//!
//! *Invariants*: nothing here knows what a span is about (no storage, no device). Spans are shed only at the
//! queue, and counted there. A span's bytes are a function of the span.
//!
//! *Deliberately absent*: sampling, a spool on disk, compression. An outage that is longer than the queue loses
//! spans, and says how many.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod config;
pub mod destination;
pub mod exporter;
pub mod queue;

pub mod backoff;
mod batch;
mod delivery;
mod file;
mod format;
mod grpc;
mod http;
pub mod json;
mod otlp;
pub mod partial;
mod proto3;
mod protobuf;
mod sender;
mod server;
mod span_file;
mod tags;
pub mod telemetry;
mod url;

#[cfg(test)]
mod testing;

pub use config::ExportConfig;
pub use delivery::{AfterPause, Answer, Attempt, Away, Ledger, Post, Reason, Reply, Verdict};
pub use destination::Destination;
pub use exporter::{Exporter, OpenError};
pub use format::Format;
pub use grpc::GrpcPost;
pub use http::HttpPost;
pub use sender::Sender;
pub use server::server;
pub use span_file::SpanFile;
pub use telemetry::ExportAccounts;
pub use url::ServerUrl;
