//! Reads LTTng-UST events of instrumented daemons, and correlates the daemons' spans with system
//! calls.
//!
//! *What it contains*, in flow order: [`session`] creates an LTTng session, whose events
//! [`blkkin_lttng_live`] reads. [`mapping`] turns events into [`span_event`]s by rules.
//! [`daemon_spans`] assembles daemon spans, and tracks which span each thread works for.
//! [`correlate`] makes these spans the parents of system calls.
//!
//! *Invariant*: no field of an event is built in. The mapping's rules name them, and each event
//! without a rule is counted.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod session;

pub mod mapping;
pub mod span_event;

pub mod daemon_spans;

pub mod correlate;
