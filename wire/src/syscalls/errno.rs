//! Names of error numbers, and the return values that are errors.
//!
//! x86_64 and aarch64 share the numbers: `include/uapi/asm-generic/errno-base.h` and `errno.h`. The
//! tracepoint `sys_exit` shows more values than programs see. A call that a signal interrupts
//! returns a kernel-internal number (`include/linux/errno.h`), which signal delivery turns into a
//! restart or into EINTR. At the exit it is not known which, and for a killed task it stays
//! unknown. So such a call counts as interrupted, not as failed.

/// Greatest error number (`include/linux/err.h`, `MAX_ERRNO`).
pub const ERRNO_MAX: i32 = 4095;

/// Returns the name of a positive error number: 28 is `ENOSPC`. `None` if the number is undefined.
pub fn errno_name(errno: i32) -> Option<&'static str> {
    match errno {
        512 => Some("ERESTARTSYS"),
        513 => Some("ERESTARTNOINTR"),
        514 => Some("ERESTARTNOHAND"),
        515 => Some("ENOIOCTLCMD"),
        516 => Some("ERESTART_RESTARTBLOCK"),
        524 => Some("ENOTSUPP"),
        _ => NAMES.get(usize::try_from(errno).ok()?).copied().filter(|name| !name.is_empty()),
    }
}

/// Returns the error of a return value; `None` for success and for an interrupted call
/// ([`was_interrupted`]). Addresses and positions can look negative, so only the kernel's error
/// range counts (`IS_ERR_VALUE`).
pub fn errno_of(ret: i64) -> Option<i32> {
    let error = i32::try_from(ret).ok().filter(|ret| (-ERRNO_MAX..0).contains(ret) && !is_restart(-ret));
    error.map(|ret| -ret)
}

/// Returns whether a signal interrupted the call. Whether the program gets EINTR or a restart is
/// decided later.
pub fn was_interrupted(ret: i64) -> bool {
    i32::try_from(ret).is_ok_and(|ret| ret < 0 && is_restart(ret.saturating_neg()))
}

/// Excludes 515: ENOIOCTLCMD is for drivers, and becomes ENOTTY before the call returns (vfs_ioctl,
/// fs/ioctl.c).
fn is_restart(errno: i32) -> bool {
    matches!(errno, 512..=514 | 516)
}

/// Names by number; 0, 41 and 58 are undefined.
#[rustfmt::skip]
static NAMES: [&str; 134] = [
    "", "EPERM", "ENOENT", "ESRCH", "EINTR",
    "EIO", "ENXIO", "E2BIG", "ENOEXEC", "EBADF",
    "ECHILD", "EAGAIN", "ENOMEM", "EACCES", "EFAULT",
    "ENOTBLK", "EBUSY", "EEXIST", "EXDEV", "ENODEV",
    "ENOTDIR", "EISDIR", "EINVAL", "ENFILE", "EMFILE",
    "ENOTTY", "ETXTBSY", "EFBIG", "ENOSPC", "ESPIPE",
    "EROFS", "EMLINK", "EPIPE", "EDOM", "ERANGE",
    "EDEADLK", "ENAMETOOLONG", "ENOLCK", "ENOSYS", "ENOTEMPTY",
    "ELOOP", "", "ENOMSG", "EIDRM", "ECHRNG",
    "EL2NSYNC", "EL3HLT", "EL3RST", "ELNRNG", "EUNATCH",
    "ENOCSI", "EL2HLT", "EBADE", "EBADR", "EXFULL",
    "ENOANO", "EBADRQC", "EBADSLT", "", "EBFONT",
    "ENOSTR", "ENODATA", "ETIME", "ENOSR", "ENONET",
    "ENOPKG", "EREMOTE", "ENOLINK", "EADV", "ESRMNT",
    "ECOMM", "EPROTO", "EMULTIHOP", "EDOTDOT", "EBADMSG",
    "EOVERFLOW", "ENOTUNIQ", "EBADFD", "EREMCHG", "ELIBACC",
    "ELIBBAD", "ELIBSCN", "ELIBMAX", "ELIBEXEC", "EILSEQ",
    "ERESTART", "ESTRPIPE", "EUSERS", "ENOTSOCK", "EDESTADDRREQ",
    "EMSGSIZE", "EPROTOTYPE", "ENOPROTOOPT", "EPROTONOSUPPORT", "ESOCKTNOSUPPORT",
    "EOPNOTSUPP", "EPFNOSUPPORT", "EAFNOSUPPORT", "EADDRINUSE", "EADDRNOTAVAIL",
    "ENETDOWN", "ENETUNREACH", "ENETRESET", "ECONNABORTED", "ECONNRESET",
    "ENOBUFS", "EISCONN", "ENOTCONN", "ESHUTDOWN", "ETOOMANYREFS",
    "ETIMEDOUT", "ECONNREFUSED", "EHOSTDOWN", "EHOSTUNREACH", "EALREADY",
    "EINPROGRESS", "ESTALE", "EUCLEAN", "ENOTNAM", "ENAVAIL",
    "EISNAM", "EREMOTEIO", "EDQUOT", "ENOMEDIUM", "EMEDIUMTYPE",
    "ECANCELED", "ENOKEY", "EKEYEXPIRED", "EKEYREVOKED", "EKEYREJECTED",
    "EOWNERDEAD", "ENOTRECOVERABLE", "ERFKILL", "EHWPOISON",
];
