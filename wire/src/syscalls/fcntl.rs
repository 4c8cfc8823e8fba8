//! Commands of fcntl (`include/uapi/asm-generic/fcntl.h`, `include/uapi/linux/fcntl.h`).
//!
//! The command decides the meaning of the argument and of the return value, so fcntl is several
//! calls in one. On 64-bit kernels the commands 12 to 14 (`F_GETLK64` …) do not exist.

use super::Returns;

/// `F_DUPFD`: copies the descriptor to the lowest free number not below the argument.
pub const F_DUPFD: u32 = 0;
/// `F_GETFL`: returns the file status flags.
pub const F_GETFL: u32 = 3;
/// `F_SETFL`: sets the file status flags, including O_DIRECT and O_APPEND.
pub const F_SETFL: u32 = 4;
/// `F_DUPFD_CLOEXEC`: as [`F_DUPFD`], with close-on-exec.
pub const F_DUPFD_CLOEXEC: u32 = 1030;

/// Returns the name of a command.
pub fn name(command: u32) -> Option<&'static str> {
    COMMANDS.iter().find(|(number, _)| *number == command).map(|(_, name)| *name)
}

/// Returns the meaning of a command's return value.
pub fn returns(command: u32) -> Returns {
    match command {
        F_DUPFD | F_DUPFD_CLOEXEC => Returns::Duplicate,
        F_GETFL => Returns::Flags,
        _ => Returns::Status,
    }
}

/// Commands by number.
pub static COMMANDS: &[(u32, &str)] = &[
    (F_DUPFD, "F_DUPFD"),
    (1, "F_GETFD"),
    (2, "F_SETFD"),
    (F_GETFL, "F_GETFL"),
    (F_SETFL, "F_SETFL"),
    (5, "F_GETLK"),
    (6, "F_SETLK"),
    (7, "F_SETLKW"),
    (8, "F_SETOWN"),
    (9, "F_GETOWN"),
    (10, "F_SETSIG"),
    (11, "F_GETSIG"),
    (15, "F_SETOWN_EX"),
    (16, "F_GETOWN_EX"),
    (17, "F_GETOWNER_UIDS"),
    (36, "F_OFD_GETLK"),
    (37, "F_OFD_SETLK"),
    (38, "F_OFD_SETLKW"),
    (1024, "F_SETLEASE"),
    (1025, "F_GETLEASE"),
    (1026, "F_NOTIFY"),
    (1027, "F_DUPFD_QUERY"),
    (1028, "F_CREATED_QUERY"),
    (1029, "F_CANCELLK"),
    (F_DUPFD_CLOEXEC, "F_DUPFD_CLOEXEC"),
    (1031, "F_SETPIPE_SZ"),
    (1032, "F_GETPIPE_SZ"),
    (1033, "F_ADD_SEALS"),
    (1034, "F_GET_SEALS"),
    (1035, "F_GET_RW_HINT"),
    (1036, "F_SET_RW_HINT"),
    (1037, "F_GET_FILE_RW_HINT"),
    (1038, "F_SET_FILE_RW_HINT"),
];
