//! Peer of a Unix socket, by one query of the kernel's socket diagnostics (sock_diag(7)).
//!
//! *In*: the inode of a socket in this network namespace. *Out*: the inode of its peer.
//! *Invariant*: a response about another socket, or without a peer, is an error.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// include/uapi/linux/sock_diag.h, unix_diag.h, netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
const NO_COOKIE: u32 = u32::MAX;

/// `struct nlmsghdr` and `struct unix_diag_req`.
#[repr(C)]
struct UnixDiagRequest {
    length: u32,
    kind: u16,
    flags: u16,
    sequence: u32,
    port: u32,
    family: u8,
    protocol: u8,
    pad: u16,
    states: u32,
    inode: u32,
    show: u32,
    cookie: [u32; 2],
}

const _: () = assert!(size_of::<UnixDiagRequest>() == 40);

/// Bytes before the attributes of a response: `struct nlmsghdr` and `struct unix_diag_msg`.
const HEADERS_BYTES: usize = 16 + 16;

/// Returns the inode of the socket that `inode` is connected to.
pub(super) fn peer_inode(inode: u32) -> io::Result<u32> {
    let request = UnixDiagRequest {
        length: size_of::<UnixDiagRequest>() as u32,
        kind: SOCK_DIAG_BY_FAMILY,
        flags: libc::NLM_F_REQUEST as u16,
        sequence: 1,
        port: 0,
        family: libc::AF_UNIX as u8,
        protocol: 0,
        pad: 0,
        states: u32::MAX,
        inode,
        show: UDIAG_SHOW_PEER,
        cookie: [NO_COOKIE; 2],
    };
    let mut response = [0; 512];
    let length = query(&request, &mut response)?;
    parse(&response[..length], inode)
        .ok_or_else(|| io::Error::other("the kernel reports no peer of this socket"))
}

fn query(request: &UnixDiagRequest, response: &mut [u8]) -> io::Result<usize> {
    // SAFETY: all arguments are integers.
    let socket = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
    };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the descriptor is open, and nothing else owns it.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: reads `size_of` bytes of a struct of integers without padding.
    let sent = unsafe {
        libc::send(socket.as_raw_fd(), std::ptr::from_ref(request).cast(), size_of::<UnixDiagRequest>(), 0)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: writes at most `response.len()` bytes.
    let length = unsafe { libc::recv(socket.as_raw_fd(), response.as_mut_ptr().cast(), response.len(), 0) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// Returns the peer's inode in a response about `inode`. Netlink uses the machine's byte order.
fn parse(response: &[u8], inode: u32) -> Option<u32> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(*response.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*response.get(at..)?.first_chunk()?));
    if u16_at(4)? != SOCK_DIAG_BY_FAMILY || u32_at(20)? != inode {
        return None;
    }
    let mut at = HEADERS_BYTES;
    loop {
        let (length, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        if kind == UNIX_DIAG_PEER && length == 8 {
            return u32_at(at + 4).filter(|peer| *peer != 0);
        }
        // Attributes begin at multiples of 4 bytes. The minimum ends the loop for a length of 0.
        at += length.max(4).next_multiple_of(4);
    }
}
