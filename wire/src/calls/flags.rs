//! Names of flags: which bits each set has, and a set written out as a program's source would.
//!
//! Invariant: no bit is lost. What has no name here, from a newer kernel perhaps, is written as one hexadecimal
//! number at the end.

mod bits;

use super::Arch;

/// A set of flags that some call takes.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FlagSet {
    /// How a file is opened, access mode included.
    Open,
    /// What `F_SETFL` takes: as [`FlagSet::Open`], but the access mode cannot be changed and is ignored.
    Status,
    /// How a path is looked up: the `AT_` flags.
    At,
    /// renameat2.
    Rename,
    /// fallocate: what to do with the range.
    Fallocate,
    /// preadv2 and pwritev2.
    Rw,
    /// splice.
    Splice,
    /// sync_file_range: which steps to take.
    SyncRange,
    /// msync.
    Msync,
    /// mmap: how the memory may be used.
    Prot,
    /// mmap: what kind of mapping.
    Map,
    /// setxattr: whether the attribute must or must not exist.
    Xattr,
    /// statx: which fields the program wants.
    StatxMask,
    /// dup3.
    Dup,
    /// flock: kind of lock.
    Flock,
    /// io_uring_enter.
    UringEnter,
    /// No flag is defined: the argument must be 0.
    Reserved,
}

impl FlagSet {
    /// The set's names, those of several bits before their parts. The access mode of [`FlagSet::Open`] is a
    /// number, not bits, and not among them: see [`access_mode`].
    pub fn names(self, arch: Arch) -> &'static [(u32, &'static str)] {
        match (self, arch) {
            (FlagSet::Open | FlagSet::Status, Arch::X86_64) => bits::OPEN_X86_64,
            (FlagSet::Open | FlagSet::Status, Arch::Aarch64) => bits::OPEN_AARCH64,
            (FlagSet::At, _) => bits::AT,
            (FlagSet::Rename, _) => bits::RENAME,
            (FlagSet::Fallocate, _) => bits::FALLOCATE,
            (FlagSet::Rw, _) => bits::RW,
            (FlagSet::Splice, _) => bits::SPLICE,
            (FlagSet::SyncRange, _) => bits::SYNC_RANGE,
            (FlagSet::Msync, _) => bits::MSYNC,
            (FlagSet::Prot, _) => bits::PROT,
            (FlagSet::Map, _) => bits::MAP,
            (FlagSet::Xattr, _) => bits::XATTR,
            (FlagSet::StatxMask, _) => bits::STATX_MASK,
            (FlagSet::Dup, _) => bits::DUP,
            (FlagSet::Flock, _) => bits::FLOCK,
            (FlagSet::UringEnter, _) => bits::URING_ENTER,
            (FlagSet::Reserved, _) => &[],
        }
    }

    /// The flags written out, joined by `|`; empty if there are none and the set has no name for that.
    pub fn text(self, arch: Arch, value: u32) -> String {
        let mut words = Vec::new();
        let mut rest = value;
        match self {
            FlagSet::Open => {
                words.push(access_mode(value).to_owned());
                rest &= !O_ACCMODE;
            }
            FlagSet::Status => rest &= !O_ACCMODE,
            FlagSet::Prot if value == 0 => words.push("PROT_NONE".to_owned()),
            _ => {}
        }
        for &(bits, name) in self.names(arch) {
            if rest & bits == bits {
                words.push(name.to_owned());
                rest &= !bits;
            }
        }
        if rest != 0 {
            words.push(format!("{rest:#x}"));
        }
        words.join("|")
    }
}

const O_ACCMODE: u32 = 0o3;

/// Which way data may go through a descriptor opened with these flags. 3 has no official name: it asks for both
/// permissions and gives a descriptor for ioctl only (open(2), section NOTES).
pub fn access_mode(flags: u32) -> &'static str {
    match flags & O_ACCMODE {
        0 => "O_RDONLY",
        1 => "O_WRONLY",
        2 => "O_RDWR",
        _ => "O_ACCMODE",
    }
}

/// The bit by which `arch` asks for I/O past the page cache.
pub const fn o_direct(arch: Arch) -> u32 {
    match arch {
        Arch::X86_64 => 0o40000,
        Arch::Aarch64 => 0o200000,
    }
}

/// The bit by which every write goes to the end of the file.
pub const O_APPEND: u32 = 0o2000;

/// The name of lseek's third argument (`include/uapi/linux/fs.h`).
pub fn whence_name(whence: u32) -> Option<&'static str> {
    ["SEEK_SET", "SEEK_CUR", "SEEK_END", "SEEK_DATA", "SEEK_HOLE"].get(whence as usize).copied()
}

/// The name of fadvise64's fourth argument (`include/uapi/linux/fadvise.h`, where only s390 differs).
pub fn advice_name(advice: u32) -> Option<&'static str> {
    const NAMES: [&str; 6] = [
        "POSIX_FADV_NORMAL",
        "POSIX_FADV_RANDOM",
        "POSIX_FADV_SEQUENTIAL",
        "POSIX_FADV_WILLNEED",
        "POSIX_FADV_DONTNEED",
        "POSIX_FADV_NOREUSE",
    ];
    NAMES.get(advice as usize).copied()
}
