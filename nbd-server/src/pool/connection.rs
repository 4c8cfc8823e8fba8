//! Connection of the pool.
//!
//! *In*: a socket that is readable or writable. *Out*: requests to execute, and replies written
//! under their own lock. *Invariant*: one thread at a time reads. The thread that executed a
//! request sends its reply, and no thread waits for a client that does not read.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::accepted::AcceptedConnection;
use crate::byte_budget::ByteBudget;
use crate::connection_name::ConnectionName;
use crate::protocol::request_decoder::{ReceivedRequest, RequestDecoder};
use crate::protocol::{Command, Session};
use crate::request_span::RequestSpan;
use crate::send_queue::{QueuedReply, SendQueue};
use crate::socket::Socket;

/// Largest number of replies in one write.
const SLICES_MAX: usize = 64;

/// Request that was read and not yet executed.
pub(super) struct PendingRequest {
    pub(super) received: ReceivedRequest,
    pub(super) cost: usize,
    pub(super) span: RequestSpan,
}

/// Result of a read from the socket.
pub(super) enum ReadResult {
    /// Requests that may begin. With `more`, the budget is exhausted and further requests may have
    /// arrived.
    Requests { more: bool },
    /// No complete request has arrived.
    WouldBlock,
    /// The budget is exhausted.
    OverBudget,
    /// No further request will arrive: the client disconnected, or violated the protocol.
    Closed,
}

pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) session: Session,
    name: Option<ConnectionName>,
    decoder: Mutex<RequestDecoder>,
    send_queue: Mutex<SendQueue>,
    pub(super) budget: ByteBudget,
    /// True if no thread reads until a request in flight ends.
    pub(super) paused: AtomicBool,
    /// True if no further request is read. The connection closes after the requests in flight.
    ending: AtomicBool,
    finished: AtomicBool,
}

impl Connection {
    pub(super) fn new(accepted: AcceptedConnection) -> Self {
        Self {
            socket: accepted.socket,
            session: accepted.session,
            name: accepted.name,
            decoder: Mutex::new(RequestDecoder::at_offset(accepted.stream_offset)),
            send_queue: Mutex::default(),
            budget: ByteBudget::default(),
            paused: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            finished: AtomicBool::new(false),
        }
    }

    /// Locks the decoder, which is the right to read. A thread may execute the requests that it
    /// read before it unlocks.
    pub(super) fn lock_decoder(&self) -> MutexGuard<'_, RequestDecoder> {
        lock(&self.decoder)
    }

    /// Appends requests to `batch`: those that are decoded already, or those of one read.
    pub(super) fn read_requests(
        &self,
        decoder: &mut RequestDecoder,
        batch: &mut Vec<PendingRequest>,
    ) -> ReadResult {
        loop {
            let mut more = true;
            while more && self.budget.has_room() {
                match decoder.next() {
                    Ok(Some(received)) if received.request.command == Command::Disconnect => {
                        return self.end();
                    }
                    Ok(Some(received)) => batch.push(self.begin(received)),
                    Ok(None) => more = false,
                    // Not logged: a faulty client could fill the log.
                    Err(_) => return self.end(),
                }
            }
            if !batch.is_empty() {
                return ReadResult::Requests { more };
            }
            if more {
                return ReadResult::OverBudget;
            }
            match (&self.socket).read(decoder.space()) {
                Ok(0) => return self.end(),
                Ok(bytes) => decoder.filled(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadResult::WouldBlock,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.end(),
            }
        }
    }

    fn begin(&self, received: ReceivedRequest) -> PendingRequest {
        let span = RequestSpan::begin(&received, self.name.as_ref());
        PendingRequest { cost: self.budget.charge(&received), received, span }
    }

    fn end(&self) -> ReadResult {
        self.ending.store(true, Ordering::SeqCst);
        ReadResult::Closed
    }

    /// Sends the queued replies and then `replies`. Returns true if some remain until the socket is
    /// writable.
    pub(super) fn send(&self, replies: &mut Vec<QueuedReply>) -> bool {
        let mut queue = lock(&self.send_queue);
        replies.drain(..).for_each(|reply| queue.push(reply));
        while !queue.is_empty() {
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(SLICES_MAX);
            queue.slices(&mut slices, SLICES_MAX);
            let written = (&self.socket).write_vectored(&slices);
            drop(slices);
            let released = match written {
                Ok(bytes) if bytes > 0 => queue.advance(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                _ => {
                    self.ending.store(true, Ordering::SeqCst);
                    // Makes a read of another thread fail.
                    self.socket.shutdown(Shutdown::Both);
                    queue.discard()
                }
            };
            self.budget.release(released);
        }
        false
    }

    /// Returns whether the connection is ending and has no request in flight. Returns true only
    /// once.
    pub(super) fn is_finished(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
            && self.budget.is_idle()
            && !self.finished.swap(true, Ordering::SeqCst)
    }
}

/// Locks a mutex. A panic of another holder does not matter: no update of the content has two
/// steps, so the content is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
