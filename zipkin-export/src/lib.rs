//! Export of spans to Zipkin and to OpenTelemetry receivers.
//!
//! ```text
//! offer → queue ─ thread ─┬ sender: format → batch → delivery (retry, halve) → http, grpc
//!                         └ file: json → batch → span_file → atomic_json_file (always a valid list)
//! ```
//!
//! [`Format`] chooses the encoding (`blkkin-span-encoding`), `transport` the protocol, by the
//! destination. *In*: [`blkkin_wire::span::Span`]s. *Out*: the same spans at a
//! [`destination::Destination`], and [`stats::ExportStats`]: `offered = sent + dropped + pending`.
//!
//! A caller with its own buffer of spans (a Kafka topic) needs no queue: [`Sender`] and
//! [`SpanFile`] report the result of each span directly to a [`DeliveryObserver`].
//!
//! *Invariants*: this crate knows no storage and no devices. Spans are dropped only at the queue,
//! and counted there. The bytes of a span are a function of the span.
//!
//! *Deliberately absent*: sampling, a spool on disk. An outage longer than the queue
//! loses spans and counts them.
#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod config;
pub mod destination;
pub mod exporter;
pub mod queue;

pub mod atomic_json_file;
pub mod backoff;
mod batch;
mod delivery;
mod destination_error;
mod file;
mod grpc;
mod http;
mod open_error;
mod otlp_config;
mod secret_file;
mod sender;
mod span_file;
pub mod stats;
mod tls;
mod transport;
mod url;

#[cfg(test)]
#[path = "../../span-encoding/src/testing.rs"]
mod testing;

pub use blkkin_span_encoding::{Format, json};

pub use config::ExportConfig;
pub use delivery::{
    Attempt, AttemptResult, DeliveryObserver, DeliveryResult, FailureReason, RetryDecision, ServerReply,
    Transport, Unreachable,
};
pub use destination::Destination;
pub use destination_error::DestinationError;
pub use exporter::Exporter;
pub use grpc::GrpcTransport;
pub use http::HttpTransport;
pub use open_error::OpenError;
pub use otlp_config::{Compression, OtlpConfig, OtlpConfigError};
pub use sender::Sender;
pub use span_file::SpanFile;
pub use stats::ExportStats;
pub use tls::TlsFiles;
pub use transport::transport;
pub use url::ServerUrl;
