//! File arguments of system calls: what the eBPF programs capture.
//!
//! All indices refer to [`SyscallSpec::args`], and so to the registers.

use super::fcntl;
use super::{ArgKind, Args, FlagSet, Returns, SyscallClass, SyscallSpec};

impl SyscallSpec {
    /// Returns the descriptor of the primary file: the file acted on, or the source of data
    /// (sendfile's second argument, the first of splice and copy_file_range).
    pub fn fd_arg(&self) -> Option<usize> {
        let (first, second) = self.fds();
        match (self.source_is_second(), second) {
            (true, Some(second)) => Some(second),
            _ => first,
        }
    }

    /// Returns the descriptor of the second file: the destination of data. Only transfers have one.
    pub fn second_fd_arg(&self) -> Option<usize> {
        let (first, second) = self.fds();
        if self.source_is_second() { first } else { second }
    }

    /// Returns the descriptor that a successful call closes if it was open (dup2, dup3).
    pub fn replaced_fd_arg(&self) -> Option<usize> {
        self.first(|kind| kind == ArgKind::NewFd)
    }

    /// Returns the path arguments in order, including symbolic link texts, packed to the front.
    pub fn path_args(&self) -> [Option<usize>; 2] {
        self.first_two(|kind| matches!(kind, ArgKind::Path | ArgKind::LinkTarget))
    }

    /// Returns all strings to capture in order: paths, then the name of an extended attribute.
    /// Equal to [`SyscallSpec::path_args`] for calls without such a name.
    pub fn text_args(&self) -> [Option<usize>; 2] {
        self.first_two(ArgKind::is_text)
    }

    /// Returns the directory descriptor that the path at `path_arg` starts from; `None` if it is
    /// always the working directory, or if the argument is no path.
    pub fn dir_fd_arg(&self, path_arg: usize) -> Option<usize> {
        let before = path_arg.checked_sub(1)?;
        let is = |index: usize, kind| self.args.get(index).is_some_and(|arg| arg.kind == kind);
        (is(path_arg, ArgKind::Path) && is(before, ArgKind::DirFd)).then_some(before)
    }

    /// Returns the value of the primary descriptor; `None` if the call has none or ignores it
    /// (anonymous mmap).
    pub fn descriptor(&self, args: &Args) -> Option<i32> {
        const MAP_ANONYMOUS: u64 = 0x20;
        let anonymous = self.flags(FlagSet::Map, args).is_some_and(|flags| flags & MAP_ANONYMOUS != 0);
        let index = self.fd_arg().filter(|_| !anonymous)?;
        Some(args[index] as i32)
    }

    /// Returns whether an empty path means the directory descriptor's own file (`AT_EMPTY_PATH`). C
    /// libraries implement fstat with newfstatat this way.
    pub fn allows_empty_path(&self, args: &Args) -> bool {
        const AT_EMPTY_PATH: u64 = 0x1000;
        self.flags(FlagSet::At, args).is_some_and(|flags| flags & AT_EMPTY_PATH != 0)
    }

    /// Returns whether success returns a descriptor of a file that this call opened: open, openat,
    /// openat2, creat.
    pub fn returns_descriptor_of_file(&self) -> bool {
        self.returns == Returns::Descriptor
    }

    /// Returns whether success returns another descriptor of the file at [`SyscallSpec::fd_arg`],
    /// which shares its position: dup, dup2, dup3, and fcntl with `F_DUPFD` or `F_DUPFD_CLOEXEC`.
    pub fn duplicates_descriptor(&self, args: &Args) -> bool {
        self.returned(args) == Returns::Duplicate
    }

    /// Returns the meaning of this invocation's return value: [`SyscallSpec::returns`] with the
    /// fcntl command resolved.
    pub fn returned(&self, args: &Args) -> Returns {
        match (self.returns, self.first(|kind| kind == ArgKind::FcntlCommand)) {
            (Returns::ByCommand, Some(index)) => fcntl::returns(args[index] as u32),
            (returns, _) => returns,
        }
    }

    /// Returns the flags of `set` among the arguments, if the call takes that set.
    pub fn flags(&self, set: FlagSet, args: &Args) -> Option<u64> {
        self.first(|kind| kind == ArgKind::Flags(set)).map(|index| args[index] & u64::from(u32::MAX))
    }

    /// Returns the first argument whose kind is `wanted`.
    pub(super) fn first(&self, wanted: impl Fn(ArgKind) -> bool) -> Option<usize> {
        self.first_two(wanted)[0]
    }

    fn first_two(&self, wanted: impl Fn(ArgKind) -> bool) -> [Option<usize>; 2] {
        let mut found = (0..self.args.len()).filter(|&index| wanted(self.args[index].kind));
        [found.next(), found.next()]
    }

    fn fds(&self) -> (Option<usize>, Option<usize>) {
        let [first, second] = self.first_two(|kind| kind == ArgKind::Fd);
        (first, second)
    }

    /// Returns whether the source is the second descriptor. sendfile alone names the destination
    /// first: its descriptors are adjacent, and the offset follows the second, the source.
    fn source_is_second(&self) -> bool {
        self.class == SyscallClass::Transfer
            && matches!(self.fds(), (Some(first), Some(second)) if second == first + 1)
    }
}
