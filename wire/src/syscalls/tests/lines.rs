//! Readable lines of system calls.

use super::super::flags::{FlagSet, o_direct};
use super::super::{Arch, Args, Invocation, SyscallId};
use super::{id, registers};

fn line(name: &str, args: Args, ret: i64, texts: [Option<&str>; 2]) -> String {
    Invocation { call: id(name), arch: Arch::X86_64, args: &args, ret: Some(ret), texts }.to_string()
}

fn plain(name: &str, args: Args, ret: i64) -> String {
    line(name, args, ret, [None, None])
}

const NO_DIR: i64 = -100;

#[test]
fn calls_that_move_data() {
    let pread = registers([4, 0x7000, 4096, 8192]);
    assert_eq!(plain("pread64", pread, 4096), "pread64(fd 4, 4096 bytes at 8192) = 4096");
    assert_eq!(plain("read", registers([0, 0x7000, 1]), -11), "read(fd 0, 1 byte) = -EAGAIN");
    assert_eq!(plain("writev", registers([4, 0x7000, 1]), 9), "writev(fd 4, 1 vector) = 9");
    assert_eq!(plain("preadv", registers([4, 0x7000, 3, 512, 7]), 0), "preadv(fd 4, 3 vectors at 512) = 0");
    let pwritev2 = |pos, flags| plain("pwritev2", registers([4, 0x7000, 3, pos, 0, flags]), 12);
    assert_eq!(pwritev2(0, 2), "pwritev2(fd 4, 3 vectors at 0, RWF_DSYNC) = 12");
    assert_eq!(pwritev2(-1, 0), "pwritev2(fd 4, 3 vectors) = 12");
    assert_eq!(plain("sendfile", registers([5, 3, 0, 64]), 64), "sendfile(fd 5, fd 3, 64 bytes) = 64");
    let copy = registers([3, 0x7000, 4, 0, 64, 0]);
    assert_eq!(
        plain("copy_file_range", copy, -18),
        "copy_file_range(fd 3 at *off_in, fd 4, 64 bytes) = -EXDEV"
    );
}

