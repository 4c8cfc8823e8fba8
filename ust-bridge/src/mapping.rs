//! Mapping of a provider's events to span events, by configured rules.
//!
//! *In*: event views, and mapping files. *Out*: [`crate::span_event::SpanEvent`]s. [`config`] is
//! the file's format. [`bind`] binds a rule to a class of events once, so that each field access is
//! an array access. [`mapper`] applies the rules. `batch` decodes several span events in one event,
//! and `traceparent` finds a remote parent in a text. [`usdt_mapping`] maps USDT probes, which do
//! not describe their fields.
//!
//! *Invariant*: a rule that does not match a provider's fields is reported by name, and its events
//! are counted as not understood. A changed field (removed, or a number instead of a text) is
//! therefore visible.
//!
//! *Rejected*: field lookup by name for each event, which would search the class's fields every
//! time.

mod batch;
pub mod bind;
mod bounded_map;
pub mod config;
pub mod mapper;
mod traceparent;
pub mod usdt_mapping;

/// Mapping of `blkkin:*`.
pub const BLKKIN: &str = include_str!("../../configs/mappings/blkkin.toml");
/// Mapping of `zipkin:*`, the events of blkin.
pub const ZIPKIN: &str = include_str!("../../configs/mappings/zipkin.toml");
