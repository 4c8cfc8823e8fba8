//! Reading of the rings: merges their entries, decodes records, and translates them into events.
//!
//! *In*: the per-CPU rings of the eBPF programs. *Out*: events in time order.

pub(crate) mod kernel_functions;
pub(crate) mod ring;
pub mod rings;

pub mod decode;
mod path_text;
pub mod translate;

pub(crate) mod in_flight;
