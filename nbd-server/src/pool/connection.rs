//! One client of the pool.
//!
//! *In*: its socket, readable or writable. *Out*: requests to be done; replies, written under a lock of their own.
//! *Invariant*: one thread at a time reads; whoever has a reply sends it, and no thread waits for a client that does not read.

use std::io::{self, IoSlice, Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use blkkin_ust::SpanBatch;

use crate::allowance::Allowance;
use crate::op::Op;
use crate::outbox::{Outbox, Reply};
use crate::peer::Name;
use crate::protocol::Session;
use crate::protocol::intake::{Incoming, Intake};
use crate::server::Accepted;
use crate::socket::Socket;

/// Replies of one write.
const SLICES_MAX: usize = 64;

/// A request on its way through the pool.
pub(super) struct Begun {
    pub(super) incoming: Incoming,
    pub(super) cost: usize,
    pub(super) op: Op,
}

/// What a look at the socket gave.
pub(super) enum Came {
    /// Requests; and perhaps more are here, which may not begin yet.
    Some { more: bool },
    /// Nothing now.
    Nothing,
    /// So much is under way that nothing more is taken now.
    TooMuch,
    /// Nothing any more: it left, or cannot be understood.
    End,
}

pub(super) struct Connection {
    pub(super) socket: Socket,
    pub(super) session: Session,
    name: Option<Name>,
    intake: Mutex<Intake>,
    outbox: Mutex<Outbox>,
    pub(super) allowance: Allowance,
    /// Nobody reads, until something that is under way has ended.
    pub(super) paused: AtomicBool,
    /// Nothing more is taken; it ends with what is under way.
    ending: AtomicBool,
    gone: AtomicBool,
}

impl Connection {
    pub(super) fn new(accepted: Accepted) -> Self {
        Self {
            socket: accepted.socket,
            session: accepted.session,
            name: accepted.name,
            intake: Mutex::new(Intake::after(accepted.read)),
            outbox: Mutex::default(),
            allowance: Allowance::default(),
            paused: AtomicBool::new(false),
            ending: AtomicBool::new(false),
            gone: AtomicBool::new(false),
        }
    }

    /// The right to read. Held by one thread, which may do what it has read before it lets another one.
    pub(super) fn reading(&self) -> MutexGuard<'_, Intake> {
        held(&self.intake)
    }

    /// What has come, into `batch`: what is here already, or what one read gives.
    pub(super) fn take(&self, intake: &mut Intake, batch: &mut Vec<Begun>) -> Came {
        // Said before anything is done for them: nothing is, as long as this goes on.
        let mut together = SpanBatch::new();
        loop {
            let mut more = true;
            while more && self.allowance.is_left() {
                match intake.next() {
                    Ok(Some(incoming))
                        if incoming.request.command == crate::protocol::Command::Disconnect =>
                    {
                        return self.no_more();
                    }
                    Ok(Some(incoming)) => batch.push(self.begin(&mut together, incoming)),
                    Ok(None) => more = false,
                    // Said by nobody: a client that is no client is not worth a line in a log each time.
                    Err(_) => return self.no_more(),
                }
            }
            if !batch.is_empty() {
                return Came::Some { more };
            }
            if more {
                return Came::TooMuch;
            }
            match (&self.socket).read(intake.space()) {
                Ok(0) => return self.no_more(),
                Ok(bytes) => intake.filled(bytes),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Came::Nothing,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.no_more(),
            }
        }
    }

    fn begin<'a>(&'a self, together: &mut SpanBatch<'a>, incoming: Incoming) -> Begun {
        let op = Op::begin(together, &incoming, self.name.as_ref());
        Begun { cost: self.allowance.take(&incoming), incoming, op }
    }

    fn no_more(&self) -> Came {
        self.ending.store(true, Ordering::SeqCst);
        Came::End
    }

    /// Sends these and what waited before them. True: some wait still, for the socket to be writable.
    pub(super) fn send(&self, replies: &mut Vec<Reply>) -> bool {
        let mut outbox = held(&self.outbox);
        replies.drain(..).for_each(|reply| outbox.push(reply));
        while !outbox.is_empty() {
            let mut slices: Vec<IoSlice<'_>> = Vec::with_capacity(SLICES_MAX);
            outbox.slices(&mut slices, SLICES_MAX);
            let written = (&self.socket).write_vectored(&slices);
            drop(slices);
            let released = match written {
                Ok(bytes) if bytes > 0 => outbox.advance(bytes),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return true,
                _ => {
                    self.ending.store(true, Ordering::SeqCst);
                    // Whoever reads hears of it.
                    self.socket.shut(Shutdown::Both);
                    outbox.lose()
                }
            };
            self.allowance.give_back(released);
        }
        false
    }

    /// Whether it is over now. True once only.
    pub(super) fn is_over(&self) -> bool {
        self.ending.load(Ordering::SeqCst)
            && self.allowance.is_idle()
            && !self.gone.swap(true, Ordering::SeqCst)
    }
}

/// A thread that panicked held it, perhaps: what is in it is whole nevertheless, since nothing is changed in two steps.
fn held<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
