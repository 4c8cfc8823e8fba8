//! Spans to Zipkin: v2 JSON by HTTP, or to a file.
//!
//! ```text
//! offer → queue ─ thread ─┬ json → batch → delivery (repeat, halve) → http
//!                         └ json → batch → file → partial (a list at every moment)
//! ```
//!
//! *In*: [`blkkin_wire::span::Span`]s. *Out*: the same spans where a [`destination::Destination`] says, and
//! [`telemetry::ExportAccounts`] that say what became of each: `offered = sent + dropped + pending`.
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
mod http;
pub mod json;
pub mod partial;
pub mod telemetry;

#[cfg(test)]
mod testing;

pub use config::ExportConfig;
pub use destination::Destination;
pub use exporter::{Exporter, OpenError};
pub use telemetry::ExportAccounts;
