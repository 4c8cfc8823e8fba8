//! Channel inside one process: a bounded channel of the standard library with counters.
//!
//! *In*: items of [`Publisher`]s. *Out*: the same items to one [`Subscription`]. *Invariant*: an
//! item is counted as published before it can be counted as consumed.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::EventCount;
use crate::stats::{ChannelStats, ChannelStatsHandle};

/// Creates a channel with room for `capacity` items ([`crate::CAPACITY_DEFAULT`] unless there is a
/// reason). With capacity 0 each publisher waits until its item is taken.
pub fn channel<T: EventCount>(capacity: usize) -> (Publisher<T>, Subscription<T>) {
    let (sender, receiver) = sync_channel(capacity);
    let stats = ChannelStatsHandle::default();
    (Publisher { sender, stats: stats.clone() }, Subscription { receiver, stats })
}

/// Sending end. Clones publish to the same channel, which closes with the last of them.
#[derive(Debug)]
pub struct Publisher<T> {
    sender: SyncSender<T>,
    stats: ChannelStatsHandle,
}

/// Error: the subscription was dropped, and with it all unconsumed items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl<T: EventCount> Publisher<T> {
    /// Sends `item`; waits while the channel is full.
    pub fn publish(&self, item: T) -> Result<(), Closed> {
        let events = item.event_count();
        self.stats.publishing(events);
        self.sender.send(item).map_err(|_| {
            self.stats.rejected(events);
            Closed
        })
    }

    /// Returns a handle to the counters, valid also after the channel is gone.
    pub fn stats_handle(&self) -> ChannelStatsHandle {
        self.stats.clone()
    }
}

// Not derived: a derived implementation would require T: Clone.
impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        Publisher { sender: self.sender.clone(), stats: self.stats.clone() }
    }
}

/// Result of a receive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// Next item.
    Item(T),
    /// No item arrived within the timeout.
    Timeout,
    /// The last publisher is gone and every item was consumed.
    Closed,
}

/// Receiving end.
#[derive(Debug)]
pub struct Subscription<T> {
    receiver: Receiver<T>,
    stats: ChannelStatsHandle,
}

impl<T: EventCount> Subscription<T> {
    /// Waits up to `timeout` for the next item.
    pub fn next(&mut self, timeout: Duration) -> Next<T> {
        match self.receiver.recv_timeout(timeout) {
            Ok(item) => {
                self.stats.consumed(item.event_count());
                Next::Item(item)
            }
            Err(RecvTimeoutError::Timeout) => Next::Timeout,
            Err(RecvTimeoutError::Disconnected) => Next::Closed,
        }
    }

    /// Returns the current counters.
    pub fn stats(&self) -> ChannelStats {
        self.stats.stats()
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("the subscription of this channel was dropped")
    }
}

impl std::error::Error for Closed {}

#[cfg(test)]
#[path = "channel_tests.rs"]
mod tests;
