//! What events of a provider mean, by configuration: event → begin, end, annotation; field → id, key, value.
//!
//! [`config`] is the file, [`bind`] finds its fields in a class of events, [`mapper`] makes facts of events. A rule is bound to
//! each class of events once; then a field costs a look into an array. A provider whose fields changed (the
//! field is gone, or a text became a number) is told by name, and its events are counted as not understood. [`probed`] is the file
//! for probes that say nothing of their fields (USDT); `together` reads what several things in one event are, `traceparent` whose request a text is for.

pub mod bind;
pub mod config;
pub mod mapper;
pub mod probed;
mod recent;
mod together;
mod traceparent;

/// The mapping of `blkkin:*`.
pub const BLKKIN: &str = include_str!("../../configs/mappings/blkkin.toml");
/// The mapping of `zipkin:*`, blkin's.
pub const ZIPKIN: &str = include_str!("../../configs/mappings/zipkin.toml");
