//! The system call table, one line for each call: `name x86_64 aarch64 class returns (arguments)`.
//!
//! The order is wire format ([`super::SyscallId`] is an index into it): new calls go to the end.
//! Argument names and order are those of the kernel's prototypes (`include/linux/syscalls.h`); `_`
//! marks a number that the architecture lacks.

use super::ArgKind::*;
use super::FlagSet as Set;
use super::{Arg, Returns, SyscallClass, SyscallSpec};

macro_rules! calls {
    ($($name:ident $x86_64:tt $aarch64:tt $class:ident $returns:ident ($($arg:ident: $kind:expr),*);)*) => {
        &[$(SyscallSpec {
            name: stringify!($name),
            x86_64: number!($x86_64),
            aarch64: number!($aarch64),
            args: &[$(Arg { name: stringify!($arg), kind: $kind }),*],
            class: SyscallClass::$class,
            returns: Returns::$returns,
        }),*]
    };
}

macro_rules! number {
    (_) => {
        None
    };
    ($number:literal) => {
        Some($number)
    };
}

/// System calls that blkkin traces. Append-only.
pub const SYSCALLS: &[SyscallSpec] = calls! {
    open 2 _ Open Descriptor (filename: Path, flags: Flags(Set::Open), mode: Mode);
    openat 257 56 Open Descriptor (dfd: DirFd, filename: Path, flags: Flags(Set::Open), mode: Mode);
    openat2 437 437 Open Descriptor (dfd: DirFd, filename: Path, how: Pointer, size: BufferSize);
    creat 85 _ Open Descriptor (pathname: Path, mode: Mode);
    close 3 57 Close Status (fd: Fd);

    read 0 63 Read Bytes (fd: Fd, buf: Buffer, count: Size);
    pread64 17 67 Read Bytes (fd: Fd, buf: Buffer, count: Size, pos: Offset);
    readv 19 65 Read Bytes (fd: Fd, vec: Iovec, vlen: Count);
    preadv 295 69 Read Bytes (fd: Fd, vec: Iovec, vlen: Count, pos_l: Offset, pos_h: OffsetHigh);
    preadv2 327 286 Read Bytes (
        fd: Fd, vec: Iovec, vlen: Count, pos_l: OffsetOrPosition, pos_h: OffsetHigh, flags: Flags(Set::Rw)
    );
    write 1 64 Write Bytes (fd: Fd, buf: Buffer, count: Size);
    pwrite64 18 68 Write Bytes (fd: Fd, buf: Buffer, count: Size, pos: Offset);
    writev 20 66 Write Bytes (fd: Fd, vec: Iovec, vlen: Count);
    pwritev 296 70 Write Bytes (fd: Fd, vec: Iovec, vlen: Count, pos_l: Offset, pos_h: OffsetHigh);
    pwritev2 328 287 Write Bytes (
        fd: Fd, vec: Iovec, vlen: Count, pos_l: OffsetOrPosition, pos_h: OffsetHigh, flags: Flags(Set::Rw)
    );

    lseek 8 62 Position Position (fd: Fd, offset: Distance, whence: Whence);
    truncate 76 45 Truncate Status (path: Path, length: FileSize);
    ftruncate 77 46 Truncate Status (fd: Fd, length: FileSize);

    rename 82 _ Namespace Status (oldname: Path, newname: Path);
    renameat 264 38 Namespace Status (olddfd: DirFd, oldname: Path, newdfd: DirFd, newname: Path);
    renameat2 316 276 Namespace Status (
        olddfd: DirFd, oldname: Path, newdfd: DirFd, newname: Path, flags: Flags(Set::Rename)
    );
    unlink 87 _ Namespace Status (pathname: Path);
    unlinkat 263 35 Namespace Status (dfd: DirFd, pathname: Path, flag: Flags(Set::At));
    link 86 _ Namespace Status (oldname: Path, newname: Path);
    linkat 265 37 Namespace Status (
        olddfd: DirFd, oldname: Path, newdfd: DirFd, newname: Path, flags: Flags(Set::At)
    );
    symlink 88 _ Namespace Status (oldname: LinkTarget, newname: Path);
    symlinkat 266 36 Namespace Status (oldname: LinkTarget, newdfd: DirFd, newname: Path);
    readlink 89 _ Metadata Bytes (path: Path, buf: Pointer, bufsiz: BufferSize);
    readlinkat 267 78 Metadata Bytes (dfd: DirFd, path: Path, buf: Pointer, bufsiz: BufferSize);
    statfs 137 43 Metadata Status (path: Path, buf: Pointer);

    dup 32 23 Descriptor Duplicate (fildes: Fd);
    dup2 33 _ Descriptor Duplicate (oldfd: Fd, newfd: NewFd);
    dup3 292 24 Descriptor Duplicate (oldfd: Fd, newfd: NewFd, flags: Flags(Set::Dup));
    fcntl 72 25 Descriptor ByCommand (fd: Fd, cmd: FcntlCommand, arg: FcntlArg);
    flock 73 32 Descriptor Status (fd: Fd, cmd: Flags(Set::Flock));
    ioctl 16 29 Control ByRequest (fd: Fd, cmd: IoctlRequest, arg: Word);

    fsync 74 82 Sync Status (fd: Fd);
    fdatasync 75 83 Sync Status (fd: Fd);
    sync 162 81 Sync Status ();
    syncfs 306 267 Sync Status (fd: Fd);
    sync_file_range 277 84 Sync Status (
        fd: Fd, offset: Offset, nbytes: Extent, flags: Flags(Set::SyncRange)
    );

    stat 4 _ Metadata Status (filename: Path, statbuf: Pointer);
    lstat 6 _ Metadata Status (filename: Path, statbuf: Pointer);
    fstat 5 80 Metadata Status (fd: Fd, statbuf: Pointer);
    newfstatat 262 79 Metadata Status (dfd: DirFd, filename: Path, statbuf: Pointer, flag: Flags(Set::At));
    statx 332 291 Metadata Status (
        dfd: DirFd, path: Path, flags: Flags(Set::At), mask: Flags(Set::StatxMask), buffer: Pointer
    );
    fstatfs 138 44 Metadata Status (fd: Fd, buf: Pointer);

    getxattr 191 8 Metadata Bytes (path: Path, name: String, value: Pointer, size: BufferSize);
    lgetxattr 192 9 Metadata Bytes (path: Path, name: String, value: Pointer, size: BufferSize);
    fgetxattr 193 10 Metadata Bytes (fd: Fd, name: String, value: Pointer, size: BufferSize);
    setxattr 188 5 Metadata Status (
        path: Path, name: String, value: Pointer, size: BufferSize, flags: Flags(Set::Xattr)
    );
    lsetxattr 189 6 Metadata Status (
        path: Path, name: String, value: Pointer, size: BufferSize, flags: Flags(Set::Xattr)
    );
    fsetxattr 190 7 Metadata Status (
        fd: Fd, name: String, value: Pointer, size: BufferSize, flags: Flags(Set::Xattr)
    );
    listxattr 194 11 Metadata Bytes (path: Path, list: Pointer, size: BufferSize);
    llistxattr 195 12 Metadata Bytes (path: Path, list: Pointer, size: BufferSize);
    flistxattr 196 13 Metadata Bytes (fd: Fd, list: Pointer, size: BufferSize);
    removexattr 197 14 Metadata Status (path: Path, name: String);
    lremovexattr 198 15 Metadata Status (path: Path, name: String);
    fremovexattr 199 16 Metadata Status (fd: Fd, name: String);

    mknod 133 _ Namespace Status (filename: Path, mode: Mode, dev: Device);
    mknodat 259 33 Namespace Status (dfd: DirFd, filename: Path, mode: Mode, dev: Device);
    mkdir 83 _ Namespace Status (pathname: Path, mode: Mode);
    mkdirat 258 34 Namespace Status (dfd: DirFd, pathname: Path, mode: Mode);
    rmdir 84 _ Namespace Status (pathname: Path);

    fallocate 285 47 Allocate Status (fd: Fd, mode: Flags(Set::Fallocate), offset: Offset, len: Size);
    copy_file_range 326 285 Transfer Bytes (
        fd_in: Fd, off_in: OffsetPtr, fd_out: Fd, off_out: OffsetPtr, len: Size, flags: Flags(Set::Reserved)
    );
    sendfile 40 71 Transfer Bytes (out_fd: Fd, in_fd: Fd, offset: OffsetPtr, count: Size);
    splice 275 76 Transfer Bytes (
        fd_in: Fd, off_in: OffsetPtr, fd_out: Fd, off_out: OffsetPtr, len: Size, flags: Flags(Set::Splice)
    );

    io_submit 209 2 Async Count (ctx_id: Word, nr: Count, iocbpp: Pointer);
    io_getevents 208 4 Async Count (ctx_id: Word, min_nr: Long, nr: Long, events: Pointer, timeout: Pointer);
    io_pgetevents 333 292 Async Count (
        ctx_id: Word, min_nr: Long, nr: Long, events: Pointer, timeout: Pointer, sig: Pointer
    );
    io_uring_enter 426 426 Async Count (
        fd: Fd, to_submit: Int, min_complete: Int, flags: Flags(Set::UringEnter), argp: Pointer,
        argsz: BufferSize
    );
    io_uring_setup 425 425 Async Ring (entries: Int, params: Pointer);

    mmap 9 222 Map Address (
        addr: Pointer, len: Size, prot: Flags(Set::Prot), flags: Flags(Set::Map), fd: Fd, off: Offset
    );
    msync 26 227 Sync Status (start: Pointer, len: Size, flags: Flags(Set::Msync));
    readahead 187 213 Hint Status (fd: Fd, offset: Offset, count: Size);
    fadvise64 221 223 Hint Status (fd: Fd, offset: Offset, len: Extent, advice: Advice);

    getdents 78 _ Metadata Bytes (fd: Fd, dirent: Pointer, count: BufferSize);
    getdents64 217 61 Metadata Bytes (fd: Fd, dirent: Pointer, count: BufferSize);
    access 21 _ Metadata Status (filename: Path, mode: Mode);
    faccessat 269 48 Metadata Status (dfd: DirFd, filename: Path, mode: Mode);
    faccessat2 439 439 Metadata Status (dfd: DirFd, filename: Path, mode: Mode, flags: Flags(Set::At));
    chdir 80 49 Metadata Status (filename: Path);
    chmod 90 _ Metadata Status (filename: Path, mode: Mode);
    fchmod 91 52 Metadata Status (fd: Fd, mode: Mode);
    fchmodat 268 53 Metadata Status (dfd: DirFd, filename: Path, mode: Mode);
    chown 92 _ Metadata Status (filename: Path, user: Int, group: Int);
    lchown 94 _ Metadata Status (filename: Path, user: Int, group: Int);
    fchown 93 55 Metadata Status (fd: Fd, user: Int, group: Int);
    fchownat 260 54 Metadata Status (
        dfd: DirFd, filename: Path, user: Int, group: Int, flag: Flags(Set::At)
    );
    utimensat 280 88 Metadata Status (dfd: DirFd, filename: Path, utimes: Pointer, flags: Flags(Set::At));
    execve 59 221 Execute Status (filename: Path, argv: Pointer, envp: Pointer);
    execveat 322 281 Execute Status (
        dfd: DirFd, filename: Path, argv: Pointer, envp: Pointer, flags: Flags(Set::At)
    );
};
