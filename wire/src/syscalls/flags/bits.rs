//! Bits of each flag set, with the header that defines them. Names of several bits precede their
//! parts.

type Bits = &'static [(u32, &'static str)];

/// `include/uapi/asm-generic/fcntl.h`. O_SYNC and O_TMPFILE each include another flag.
pub(super) const OPEN_X86_64: Bits = &[
    (0o100, "O_CREAT"),
    (0o200, "O_EXCL"),
    (0o400, "O_NOCTTY"),
    (0o1000, "O_TRUNC"),
    (0o2000, "O_APPEND"),
    (0o4000, "O_NONBLOCK"),
    (0o4010000, "O_SYNC"),
    (0o10000, "O_DSYNC"),
    (0o20000, "O_ASYNC"),
    (0o40000, "O_DIRECT"),
    (0o100000, "O_LARGEFILE"),
    (0o20200000, "O_TMPFILE"),
    (0o200000, "O_DIRECTORY"),
    (0o400000, "O_NOFOLLOW"),
    (0o1000000, "O_NOATIME"),
    (0o10000000, "O_PATH"),
    (0o2000000, "O_CLOEXEC"),
];

/// Flags of open on aarch64, where four bits differ: `arch/arm64/include/uapi/asm/fcntl.h`.
pub(super) const OPEN_AARCH64: Bits = &[
    (0o100, "O_CREAT"),
    (0o200, "O_EXCL"),
    (0o400, "O_NOCTTY"),
    (0o1000, "O_TRUNC"),
    (0o2000, "O_APPEND"),
    (0o4000, "O_NONBLOCK"),
    (0o4010000, "O_SYNC"),
    (0o10000, "O_DSYNC"),
    (0o20000, "O_ASYNC"),
    (0o200000, "O_DIRECT"),
    (0o400000, "O_LARGEFILE"),
    (0o20040000, "O_TMPFILE"),
    (0o40000, "O_DIRECTORY"),
    (0o100000, "O_NOFOLLOW"),
    (0o1000000, "O_NOATIME"),
    (0o10000000, "O_PATH"),
    (0o2000000, "O_CLOEXEC"),
];

/// `include/uapi/linux/fcntl.h`. 0x200 is AT_EACCESS for faccessat2, which is not traced.
pub(super) const AT: Bits = &[
    (0x100, "AT_SYMLINK_NOFOLLOW"),
    (0x200, "AT_REMOVEDIR"),
    (0x400, "AT_SYMLINK_FOLLOW"),
    (0x800, "AT_NO_AUTOMOUNT"),
    (0x1000, "AT_EMPTY_PATH"),
    (0x2000, "AT_STATX_FORCE_SYNC"),
    (0x4000, "AT_STATX_DONT_SYNC"),
];

/// `include/uapi/linux/fs.h`.
pub(super) const RENAME: Bits = &[(1, "RENAME_NOREPLACE"), (2, "RENAME_EXCHANGE"), (4, "RENAME_WHITEOUT")];

/// `include/uapi/linux/falloc.h`, in the order of the manual page: operations, then modifiers.
pub(super) const FALLOCATE: Bits = &[
    (0x02, "FALLOC_FL_PUNCH_HOLE"),
    (0x08, "FALLOC_FL_COLLAPSE_RANGE"),
    (0x10, "FALLOC_FL_ZERO_RANGE"),
    (0x20, "FALLOC_FL_INSERT_RANGE"),
    (0x40, "FALLOC_FL_UNSHARE_RANGE"),
    (0x80, "FALLOC_FL_WRITE_ZEROES"),
    (0x01, "FALLOC_FL_KEEP_SIZE"),
    (0x04, "FALLOC_FL_NO_HIDE_STALE"),
];

/// `include/uapi/linux/fs.h`.
pub(super) const RW: Bits = &[
    (0x01, "RWF_HIPRI"),
    (0x02, "RWF_DSYNC"),
    (0x04, "RWF_SYNC"),
    (0x08, "RWF_NOWAIT"),
    (0x10, "RWF_APPEND"),
    (0x20, "RWF_NOAPPEND"),
    (0x40, "RWF_ATOMIC"),
    (0x80, "RWF_DONTCACHE"),
];

/// `include/linux/splice.h`.
pub(super) const SPLICE: Bits =
    &[(1, "SPLICE_F_MOVE"), (2, "SPLICE_F_NONBLOCK"), (4, "SPLICE_F_MORE"), (8, "SPLICE_F_GIFT")];

