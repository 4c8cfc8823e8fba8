//! Counters of the tracer, and what remains of them after a crash.
//!
//! *Invariant*: fired = recorded + dropped. The eBPF programs count fired and dropped records, the
//! reader counts the recorded ones.

pub mod counters;
pub mod device_bytes;
pub(crate) mod recursion_misses;

pub mod source_stats;

pub mod persistent_counters;
pub mod progress_map;
