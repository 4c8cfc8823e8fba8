//! Channels and topics that carry batches from one stage to the next.
//!
//! *In*: items from any number of [`Publisher`]s. *Out*: the same items, each once and in each
//! publisher's order, to one [`Subscription`]. A channel ([`channel()`]) is in this process;
//! [`kafka`] has the topics of a cluster, and stages use either in the same way.
//!
//! *Invariant*: no item is dropped here. A channel has a capacity, and a publisher waits while it
//! is full. Only the kernel's rings may drop events, and they count them. [`ChannelStats`] shows
//! published and unconsumed items at any moment.
//!
//! *Ends*: a channel closes when its last publisher is dropped; the subscription then still
//! receives all published items. If the subscription is dropped first, publishers get [`Closed`], a
//! waiting one at once.
//!
//! *Rejected*: an unbounded channel (a slow consumer would grow memory without limit); dropping the
//! newest item (the kernel side has counted it as recorded); an async channel (both ends are
//! threads that work or wait); a broadcast (a second reader of the same events uses a Kafka
//! consumer group).

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

mod channel;
#[cfg(feature = "kafka")]
pub mod kafka;
pub mod recording;
pub mod spool;
mod stats;

pub use channel::{Closed, Next, Publisher, Subscription, channel};
pub use stats::{ChannelStats, ChannelStatsHandle, Count};

use blkkin_wire::batch::EventBatch;

/// Default capacity of a channel, in items.
///
/// Rings are drained every few milliseconds into one batch, so 64 items let the consumer pause for
/// some hundred milliseconds (a file write, a reschedule). More would only move the backlog from
/// the rings, whose size the user chose and whose losses are counted, into memory.
pub const CAPACITY_DEFAULT: usize = 64;

/// Item of a channel: reports the number of events in it.
pub trait EventCount {
    /// Returns the number of events.
    fn event_count(&self) -> u64;
}

impl EventCount for EventBatch {
    fn event_count(&self) -> u64 {
        self.events.len() as u64
    }
}
