//! Asynchronous I/O: one event for each request of io_uring and each iocb of libaio, from its
//! submission to its completion.
//!
//! *In*: completed submissions, from the tracer. *Out*: the event, and the table of operations: their
//! names, and which of them are traced.
//!
//! *Invariant*: an operation is traced if the system call that does the same is traced, so a program
//! that moves from `pread64` to io_uring keeps its spans and gains no others. So sockets, polls and
//! timeouts are not traced.
//!
//! *Rejected*: a system call event with a made-up number. A submission has no thread that is inside
//! it, and its result arrives elsewhere.

use serde::{Deserialize, Serialize};

use crate::clock::MonotonicNs;
use crate::head_sampling::HeadSampling;
use crate::ids::{FileId, SpanId, TaskRef};

/// Interface through which a program submits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AsyncInterface {
    /// io_uring.
    IoUring,
    /// io_submit, as libaio uses it.
    Libaio,
}

/// Outcome of a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AsyncIoOutcome {
    /// Result that the program received: a count of bytes, or a negative errno.
    Returned(i32),
    /// Ended; no record has the result.
    Ended,
    /// End not seen: `end` is a later time.
    NoEnd,
}

/// File that a program names in a submission.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AsyncDescriptor {
    /// Descriptor of the process.
    Descriptor(i32),
    /// Index of a file that is registered with the ring.
    Registered(i32),
}

/// Asynchronous I/O that completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AsyncIoEvent {
    /// Span id.
    pub span: SpanId,
    /// System call that submitted it. None if a poll thread of the kernel did (SQPOLL): then it is
    /// the root of its trace.
    pub submitter: Option<SpanId>,
    /// Task that submitted it: the caller, or the poll thread.
    pub task: TaskRef,
    /// Interface.
    pub interface: AsyncInterface,
    /// Operation: `IORING_OP_*` or `IOCB_CMD_*`.
    pub opcode: u8,
    /// Submission.
    pub start: MonotonicNs,
    /// Completion.
    pub end: MonotonicNs,
    /// Time when it was last queued to a worker of io_uring; none if no worker executed it.
    pub queued: Option<MonotonicNs>,
    /// The program's own number of it.
    pub user_data: u64,
    /// Outcome.
    pub outcome: AsyncIoOutcome,
    /// File.
    pub file: Option<FileId>,
    /// Descriptor or index by which the program named the file.
    pub descriptor: Option<AsyncDescriptor>,
    /// File offset; -1 is the file's own position.
    pub offset: Option<i64>,
    /// Bytes asked for; none for operations with a vector of buffers.
    pub length: Option<u32>,
    /// Bios that were queued for it.
    pub bios: u32,
    /// Setup flags of the ring (`IORING_SETUP_*`).
    pub ring_flags: u32,
    /// Flags of the submission queue entry (`IOSQE_*`).
    pub sqe_flags: u8,
    /// True for a write into the page cache of a regular file. A later bio carries its bytes.
    pub writes_page_cache: bool,
    /// Ratio by which roots were recorded when it was submitted. Of a submission below a system call it is
    /// the call's that counts.
    pub sampling: HeadSampling,
}

/// `IORING_SETUP_*` (include/uapi/linux/io_uring.h).
const SETUP_IOPOLL: u32 = 1 << 0;
const SETUP_SQPOLL: u32 = 1 << 1;
/// `IOSQE_*`.
const SQE_LINK: u8 = 1 << 2 | 1 << 3;

impl AsyncIoEvent {
    /// Returns the root span of its trace.
    pub fn root(&self) -> SpanId {
        self.submitter.unwrap_or(self.span)
    }

    /// Returns its operation.
    pub fn operation(&self) -> &'static AsyncOperation {
        operation(self.interface, self.opcode)
    }

    /// Returns the errno with which it failed.
    pub fn errno(&self) -> Option<i32> {
        match self.outcome {
            AsyncIoOutcome::Returned(result) if result < 0 => Some(result.wrapping_neg()),
            _ => None,
        }
    }

    /// Returns the bytes that it moved.
    pub fn bytes(&self) -> Option<u32> {
        match (self.outcome, self.operation().direction) {
            (AsyncIoOutcome::Returned(result), Some(_)) => u32::try_from(result).ok(),
            _ => None,
        }
    }

    /// Returns whether the kernel polls the device for its completion.
    pub fn is_polled(&self) -> bool {
        self.ring_flags & SETUP_IOPOLL != 0
    }

    /// Returns whether a thread of the kernel polls its ring for submissions.
    pub fn is_submitted_by_poll_thread(&self) -> bool {
        self.ring_flags & SETUP_SQPOLL != 0
    }

    /// Returns whether the next submission waits for it (a link of a chain).
    pub fn is_linked(&self) -> bool {
        self.sqe_flags & SQE_LINK != 0
    }

    /// Returns a read of 4 KiB that succeeded, by a call `submitter` of `task`. For tests and load
    /// generators, like [`SyscallEvent::bare`](crate::event::SyscallEvent::bare).
    pub fn bare(
        span: SpanId,
        submitter: Option<SpanId>,
        task: TaskRef,
        [start, end]: [MonotonicNs; 2],
    ) -> Self {
        AsyncIoEvent {
            span,
            submitter,
            task,
            interface: AsyncInterface::IoUring,
            opcode: 22,
            start,
            end,
            queued: None,
            user_data: 0,
            outcome: AsyncIoOutcome::Returned(4096),
            file: None,
            descriptor: None,
            offset: Some(0),
            length: Some(4096),
            bios: 0,
            ring_flags: 0,
            sqe_flags: 0,
            writes_page_cache: false,
            sampling: HeadSampling::ALL,
        }
    }
}

