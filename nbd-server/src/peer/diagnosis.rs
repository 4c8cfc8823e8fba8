//! Who is at the other end of a Unix socket: one question to the kernel (sock_diag(7)).
//!
//! *In*: the inode of a socket of this network namespace. *Out*: that of its peer. *Invariant*: an answer that is not about
//! that socket, or says of no peer, is an error.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

/// include/uapi/linux/sock_diag.h, unix_diag.h, netlink.h.
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const UDIAG_SHOW_PEER: u32 = 4;
const UNIX_DIAG_PEER: u16 = 2;
const NO_COOKIE: u32 = u32::MAX;

/// struct nlmsghdr, struct unix_diag_req.
#[repr(C)]
struct Question {
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

const _: () = assert!(size_of::<Question>() == 40);

/// Bytes before the attributes of an answer: struct nlmsghdr, struct unix_diag_msg.
const HEAD: usize = 16 + 16;

pub(super) fn peer(inode: u32) -> io::Result<u32> {
    let question = Question {
        length: size_of::<Question>() as u32,
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
    let mut answer = [0; 512];
    let length = ask(&question, &mut answer)?;
    found(&answer[..length], inode).ok_or_else(|| io::Error::other("the kernel names no peer of this socket"))
}

fn ask(question: &Question, answer: &mut [u8]) -> io::Result<usize> {
    // SAFETY: numbers only.
    let socket = unsafe {
        libc::socket(libc::AF_NETLINK, libc::SOCK_DGRAM | libc::SOCK_CLOEXEC, libc::NETLINK_SOCK_DIAG)
    };
    if socket < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: it is ours, and open.
    let socket = unsafe { OwnedFd::from_raw_fd(socket) };
    // SAFETY: a struct of integers without padding, read for its size.
    let sent = unsafe {
        libc::send(socket.as_raw_fd(), std::ptr::from_ref(question).cast(), size_of::<Question>(), 0)
    };
    if sent < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: written for its length at most.
    let length = unsafe { libc::recv(socket.as_raw_fd(), answer.as_mut_ptr().cast(), answer.len(), 0) };
    usize::try_from(length).map_err(|_| io::Error::last_os_error())
}

/// The peer's inode in an answer about `inode`. Netlink speaks in the machine's byte order.
fn found(answer: &[u8], inode: u32) -> Option<u32> {
    let u16_at = |at: usize| Some(u16::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    let u32_at = |at: usize| Some(u32::from_ne_bytes(*answer.get(at..)?.first_chunk()?));
    if u16_at(4)? != SOCK_DIAG_BY_FAMILY || u32_at(20)? != inode {
        return None;
    }
    let mut at = HEAD;
    loop {
        let (length, kind) = (usize::from(u16_at(at)?), u16_at(at + 2)?);
        if kind == UNIX_DIAG_PEER && length == 8 {
            return u32_at(at + 4).filter(|peer| *peer != 0);
        }
        // Attributes begin at multiples of four; one of no length would never end.
        at += length.max(4).next_multiple_of(4);
    }
}
