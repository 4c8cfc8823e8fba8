//! Names and values compared with the headers of the machine that runs the test, as far as it has
//! them.

use super::super::errno::{errno_name, errno_of, was_interrupted};
use super::super::ioctl;
use super::super::{Arch, FlagSet, fcntl};
use super::header;

/// Returns `#define NAME value …` as (name, value).
fn defines(text: &str) -> impl Iterator<Item = (&str, &str)> {
    text.lines().filter_map(|line| {
        let (name, value) = line.strip_prefix("#define")?.trim_start().split_once(char::is_whitespace)?;
        Some((name, value.trim_start()))
    })
}

#[test]
fn calls_errno_names_are_the_headers() {
    for (path, first) in [("errno-base.h", 1), ("errno.h", 35)] {
        let Some(text) = header(&format!("/usr/include/asm-generic/{path}")) else { continue };
        let numbered = defines(&text)
            .filter_map(|(name, value)| Some((name, value.split_whitespace().next()?.parse::<i32>().ok()?)));
        let mut seen = 0;
        for (name, number) in numbered.filter(|(_, number)| *number <= 133) {
            assert_eq!(errno_name(number), Some(name));
            assert!(number >= first);
            seen += 1;
        }
        assert!(seen > 30, "{path} was not understood");
    }
}

#[test]
fn calls_errno_names_cover_the_range() {
    let missing: Vec<_> = (0..=133).filter(|number| errno_name(*number).is_none()).collect();
    assert_eq!(missing, [0, 41, 58]);
    assert_eq!(errno_name(libc::ENOSPC), Some("ENOSPC"));
    assert_eq!([i32::MIN, -1, 134, 4096, i32::MAX].map(errno_name), [None; 5]);
    assert_eq!([-1, -4095].map(errno_of), [Some(1), Some(4095)]);
    assert_eq!([0, 1, -4096, i64::MIN, i64::MAX].map(errno_of), [None; 5]);
}

#[test]
fn calls_cut_short_by_a_signal_are_no_errors() {
    let restarts: Vec<_> = (-4096..4096).filter(|ret| was_interrupted(*ret)).collect();
    assert_eq!(restarts, [-516, -514, -513, -512]);
    assert!(restarts.iter().all(|ret| errno_of(*ret).is_none()));
    assert_eq!([-511, -515, -517, -524].map(errno_of), [Some(511), Some(515), Some(517), Some(524)]);
    // -512 in the lower half of a value outside the error range.
    assert!(![i64::MIN, i64::MAX, 0xffff_fe00, i64::from(i32::MIN)].into_iter().any(was_interrupted));
}

#[test]
fn calls_plain_ioctls_are_the_headers() {
    let mut checked = 0;
    for path in ["/usr/include/linux/fs.h", "/usr/include/linux/loop.h"] {
        let Some(text) = header(path) else { return };
        for (name, value) in defines(&text) {
            let Some((number, _)) = ioctl::REQUESTS.iter().find(|(_, known)| *known == name) else {
                continue;
            };
            let Some(expected) = plain_request(value) else { continue };
            assert_eq!(*number, expected, "{name}");
            checked += 1;
        }
    }
    assert!(checked >= 35, "only {checked} requests were understood");
}

/// Parses `_IO(0x12,119)` or `0x4C00`.
fn plain_request(value: &str) -> Option<u32> {
    let number = |text: &str| match text.trim().strip_prefix("0x") {
        Some(hex) => u32::from_str_radix(hex, 16).ok(),
        None => text.trim().parse().ok(),
    };
    match value.strip_prefix("_IO(") {
        Some(rest) => {
            let (kind, nr) = rest.split_once(')')?.0.split_once(',')?;
            Some(number(kind)? << 8 | number(nr)?)
        }
        None => number(value.split_whitespace().next()?),
    }
}

#[test]
fn calls_sized_ioctls_are_as_compiled_c_has_them() {
    // Values that a C compiler computes from the headers on x86_64, structure sizes included.
    let known = [
        (0x8008_1272, "BLKGETSIZE64"),
        (0xc048_1273, "BLKTRACESETUP"),
        (0xc010_1282, "BLKREPORTZONE"),
        (0xc004_5877, "FIFREEZE"),
        (0xc018_5879, "FITRIM"),
        (0x4004_9409, "FICLONE"),
        (0x4020_940d, "FICLONERANGE"),
        (0xc018_9436, "FIDEDUPERANGE"),
        (0xc020_660b, "FS_IOC_FIEMAP"),
        (0x801c_581f, "FS_IOC_FSGETXATTR"),
        (0xc048_4e43, "NVME_IOCTL_IO_CMD"),
        (0x2285, "SG_IO"),
    ];
    for (number, name) in known {
        assert_eq!(ioctl::name(number), Some(name));
    }
    let mut numbers: Vec<_> = ioctl::REQUESTS.iter().map(|(number, _)| number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), ioctl::REQUESTS.len(), "requests repeat");
}

