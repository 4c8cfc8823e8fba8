//! Range of a file that an operation wrote.
//!
//! *In*: a system call, or a completed request of io_uring. *Out*: what it did to the content of a
//! file. *Invariant*: a range is given only if the operation's record has it: an offset in a register
//! or the request, or the file's position at return.

use std::ops::Range;

use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::event::{OpenFile, SyscallEvent, SyscallOutcome};
use blkkin_wire::syscalls::SyscallClass;

/// Change of a file's content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Change {
    /// Bytes were written.
    Write(Range<u64>),
    /// The file ends here now.
    Truncate(u64),
}

/// Returns the file whose content the call may change.
pub(super) fn destination(call: &SyscallEvent) -> Option<&OpenFile> {
    if call.call.spec().writes_second_file() { call.second_file.as_deref() } else { call.file.as_ref() }
}

/// Returns what the call changed in its destination; none if it failed, or if its record does not
/// have the range.
pub(super) fn change(call: &SyscallEvent, destination: &OpenFile) -> Option<Change> {
    let SyscallOutcome::Returned(ret) = call.outcome else { return None };
    let spec = call.call.spec();
    if spec.class == SyscallClass::Truncate {
        return (ret == 0).then_some(Change::Truncate(call.args[1]));
    }
    let bytes = spec.bytes(ret).filter(|bytes| *bytes > 0)?;
    let start = match spec.offset(&call.args) {
        Some(offset) => u64::try_from(offset).ok()?,
        None => destination.start_by_position(bytes)?,
    };
    Some(Change::Write(start..start.checked_add(bytes)?))
}

/// Returns the range that a request wrote into the page cache; none if it wrote nothing.
pub(super) fn of_request(io: &AsyncIoEvent) -> Option<Range<u64>> {
    let start = u64::try_from(io.offset?).ok()?;
    let bytes = io.bytes().filter(|bytes| io.writes_page_cache && *bytes > 0)?;
    Some(start..start.checked_add(bytes.into())?)
}
