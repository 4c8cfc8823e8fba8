//! A connected client: the state of its connection that both backends share.
//!
//! *In*: headers of requests, the end of requests, and progress of the socket. *Out*: whether the
//! next request may begin, and whether the client is idle or stalls. *Invariant*: one connection
//! has at most [`BUDGET_BYTES`], its largest request and [`REQUESTS_MAX`] requests in flight,
//! whatever the client requests, and also if it reads no reply. What it was charged to the shared
//! [`Memory`] returns when the client is dropped, at the latest.
//!
//! One thread at a time calls [`reserve`](Client::reserve) and [`begin`](Client::begin): the one
//! that reads from the connection.

use std::net::Shutdown;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

use crate::memory::{Memory, Waiter};
use crate::protocol::Request;
use crate::send_queue::Released;
use crate::socket::Socket;

/// Bytes for the requests of one connection: two of the largest.
const BUDGET_BYTES: usize = 64 << 20;
/// Largest number of requests in flight of one connection.
const REQUESTS_MAX: usize = 512;

/// Connected client.
#[derive(Debug)]
pub(crate) struct Client {
    pub(crate) socket: Socket,
    memory: Arc<Memory>,
    pub(crate) waiter: Arc<Waiter>,
    /// Bytes that were charged to the memory, except for those that were granted and not taken.
    charged: AtomicUsize,
    /// Number of requests that began and did not end.
    requests: AtomicUsize,
    /// Number of reads of bytes, and of ends of waits for memory.
    received: AtomicU32,
    /// Number of sends of bytes, and of begins of waits for the socket.
    sent: AtomicU32,
    /// True while replies wait for the socket.
    awaits_socket: AtomicBool,
}

/// Outcome of a request for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reservation {
    Made,
    /// The connection must not be read further until [`Client::may_read`] returns true after the
    /// end of a request, or until it is woken.
    NoRoom,
    /// The client closed the connection while its request waited.
    ClientGone,
}

/// Progress of a client: two counters, of which any change is progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Progress {
    pub(crate) received: u32,
    pub(crate) sent: u32,
}

/// Activity of a client, as far as the server must react if it takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Activity {
    /// Connected, with no request in flight.
    Idle,
    /// Replies wait for the socket.
    Reads,
    /// The data of the only request is incomplete.
    Writes,
    /// Requests are executed, or wait for memory.
    Served,
}

impl Client {
    pub(crate) fn new(socket: Socket, memory: Arc<Memory>) -> Arc<Self> {
        Arc::new(Self {
            socket,
            waiter: Waiter::new(Arc::clone(&memory)),
            memory,
            charged: AtomicUsize::new(0),
            requests: AtomicUsize::new(0),
            received: AtomicU32::new(0),
            sent: AtomicU32::new(0),
            awaits_socket: AtomicBool::new(false),
        })
    }

    /// Reserves the memory of the next request, whose header arrived.
    pub(crate) fn reserve(&self, request: &Request) -> Reservation {
        let cost = Memory::cost(request);
        let may_exceed = Memory::is_small(cost) && self.is_unused();
        // Only this thread begins a wait, so without one the memory was granted before or not at all.
        if self.waiter.wanted().is_some() {
            if !(may_exceed && self.waiter.cancel()) {
                return self.take_granted();
            }
            self.count_received();
        } else if self.waiter.granted().is_some() {
            return self.take_granted();
        }
        if !self.has_room() {
            return Reservation::NoRoom;
        }
        if may_exceed {
            self.memory.charge(cost);
        } else if !self.memory.try_charge(cost) {
            self.waiter.wait(cost);
            return self.take_granted();
        }
        self.charged.fetch_add(cost, Ordering::SeqCst);
        Reservation::Made
    }

    /// Takes the memory that was granted to a request that waited. Many clients may have given up
    /// meanwhile, and their requests would delay the others.
    fn take_granted(&self) -> Reservation {
        let Some(cost) = self.waiter.granted() else { return Reservation::NoRoom };
        self.count_received();
        self.charged.fetch_add(cost, Ordering::SeqCst);
        self.waiter.take_granted();
        if self.socket.is_hung_up() { Reservation::ClientGone } else { Reservation::Made }
    }

    /// Begins the request whose memory was reserved. Returns its cost, which the caller releases
    /// when it ends.
    pub(crate) fn begin(&self, request: &Request) -> usize {
        self.requests.fetch_add(1, Ordering::SeqCst);
        Memory::cost(request)
    }

    pub(crate) fn release(&self, released: Released) {
        if released.requests == 0 {
            return;
        }
        self.charged.fetch_sub(released.cost, Ordering::SeqCst);
        self.requests.fetch_sub(released.requests, Ordering::SeqCst);
        self.memory.release(released.cost);
    }

    /// Returns whether [`reserve`](Self::reserve) may succeed.
    pub(crate) fn may_read(&self) -> bool {
        match self.waiter.wanted() {
            Some(cost) => Memory::is_small(cost) && self.is_unused(),
            None => self.waiter.granted().is_some() || self.has_room(),
        }
    }

    /// Returns whether the connection's own budget has room.
    fn has_room(&self) -> bool {
        self.charged.load(Ordering::SeqCst) < BUDGET_BYTES
            && self.requests.load(Ordering::SeqCst) < REQUESTS_MAX
    }

    /// Returns whether no request is in flight.
    pub(crate) fn is_unserved(&self) -> bool {
        self.requests.load(Ordering::SeqCst) == 0
    }

    /// Returns whether no request is in flight, and none is received.
    fn is_unused(&self) -> bool {
        self.charged.load(Ordering::SeqCst) == 0
    }

    pub(crate) fn count_received(&self) {
        self.received.fetch_add(1, Ordering::SeqCst);
    }

    /// Records whether the socket took bytes, and whether replies wait for it now. One thread at a
    /// time calls it. The counter changes first, so a wait has no older count.
    pub(crate) fn count_sent(&self, taken: bool, awaits_socket: bool) {
        if taken || !self.awaits_socket.load(Ordering::SeqCst) {
            self.sent.fetch_add(1, Ordering::SeqCst);
        }
        self.awaits_socket.store(awaits_socket, Ordering::SeqCst);
    }

    pub(crate) fn activity(&self) -> Activity {
        let is_unserved = self.is_unserved();
        // Loaded in the order in which a wait ends.
        let waits = self.waiter.wanted().is_some() || self.waiter.granted().is_some();
        if self.awaits_socket.load(Ordering::SeqCst) {
            Activity::Reads
        } else if !is_unserved || waits {
            Activity::Served
        } else if self.is_unused() {
            Activity::Idle
        } else {
            Activity::Writes
        }
    }

    pub(crate) fn progress(&self) -> Progress {
        Progress { received: self.received.load(Ordering::SeqCst), sent: self.sent.load(Ordering::SeqCst) }
    }

    /// Shuts the connection down. The backend then ends it.
    pub(crate) fn close(&self) {
        self.socket.shutdown(Shutdown::Both);
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.memory.release(*self.charged.get_mut());
    }
}
