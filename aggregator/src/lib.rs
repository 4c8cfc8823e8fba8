//! Joins the events of the layers into traces.
//!
//! *In*: [`blkkin_wire::batch::EventBatch`]es, in any order within the window that their watermarks give.
//! *Out*: [`trace::Trace`]s, one for each request, with every layer's part; and, by [`translate`], spans.
//!
//! *Invariant*: pure. No I/O, no clock, no threads: time is what the events and watermarks say, so that the same
//! events always make the same traces.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod account;
pub mod join;
pub mod live;
pub mod named;
pub mod phases;
pub mod said;
pub mod stacked;
pub mod stage;
pub mod trace;
pub mod translate;