/// `include/uapi/linux/fs.h`.
pub(super) const SYNC_RANGE: Bits =
    &[(1, "SYNC_FILE_RANGE_WAIT_BEFORE"), (2, "SYNC_FILE_RANGE_WRITE"), (4, "SYNC_FILE_RANGE_WAIT_AFTER")];

/// `include/uapi/asm-generic/mman-common.h`.
pub(super) const MSYNC: Bits = &[(1, "MS_ASYNC"), (2, "MS_INVALIDATE"), (4, "MS_SYNC")];

/// `include/uapi/asm-generic/mman-common.h`.
pub(super) const PROT: Bits = &[(1, "PROT_READ"), (2, "PROT_WRITE"), (4, "PROT_EXEC")];

/// `include/uapi/linux/mman.h`, `asm-generic/mman-common.h`, `asm-generic/mman.h`.
/// MAP_SHARED_VALIDATE is the number 3, not a sum, so as the first of three it is matched
/// correctly.
pub(super) const MAP: Bits = &[
    (0x03, "MAP_SHARED_VALIDATE"),
    (0x01, "MAP_SHARED"),
    (0x02, "MAP_PRIVATE"),
    (0x10, "MAP_FIXED"),
    (0x20, "MAP_ANONYMOUS"),
    (0x100, "MAP_GROWSDOWN"),
    (0x800, "MAP_DENYWRITE"),
    (0x1000, "MAP_EXECUTABLE"),
    (0x2000, "MAP_LOCKED"),
    (0x4000, "MAP_NORESERVE"),
    (0x8000, "MAP_POPULATE"),
    (0x1_0000, "MAP_NONBLOCK"),
    (0x2_0000, "MAP_STACK"),
    (0x4_0000, "MAP_HUGETLB"),
    (0x8_0000, "MAP_SYNC"),
    (0x10_0000, "MAP_FIXED_NOREPLACE"),
];

/// `include/uapi/linux/xattr.h`.
pub(super) const XATTR: Bits = &[(1, "XATTR_CREATE"), (2, "XATTR_REPLACE")];

/// `include/uapi/linux/stat.h`. The eleven fields of stat(2) have one name if all are requested.
pub(super) const STATX_MASK: Bits = &[
    (0x7ff, "STATX_BASIC_STATS"),
    (0x001, "STATX_TYPE"),
    (0x002, "STATX_MODE"),
    (0x004, "STATX_NLINK"),
    (0x008, "STATX_UID"),
    (0x010, "STATX_GID"),
    (0x020, "STATX_ATIME"),
    (0x040, "STATX_MTIME"),
    (0x080, "STATX_CTIME"),
    (0x100, "STATX_INO"),
    (0x200, "STATX_SIZE"),
    (0x400, "STATX_BLOCKS"),
    (0x800, "STATX_BTIME"),
    (0x1000, "STATX_MNT_ID"),
    (0x2000, "STATX_DIOALIGN"),
    (0x4000, "STATX_MNT_ID_UNIQUE"),
    (0x8000, "STATX_SUBVOL"),
    (0x1_0000, "STATX_WRITE_ATOMIC"),
    (0x2_0000, "STATX_DIO_READ_ALIGN"),
];

/// `include/uapi/asm-generic/fcntl.h`.
pub(super) const DUP: Bits = &[(0o2000000, "O_CLOEXEC")];

/// `include/uapi/asm-generic/fcntl.h`.
pub(super) const FLOCK: Bits = &[(1, "LOCK_SH"), (2, "LOCK_EX"), (8, "LOCK_UN"), (4, "LOCK_NB")];

/// `include/uapi/linux/io_uring.h`.
pub(super) const URING_ENTER: Bits = &[
    (0x01, "IORING_ENTER_GETEVENTS"),
    (0x02, "IORING_ENTER_SQ_WAKEUP"),
    (0x04, "IORING_ENTER_SQ_WAIT"),
    (0x08, "IORING_ENTER_EXT_ARG"),
    (0x10, "IORING_ENTER_REGISTERED_RING"),
    (0x20, "IORING_ENTER_ABS_TIMER"),
    (0x40, "IORING_ENTER_EXT_ARG_REG"),
    (0x80, "IORING_ENTER_NO_IOWAIT"),
];
