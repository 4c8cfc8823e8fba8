//! Waterfall of one storage operation: bars over time by layer, and a sentence with the shares.
//!
//! *In*: a trace and the latency breakdown of its root. *Out*: lines. [`tree`] chooses the rows and
//! their segments, [`block`] those below the file system, both as [`row`]s. [`bar`] maps segments
//! to columns, [`draw`] aligns rows with their numbers, and [`heading`] and [`summary`] add the
//! text. [`daemon_span`] does the same for daemon spans, with the calls made for them as rows. None
//! of these modules depends on a terminal.
//!
//! *Invariant*: every drawn segment was measured. Unaccounted time is drawn where no other segment
//! is, with a character of its own.

pub mod async_io;
pub mod bar;
pub mod block;
pub mod daemon_span;
pub mod draw;
pub(crate) mod guest;
pub mod heading;
mod page_origin;
pub mod row;
mod sleeps;
pub mod summary;
pub mod tree;
mod waits;
