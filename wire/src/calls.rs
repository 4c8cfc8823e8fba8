//! The system calls that blkkin follows: what each is called, its number on each architecture, what its six
//! argument registers mean, and what it gives back.
//!
//! In flows a number and raw registers, as the kernel's `sys_enter` and `sys_exit` tracepoints have them; out
//! come names, the arguments to capture (which descriptor, which path, is the file position involved), the
//! bytes and the offset of a request, and a line a person can read.
//!
//! Invariants:
//! - [`CallId`] is an index into one table ([`table::CALLS`]) and travels inside events. The table is therefore
//!   append-only: a line moved or removed changes the meaning of recorded traces.
//! - Every query is total. A register may hold anything, as the kernel passes on what the program put there;
//!   no value makes a function here panic.
//! - A register is as wide as the kernel's own parameter. Descriptors and most flags are `int`: the upper half
//!   of the register is noise and is never looked at.
//! - Everything is derived from the kinds of the arguments. A new call is one line of the table, and no query
//!   asks for a call by its name.
//!
//! Only native 64-bit calls have numbers here. A 32-bit program on a 64-bit kernel uses another table, and so
//! does x32 (its numbers carry bit 30, `arch/x86/include/uapi/asm/unistd.h`): neither may be looked up here.

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
pub use id::CallId;
pub use render::Invocation;

/// The argument registers of one call, in order; those past the call's own arguments hold leftovers.
pub type Args = [u64; 6];

/// One system call that blkkin follows.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct CallSpec {
    /// The kernel's name of it, without `sys_`: `pread64`, not `pread`.
    pub name: &'static str,
    /// Its number on x86_64 (`arch/x86/entry/syscalls/syscall_64.tbl`).
    pub x86_64: Option<u16>,
    /// Its number on aarch64 (`include/uapi/asm-generic/unistd.h`); calls that an `…at` form replaced have none.
    pub aarch64: Option<u16>,
    /// The arguments in the order of the registers, at most six.
    pub args: &'static [Arg],
    /// What kind of work it asks for.
    pub class: CallClass,
    /// What its return value means when it is not an error.
    pub returns: Returns,
}

impl CallSpec {
    /// The call's number on `arch`; `None` where that architecture has no such call.
    pub const fn number(&self, arch: Arch) -> Option<u16> {
        match arch {
            Arch::X86_64 => self.x86_64,
            Arch::Aarch64 => self.aarch64,
        }
    }
}

/// What kind of work a call asks the kernel for.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum CallClass {
    /// Opens a file by name.
    Open,
    /// Closes a descriptor.
    Close,
    /// Moves data from a file to memory.
    Read,
    /// Moves data from memory to a file.
    Write,
    /// Asks for data to be made durable.
    Sync,
    /// Moves a file position.
    Position,
    /// Sets a file's size.
    Truncate,
    /// Reserves, punches or shifts a file's space.
    Allocate,
    /// Tells the page cache what is to come.
    Hint,
    /// Maps a file into memory.
    Map,
    /// Moves data from one file to another inside the kernel.
    Transfer,
    /// Copies, configures or locks a descriptor.
    Descriptor,
    /// A request to a driver or file system (ioctl).
    Control,
    /// Reads or writes what a file system keeps about a file.
    Metadata,
    /// Changes names: create, rename, link, remove.
    Namespace,
    /// Submits or collects requests that run on their own (aio, io_uring).
    Async,
}

/// What a successful call's return value means.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub enum Returns {
    /// Nothing but success: 0.
    Status,
    /// Bytes put into or taken from memory or a file.
    Bytes,
    /// A descriptor of a file that this call opened.
    Descriptor,
    /// A further descriptor of a file that is open already.
    Duplicate,
    /// A descriptor of an io_uring.
    Ring,
    /// A file position.
    Position,
    /// An address in the program's memory.
    Address,
    /// How many requests or events were handled.
    Count,
    /// Depends on the fcntl command, see [`fcntl::returns`].
    ByCommand,
    /// Depends on the ioctl request; 0 for most.
    ByRequest,
    /// File status flags (fcntl's `F_GETFL`).
    Flags,
}
