//! Arguments of system calls.
//!
//! Two rules tie arguments together by their order. The kernel's prototypes satisfy them, and a
//! test checks them: an [`ArgKind::OffsetPtr`] belongs to the [`ArgKind::Fd`] directly before it,
//! and an [`ArgKind::DirFd`] to the [`ArgKind::Path`] directly after it.

use super::FlagSet;

/// An argument of a system call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arg {
    /// Name in the kernel's prototype.
    pub name: &'static str,
    /// Content of the register.
    pub kind: ArgKind,
}

/// Content of an argument register. Order: files, names, memory, sizes, positions, the rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArgKind {
    /// A descriptor of an open file.
    Fd,
    /// Number for a copy of a descriptor; an open file there is closed (dup2, dup3).
    NewFd,
    /// Directory that the following path starts from, or `AT_FDCWD`.
    DirFd,

    /// Pointer to a path that is looked up.
    Path,
    /// Pointer to the text of a symbolic link: stored, not looked up.
    LinkTarget,
    /// Pointer to another string: the name of an extended attribute.
    String,

    /// Pointer to memory that data is read from or written to.
    Buffer,
    /// Pointer to an array of `struct iovec`.
    Iovec,
    /// Another pointer, or an address.
    Pointer,
    /// Opaque word: an aio context, an ioctl's argument.
    Word,

    /// Bytes of file data to move, or of a range of a file or of memory.
    Size,
    /// Bytes of a range of a file; 0 means up to its end.
    Extent,
    /// Size in bytes of a buffer for anything but file data.
    BufferSize,
    /// New size of a file.
    FileSize,
    /// Number of entries of an array.
    Count,

    /// A file position by value.
    Offset,
    /// A file position by value, where -1 means the descriptor's own (preadv2, pwritev2).
    OffsetOrPosition,
    /// Upper half of a position on 32-bit kernels. 64-bit kernels shift it out: `pos_from_hilo` in
    /// `fs/read_write.c`.
    OffsetHigh,
    /// Pointer to a file position; NULL means the descriptor's own.
    OffsetPtr,
    /// Distance from the position that [`ArgKind::Whence`] selects.
    Distance,
    /// Base of a distance: `SEEK_SET` and so on.
    Whence,

    /// A set of flags.
    Flags(FlagSet),
    /// Advice of posix_fadvise.
    Advice,
    /// Permission bits, and the file's type for mknod.
    Mode,
    /// Device number in user space's encoding.
    Device,
    /// Command of fcntl.
    FcntlCommand,
    /// Argument of fcntl; its meaning depends on the command.
    FcntlArg,
    /// Request of ioctl.
    IoctlRequest,
    /// Another number, 32 bits.
    Int,
    /// Another number, 64 bits.
    Long,
}

impl ArgKind {
    /// Returns whether the register points to a NUL-terminated string.
    pub const fn is_text(self) -> bool {
        matches!(self, ArgKind::Path | ArgKind::LinkTarget | ArgKind::String)
    }

    /// Returns whether the register points to memory, or is NULL.
    pub const fn is_pointer(self) -> bool {
        self.is_text()
            || matches!(self, ArgKind::Buffer | ArgKind::Iovec | ArgKind::Pointer | ArgKind::OffsetPtr)
    }
}