#[test]
fn calls_flags_are_libcs() {
    let named = |set: FlagSet, bits: i32, name: &str| {
        let found = set.names(Arch::HOST).iter().find(|(_, known)| *known == name);
        assert_eq!(found.map(|(bits, _)| *bits), Some(bits as u32), "{name}");
    };
    macro_rules! check {
        ($($set:ident: $($flag:ident)*;)*) => {
            $($(named(FlagSet::$set, libc::$flag as i32, stringify!($flag));)*)*
        };
    }
    check! {
        Open: O_CREAT O_EXCL O_NOCTTY O_TRUNC O_APPEND O_NONBLOCK O_SYNC O_DSYNC O_ASYNC O_DIRECT O_TMPFILE
            O_DIRECTORY O_NOFOLLOW O_NOATIME O_PATH O_CLOEXEC;
        At: AT_SYMLINK_NOFOLLOW AT_REMOVEDIR AT_SYMLINK_FOLLOW AT_NO_AUTOMOUNT AT_EMPTY_PATH;
        Rename: RENAME_NOREPLACE RENAME_EXCHANGE RENAME_WHITEOUT;
        Fallocate: FALLOC_FL_KEEP_SIZE FALLOC_FL_PUNCH_HOLE FALLOC_FL_COLLAPSE_RANGE FALLOC_FL_ZERO_RANGE
            FALLOC_FL_INSERT_RANGE FALLOC_FL_UNSHARE_RANGE;
        Rw: RWF_HIPRI RWF_DSYNC RWF_SYNC RWF_NOWAIT RWF_APPEND;
        Splice: SPLICE_F_MOVE SPLICE_F_NONBLOCK SPLICE_F_MORE SPLICE_F_GIFT;
        SyncRange: SYNC_FILE_RANGE_WAIT_BEFORE SYNC_FILE_RANGE_WRITE SYNC_FILE_RANGE_WAIT_AFTER;
        Msync: MS_ASYNC MS_INVALIDATE MS_SYNC;
        Prot: PROT_READ PROT_WRITE PROT_EXEC;
        Map: MAP_SHARED_VALIDATE MAP_SHARED MAP_PRIVATE MAP_FIXED MAP_ANONYMOUS MAP_GROWSDOWN MAP_DENYWRITE
            MAP_EXECUTABLE MAP_LOCKED MAP_NORESERVE MAP_POPULATE MAP_NONBLOCK MAP_STACK MAP_HUGETLB MAP_SYNC
            MAP_FIXED_NOREPLACE;
        Xattr: XATTR_CREATE XATTR_REPLACE;
        StatxMask: STATX_BASIC_STATS STATX_TYPE STATX_MODE STATX_NLINK STATX_UID STATX_GID STATX_ATIME
            STATX_MTIME STATX_CTIME STATX_INO STATX_SIZE STATX_BLOCKS STATX_BTIME STATX_MNT_ID;
        Flock: LOCK_SH LOCK_EX LOCK_UN LOCK_NB;
    }
}

#[test]
fn calls_fcntl_commands_are_the_headers() {
    let Some(text) = header("/usr/include/asm-generic/fcntl.h") else { return };
    for (name, value) in defines(&text) {
        let Some((number, _)) = fcntl::COMMANDS.iter().find(|(_, known)| *known == name) else { continue };
        assert_eq!(value.split_whitespace().next(), Some(number.to_string().as_str()), "{name}");
    }
    let known = [
        (libc::F_DUPFD_CLOEXEC, "F_DUPFD_CLOEXEC"),
        (libc::F_SETLEASE, "F_SETLEASE"),
        (libc::F_SETPIPE_SZ, "F_SETPIPE_SZ"),
        (libc::F_ADD_SEALS, "F_ADD_SEALS"),
        (libc::F_OFD_SETLKW, "F_OFD_SETLKW"),
    ];
    for (number, name) in known {
        assert_eq!(fcntl::name(number as u32), Some(name));
    }
}