#[test]
fn calls_with_paths() {
    let openat = registers([NO_DIR, 0x7000, 0o2000102, 0o644]);
    let expected = r#"openat(AT_FDCWD, "/x", O_RDWR|O_CREAT|O_CLOEXEC) = 3"#;
    assert_eq!(line("openat", openat, 3, [Some("/x"), None]), expected);
    assert_eq!(plain("openat", openat, -28), "openat(AT_FDCWD, ?, O_RDWR|O_CREAT|O_CLOEXEC) = -ENOSPC");
    let rename = registers([NO_DIR, 0x7000, 5, 0x7100, 1]);
    let expected = r#"renameat2(AT_FDCWD, "a", fd 5, "b", RENAME_NOREPLACE) = 0"#;
    assert_eq!(line("renameat2", rename, 0, [Some("a"), Some("b")]), expected);
    let text = line("symlinkat", registers([0x7000, 5, 0x7100]), 0, [Some("to"), Some("name")]);
    assert_eq!(text, r#"symlinkat("to", fd 5, "name") = 0"#);
    assert_eq!(line("mkdir", registers([0x7000, 0o755]), 0, [Some("d"), None]), r#"mkdir("d", 0755) = 0"#);
    let node = registers([0x7000, 0o60660, 0x10_0701]);
    assert_eq!(line("mknod", node, 0, [Some("n"), None]), r#"mknod("n", S_IFBLK|0660, 7:257) = 0"#);
    let fifo = registers([0x7000, 0o10600, 0x701]);
    assert_eq!(line("mknod", fifo, 0, [Some("n"), None]), r#"mknod("n", S_IFIFO|0600) = 0"#);
    let attribute = line("fgetxattr", registers([3, 0x7000, 0x7100, 64]), 5, [Some("user.a"), None]);
    assert_eq!(attribute, r#"fgetxattr(fd 3, "user.a") = 5"#);
}

#[test]
fn calls_that_steer() {
    assert_eq!(plain("lseek", registers([3, 0, 2]), 77), "lseek(fd 3, 0, SEEK_END) = 77");
    assert_eq!(plain("lseek", registers([3, -5, 9]), -22), "lseek(fd 3, -5, 9) = -EINVAL");
    assert_eq!(plain("fcntl", registers([3, 6, 0x7000]), 0), "fcntl(fd 3, F_SETLK) = 0");
    assert_eq!(plain("fcntl", registers([3, 4, 0o40001]), 0), "fcntl(fd 3, F_SETFL, O_DIRECT) = 0");
    assert_eq!(
        plain("fcntl", registers([3, 3, 0]), 0o42002),
        "fcntl(fd 3, F_GETFL) = O_RDWR|O_APPEND|O_DIRECT"
    );
    assert_eq!(plain("fcntl", registers([3, 1030, 10]), 10), "fcntl(fd 3, F_DUPFD_CLOEXEC, from 10) = 10");
    assert_eq!(plain("fcntl", registers([3, 99, 10]), -22), "fcntl(fd 3, 99) = -EINVAL");
    let punch = registers([3, 3, 0, 4096]);
    let expected = "fallocate(fd 3, FALLOC_FL_PUNCH_HOLE|FALLOC_FL_KEEP_SIZE, 0, 4096) = -EOPNOTSUPP";
    assert_eq!(plain("fallocate", punch, -95), expected);
    assert_eq!(plain("fallocate", registers([3, 0, 0, 4096]), 0), "fallocate(fd 3, 0, 0, 4096) = 0");
    assert_eq!(plain("ioctl", registers([3, 0x1277, 0x7000]), 0), "ioctl(fd 3, BLKDISCARD) = 0");
    assert_eq!(plain("ioctl", registers([3, 0x4004_9409, 4]), 0), "ioctl(fd 3, FICLONE) = 0");
    assert_eq!(plain("ioctl", registers([3, 0xabcd, 4]), -25), "ioctl(fd 3, 0xabcd) = -ENOTTY");
    assert_eq!(plain("sync", registers([]), 0), "sync() = 0");
    assert_eq!(plain("flock", registers([3, 6]), 0), "flock(fd 3, LOCK_EX|LOCK_NB) = 0");
    assert_eq!(
        plain("fadvise64", registers([3, 0, 0, 3]), 0),
        "fadvise64(fd 3, 0, 0, POSIX_FADV_WILLNEED) = 0"
    );
    let map = plain("mmap", registers([0, 8192, 1, 1, 3, 4096]), 0x7f00_1234_0000);
    assert_eq!(map, "mmap(8192 bytes, PROT_READ, MAP_SHARED, fd 3 at 4096) = 0x7f0012340000");
    let map = plain("mmap", registers([0, 8192, 0, 0x22, -1, 0]), -12);
    assert_eq!(map, "mmap(8192 bytes, PROT_NONE, MAP_PRIVATE|MAP_ANONYMOUS) = -ENOMEM");
    let enter = plain("io_uring_enter", registers([5, 2, 1, 1, 0, 8]), 2);
    assert_eq!(enter, "io_uring_enter(fd 5, to_submit=2, min_complete=1, IORING_ENTER_GETEVENTS) = 2");
    assert_eq!(plain("io_submit", registers([0x7000, 1, 0x7100]), 1), "io_submit(1 request) = 1");
}

#[test]
fn calls_without_an_exit_and_errors_of_the_kernels_own() {
    let args = registers([3]);
    let call = Invocation { call: id("fsync"), arch: Arch::HOST, args: &args, ret: None, texts: [None; 2] };
    assert_eq!(call.to_string(), "fsync(fd 3)");
    assert_eq!(plain("read", registers([3, 0, 9]), -512), "read(fd 3, 9 bytes) = interrupted");
    assert_eq!(plain("read", registers([3, 0, 9]), -4000), "read(fd 3, 9 bytes) = -4000");
}

#[test]
fn calls_texts_cannot_steer_a_terminal() {
    let hostile = "a\u{1b}[2J\"\n\u{202e}b";
    let text = line("unlink", registers([0x7000]), 0, [Some(hostile), None]);
    assert_eq!(text, r#"unlink("a\u{1b}[2J\"\n\u{202e}b") = 0"#);
}

#[test]
fn calls_flags_by_architecture_lose_no_bit() {
    let text = |arch, flags| FlagSet::Open.text(arch, flags);
    assert_eq!(text(Arch::X86_64, 0o40000), "O_RDONLY|O_DIRECT");
    assert_eq!(text(Arch::Aarch64, 0o40000), "O_RDONLY|O_DIRECTORY");
    for arch in Arch::ALL {
        assert_eq!(text(arch, 0o1 | o_direct(arch)), "O_WRONLY|O_DIRECT");
        assert_eq!(text(arch, 0o4010002), "O_RDWR|O_SYNC");
        assert_eq!(text(arch, 1 << 31), "O_RDONLY|0x80000000");
    }
    assert_eq!(text(Arch::X86_64, 0o20200002), "O_RDWR|O_TMPFILE");
}

#[test]
fn calls_lines_are_total() {
    let patterns = [0, 1, 0x7fff_ffff, 0x8000_0000, 0xffff_ffff, 1 << 63, u64::MAX];
    for call in SyscallId::all() {
        for value in patterns {
            for arch in Arch::ALL {
                let args = [value; 6];
                let ret = Some(value as i64);
                let line = Invocation { call, arch, args: &args, ret, texts: [Some(""), None] }.to_string();
                assert!(line.starts_with(call.name()) && !line.contains("( "), "{line}");
                let spec = call.spec();
                let _ = (spec.offset(&args), spec.requested_bytes(&args), spec.bytes(value as i64));
            }
        }
    }
}
