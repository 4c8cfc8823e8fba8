//! How much of one client's may be under way at once.
//!
//! *In*: requests that begin and end. *Out*: whether another one may begin. *Invariant*: what one connection holds of memory
//! is no more than [`HELD_MAX`], its largest request and its intake: whatever it asks, and if it never reads a reply.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::outbox::Released;
use crate::protocol::intake::Incoming;

/// Bytes that one connection's requests may hold: 500 small ones, or two of the largest.
const HELD_MAX: usize = 64 << 20;
/// What a request holds besides its data: so counted that no more than 512 are under way.
const EACH: usize = 128 << 10;

/// What a connection holds.
#[derive(Debug, Default)]
pub(crate) struct Allowance {
    held: AtomicUsize,
    requests: AtomicUsize,
}

impl Allowance {
    /// Whether another request may begin.
    pub(crate) fn is_left(&self) -> bool {
        self.held.load(Ordering::SeqCst) < HELD_MAX
    }

    /// It begins: what it holds, to be given back.
    pub(crate) fn take(&self, incoming: &Incoming) -> usize {
        let cost = EACH + incoming.request.data();
        self.held.fetch_add(cost, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
        cost
    }

    pub(crate) fn give_back(&self, released: Released) {
        self.held.fetch_sub(released.cost, Ordering::SeqCst);
        self.requests.fetch_sub(released.requests, Ordering::SeqCst);
    }

    /// Nothing is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::SeqCst) == 0
    }
}
