//! Names of flags: the bits of each set, and a set written as in a program's source.
//!
//! Invariant: no bit is lost. Bits without a name, perhaps of a newer kernel, are written as one
//! hexadecimal number at the end.

mod bits;

use super::Arch;

/// Set of flags of some system call.
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub enum FlagSet {
    /// Flags of open, access mode included.
    Open,
    /// Flags of `F_SETFL`: as [`FlagSet::Open`], but the access mode is ignored.
    Status,
    /// Path lookup: the `AT_` flags.
    At,
    /// renameat2.
    Rename,
    /// Operations of fallocate.
    Fallocate,
    /// preadv2 and pwritev2.
    Rw,
    /// splice.
    Splice,
    /// Steps of sync_file_range.
    SyncRange,
    /// msync.
    Msync,
    /// mmap: memory protection.
    Prot,
    /// mmap: kind of mapping.
    Map,
    /// setxattr: whether the attribute must or must not exist.
    Xattr,
    /// statx: requested fields.
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
    /// Returns the names of the set; names of several bits precede their parts. The access mode of
    /// [`FlagSet::Open`] is a number, not bits, so it is not included: see [`access_mode`].
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

    /// Formats the flags, joined by `|`; empty if no flag is set and the set has no name for that.
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

/// Returns the access mode of these open flags. 3 has no official name: it requires both
/// permissions and yields a descriptor for ioctl only (open(2), section NOTES).
pub fn access_mode(flags: u32) -> &'static str {
    match flags & O_ACCMODE {
        0 => "O_RDONLY",
        1 => "O_WRONLY",
        2 => "O_RDWR",
        _ => "O_ACCMODE",
    }
}

/// Returns the O_DIRECT bit on `arch`.
pub const fn o_direct(arch: Arch) -> u32 {
    match arch {
        Arch::X86_64 => 0o40000,
        Arch::Aarch64 => 0o200000,
    }
}

/// O_APPEND bit: every write goes to the end of the file.
pub const O_APPEND: u32 = 0o2000;

/// Returns the name of lseek's third argument (`include/uapi/linux/fs.h`).
pub fn whence_name(whence: u32) -> Option<&'static str> {
    ["SEEK_SET", "SEEK_CUR", "SEEK_END", "SEEK_DATA", "SEEK_HOLE"].get(whence as usize).copied()
}

/// Returns the name of fadvise64's fourth argument (`include/uapi/linux/fadvise.h`; only s390
/// differs).
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
