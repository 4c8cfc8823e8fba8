//! Connection of the pool.
//!
//! *In*: a socket that is readable or writable. *Out*: requests to execute, and replies written
//! under their own lock. *Invariant*: one thread at a time reads. The thread that executed a
//! request sends its reply, and no thread waits for a client that does not read.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::accepted::AcceptedConnection;
use crate::client::{Client, Reservation};
use crate::connection_name::ConnectionName;
use crate::protocol::request_decoder::{ReceivedRequest, RequestDecoder};
use crate::protocol::{Command, Session};
use crate::request_span::RequestSpan;
use crate::send_queue::{QueuedReply, SendQueue};

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
    /// Requests that may begin. With `more`, another one has arrived, which has no room.
    Requests { more: bool },
    /// No complete request has arrived.
    WouldBlock,
    /// The next request has no room.
    OverBudget,
    /// No further request will arrive: the client disconnected, or violated the protocol.
    Closed,
}

pub(super) struct Connection {
    pub(super) client: Arc<Client>,
    pub(super) session: Session,
    name: Option<ConnectionName>,
    decoder: Mutex<RequestDecoder>,
    send_queue: Mutex<SendQueue>,
    /// True if no thread reads until the next request has room.
    pub(super) paused: AtomicBool,
    /// True if no further request is read. The connection closes after the requests in flight.
    ending: AtomicBool,
    finished: AtomicBool,
}

impl Connection {
    pub(super) fn new(accepted: AcceptedConnection) -> Self {
        Self {
            client: accepted.client,
            session: accepted.session,
            name: accepted.name,
            decoder: Mutex::new(RequestDecoder::at_offset(accepted.stream_offset)),
            send_queue: Mutex::default(),
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
            while more {
                match decoder.next_header().map(|next| self.client.reserve(&next)) {
                    Some(Reservation::NoRoom) => break,
                    Some(Reservation::ClientGone) => return self.end(),
                    Some(Reservation::Made) | None => {}
                }
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
            match (&self.client.socket).read(decoder.space()) {
                Ok(0) => return self.end(),
                Ok(bytes) => {
                    self.client.count_received();
                    decoder.filled(bytes);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return ReadResult::WouldBlock,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.end(),
            }
        }
    }

    fn begin(&self, received: ReceivedRequest) -> PendingRequest {
        let span = RequestSpan::begin(&received, self.name.as_ref());
        PendingRequest { cost: self.client.begin(&received.request), received, span }
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
        let mut taken = false;
        while !queue.is_empty() {
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(SLICES_MAX);
            queue.slices(&mut slices, SLICES_MAX);
            let written = (&self.client.socket).write_vectored(&slices);
            drop(slices);
            let released = match written {
                Ok(bytes) if bytes > 0 => {
                    taken = true;
                    queue.advance(bytes)
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.client.count_sent(taken, true);
                    return true;
                }
                _ => {
                    self.ending.store(true, Ordering::SeqCst);
                    // Makes a read of another thread fail.
                    self.client.socket.shutdown(Shutdown::Both);
                    queue.discard()
                }
            };
            self.client.release(released);
        }
        self.client.count_sent(taken, false);
        false
    }

    /// Returns whether the connection is ending and has no request in flight. Returns true only
    /// once.
    pub(super) fn is_finished(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
            && self.client.is_unserved()
            && !self.finished.swap(true, Ordering::SeqCst)
    }
}

/// Locks a mutex. A panic of another holder does not matter: no update of the content has two
/// steps, so the content is consistent.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
