//! The process at the other end of a Unix socket.

use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

/// Returns process, user and group of the other end, as they were when it connected or began to listen. The process
/// is 0 if it is in a PID namespace that this one does not see.
pub(crate) fn peer_credentials(stream: &UnixStream) -> Option<libc::ucred> {
    let mut credentials = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut length = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the kernel writes up to `length` bytes to `credentials`, which are plain numbers. rustix' function has
    // a type for the process id that cannot be 0.
    let status = unsafe {
        libc::getsockopt(
            stream.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut credentials).cast(),
            &raw mut length,
        )
    };
    (status == 0).then_some(credentials)
}
