//! Names of error numbers, and which return values are none.
//!
//! x86_64 and aarch64 share them: `include/uapi/asm-generic/errno-base.h` and `errno.h`. The tracepoint
//! `sys_exit` shows more than programs ever see: a call that a signal cut short returns one of the kernel's own
//! numbers (`include/linux/errno.h`), which signal delivery then turns into a restart or into EINTR. Which of the two
//! is not known at that moment, and of a killed task neither: so such a call was interrupted, and is no error.

/// The greatest number that an error can have (`include/linux/err.h`, `MAX_ERRNO`).
pub const ERRNO_MAX: i32 = 4095;

/// The name of an error number, without a sign: 28 is `ENOSPC`. `None` for a number that stands for no error.
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

/// The error that a call's return value stands for; `None` for success, and for a call that was interrupted
/// ([`was_interrupted`]). Addresses and positions may look negative, so only the range that the kernel keeps for errors
/// counts (`IS_ERR_VALUE`).
pub fn errno_of(ret: i64) -> Option<i32> {
    let error = i32::try_from(ret).ok().filter(|ret| (-ERRNO_MAX..0).contains(ret) && !is_restart(-ret));
    error.map(|ret| -ret)
}

/// Whether a signal cut the call short: what the program then gets, EINTR or a restart, is settled only afterwards.
pub fn was_interrupted(ret: i64) -> bool {
    i32::try_from(ret).is_ok_and(|ret| ret < 0 && is_restart(ret.saturating_neg()))
}

/// Not 515: ENOIOCTLCMD is for drivers, and becomes ENOTTY before the call returns (vfs_ioctl, fs/ioctl.c).
fn is_restart(errno: i32) -> bool {
    matches!(errno, 512..=514 | 516)
}

/// By number; 0, 41 and 58 stand for nothing.
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
