//! Attachment of the eBPF programs: which probes exist, how this kernel lays out its data, and how
//! each program is attached.
//!
//! *In*: the kernel's BTF and symbols. *Out*: where each probe can be attached, and its attachment.

pub mod probes;
pub mod tracepoint_equivalents;

mod btf;
pub mod kernel;
pub mod layout;
pub mod modules;
pub(crate) mod page_completions;
pub mod req_op;
mod stacked_layouts;
pub(crate) mod symbols;

pub mod attach_probe;

pub(crate) mod attach_point;
pub(crate) mod perf_link;
#[cfg(test)]
mod stack_usage;

/// Object file of the eBPF programs.
pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/blkkin-probes"));
