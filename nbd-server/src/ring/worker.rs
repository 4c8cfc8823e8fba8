//! Thread of a ring.
//!
//! *In*: completions and messages. *Out*: entries. *Invariant*: each iteration visits every
//! connection with an event. It leaves the connection receiving, sending, waiting for the file, or
//! closed.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use slab::Slab;

use crate::export::{EncodedReply, Export};
use crate::protocol::request_decoder::ReceivedRequest;
use crate::request_span::RequestSpan;
use crate::send_queue::QueuedReply;

use super::connection::Connection;
use super::file_io::{FileIo, Progress};
use super::offload::{Message, MessageQueue, OffloadPool, OffloadedRequest};
use super::ring_queue::RingQueue;

/// Kinds of entries: the upper half of an entry's user data. The lower half is the number of the
/// connection or of the file I/O.
const MESSAGES: u64 = 0;
const RECEIVED: u64 = 1;
const SENT: u64 = 2;
const FILE_IO: u64 = 3;

/// Number of requests of one connection that begin in one iteration. The client processes their
/// replies while the next ones are executed.
const REQUESTS_MAX: usize = 8;

pub(super) struct Worker {
    ring: RingQueue,
    export: Arc<Export>,
    offload_pool: Arc<OffloadPool>,
    messages: Arc<MessageQueue>,
    connections: Slab<Connection>,
    file_ios: Slab<FileIo>,
    /// Number of connections of all rings.
    connection_count: Arc<AtomicUsize>,
    /// Connections with an event in this iteration.
    due: Vec<usize>,
    stopping: bool,
}

impl Worker {
    pub(super) fn new(
        export: Arc<Export>,
        offload_pool: Arc<OffloadPool>,
        messages: Arc<MessageQueue>,
        connection_count: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        Ok(Self {
            ring: RingQueue::new()?,
            export,
            offload_pool,
            messages,
            connections: Slab::new(),
            file_ios: Slab::new(),
            connection_count,
            due: Vec::new(),
            stopping: false,
        })
    }

    pub(super) fn run(mut self) {
        let _guard = AbortOnPanic;
        self.poll_messages();
        let mut completions: Vec<(u64, i32)> = Vec::new();
        loop {
            self.ring.submit_and_wait(&mut completions);
            for (user_data, result) in completions.drain(..) {
                self.on_completed(user_data, result);
            }
            self.visit_due();
            if self.stopping && self.connections.is_empty() {
                return;
            }
        }
    }

    fn on_completed(&mut self, user_data: u64, result: i32) {
        let number = (user_data & u64::from(u32::MAX)) as usize;
        match user_data >> 32 {
            MESSAGES => {
                let messages = Arc::clone(&self.messages);
                messages.drain().into_iter().for_each(|message| self.on_message(message));
                self.poll_messages();
            }
            RECEIVED => self.update(number, |connection| connection.on_received(result)),
            SENT => self.update(number, |connection| connection.on_sent(result)),
            _ => match self.file_ios[number].on_completed(result) {
                Progress::Resubmit => self.submit(number),
                Progress::Complete(reply) => {
                    let done = self.file_ios.remove(number);
                    let reply = QueuedReply::new(reply, done.cost, done.span);
                    self.update(done.connection, |connection| connection.push(reply));
                }
            },
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Serve(accepted) => {
                let entry = self.connections.vacant_entry();
                let (number, messages) = (entry.key(), Arc::clone(&self.messages));
                accepted.client.waiter.on_wake(move || messages.send(Message::Due(number)));
                entry.insert(Connection::new(*accepted));
                self.due.push(number);
            }
            // The connection may have ended, and another one may have its number, for which a visit
            // has no effect.
            Message::Due(number) if self.connections.contains(number) => self.due.push(number),
            Message::Due(_) => {}
            Message::Reply(number, reply) => self.update(number, |connection| connection.push(*reply)),
            Message::StopReading => self.shutdown(Shutdown::Read),
            Message::Stop => {
                self.stopping = true;
                self.shutdown(Shutdown::Both);
            }
        }
    }

    fn shutdown(&mut self, how: Shutdown) {
        self.connections.iter().for_each(|(_, connection)| connection.shutdown(how));
    }

    fn update(&mut self, number: usize, change: impl FnOnce(&mut Connection)) {
        change(&mut self.connections[number]);
        self.due.push(number);
    }

    /// Begins requests, receives and sends of the connections that are due.
    fn visit_due(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        due.sort_unstable();
        due.dedup();
        for number in due.drain(..) {
            let all_taken = self.begin_requests(number);
            let connection = &mut self.connections[number];
            let received = if all_taken { connection.receive() } else { None };
            let sent = connection.send();
            if connection.is_finished() {
                self.connections.remove(number);
                self.connection_count.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            for (kind, entry) in [(SENT, sent), (RECEIVED, received)] {
                if let Some(entry) = entry {
                    self.push(entry, kind, number);
                }
            }
        }
        // Keeps the vector's allocation, and any connections that became due meanwhile.
        due.append(&mut self.due);
        self.due = due;
    }

    /// Begins up to [`REQUESTS_MAX`] requests that arrived; the end of one makes the connection due
    /// again. Returns whether no further request has arrived.
    fn begin_requests(&mut self, number: usize) -> bool {
        for _ in 0..REQUESTS_MAX {
            let Some((received, cost, span)) = self.connections[number].take_request() else { return true };
            self.begin(number, received, cost, span);
        }
        false
    }

    fn begin(&mut self, number: usize, received: ReceivedRequest, cost: usize, span: RequestSpan) {
        let connection = &mut self.connections[number];
        let (session, request) = (connection.session, received.request);
        if let Err(error) = request.check(self.export.info(), session) {
            connection.push(QueuedReply::new(EncodedReply::error(session, &request, error), cost, span));
        } else if FileIo::supports(request.command) {
            let file_io = FileIo::new(number, session, received, cost, span);
            let file_io = self.file_ios.insert(file_io);
            self.submit(file_io);
        } else {
            let reply_to = Arc::clone(&self.messages);
            self.offload_pool.push(OffloadedRequest {
                session,
                received,
                cost,
                span,
                connection: number,
                reply_to,
            });
        }
    }

    /// Submits the file I/O of this number. A traced one gets its own system call under its span.
    fn submit(&mut self, number: usize) {
        let entry = self.file_ios[number].entry(self.export.fd());
        if !self.file_ios[number].span.is_recorded() {
            return self.push(entry, FILE_IO, number);
        }
        self.ring.submit();
        self.push(entry, FILE_IO, number);
        let _entered = self.file_ios[number].span.enter();
        self.ring.submit();
    }

    /// Polls the message queue's eventfd, for one completion.
    fn poll_messages(&mut self) {
        let eventfd = Fd(self.messages.eventfd().as_raw_fd());
        self.push(opcode::PollAdd::new(eventfd, libc::POLLIN as u32).build(), MESSAGES, 0);
    }

    fn push(&mut self, entry: Entry, kind: u64, number: usize) {
        let entry = entry.user_data(kind << 32 | number as u64);
        // SAFETY: the memory belongs to a file I/O or a connection, which is removed only after the
        // completion of its entries.
        unsafe { self.ring.push(entry) };
    }
}

/// Guard that aborts the process on a panic: unwinding would free memory that the kernel writes to.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
