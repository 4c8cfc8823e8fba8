//! Texts of errors.

use std::borrow::Cow;

use blkkin_wire::syscalls::errno_name;

/// Returns the error text: `ENOSPC: no space left`.
pub(super) fn of_errno(errno: i32) -> Cow<'static, str> {
    match (errno_name(errno), text(errno)) {
        (Some(name), Some(text)) => format!("{name}: {text}").into(),
        (Some(name), None) => name.into(),
        (None, _) => format!("error {errno}").into(),
    }
}

/// Returns the name of an error as its type.
pub(super) fn kind(errno: i32) -> Cow<'static, str> {
    errno_name(errno).map_or_else(|| errno.to_string().into(), Cow::Borrowed)
}

/// Returns the text of errors that calls on files return. The C library's texts differ between
/// libraries, and spans must not.
fn text(errno: i32) -> Option<&'static str> {
    Some(match errno {
        1 => "not permitted",
        2 => "no such file or directory",
        4 => "interrupted by a signal",
        5 => "input or output failed",
        6 => "no such device",
        9 => "not an open descriptor, or not open for this",
        11 => "would have to wait",
        12 => "no memory",
        13 => "permission denied",
        14 => "bad address",
        16 => "busy",
        17 => "exists already",
        18 => "on another file system",
        19 => "no such device",
        20 => "not a directory",
        21 => "is a directory",
        22 => "invalid argument",
        23 | 24 => "too many open files",
        25 => "not supported by this kind of file",
        26 => "program file in use",
        27 => "file too large",
        28 => "no space left",
        29 => "has no position",
        30 => "read-only file system",
        31 => "too many links",
        32 => "the pipe has no reader",
        36 => "name too long",
        38 => "no such system call",
        39 => "directory not empty",
        40 => "too many symbolic links",
        61 => "no such attribute, or no data there",
        75 => "value too large",
        95 => "not supported",
        110 => "timed out",
        116 => "stale file handle",
        117 => "file system needs checking",
        121 => "the device failed",
        122 => "quota exceeded",
        123 => "no medium",
        125 => "cancelled",
        512..=514 | 516 => "cut short by a signal",
        _ => return None,
    })
}
