//! Channel counters.
//!
//! *In*: items and events that a channel accepts and delivers. *Out*: [`ChannelStats`], also after
//! the channel is closed. *Invariant*: published = consumed + waiting.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

/// Number of items and of the events in them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Items.
    pub items: u64,
    /// Events in them, by [`crate::EventCount`].
    pub events: u64,
}

/// Channel counters. `consumed` is read first, so it never exceeds `published` of the same reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChannelStats {
    /// Accepted from publishers.
    pub published: Count,
    /// Delivered to the subscription.
    pub consumed: Count,
}

impl ChannelStats {
    /// Returns published, unconsumed items: waiting while the channel is in use, lost after both
    /// ends are gone.
    pub fn waiting(&self) -> Count {
        Count {
            items: self.published.items.saturating_sub(self.consumed.items),
            events: self.published.events.saturating_sub(self.consumed.events),
        }
    }
}

/// Handle to a channel's counters, valid also after both of its ends are gone.
#[derive(Clone, Debug, Default)]
pub struct ChannelStatsHandle(Arc<Shared>);

// Release and Acquire: a reader that sees an item consumed also sees it published.
#[derive(Debug, Default)]
struct Shared {
    published: AtomicCount,
    consumed: AtomicCount,
}

#[derive(Debug, Default)]
struct AtomicCount {
    items: AtomicU64,
    events: AtomicU64,
}

impl ChannelStatsHandle {
    /// Returns the current counters.
    pub fn stats(&self) -> ChannelStats {
        let consumed = self.0.consumed.read();
        ChannelStats { published: self.0.published.read(), consumed }
    }

    /// Counts before the item is sent, so that consumed never exceeds published.
    pub(crate) fn publishing(&self, events: u64) {
        self.0.published.add(events);
    }

    /// Takes back an item that a closed channel rejected.
    pub(crate) fn rejected(&self, events: u64) {
        self.0.published.items.fetch_sub(1, Release);
        self.0.published.events.fetch_sub(events, Release);
    }

    pub(crate) fn consumed(&self, events: u64) {
        self.0.consumed.add(events);
    }
}

impl AtomicCount {
    fn add(&self, events: u64) {
        self.items.fetch_add(1, Release);
        self.events.fetch_add(events, Release);
    }

    fn read(&self) -> Count {
        Count { items: self.items.load(Acquire), events: self.events.load(Acquire) }
    }
}
