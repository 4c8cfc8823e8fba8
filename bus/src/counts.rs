//! What went into a topic and what came out: published = consumed + waiting.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

/// So many items, which stand for so many events.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Items.
    pub items: u64,
    /// Events in them, by [`crate::Weighted`].
    pub events: u64,
}

/// A topic's totals. `consumed` is read first: it never exceeds `published` of the same reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Accepted from publishers.
    pub published: Count,
    /// Given to the subscription.
    pub consumed: Count,
}

impl Counts {
    /// Published and not consumed: waiting while the topic is in use, lost when both ends are gone.
    pub fn waiting(&self) -> Count {
        Count {
            items: self.published.items.saturating_sub(self.consumed.items),
            events: self.published.events.saturating_sub(self.consumed.events),
        }
    }
}

/// Reads a topic's totals, also after both of its ends are gone.
#[derive(Clone, Debug, Default)]
pub struct Meter(Arc<Shared>);

// Release and Acquire: whoever sees an item consumed also sees it published.
#[derive(Debug, Default)]
struct Shared {
    published: Tally,
    consumed: Tally,
}

#[derive(Debug, Default)]
struct Tally {
    items: AtomicU64,
    events: AtomicU64,
}

impl Meter {
    /// The totals now.
    pub fn counts(&self) -> Counts {
        let consumed = self.0.consumed.read();
        Counts { published: self.0.published.read(), consumed }
    }

    /// Before the item is sent, so that nothing is consumed that was not published.
    pub(crate) fn publishing(&self, weight: u64) {
        self.0.published.add(weight);
    }

    /// The topic was closed: the item never entered.
    pub(crate) fn refused(&self, weight: u64) {
        self.0.published.items.fetch_sub(1, Release);
        self.0.published.events.fetch_sub(weight, Release);
    }

    pub(crate) fn consumed(&self, weight: u64) {
        self.0.consumed.add(weight);
    }
}

impl Tally {
    fn add(&self, weight: u64) {
        self.items.fetch_add(1, Release);
        self.events.fetch_add(weight, Release);
    }

    fn read(&self) -> Count {
        Count { items: self.items.load(Acquire), events: self.events.load(Acquire) }
    }
}
