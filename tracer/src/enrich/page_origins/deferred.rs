//! Origins of bios that are deferred until their operation ends: whether the bio's own record comes is known then.
//!
//! *In*: bios whose origin is known, and their own records. *Out*: the origins of those that came, no earlier
//! than their bio. *Invariant*: an origin without its bio leaves this stage never. So no trace is opened for an
//! operation that was dropped.
//!
//! An operation may take long. Its origin waits for [`DEFERRED_MAX`], and until [`ORIGINS_MAX`] younger ones wait; then
//! it is forgotten, and the bio comes without it.

use std::collections::{HashMap, VecDeque};

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::SpanId;
use blkkin_wire::page_origin::PageOriginEvent;

/// Time in ns for which an origin waits for its bio's record.
const DEFERRED_MAX: u64 = 60_000_000_000;
/// Maximum number of bios whose record is awaited: 16 MiB.
const ORIGINS_MAX: usize = 65_536;

/// The bios whose record may never come.
#[derive(Default)]
pub(super) struct DeferredOrigins {
    bios: HashMap<SpanId, Option<PageOriginEvent>>,
    order: VecDeque<(MonotonicNs, SpanId)>,
}

impl DeferredOrigins {
    /// Awaits the record of a bio that was queued at this time. The oldest makes room; returns false if its origin is
    /// not complete yet.
    pub(super) fn begin(&mut self, bio: SpanId, queued: MonotonicNs) -> bool {
        if self.order.len() >= ORIGINS_MAX {
            let oldest = self.order.front().and_then(|(_, bio)| self.bios.get(bio));
            if matches!(oldest, Some(None)) {
                return false;
            }
            self.order.pop_front().and_then(|(_, bio)| self.bios.remove(&bio));
        }
        self.bios.insert(bio, None);
        self.order.push_back((queued, bio));
        true
    }

    /// Takes an origin whose bio's record has not come. Returns it if that is not awaited. The origin of a bio that
    /// is dropped, which has no span, goes.
    pub(super) fn take(&mut self, event: PageOriginEvent) -> Option<PageOriginEvent> {
        if event.bio == SpanId(0) {
            return None;
        }
        match self.bios.get_mut(&event.bio) {
            None => Some(event),
            Some(place) => {
                *place = Some(event);
                None
            }
        }
    }

    /// Takes the record of a bio into account. Returns its origin if that is known.
    pub(super) fn end(&mut self, bio: SpanId) -> Option<PageOriginEvent> {
        self.bios.remove(&bio).flatten()
    }

    /// Forgets what has waited for too long. Each origin that was complete by then has been taken.
    pub(super) fn expire(&mut self, now: MonotonicNs) {
        let is_over = |(queued, _): &mut (MonotonicNs, SpanId)| now.0.saturating_sub(queued.0) > DEFERRED_MAX;
        while let Some((_, bio)) = self.order.pop_front_if(is_over) {
            self.bios.remove(&bio);
        }
    }
}
