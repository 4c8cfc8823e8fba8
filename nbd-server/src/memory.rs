//! Memory for the requests of all connections, in one budget.
//!
//! *In*: requests whose header arrived, and requests that end. *Out*: whether a request may begin
//! now; else its connection reads no further and waits in a queue. *Invariants*:
//!
//! - Requests use at most the limit, and [`SMALL_BYTES`] and [`REQUEST_BYTES`] per connection.
//! - Each waiting request begins. A request reserves all of its memory at once, before its data is
//!   received, so no request in flight waits for memory. It ends: the file completes its I/O, and
//!   [`clients`](crate::clients) closes a connection whose client stalls. The queue is first in,
//!   first out, and the limit has room for the largest request.
//! - A connection with nothing in flight does not wait with a request of up to [`SMALL_BYTES`].
//!   That request may exceed the limit. So clients that fill the memory do not stop small requests.
//!
//! A request that does not wait costs a few atomic operations. Only a request that waits, and the
//! end of a request while others wait, lock the queue.
//!
//! *Rejected*: an equal share for each connection (few clients would use a fraction of the memory);
//! one reserved request beyond the limit (one client that stalls would stop all others).

use std::collections::VecDeque;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak};

use crate::protocol::{PAYLOAD_MAX, Request};

/// Bytes that a request is charged in addition to its data: its state, or a block status reply.
pub(crate) const REQUEST_BYTES: usize = 4 << 10;
/// Largest data of a request that begins beyond the limit, one for each connection.
const SMALL_BYTES: usize = 64 << 10;
/// Smallest limit: the largest request, twice.
pub const MEMORY_MIN: usize = 2 * (PAYLOAD_MAX as usize);

/// Shared budget.
#[derive(Debug)]
pub(crate) struct Memory {
    limit: usize,
    charged: AtomicUsize,
    /// Length of the queue.
    waiting: AtomicUsize,
    /// Connections that wait, and connections whose small request began meanwhile.
    queue: Mutex<VecDeque<Weak<Waiter>>>,
}

/// Wait of one connection for memory. Only the thread that reads from the connection begins a wait,
/// ends it, and takes what was granted.
pub(crate) struct Waiter {
    memory: Arc<Memory>,
    /// Cost of the request that waits; 0 if none waits. It changes while the queue is locked.
    wanted: AtomicUsize,
    /// Cost that was charged for the request that waited, and was not taken yet.
    granted: AtomicUsize,
    /// True if the connection has a place in the queue.
    queued: AtomicBool,
    /// Reads on from the connection.
    wake: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl Memory {
    pub(crate) fn new(limit: usize) -> Arc<Self> {
        Arc::new(Self {
            limit: limit.max(MEMORY_MIN),
            charged: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            queue: Mutex::default(),
        })
    }

    /// Returns the bytes that a request is charged.
    pub(crate) fn cost(request: &Request) -> usize {
        REQUEST_BYTES + request.data_bytes()
    }

    /// Returns whether a request of this cost may exceed the limit.
    pub(crate) fn is_small(cost: usize) -> bool {
        cost <= REQUEST_BYTES + SMALL_BYTES
    }

    /// Charges `cost`, whether or not there is room.
    pub(crate) fn charge(&self, cost: usize) {
        self.charged.fetch_add(cost, Ordering::SeqCst);
    }

    /// Charges `cost` if there is room and no other connection waits for it.
    pub(crate) fn try_charge(&self, cost: usize) -> bool {
        self.waiting.load(Ordering::SeqCst) == 0 && self.charge_within_limit(cost)
    }

    fn charge_within_limit(&self, cost: usize) -> bool {
        let fits = |charged: usize| Some(charged + cost).filter(|sum| *sum <= self.limit);
        self.charged.fetch_update(Ordering::SeqCst, Ordering::SeqCst, fits).is_ok()
    }

    pub(crate) fn release(&self, cost: usize) {
        self.charged.fetch_sub(cost, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.grant();
        }
    }

    /// Charges the requests at the front of the queue that have room, and wakes their connections.
    fn grant(&self) {
        // The drop of a waiter locks the queue, so it follows the unlock.
        let (mut granted, mut others) = (Vec::new(), Vec::new());
        let mut queue = self.lock_queue();
        while let Some(front) = queue.front() {
            let waiter = front.upgrade();
            let wanted = waiter.as_ref().and_then(|waiter| waiter.wanted());
            if wanted.is_some_and(|cost| !self.charge_within_limit(cost)) {
                others.extend(waiter);
                break;
            }
            queue.pop_front();
            let Some(waiter) = waiter else { continue };
            waiter.queued.store(false, Ordering::SeqCst);
            match wanted {
                Some(cost) => {
                    waiter.granted.store(cost, Ordering::SeqCst);
                    waiter.wanted.store(0, Ordering::SeqCst);
                    granted.push(waiter);
                }
                None => others.push(waiter),
            }
        }
        self.waiting.store(queue.len(), Ordering::SeqCst);
        drop(queue);
        granted.iter().filter_map(|waiter| waiter.wake.get()).for_each(|wake| wake());
    }

    fn lock_queue(&self) -> MutexGuard<'_, VecDeque<Weak<Waiter>>> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiter {
    pub(crate) fn new(memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            memory,
            wanted: AtomicUsize::new(0),
            granted: AtomicUsize::new(0),
            queued: AtomicBool::new(false),
            wake: OnceLock::new(),
        })
    }

    /// Sets what reads on from the connection.
    pub(crate) fn on_wake(&self, wake: impl Fn() + Send + Sync + 'static) {
        // A backend sets it once, before it reads.
        let _ = self.wake.set(Box::new(wake));
    }

    /// Begins to wait for `cost` bytes. The connection keeps an earlier place in the queue.
    pub(crate) fn wait(self: &Arc<Self>, cost: usize) {
        let mut queue = self.memory.lock_queue();
        self.wanted.store(cost, Ordering::SeqCst);
        if !self.queued.swap(true, Ordering::SeqCst) {
            queue.push_back(Arc::downgrade(self));
            self.memory.waiting.store(queue.len(), Ordering::SeqCst);
        }
        drop(queue);
        // Memory may have been released before this connection was in the queue.
        self.memory.grant();
    }

    /// Ends the wait; the place in the queue stays. Returns false if the memory was granted
    /// meanwhile.
    pub(crate) fn cancel(&self) -> bool {
        let _queue = self.memory.lock_queue();
        self.wanted.swap(0, Ordering::SeqCst) > 0
    }

    /// Returns the cost of the request that waits.
    pub(crate) fn wanted(&self) -> Option<usize> {
        Some(self.wanted.load(Ordering::SeqCst)).filter(|cost| *cost > 0)
    }

    /// Returns the cost that was granted and not yet taken.
    pub(crate) fn granted(&self) -> Option<usize> {
        Some(self.granted.load(Ordering::SeqCst)).filter(|cost| *cost > 0)
    }

    /// Takes what was granted. The caller releases it later.
    pub(crate) fn take_granted(&self) {
        self.granted.store(0, Ordering::SeqCst);
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.memory.release(*self.granted.get_mut());
    }
}

impl fmt::Debug for Waiter {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Waiter").field("wanted", &self.wanted).finish_non_exhaustive()
    }
}
