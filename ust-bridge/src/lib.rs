//! Reads LTTng-UST events of instrumented daemons, and correlates the daemons' spans with system
//! calls.
//!
//! *What it contains*, in flow order: [`session`] creates an LTTng session, and [`live`] reads its
//! packets from a relay. [`trace_folder`] reads packets from files instead. [`ctf`] decodes packets
//! by the trace's own metadata. [`clock`] and [`tick_conversion`] convert timestamps to
//! CLOCK_MONOTONIC, the kernel's clock, and [`merge`] puts the events of all streams in order of
//! time. The result is one [`event_view::EventView`] per event. [`mapping`] turns events into
//! [`span_event`]s by rules. [`daemon_spans`] assembles daemon spans, and tracks which span each
//! thread works for. [`correlate`] makes these spans the parents of system calls.
//!
//! *Invariant*: the decoder assumes nothing about a trace that its metadata does not declare. Each
//! loss is counted at the stream that lost it.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod session;

pub mod live;
pub mod trace_folder;

pub mod ctf;

pub mod clock;
pub mod event_view;
pub mod merge;
pub mod tick_conversion;

pub mod mapping;
pub mod span_event;

pub mod daemon_spans;

pub mod correlate;
