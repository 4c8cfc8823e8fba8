//! Reading of the rings: decodes records, translates them into events, and publishes batches.
//!
//! *In*: the per-CPU rings of the eBPF programs. *Out*: event batches in time order.

pub(crate) mod ring;
pub mod rings;

pub mod decode;
pub mod translate;

pub mod reader_loop;
