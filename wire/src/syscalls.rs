//! System calls that blkkin traces: their names, their numbers on each architecture, the meaning of
//! their six argument registers, and of their return value.
//!
//! *In*: a number and raw registers, as the kernel's `sys_enter` and `sys_exit` tracepoints provide
//! them. *Out*: names, the arguments to capture (descriptor, path, use of the file position), bytes
//! and offset of the I/O, and a readable line.
//!
//! *Invariants*:
//! - [`SyscallId`] is an index into one table ([`table::SYSCALLS`]) and travels inside events. The
//!   table is append-only: moving or removing a line changes the meaning of recorded traces.
//! - Every query is total. The kernel passes on whatever the program put into a register; no value
//!   makes a function here panic.
//! - A register is as wide as the kernel's parameter. Descriptors and most flags are `int`: the
//!   upper half of the register is noise and is ignored.
//! - Everything is derived from the kinds of the arguments. A new system call is one line of the
//!   table, and no query compares names of system calls.
//!
//! Only native 64-bit system calls have numbers here. A 32-bit program on a 64-bit kernel uses
//! another table, and so does x32 (bit 30 of the number is set,
//! `arch/x86/include/uapi/asm/unistd.h`): neither may be looked up here.

pub mod arch;
pub mod arg;
pub mod effect;
pub mod errno;
pub mod fcntl;
pub mod flags;
pub mod id;
pub mod ioctl;
pub mod render;
pub mod shape;
pub mod table;
#[cfg(test)]
mod tests;

pub use arch::Arch;
pub use arg::{Arg, ArgKind};
pub use errno::{errno_name, errno_of, was_interrupted};
pub use flags::FlagSet;
pub use id::SyscallId;
pub use render::Invocation;

/// Argument registers of one system call, in order. Registers after the last argument hold
/// leftovers.
pub type Args = [u64; 6];

/// A system call that blkkin traces.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct SyscallSpec {
    /// Kernel name without `sys_`: `pread64`, not `pread`.
    pub name: &'static str,
    /// Number on x86_64 (`arch/x86/entry/syscalls/syscall_64.tbl`).
    pub x86_64: Option<u16>,
    /// Number on aarch64 (`include/uapi/asm-generic/unistd.h`); none for calls that an `…at` form
    /// replaced.
    pub aarch64: Option<u16>,
    /// Arguments in register order, up to six.
    pub args: &'static [Arg],
    /// Class of work.
    pub class: SyscallClass,
    /// Meaning of a successful return value.
    pub returns: Returns,
}

impl SyscallSpec {
    /// Returns the number on `arch`; `None` if that architecture lacks the call.
    pub const fn number(&self, arch: Arch) -> Option<u16> {
        match arch {
            Arch::X86_64 => self.x86_64,
            Arch::Aarch64 => self.aarch64,
        }
    }
}

/// Class of work that a system call requests.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum SyscallClass {
    /// Opens a file by name.
    Open,
    /// Closes a descriptor.
    Close,
    /// Moves data from a file to memory.
    Read,
    /// Moves data from memory to a file.
    Write,
    /// Requests durability of data.
    Sync,
    /// Moves a file position.
    Position,
    /// Sets a file's size.
    Truncate,
    /// Reserves, punches or shifts a file's space.
    Allocate,
    /// Advises the page cache.
    Hint,
    /// Maps a file into memory.
    Map,
    /// Moves data from one file to another inside the kernel.
    Transfer,
    /// Copies, configures or locks a descriptor.
    Descriptor,
    /// Sends a request to a driver or file system (ioctl).
    Control,
    /// Reads or writes file metadata.
    Metadata,
    /// Changes names: create, rename, link, remove.
    Namespace,
    /// Submits or collects asynchronous requests (aio, io_uring).
    Async,
    /// Executes a program: reads its first pages.
    Execute,
}

/// Meaning of a successful return value.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Returns {
    /// Only success: 0.
    Status,
    /// Bytes moved to or from memory or a file.
    Bytes,
    /// Descriptor of a file that this call opened.
    Descriptor,
    /// Another descriptor of a file that is already open.
    Duplicate,
    /// Descriptor of an io_uring.
    Ring,
    /// File position.
    Position,
    /// Address in the program's memory.
    Address,
    /// Number of requests or events handled.
    Count,
    /// Depends on the fcntl command, see [`fcntl::returns`].
    ByCommand,
    /// Depends on the ioctl request; 0 for most.
    ByRequest,
    /// File status flags (fcntl's `F_GETFL`).
    Flags,
}
