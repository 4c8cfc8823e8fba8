//! Numbers: the table compared with libc for the host, and with the kernel's headers for both
//! architectures.

use super::super::{Arch, SyscallId};
use super::header;

/// Compares with libc's constants on the architecture that runs the test.
macro_rules! same_as_libc {
    ($($sys:ident)*) => {{
        let known = [$((stringify!($sys), libc::$sys)),*];
        for (sys, number) in known {
            let call = SyscallId::by_name(&sys["SYS_".len()..]).expect(sys);
            assert_eq!(call.spec().number(Arch::HOST).map(i64::from), Some(number), "{sys}");
        }
        known.len()
    }};
}

#[test]
fn calls_numbers_are_libcs() {
    let common = same_as_libc! {
        SYS_openat SYS_openat2 SYS_close SYS_read SYS_pread64 SYS_readv SYS_preadv SYS_preadv2 SYS_write
        SYS_pwrite64 SYS_writev SYS_pwritev SYS_pwritev2 SYS_lseek SYS_truncate SYS_ftruncate
        SYS_renameat2 SYS_unlinkat SYS_linkat SYS_symlinkat SYS_readlinkat SYS_statfs SYS_dup SYS_dup3 SYS_fcntl
        SYS_flock SYS_ioctl SYS_fsync SYS_fdatasync SYS_sync SYS_syncfs SYS_fstat
        SYS_newfstatat SYS_statx SYS_fstatfs SYS_getxattr SYS_lgetxattr SYS_fgetxattr SYS_setxattr
        SYS_lsetxattr SYS_fsetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr
        SYS_lremovexattr SYS_fremovexattr SYS_mknodat SYS_mkdirat SYS_fallocate SYS_copy_file_range
        SYS_sendfile SYS_splice SYS_io_submit SYS_io_getevents SYS_io_uring_enter
        SYS_io_uring_setup SYS_mmap SYS_msync SYS_readahead SYS_fadvise64
        SYS_getdents64 SYS_faccessat SYS_faccessat2 SYS_chdir SYS_fchmod SYS_fchmodat SYS_fchown SYS_fchownat
        SYS_utimensat SYS_execve SYS_execveat
    };
    // libc lacks io_pgetevents, and on aarch64 two more calls; the header tests below cover them.
    let both = SyscallId::all().filter(|call| call.spec().aarch64.is_some()).count();
    assert_eq!(common + 3, both, "a call is compared with nothing");

    #[cfg(target_arch = "x86_64")]
    {
        let old = same_as_libc! {
            SYS_open SYS_creat SYS_rename SYS_unlink SYS_link SYS_symlink SYS_readlink SYS_dup2 SYS_stat SYS_lstat
            SYS_mknod SYS_mkdir SYS_rmdir SYS_renameat SYS_sync_file_range
            SYS_getdents SYS_access SYS_chmod SYS_chown SYS_lchown
        };
        assert_eq!(common + 1 + old, SyscallId::COUNT, "a call is compared with nothing");
    }
}

#[test]
fn calls_numbers_on_x86_64_are_the_headers() {
    let Some(header) = header("/usr/include/x86_64-linux-gnu/asm/unistd_64.h") else { return };
    for call in SyscallId::all() {
        assert_eq!(call.spec().x86_64, header_number(&header, call.name()), "{call}");
    }
}

#[test]
fn calls_numbers_on_aarch64_are_the_generic_tables() {
    let Some(header) = header("/usr/include/asm-generic/unistd.h") else { return };
    for call in SyscallId::all() {
        assert_eq!(call.spec().aarch64, header_number(&header, call.name()), "{call}");
    }
}

/// Returns the number of `#define __NR_read 63`. Calls with another form on 32 bits are `#define
/// __NR3264_lseek 62`, and fstatat has another name in the generic table.
fn header_number(header: &str, name: &str) -> Option<u16> {
    let stem = if name == "newfstatat" { "fstatat" } else { name };
    let (plain, wide) = (format!("__NR_{name}"), format!("__NR3264_{stem}"));
    header.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let defines = words.next() == Some("#define");
        let named = words.next().is_some_and(|word| word == plain || word == wide);
        if defines && named { words.next()?.parse().ok() } else { None }
    })
}

#[test]
fn calls_by_number_is_total() {
    for arch in Arch::ALL {
        let mut found = 0;
        for number in (0..0x2_0000).chain([1 << 30, 1 << 31, u32::MAX - 1, u32::MAX]) {
            let Some(call) = SyscallId::by_number(arch, number) else { continue };
            assert_eq!(call.spec().number(arch).map(u32::from), Some(number), "{call}");
            found += 1;
        }
        let numbered = SyscallId::all().filter(|call| call.spec().number(arch).is_some()).count();
        assert_eq!(found, numbered, "{}", arch.name());
    }
    assert_eq!(SyscallId::by_number(Arch::X86_64, 0).map(SyscallId::name), Some("read"));
    assert_eq!(SyscallId::by_number(Arch::Aarch64, 63).map(SyscallId::name), Some("read"));
    assert_eq!(SyscallId::by_number(Arch::X86_64, 1), SyscallId::by_number(Arch::Aarch64, 64));
    assert_eq!(SyscallId::by_number(Arch::X86_64, 1 << 30), None, "x32 has another table");
}

#[test]
fn calls_arch_names_are_unames() {
    assert_eq!(Arch::by_name(std::env::consts::ARCH), Some(Arch::HOST));
    assert_eq!(Arch::by_name("riscv64"), None);
}
