//! A ring's thread.
//!
//! *In*: completions and mail. *Out*: entries. *Invariant*: each turn looks at every connection that something happened to, and
//! leaves it receiving, sending, waiting for the file, or over.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;
use slab::Slab;

use crate::export::{Answer, Export};
use crate::op::Op;
use crate::outbox::Reply;
use crate::protocol::intake::Incoming;

use super::connection::Connection;
use super::errands::{Errand, Errands, Inbox, Mail};
use super::operation::{Operation, Step};
use super::queue::Queue;

/// What was completed, in the upper half of an entry's tag; in the lower one its number.
const BELL: u64 = 0;
const RECEIVED: u64 = 1;
const SENT: u64 = 2;
const OPERATION: u64 = 3;

/// Requests of one connection that begin in one turn: their client works on these replies while the next ones are made.
const TOGETHER: usize = 8;

pub(super) struct Worker {
    ring: Queue,
    export: Arc<Export>,
    errands: Arc<Errands>,
    inbox: Arc<Inbox>,
    connections: Slab<Connection>,
    operations: Slab<Operation>,
    /// Of all rings.
    count: Arc<AtomicUsize>,
    /// Those that something happened to.
    due: Vec<usize>,
    stopping: bool,
}

impl Worker {
    pub(super) fn new(
        export: Arc<Export>,
        errands: Arc<Errands>,
        inbox: Arc<Inbox>,
        count: Arc<AtomicUsize>,
    ) -> io::Result<Self> {
        Ok(Self {
            ring: Queue::new()?,
            export,
            errands,
            inbox,
            connections: Slab::new(),
            operations: Slab::new(),
            count,
            due: Vec::new(),
            stopping: false,
        })
    }

    pub(super) fn run(mut self) {
        let _guard = NoUnwinding;
        self.listen();
        let mut completed: Vec<(u64, i32)> = Vec::new();
        loop {
            self.ring.turn(&mut completed);
            for (tag, result) in completed.drain(..) {
                self.completed(tag, result);
            }
            self.go_on();
            if self.stopping && self.connections.is_empty() {
                return;
            }
        }
    }

    fn completed(&mut self, tag: u64, result: i32) {
        let number = (tag & u64::from(u32::MAX)) as usize;
        match tag >> 32 {
            BELL => {
                let inbox = Arc::clone(&self.inbox);
                inbox.empty().into_iter().for_each(|mail| self.open(mail));
                self.listen();
            }
            RECEIVED => self.with(number, |connection| connection.received(result)),
            SENT => self.with(number, |connection| connection.sent(result)),
            _ => match self.operations[number].completed(result) {
                Step::Again => self.submit(number),
                Step::Done(answer) => {
                    let done = self.operations.remove(number);
                    self.with(done.connection, |to| to.push(Reply::new(answer, done.cost, done.op)));
                }
            },
        }
    }

    fn open(&mut self, mail: Mail) {
        match mail {
            Mail::Serve(accepted) => {
                let number = self.connections.insert(Connection::new(*accepted));
                self.due.push(number);
            }
            Mail::Reply(number, reply) => self.with(number, |connection| connection.push(*reply)),
            Mail::StopReading => self.shut(Shutdown::Read),
            Mail::Stop => {
                self.stopping = true;
                self.shut(Shutdown::Both);
            }
        }
    }

    fn shut(&mut self, how: Shutdown) {
        self.connections.iter().for_each(|(_, connection)| connection.shut(how));
    }

    fn with(&mut self, number: usize, change: impl FnOnce(&mut Connection)) {
        change(&mut self.connections[number]);
        self.due.push(number);
    }

    fn go_on(&mut self) {
        let mut due = std::mem::take(&mut self.due);
        due.sort_unstable();
        due.dedup();
        for number in due.drain(..) {
            let all_taken = self.take(number);
            let connection = &mut self.connections[number];
            let received = if all_taken { connection.receive() } else { None };
            let sent = connection.send();
            if connection.is_over() {
                self.connections.remove(number);
                self.count.fetch_sub(1, Ordering::SeqCst);
                continue;
            }
            for (kind, entry) in [(SENT, sent), (RECEIVED, received)] {
                if let Some(entry) = entry {
                    self.push(entry, kind, number);
                }
            }
        }
        // Its memory is used again; a request that was refused made its connection due once more.
        due.append(&mut self.due);
        self.due = due;
    }

    /// Begins what is there, so many at most: what ends of these takes it here again. Whether that was all.
    fn take(&mut self, number: usize) -> bool {
        for _ in 0..TOGETHER {
            let Some((incoming, cost, op)) = self.connections[number].take() else { return true };
            self.begin(number, incoming, cost, op);
        }
        false
    }

    fn begin(&mut self, number: usize, incoming: Incoming, cost: usize, op: Op) {
        let connection = &mut self.connections[number];
        let (session, request) = (connection.session, incoming.request);
        if let Err(refusal) = request.check(self.export.offer(), session) {
            connection.push(Reply::new(Answer::refusal(session, &request, refusal), cost, op));
        } else if Operation::is_one(request.command) {
            let operation = Operation::new(number, session, incoming, cost, op);
            let operation = self.operations.insert(operation);
            self.submit(operation);
        } else {
            let inbox = Arc::clone(&self.inbox);
            self.errands.put(Errand { session, incoming, cost, op, connection: number, inbox });
        }
    }

    /// Traced ones by a call of their own, so that it is theirs.
    fn submit(&mut self, number: usize) {
        let entry = self.operations[number].entry(self.export.descriptor());
        if !self.operations[number].op.is_recorded() {
            return self.push(entry, OPERATION, number);
        }
        self.ring.submit();
        self.push(entry, OPERATION, number);
        let _working = self.operations[number].op.enter();
        self.ring.submit();
    }

    /// Awaits mail.
    fn listen(&mut self) {
        let bell = Fd(self.inbox.bell().as_raw_fd());
        self.push(opcode::PollAdd::new(bell, libc::POLLIN as u32).build(), BELL, 0);
    }

    fn push(&mut self, entry: Entry, kind: u64, number: usize) {
        let entry = entry.user_data(kind << 32 | number as u64);
        // SAFETY: what it points to is an operation's or a connection's, which are removed after its completion.
        unsafe { self.ring.push(entry) };
    }
}

/// Memory that the kernel writes to must not be given back while it does: a panic here ends the process.
struct NoUnwinding;

impl Drop for NoUnwinding {
    fn drop(&mut self) {
        if std::thread::panicking() {
            std::process::abort();
        }
    }
}
