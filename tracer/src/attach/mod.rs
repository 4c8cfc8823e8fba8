//! Attachment of the eBPF programs: which probes exist, how this kernel lays out its data, and how
//! each program is loaded and attached.
//!
//! *In*: a [`TracerConfig`](crate::TracerConfig), and the kernel's BTF and symbols. *Out*: an
//! attached [`Tracer`](load::Tracer).

pub mod probes;
pub mod tracepoint_equivalents;

mod btf;
pub mod kernel;
pub mod layout;
pub mod req_op;
mod stacked_layouts;
mod symbols;

pub mod attach_probe;

mod attach_point;
pub mod load;
#[cfg(test)]
mod stack_usage;
