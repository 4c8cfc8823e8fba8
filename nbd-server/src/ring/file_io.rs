//! Reads, writes and flushes of the file by a ring.
//!
//! *In*: a request that was checked. *Out*: entries for the ring until the request is complete, and
//! its reply. *Invariant*: an entry contains an address in [`FileIo::bytes`]. These bytes are not
//! touched between the entry and its completion, and their allocation does not move with the
//! struct.

use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

use io_uring::opcode;
use io_uring::squeue::Entry;
use io_uring::types::{Fd, FsyncFlags};

use crate::export::EncodedReply;
use crate::protocol::request::flags;
use crate::protocol::request_decoder::ReceivedRequest;
use crate::protocol::{Command, NbdError, Request, Session, reply};
use crate::request_span::RequestSpan;

/// Request whose I/O is in flight.
pub(super) struct FileIo {
    pub(super) connection: usize,
    pub(super) cost: usize,
    pub(super) span: RequestSpan,
    request: Request,
    session: Session,
    /// Reply of a read, with space for its data; or the data of a write.
    bytes: Vec<u8>,
    /// Range of `bytes` that is not yet read or written.
    rest: Range<usize>,
    offset: u64,
}

/// State of a request after a completion.
pub(super) enum Progress {
    /// A part is done, and the rest must be submitted.
    Resubmit,
    Complete(EncodedReply),
}

impl FileIo {
    /// Returns whether a ring executes this command.
    pub(super) fn supports(command: Command) -> bool {
        matches!(command, Command::Read | Command::Write | Command::Flush)
    }

    pub(super) fn new(
        connection: usize,
        session: Session,
        received: ReceivedRequest,
        cost: usize,
        span: RequestSpan,
    ) -> Self {
        let ReceivedRequest { request, payload, .. } = received;
        let (bytes, rest) = match request.command {
            Command::Read => {
                let mut bytes = reply::read_header(session, &request);
                let header = bytes.len();
                let whole = header + request.length as usize;
                bytes.resize(whole, 0);
                (bytes, header..whole)
            }
            _ => {
                let all = 0..payload.len();
                (payload, all)
            }
        };
        Self { connection, cost, span, request, session, bytes, rest, offset: request.offset }
    }

    /// Returns the entry for the rest of the request.
    pub(super) fn entry(&mut self, file: BorrowedFd<'_>) -> Entry {
        let file = Fd(file.as_raw_fd());
        let data = &mut self.bytes[self.rest.clone()];
        // At most PAYLOAD_MAX, which is far below 2^32.
        let length = data.len() as u32;
        match self.request.command {
            Command::Read => opcode::Read::new(file, data.as_mut_ptr(), length).offset(self.offset).build(),
            Command::Write => {
                let sync = if self.request.has(flags::FUA) { libc::RWF_DSYNC } else { 0 };
                opcode::Write::new(file, data.as_ptr(), length).offset(self.offset).rw_flags(sync).build()
            }
            _ => opcode::Fsync::new(file).flags(FsyncFlags::DATASYNC).build(),
        }
    }

    /// Processes the result of an entry's completion.
    pub(super) fn on_completed(&mut self, result: i32) -> Progress {
        let errno = match result {
            _ if -result == libc::EINTR || -result == libc::EAGAIN => return Progress::Resubmit,
            // A read of a file that was truncated, or a write of which the disk takes nothing.
            0 if !self.rest.is_empty() => libc::EIO,
            1.. if (result as usize) < self.rest.len() => {
                self.rest.start += result as usize;
                self.offset += u64::from(result.unsigned_abs());
                return Progress::Resubmit;
            }
            0.. => 0,
            _ => -result,
        };
        Progress::Complete(match (errno, self.request.command) {
            (0, Command::Read) => EncodedReply { bytes: std::mem::take(&mut self.bytes), errno: 0 },
            (0, _) => EncodedReply { bytes: reply::success(self.session, self.request.cookie), errno: 0 },
            (errno, _) => EncodedReply::error(self.session, &self.request, NbdError::from_errno(errno)),
        })
    }
}
