//! Threads for requests that a ring does not execute, and the message queue of each ring.
//!
//! *In*: requests that block. *Out*: their replies, as messages to the connection's ring.
//! *Invariant*: no message is lost: the sender queues it before it signals the eventfd, and the
//! ring reads the queue after the signal.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use crate::accepted::AcceptedConnection;
use crate::export::Export;
use crate::protocol::Session;
use crate::protocol::request_decoder::ReceivedRequest;
use crate::request_span::RequestSpan;
use crate::send_queue::QueuedReply;

/// Number of threads. Such requests are few, and most of them do not wait for a disk.
const THREADS: usize = 2;

/// Message to a ring.
pub(super) enum Message {
    Serve(Box<AcceptedConnection>),
    /// Reply for the connection of this number.
    Reply(usize, Box<QueuedReply>),
    /// The connection of this number may begin its next request.
    Due(usize),
    StopReading,
    Stop,
}

/// Queue of messages to one ring.
pub(super) struct MessageQueue {
    eventfd: OwnedFd,
    messages: Mutex<Vec<Message>>,
}

/// Request that blocks.
pub(super) struct OffloadedRequest {
    pub(super) session: Session,
    pub(super) received: ReceivedRequest,
    pub(super) cost: usize,
    pub(super) span: RequestSpan,
    pub(super) connection: usize,
    pub(super) reply_to: Arc<MessageQueue>,
}

/// Threads that execute offloaded requests.
pub(super) struct OffloadPool {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    requests: VecDeque<OffloadedRequest>,
    stopping: bool,
}

impl MessageQueue {
    pub(super) fn new() -> io::Result<Self> {
        let eventfd = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { eventfd, messages: Mutex::default() })
    }

    pub(super) fn send(&self, message: Message) {
        lock(&self.messages).push(message);
        // The write fails only after 2^64 - 1 signals without a read.
        let _ = rustix::io::write(&self.eventfd, &1_u64.to_ne_bytes());
    }

    /// Returns the eventfd, which is readable while there are messages.
    pub(super) fn eventfd(&self) -> BorrowedFd<'_> {
        self.eventfd.as_fd()
    }

    /// Takes all messages.
    pub(super) fn drain(&self) -> Vec<Message> {
        let _ = rustix::io::read(&self.eventfd, &mut [0; 8]);
        std::mem::take(&mut *lock(&self.messages))
    }
}

impl OffloadPool {
    pub(super) fn start(export: &Arc<Export>) -> io::Result<Arc<Self>> {
        let pool =
            Arc::new(Self { queue: Mutex::default(), changed: Condvar::new(), threads: Mutex::default() });
        for number in 0..THREADS {
            let (own, export) = (Arc::clone(&pool), Arc::clone(export));
            let thread = std::thread::Builder::new().name(format!("nbd-offload-{number}"));
            let thread = thread.spawn(move || own.run(&export))?;
            lock(&pool.threads).push(thread);
        }
        Ok(pool)
    }

    pub(super) fn push(&self, request: OffloadedRequest) {
        lock(&self.queue).requests.push_back(request);
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        lock(&self.queue).stopping = true;
        self.changed.notify_all();
        for thread in lock(&self.threads).drain(..) {
            // An error is a panic, which the thread has reported.
            let _ = thread.join();
        }
    }

    fn run(&self, export: &Export) {
        while let Some(request) = self.next() {
            let reply = {
                let _entered = request.span.enter();
                export.execute(request.session, &request.received)
            };
            let reply = QueuedReply::new(reply, request.cost, request.span);
            request.reply_to.send(Message::Reply(request.connection, Box::new(reply)));
        }
    }

    fn next(&self) -> Option<OffloadedRequest> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(request) = queue.requests.pop_front() {
                return Some(request);
            }
            if queue.stopping {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
