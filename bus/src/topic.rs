//! A topic inside one process: a bounded channel of the standard library with its books kept.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::Duration;

use crate::Weighted;
use crate::counts::{Counts, Meter};

/// Makes a topic that holds `capacity` items ([`crate::CAPACITY_DEFAULT`] unless there is a reason) before its
/// publishers wait. With 0 each publisher waits until its item is taken.
pub fn topic<T: Weighted>(capacity: usize) -> (Publisher<T>, Subscription<T>) {
    let (sender, receiver) = sync_channel(capacity);
    let meter = Meter::default();
    (Publisher { sender, meter: meter.clone() }, Subscription { receiver, meter })
}

/// The end that puts items in. Clones publish to the same topic; it closes with the last of them.
#[derive(Debug)]
pub struct Publisher<T> {
    sender: SyncSender<T>,
    meter: Meter,
}

/// Nobody reads the topic any more: the subscription is gone, and so is what was published to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Closed;

impl<T: Weighted> Publisher<T> {
    /// Puts `item` in; waits while the topic is full.
    pub fn publish(&self, item: T) -> Result<(), Closed> {
        let weight = item.weight();
        self.meter.publishing(weight);
        self.sender.send(item).map_err(|_| {
            self.meter.refused(weight);
            Closed
        })
    }

    /// Reads this topic's totals, also after the topic is gone.
    pub fn meter(&self) -> Meter {
        self.meter.clone()
    }
}

// Not derived: that would ask for T: Clone.
impl<T> Clone for Publisher<T> {
    fn clone(&self) -> Self {
        Publisher { sender: self.sender.clone(), meter: self.meter.clone() }
    }
}

/// What a subscription had to give.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Next<T> {
    /// The next item.
    Item(T),
    /// Nothing came in the time given.
    Timeout,
    /// The last publisher is gone and everything was consumed.
    Closed,
}

/// The end that takes items out.
#[derive(Debug)]
pub struct Subscription<T> {
    receiver: Receiver<T>,
    meter: Meter,
}

impl<T: Weighted> Subscription<T> {
    /// Waits at most `timeout` for the next item.
    pub fn next(&mut self, timeout: Duration) -> Next<T> {
        match self.receiver.recv_timeout(timeout) {
            Ok(item) => {
                self.meter.consumed(item.weight());
                Next::Item(item)
            }
            Err(RecvTimeoutError::Timeout) => Next::Timeout,
            Err(RecvTimeoutError::Disconnected) => Next::Closed,
        }
    }

    /// This topic's totals now.
    pub fn counts(&self) -> Counts {
        self.meter.counts()
    }
}

impl std::fmt::Display for Closed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("nobody reads the topic any more")
    }
}

impl std::error::Error for Closed {}

#[cfg(test)]
#[path = "topic_tests.rs"]
mod tests;
