//! Reads, writes and flushes of the file by a ring.
//!
//! *In*: a request that was checked. *Out*: entries for the ring until it is done, and its answer. *Invariant*: the address that
//! an entry names is that of [`Operation::bytes`], which is not touched between an entry and its completion, and whose
//! buffer stays where it is when the operation is moved.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};

use crate::export::Answer;
use crate::op::Op;
use crate::protocol::intake::Incoming;
use crate::protocol::request::flags;
use crate::protocol::{Command, Refusal, Request, Session, reply};

/// One of them, under way.
pub(super) struct Operation {
    pub(super) connection: usize,
    pub(super) cost: usize,
    pub(super) op: Op,
    request: Request,
    session: Session,
    /// The reply of a read, with room for its data; or the data of a write.
    bytes: Vec<u8>,
    /// What of it is data that is still to be read or written.
    rest: Range<usize>,
    at: u64,
}

/// What a completion means.
pub(super) enum Step {
    /// A part of it was done: the rest is to be submitted.
    Again,
    Done(Answer),
}

impl Operation {
    /// Whether a ring does such a request.
    pub(super) fn is_one(command: Command) -> bool {
        matches!(command, Command::Read | Command::Write | Command::Flush)
    }

    pub(super) fn new(connection: usize, session: Session, incoming: Incoming, cost: usize, op: Op) -> Self {
        let Incoming { request, payload, .. } = incoming;
        let (bytes, rest) = match request.command {
            Command::Read => {
                let mut bytes = reply::reading(session, &request);
                let head = bytes.len();
                let whole = head + request.length as usize;
                bytes.resize(whole, 0);
                (bytes, head..whole)
            }
            _ => {
                let all = 0..payload.len();
                (payload, all)
            }
        };
        Self { connection, cost, op, request, session, bytes, rest, at: request.offset }
    }

    /// What is to be submitted now.
    pub(super) fn entry(&mut self, file: BorrowedFd<'_>) -> Entry {
        let file = Fd(file.as_raw_fd());
        let data = &mut self.bytes[self.rest.clone()];
        // PAYLOAD_MAX is far below 2^32.
        let length = data.len() as u32;
        match self.request.command {
            Command::Read => opcode::Read::new(file, data.as_mut_ptr(), length).offset(self.at).build(),
            Command::Write => {
                let sync = if self.request.has(flags::FUA) { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(file, data.as_ptr(), length).offset(self.at).rw_flags(sync).build()
            }
            _ => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// An entry of it was completed with this.
    pub(super) fn completed(&mut self, result: i32) -> Step {
        let errno = match result {
            _ if -result == libc::EINTR || -result == libc::EAGAIN => return Step::Again,
            // The file has become shorter; a disk that takes nothing.
            0 if !self.rest.is_empty() => libc::EIO,
            1.. if (result as usize) < self.rest.len() => {
                self.rest.start += result as usize;
                self.at += u64::from(result.unsigned_abs());
                return Step::Again;
            }
            0.. => 0,
            _ => -result,
        };
        Step::Done(match (errno, self.request.command) {
            (0, Command::Read) => Answer { bytes: std::mem::take(&mut self.bytes), errno: 0 },
            (0, _) => Answer { bytes: reply::done(self.session, self.request.cookie), errno: 0 },
            (errno, _) => Answer::refusal(self.session, &self.request, Refusal::of_errno(errno)),
        })
    }
}