/// Direction of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AsyncDirection {
    /// From the file.
    Read,
    /// To the file.
    Write,
}

/// Operation of asynchronous I/O.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AsyncOperation {
    /// Number in its interface.
    opcode: u8,
    /// Name with the interface: `io_uring read`.
    pub name: &'static str,
    /// Direction of its data, if its result is a count of bytes.
    pub direction: Option<AsyncDirection>,
    /// True if the program names an open file.
    pub has_file: bool,
    /// True if its length counts buffers.
    pub is_vectored: bool,
}

const fn plain(opcode: u8, name: &'static str) -> AsyncOperation {
    AsyncOperation { opcode, name, direction: None, has_file: false, is_vectored: false }
}

const fn on_file(opcode: u8, name: &'static str) -> AsyncOperation {
    AsyncOperation { has_file: true, ..plain(opcode, name) }
}

const fn read(opcode: u8, name: &'static str) -> AsyncOperation {
    AsyncOperation { direction: Some(AsyncDirection::Read), ..on_file(opcode, name) }
}

const fn write(opcode: u8, name: &'static str) -> AsyncOperation {
    AsyncOperation { direction: Some(AsyncDirection::Write), ..on_file(opcode, name) }
}

const fn vectored(operation: AsyncOperation) -> AsyncOperation {
    AsyncOperation { is_vectored: true, ..operation }
}

/// Traced operations of io_uring (`enum io_uring_op`, include/uapi/linux/io_uring.h of Linux 6.18).
const IO_URING: &[AsyncOperation] = &[
    plain(0, "io_uring nop"),
    vectored(read(1, "io_uring readv")),
    vectored(write(2, "io_uring writev")),
    on_file(3, "io_uring fsync"),
    read(4, "io_uring read_fixed"),
    write(5, "io_uring write_fixed"),
    on_file(8, "io_uring sync_file_range"),
    on_file(17, "io_uring fallocate"),
    plain(18, "io_uring openat"),
    plain(19, "io_uring close"),
    plain(21, "io_uring statx"),
    read(22, "io_uring read"),
    write(23, "io_uring write"),
    on_file(24, "io_uring fadvise"),
    plain(28, "io_uring openat2"),
    on_file(30, "io_uring splice"),
    on_file(33, "io_uring tee"),
    plain(35, "io_uring renameat"),
    plain(36, "io_uring unlinkat"),
    plain(37, "io_uring mkdirat"),
    plain(38, "io_uring symlinkat"),
    plain(39, "io_uring linkat"),
    on_file(41, "io_uring fsetxattr"),
    plain(42, "io_uring setxattr"),
    on_file(43, "io_uring fgetxattr"),
    plain(44, "io_uring getxattr"),
    on_file(46, "io_uring uring_cmd"),
    read(49, "io_uring read_multishot"),
    on_file(55, "io_uring ftruncate"),
    vectored(read(60, "io_uring readv_fixed")),
    vectored(write(61, "io_uring writev_fixed")),
];

/// Operations of io_submit (`IOCB_CMD_*`, include/uapi/linux/aio_abi.h).
const LIBAIO: &[AsyncOperation] = &[
    read(0, "libaio pread"),
    write(1, "libaio pwrite"),
    on_file(2, "libaio fsync"),
    on_file(3, "libaio fdsync"),
    on_file(5, "libaio poll"),
    vectored(read(7, "libaio preadv")),
    vectored(write(8, "libaio pwritev")),
];

static UNKNOWN: [AsyncOperation; 2] =
    [plain(u8::MAX, "io_uring operation"), plain(u8::MAX, "libaio operation")];

/// Returns the operation of this number.
pub fn operation(interface: AsyncInterface, opcode: u8) -> &'static AsyncOperation {
    let (known, unknown) = match interface {
        AsyncInterface::IoUring => (IO_URING, &UNKNOWN[0]),
        AsyncInterface::Libaio => (LIBAIO, &UNKNOWN[1]),
    };
    known.iter().find(|operation| operation.opcode == opcode).unwrap_or(unknown)
}

/// Returns all operations of an interface.
pub fn operations(interface: AsyncInterface) -> impl Iterator<Item = (u8, &'static AsyncOperation)> {
    let known = match interface {
        AsyncInterface::IoUring => IO_URING,
        AsyncInterface::Libaio => LIBAIO,
    };
    known.iter().map(|operation| (operation.opcode, operation))
}

impl AsyncOperation {
    /// Returns whether the operation waits until data are on the device.
    pub fn is_sync(&self) -> bool {
        matches!(self.name, "io_uring fsync" | "io_uring sync_file_range" | "libaio fsync" | "libaio fdsync")
    }
}

/// Returns the names of all operations.
pub fn names() -> impl Iterator<Item = &'static str> {
    IO_URING.iter().chain(LIBAIO).map(|operation| operation.name)
}

/// Returns whether an operation has this name.
pub fn is_operation(name: &str) -> bool {
    names().any(|known| known == name)
}

/// Returns the operations of io_uring to trace: bit n is operation n.
pub fn traced_operations() -> u64 {
    IO_URING.iter().fold(0, |bits, operation| bits | 1 << operation.opcode)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_have_the_names_of_the_kernel() {
        assert_eq!(operation(AsyncInterface::IoUring, 22).name, "io_uring read");
        assert_eq!(operation(AsyncInterface::Libaio, 1).name, "libaio pwrite");
        assert_eq!(operation(AsyncInterface::IoUring, 200).name, "io_uring operation");
        assert!(IO_URING.is_sorted_by_key(|operation| operation.opcode));
        assert_eq!(traced_operations() >> 27 & 1, 0, "recv");
    }
}
