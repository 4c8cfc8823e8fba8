//! What a call does to a file's data and position: how much, where, and whether the descriptor's own position
//! is involved.
//!
//! These answer from the arguments alone. What they cannot know, they do not guess: positions behind pointers,
//! the sizes of vectors, and the flags of the descriptor.

use super::errno::errno_of;
use super::{ArgKind, Args, CallClass, CallSpec, FlagSet, Returns};

impl CallSpec {
    /// Whether the call may read or move the position of a descriptor among its arguments: read, write, readv,
    /// writev and lseek always; preadv2, pwritev2, splice and copy_file_range by their arguments, see
    /// [`CallSpec::uses_position_of`]; sendfile always, for its destination.
    ///
    /// A lock or preallocation that counts from the position (`l_whence` of `struct flock`) says so in memory
    /// only, and is not counted here.
    pub fn uses_position(&self) -> bool {
        (0..self.args.len()).any(|index| self.position_rule(index) != PositionRule::Never)
    }

    /// Whether this invocation reads or moves the position of the descriptor at `fd_arg`. On a file that has no
    /// position, a pipe or socket, the kernel ignores it.
    pub fn uses_position_of(&self, fd_arg: usize, args: &Args) -> bool {
        match self.position_rule(fd_arg) {
            PositionRule::Never => false,
            PositionRule::Always => true,
            PositionRule::IfNull(pointer) => args[pointer] == 0,
            PositionRule::IfMinusOne(offset) => args[offset] as i64 == -1,
        }
    }

    /// How many bytes of file data a call that returned `ret` moved; `None` if it failed or moves none. A
    /// readlink or getxattr returns bytes too, but not of a file's data.
    pub fn bytes(&self, ret: i64) -> Option<u64> {
        let moves = self.moves_data() && self.returns == Returns::Bytes && errno_of(ret).is_none();
        u64::try_from(ret).ok().filter(|_| moves)
    }

    /// How many bytes the call asks to move, or the length of the range that it names. `None` where memory says
    /// so (vectors), and where 0 means up to the end of the file.
    pub fn requested_bytes(&self, args: &Args) -> Option<u64> {
        let index = self.first(|kind| matches!(kind, ArgKind::Size | ArgKind::Extent))?;
        let to_end = self.args[index].kind == ArgKind::Extent && args[index] == 0;
        (!to_end).then_some(args[index])
    }

    /// Where in the file the call asks to work, if a register says so by value. `None` for lseek, whose argument
    /// is a distance, and where the kernel does not use the value: -1 for preadv2 and pwritev2, `RWF_APPEND`,
    /// anonymous mmap.
    ///
    /// On a descriptor with `O_APPEND` a pwrite64 still gives its offset here, though Linux then appends (pwrite(2),
    /// section BUGS): the descriptor's flags are not among the arguments.
    pub fn offset(&self, args: &Args) -> Option<i64> {
        const RWF_APPEND: u64 = 0x10;
        let index = self.first(|kind| matches!(kind, ArgKind::Offset | ArgKind::OffsetOrPosition))?;
        let own_position = self.args[index].kind == ArgKind::OffsetOrPosition && args[index] as i64 == -1;
        let appends = self.class == CallClass::Write
            && self.flags(FlagSet::Rw, args).is_some_and(|flags| flags & RWF_APPEND != 0);
        (!own_position && !appends && self.descriptor(args).is_some()).then_some(args[index] as i64)
    }

    /// Whether the call's purpose is to move file data.
    pub fn moves_data(&self) -> bool {
        matches!(self.class, CallClass::Read | CallClass::Write | CallClass::Transfer)
    }

    fn position_rule(&self, fd_arg: usize) -> PositionRule {
        let kind = |index: usize| self.args.get(index).map(|arg| arg.kind);
        if kind(fd_arg) != Some(ArgKind::Fd) {
            return PositionRule::Never;
        }
        if self.class == CallClass::Position {
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

/// When the position of one descriptor is used; the indices are those of the deciding argument.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
enum PositionRule {
    Never,
    Always,
    IfNull(usize),
    IfMinusOne(usize),
}
