//! Byte budget of one connection: the limit of its requests in flight.
//!
//! *In*: requests that begin and end. *Out*: whether the next request may begin. *Invariant*: one
//! connection uses at most [`BUDGET_BYTES`], its largest request and its decoder's buffer,
//! whatever the client requests, and also if it reads no reply.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::protocol::request_decoder::ReceivedRequest;
use crate::send_queue::Released;

/// Bytes for the requests of one connection: 500 small ones, or two of the largest.
const BUDGET_BYTES: usize = 64 << 20;
/// Bytes that a request is charged in addition to its data. They limit the number of requests in
/// flight to 512.
const REQUEST_BYTES: usize = 128 << 10;

/// Bytes and requests in flight of one connection.
#[derive(Debug, Default)]
pub(crate) struct ByteBudget {
    charged: AtomicUsize,
    requests: AtomicUsize,
}

impl ByteBudget {
    /// Returns whether another request may begin.
    pub(crate) fn has_room(&self) -> bool {
        self.charged.load(Ordering::SeqCst) < BUDGET_BYTES
    }

    /// Charges a request that begins. Returns its cost, which the caller releases when it ends.
    pub(crate) fn charge(&self, received: &ReceivedRequest) -> usize {
        let cost = REQUEST_BYTES + received.request.data_bytes();
        self.charged.fetch_add(cost, Ordering::SeqCst);
        self.requests.fetch_add(1, Ordering::SeqCst);
        cost
    }

    pub(crate) fn release(&self, released: Released) {
        self.charged.fetch_sub(released.cost, Ordering::SeqCst);
        self.requests.fetch_sub(released.requests, Ordering::SeqCst);
    }

    /// Returns whether no request is in flight.
    pub(crate) fn is_idle(&self) -> bool {
        self.requests.load(Ordering::SeqCst) == 0
    }
}
