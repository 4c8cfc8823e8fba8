//! One client of a ring.
//!
//! *In*, *out*: entries that receive and send, and their completions. *Invariant*: while something is being received nobody
//! looks into the intake, and while something is being sent nothing is taken out of the outbox: the kernel writes into the
//! one and reads from the other. Both stay where they are in memory.

use std::io::IoSlice;
use std::net::Shutdown;
use std::os::fd::{AsFd, AsRawFd};

use blkkin_ust::SpanBatch;
use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::Fd;

use crate::allowance::Allowance;
use crate::op::Op;
use crate::outbox::{Outbox, Reply};
use crate::peer::Name;
use crate::protocol::intake::{Incoming, Intake};
use crate::protocol::{Command, Session};
use crate::server::Accepted;
use crate::socket::Socket;

/// Replies of one send.
const SLICES_MAX: usize = 64;

pub(super) struct Connection {
    socket: Socket,
    pub(super) session: Session,
    name: Option<Name>,
    intake: Intake,
    outbox: Outbox,
    allowance: Allowance,
    receiving: bool,
    sending: Option<Box<Sending>>,
    ending: bool,
}

/// What the kernel is told of a send; it holds addresses into the outbox.
struct Sending {
    message: libc::msghdr,
    slices: Vec<libc::iovec>,
}

impl Connection {
    pub(super) fn new(accepted: Accepted) -> Self {
        Self {
            socket: accepted.socket,
            session: accepted.session,
            name: accepted.name,
            intake: Intake::after(accepted.read),
            outbox: Outbox::default(),
            allowance: Allowance::default(),
            receiving: false,
            sending: None,
            ending: false,
        }
    }

    /// The next request that may begin now, if it is here.
    pub(super) fn take(&mut self) -> Option<(Incoming, usize, Op)> {
        if self.receiving || self.ending || !self.allowance.is_left() {
            return None;
        }
        match self.intake.next() {
            Ok(Some(incoming)) if incoming.request.command != Command::Disconnect => {
                let op = Op::begin(&mut SpanBatch::new(), &incoming, self.name.as_ref());
                let cost = self.allowance.take(&incoming);
                Some((incoming, cost, op))
            }
            Ok(None) => None,
            // It leaves, or is no client.
            Ok(Some(_)) | Err(_) => {
                self.ending = true;
                None
            }
        }
    }

    /// After [`take`](Self::take) has given nothing: the entry that asks for more, if more may come.
    pub(super) fn receive(&mut self) -> Option<Entry> {
        if self.receiving || self.ending || !self.allowance.is_left() {
            return None;
        }
        self.receiving = true;
        let space = self.intake.space();
        let socket = Fd(self.socket.as_fd().as_raw_fd());
        Some(opcode::Recv::new(socket, space.as_mut_ptr(), space.len() as u32).build())
    }

    pub(super) fn received(&mut self, result: i32) {
        self.receiving = false;
        match result {
            1.. => self.intake.filled(result as usize),
            _ if -result == libc::EINTR || -result == libc::EAGAIN => {}
            _ => self.ending = true,
        }
    }

    pub(super) fn push(&mut self, reply: Reply) {
        self.outbox.push(reply);
    }

    /// The entry that sends what waits, unless one is under way.
    pub(super) fn send(&mut self) -> Option<Entry> {
        if self.sending.is_some() || self.outbox.is_empty() {
            return None;
        }
        let mut slices = Vec::with_capacity(SLICES_MAX);
        self.outbox.slices(&mut slices, SLICES_MAX);
        let slices: Vec<libc::iovec> = slices.iter().map(iovec).collect();
        // SAFETY: a struct of integers and pointers, for which zeroes are "none".
        let message: libc::msghdr = unsafe { std::mem::zeroed() };
        let sending = self.sending.insert(Box::new(Sending { message, slices }));
        sending.message.msg_iov = sending.slices.as_mut_ptr();
        sending.message.msg_iovlen = sending.slices.len();
        let socket = Fd(self.socket.as_fd().as_raw_fd());
        let flags = libc::MSG_NOSIGNAL as u32;
        Some(opcode::SendMsg::new(socket, &raw const sending.message).flags(flags).build())
    }

    pub(super) fn sent(&mut self, result: i32) {
        self.sending = None;
        let released = match result {
            1.. => self.outbox.advance(result as usize),
            _ if -result == libc::EINTR || -result == libc::EAGAIN => return,
            _ => self.lost(),
        };
        self.allowance.give_back(released);
    }

    /// A reply for a client that is gone.
    fn lost(&mut self) -> crate::outbox::Released {
        self.ending = true;
        // What is being received ends.
        self.shut(Shutdown::Both);
        self.outbox.lose()
    }

    pub(super) fn shut(&self, how: Shutdown) {
        self.socket.shut(how);
    }

    /// Nothing of it is under way, and nothing will come.
    pub(super) fn is_over(&self) -> bool {
        self.ending && !self.receiving && self.sending.is_none() && self.allowance.is_idle()
    }
}

fn iovec(slice: &IoSlice<'_>) -> libc::iovec {
    libc::iovec { iov_base: slice.as_ptr().cast_mut().cast(), iov_len: slice.len() }
}
