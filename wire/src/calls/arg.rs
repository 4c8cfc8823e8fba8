//! What the argument registers of a call mean.
//!
//! Two rules tie arguments together by their order; the kernel's own prototypes keep them, and a test checks
//! them: an [`ArgKind::OffsetPtr`] belongs to the [`ArgKind::Fd`] right before it, and an [`ArgKind::DirFd`] to
//! the [`ArgKind::Path`] right after it.

use super::FlagSet;

/// One argument of a call.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct Arg {
    /// Its name in the kernel's prototype.
    pub name: &'static str,
    /// What the register holds.
    pub kind: ArgKind,
}

/// What a register holds. The order is: files, names, memory, sizes, positions, the rest.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum ArgKind {
    /// A descriptor of an open file.
    Fd,
    /// The number that a copy of a descriptor shall get; what was open there is closed (dup2, dup3).
    NewFd,
    /// The directory that the path after it starts from, or `AT_FDCWD`.
    DirFd,

    /// Pointer to a path that is looked up.
    Path,
    /// Pointer to the text of a symbolic link: stored, not looked up.
    LinkTarget,
    /// Pointer to another text: the name of an extended attribute.
    String,

    /// Pointer to memory that data comes from or goes to.
    Buffer,
    /// Pointer to an array of `struct iovec`, each a piece of memory for data.
    Iovec,
    /// Pointer to something else, or an address.
    Pointer,
    /// An opaque word: an aio context, an ioctl's argument.
    Word,

    /// Bytes of file data to move, or of a range of a file or of memory.
    Size,
    /// Bytes of a range of a file, where 0 means up to its end.
    Extent,
    /// Bytes that a buffer for anything but file data holds.
    BufferSize,
    /// The size that a file shall have.
    FileSize,
    /// How many entries an array has.
    Count,

    /// A file position by value.
    Offset,
    /// A file position by value, where -1 means the descriptor's own (preadv2, pwritev2).
    OffsetOrPosition,
    /// The upper half of a position on 32-bit kernels. 64-bit ones shift it out: `pos_from_hilo` in
    /// `fs/read_write.c`.
    OffsetHigh,
    /// Pointer to a file position; NULL means the descriptor's own.
    OffsetPtr,
    /// A distance from what [`ArgKind::Whence`] says.
    Distance,
    /// Where a distance is counted from: `SEEK_SET` and so on.
    Whence,

    /// A set of flags.
    Flags(FlagSet),
    /// What posix_fadvise is told.
    Advice,
    /// Permission bits, and the file's type for mknod.
    Mode,
    /// A device number as user space encodes it.
    Device,
    /// A command of fcntl.
    FcntlCommand,
    /// The argument of fcntl, which means what the command says.
    FcntlArg,
    /// A request of ioctl.
    IoctlRequest,
    /// Another number, 32 bits.
    Int,
    /// Another number, 64 bits.
    Long,
}

impl ArgKind {
    /// Whether the register points at a text that ends with NUL.
    pub const fn is_text(self) -> bool {
        matches!(self, ArgKind::Path | ArgKind::LinkTarget | ArgKind::String)
    }

    /// Whether the register points at memory, or at NULL.
    pub const fn is_pointer(self) -> bool {
        self.is_text()
            || matches!(self, ArgKind::Buffer | ArgKind::Iovec | ArgKind::Pointer | ArgKind::OffsetPtr)
    }
}
