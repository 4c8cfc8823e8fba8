//! What a ring does not do itself, and how it hears of anything.
//!
//! *In*: requests that block. *Out*: their replies, as mail to the ring whose connection they are of. *Invariant*: mail is
//! read after it was announced, and never lost: its sender puts it there first.

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use rustix::event::{EventfdFlags, eventfd};

use crate::export::Export;
use crate::op::Op;
use crate::outbox::Reply;
use crate::protocol::Session;
use crate::protocol::intake::Incoming;
use crate::server::Accepted;

/// Such requests are few, and most of them take no disk's time.
const THREADS: usize = 2;

/// To a ring.
pub(super) enum Mail {
    Serve(Box<Accepted>),
    /// To the connection of this number.
    Reply(usize, Box<Reply>),
    StopReading,
    Stop,
}

/// Where a ring's mail lies.
pub(super) struct Inbox {
    bell: OwnedFd,
    mail: Mutex<Vec<Mail>>,
}

/// One request that blocks.
pub(super) struct Errand {
    pub(super) session: Session,
    pub(super) incoming: Incoming,
    pub(super) cost: usize,
    pub(super) op: Op,
    pub(super) connection: usize,
    pub(super) inbox: Arc<Inbox>,
}

/// The threads for them.
pub(super) struct Errands {
    queue: Mutex<Queue>,
    changed: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    errands: VecDeque<Errand>,
    stopping: bool,
}

impl Inbox {
    pub(super) fn new() -> io::Result<Self> {
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(Self { bell, mail: Mutex::default() })
    }

    pub(super) fn put(&self, mail: Mail) {
        held(&self.mail).push(mail);
        // It fails only if 2^64 - 1 were not heard.
        let _ = rustix::io::write(&self.bell, &1_u64.to_ne_bytes());
    }

    /// Readable when there is mail.
    pub(super) fn bell(&self) -> BorrowedFd<'_> {
        self.bell.as_fd()
    }

    /// All of it.
    pub(super) fn empty(&self) -> Vec<Mail> {
        let _ = rustix::io::read(&self.bell, &mut [0; 8]);
        std::mem::take(&mut *held(&self.mail))
    }
}

impl Errands {
    pub(super) fn start(export: &Arc<Export>) -> io::Result<Arc<Self>> {
        let errands =
            Arc::new(Self { queue: Mutex::default(), changed: Condvar::new(), threads: Mutex::default() });
        for number in 0..THREADS {
            let (all, export) = (Arc::clone(&errands), Arc::clone(export));
            let thread = std::thread::Builder::new().name(format!("nbd-errand-{number}"));
            let thread = thread.spawn(move || all.work(&export))?;
            held(&errands.threads).push(thread);
        }
        Ok(errands)
    }

    pub(super) fn put(&self, errand: Errand) {
        held(&self.queue).errands.push_back(errand);
        self.changed.notify_one();
    }

    pub(super) fn stop(&self) {
        held(&self.queue).stopping = true;
        self.changed.notify_all();
        for thread in held(&self.threads).drain(..) {
            // It panicked if this fails, and has said so.
            let _ = thread.join();
        }
    }

    fn work(&self, export: &Export) {
        while let Some(errand) = self.next() {
            let answer = {
                let _working = errand.op.enter();
                export.answer(errand.session, &errand.incoming)
            };
            let reply = Reply::new(answer, errand.cost, errand.op);
            errand.inbox.put(Mail::Reply(errand.connection, Box::new(reply)));
        }
    }

    fn next(&self) -> Option<Errand> {
        let mut queue = held(&self.queue);
        loop {
            if let Some(errand) = queue.errands.pop_front() {
                return Some(errand);
            }
            if queue.stopping {
                return None;
            }
            queue = self.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
