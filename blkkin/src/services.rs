//! The three long-running services: `blkkin agent`, `blkkin aggregator` and `blkkin exporter`.
//!
//! Each service is a module with the same parts: `config` validates its options, `pipeline` starts
//! its threads, `metrics` reports them, and `shutdown` has the summary at the end. The module itself
//! has the entry point. [`crate::service`] has what all of them share.

pub(crate) mod agent;
pub(crate) mod aggregator;
pub(crate) mod exporter;
