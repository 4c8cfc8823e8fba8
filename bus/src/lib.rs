//! Topics: what carries batches from one stage to the next.
//!
//! *In*: items from any number of [`Publisher`]s. *Out*: the same items, each once and in the order of each
//! publisher, to one [`Subscription`]. Today a topic lives in this process ([`topic()`]); the interface is what a
//! topic of a broker can offer too, so that the stages on both ends are the same code in one process and in many.
//!
//! *Invariant*: nothing is shed here. A topic is bounded and a publisher waits when it is full: whoever makes
//! events (the kernel's rings) is the one place that may lose some, and counts them. What was published and not
//! consumed is known at any moment from [`Counts`].
//!
//! *Ends*: a topic closes when its last publisher is dropped, and its subscription then still gives all that was
//! published. When the subscription is dropped first, publishers learn it by [`Closed`], a waiting one at once.
//!
//! *Rejected*: an unbounded channel (a slow consumer becomes memory that nobody asked for), dropping the newest
//! when full (loses what the kernel side has accounted for as recorded), an async channel (both ends are threads
//! that work or wait), a broadcast (a second reader of the same events comes with a broker's consumer groups).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod counts;
pub mod kafka;
pub mod recording;
pub mod spool;
mod topic;

pub use counts::{Count, Counts, Meter};
pub use topic::{Closed, Next, Publisher, Subscription, topic};

use blkkin_wire::batch::EventBatch;

/// Items that a topic holds before its publishers wait.
///
/// Rings are drained every few milliseconds into one batch, so 64 items let the consumer be away for some
/// hundred milliseconds (writing a file, being scheduled out). More would only move the waiting from the rings,
/// whose size the user chose and whose losses are counted, into memory.
pub const CAPACITY_DEFAULT: usize = 64;

/// What can be put into a topic: knows how many events it stands for, which is what people count.
pub trait Weighted {
    /// Events in it.
    fn weight(&self) -> u64;
}

impl Weighted for EventBatch {
    fn weight(&self) -> u64 {
        self.events.len() as u64
    }
}
