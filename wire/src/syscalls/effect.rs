//! Effect of a system call on a file's data and position: bytes, offset, and use of the
//! descriptor's position.
//!
//! The answers use the arguments alone. Unknown values are not guessed: positions behind pointers,
//! sizes of vectors, and flags of the descriptor.

use super::errno::errno_of;
use super::{ArgKind, Args, FlagSet, Returns, SyscallClass, SyscallSpec};

impl SyscallSpec {
    /// Returns whether the call can read or move the position of a descriptor among its arguments:
    /// read, write, readv, writev and lseek always; preadv2, pwritev2, splice and copy_file_range
    /// depending on their arguments, see [`SyscallSpec::uses_position_of`]; sendfile always, for
    /// its destination.
    ///
    /// A lock or preallocation relative to the position (`l_whence` of `struct flock`) states this
    /// in memory only, and is not counted.
    pub fn uses_position(&self) -> bool {
        (0..self.args.len()).any(|index| self.position_rule(index) != PositionRule::Never)
    }

    /// Returns whether this invocation reads or moves the position of the descriptor at `fd_arg`.
    /// On a file without position (pipe, socket) the kernel ignores it.
    pub fn uses_position_of(&self, fd_arg: usize, args: &Args) -> bool {
        match self.position_rule(fd_arg) {
            PositionRule::Never => false,
            PositionRule::Always => true,
            PositionRule::IfNull(pointer) => args[pointer] == 0,
            PositionRule::IfMinusOne(offset) => args[offset] as i64 == -1,
        }
    }

    /// Returns the bytes of file data that a call with return value `ret` moved; `None` if it
    /// failed or moves none. readlink and getxattr return bytes too, but not of file data.
    pub fn bytes(&self, ret: i64) -> Option<u64> {
        let moves = self.moves_data() && self.returns == Returns::Bytes && errno_of(ret).is_none();
        u64::try_from(ret).ok().filter(|_| moves)
    }

    /// Returns the bytes that the call requests to move, or the length of its range. `None` if
    /// memory holds the size (vectors), or if 0 means up to the end of the file.
    pub fn requested_bytes(&self, args: &Args) -> Option<u64> {
        let index = self.first(|kind| matches!(kind, ArgKind::Size | ArgKind::Extent))?;
        let to_end = self.args[index].kind == ArgKind::Extent && args[index] == 0;
        (!to_end).then_some(args[index])
    }

    /// Returns the file offset of the call if a register holds it by value. `None` for lseek, whose
    /// argument is a distance, and if the kernel ignores the value: -1 for preadv2 and pwritev2,
    /// `RWF_APPEND`, anonymous mmap.
    ///
    /// On a descriptor with `O_APPEND`, pwrite64 still returns its offset here although Linux
    /// appends (pwrite(2), section BUGS): the flags of the descriptor are not among the arguments.
    pub fn offset(&self, args: &Args) -> Option<i64> {
        const RWF_APPEND: u64 = 0x10;
        let index = self.first(|kind| matches!(kind, ArgKind::Offset | ArgKind::OffsetOrPosition))?;
        let own_position = self.args[index].kind == ArgKind::OffsetOrPosition && args[index] as i64 == -1;
        let appends = self.class == SyscallClass::Write
            && self.flags(FlagSet::Rw, args).is_some_and(|flags| flags & RWF_APPEND != 0);
        (!own_position && !appends && self.descriptor(args).is_some()).then_some(args[index] as i64)
    }

    /// Returns whether the call may change the content of the file of its first descriptor.
    pub fn writes_primary_file(&self) -> bool {
        let class = matches!(self.class, SyscallClass::Write | SyscallClass::Truncate);
        (class || self.is_sendfile()) && self.fd_arg().is_some()
    }

    /// Returns whether the call may change the content of the file of its second descriptor: splice
    /// and copy_file_range.
    pub fn writes_second_file(&self) -> bool {
        self.class == SyscallClass::Transfer && !self.is_sendfile() && self.second_fd_arg().is_some()
    }

    /// Returns whether the first of two descriptors is the destination.
    fn is_sendfile(&self) -> bool {
        self.class == SyscallClass::Transfer && self.args.get(1).is_some_and(|arg| arg.kind == ArgKind::Fd)
    }

    /// Returns whether the purpose of the call is to move file data.
    pub fn moves_data(&self) -> bool {
        matches!(self.class, SyscallClass::Read | SyscallClass::Write | SyscallClass::Transfer)
    }

    fn position_rule(&self, fd_arg: usize) -> PositionRule {
        let kind = |index: usize| self.args.get(index).map(|arg| arg.kind);
        if kind(fd_arg) != Some(ArgKind::Fd) {
            return PositionRule::Never;
        }
        if self.class == SyscallClass::Position {
            return PositionRule::Always;
        }
        if !self.moves_data() || self.first(|kind| kind == ArgKind::Offset).is_some() {
            return PositionRule::Never;
        }
        if kind(fd_arg + 1) == Some(ArgKind::OffsetPtr) {
            return PositionRule::IfNull(fd_arg + 1);
        }
        match self.first(|kind| kind == ArgKind::OffsetOrPosition) {
            Some(offset) => PositionRule::IfMinusOne(offset),
            None => PositionRule::Always,
        }
    }
}

/// Condition under which the position of a descriptor is used; indices are those of the deciding
/// argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PositionRule {
    Never,
    Always,
    IfNull(usize),
    IfMinusOne(usize),
}
