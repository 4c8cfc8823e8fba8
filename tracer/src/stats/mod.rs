//! Counters of the tracer, and what remains of them after a crash.
//!
//! *Invariant*: records fired = recorded + dropped, counted by different parties.

pub mod counters;
pub(crate) mod recursion_misses;

pub mod accounts;
pub(crate) mod in_flight;

pub mod persistent_counters;
pub mod progress_map;
