//! Which socket a descriptor names, and which two ends its connection has.
//!
//! *In*: a descriptor of the current task. *Out*: the inode of its socket, and, where somebody asks for more, the ends by the names
//! that whoever answers finds too (`nbd-server/src/peer.rs`). *Invariant*: nothing here follows a pointer that the kernel does not
//! hold as long as the call lasts; what cannot be read is 0, and then there is no name.
//!
//! Up to the socket's inode it is plain loads, as of any file (`file.rs`). Behind that `private_data` is a `void *`, of which the
//! verifier knows nothing: read by helper, 20 to 35 ns each, which only a request pays for.

use crate::access::{Access, Direct, Pointer, Probe};
use crate::file::{self, Open};
use crate::layout::offset;
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::NbdAsked;

/// Type bits of `i_mode`, and those of a socket (include/uapi/linux/stat.h).
const S_IFMT: u16 = 0o170_000;
const S_IFSOCK: u16 = 0o140_000;

/// include/linux/socket.h
pub const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// A socket that the current task has open.
pub struct Socket {
    /// Its inode: no other socket of this boot has the number while it lives.
    pub inode: u64,
    /// Address of its `struct socket`.
    address: u64,
}

/// What `fd` names in the current task, if that is a socket.
#[inline(always)]
pub fn of(task: Pointer, fd: u32) -> Option<Socket> {
    // SAFETY: each pointer is read by the way it was found.
    unsafe {
        match file::of(task, fd) {
            Open::Typed(file) => of_file::<Direct>(file),
            Open::Untyped(file) => of_file::<Probe>(file),
            Open::None => None,
        }
    }
}

#[inline(always)]
unsafe fn of_file<A: Access>(file: Pointer) -> Option<Socket> {
    // SAFETY: by the contract of `A`.
    unsafe {
        let inode: Pointer = A::read(file, offset!(file_inode));
        if A::read::<u16>(inode, offset!(inode_mode)) & S_IFMT != S_IFSOCK {
            return None;
        }
        let address = A::read(file, offset!(file_private_data));
        Some(Socket { inode: A::read(inode, offset!(inode_ino)), address })
    }
}

/// The inode of the socket that somebody has open by this `struct sock`; 0 where nobody has any more.
#[inline(always)]
pub fn inode(sk: Pointer) -> u64 {
    // SAFETY: reads by helper take any address.
    unsafe {
        let socket: Pointer = Probe::read(sk, offset!(sock_socket));
        if socket.is_null() {
            return 0;
        }
        let inode = socket.wrapping_add(offset!(socket_inode) as usize);
        Probe::read(inode, offset!(inode_ino))
    }
}

/// Writes down both ends, and of which family they are; of another than these nothing else. Its `struct sock`.
#[inline(always)]
pub fn ends(socket: &Socket, record: &mut NbdAsked) -> Pointer {
    // SAFETY: reads by helper take any address.
    unsafe {
        let sk: Pointer = Probe::read(socket.address as Pointer, offset!(socket_sk));
        let family: u16 = Probe::read(sk, offset!(sock_family));
        record.family = family;
        if family == AF_UNIX {
            let peer: Pointer = Probe::read(sk, offset!(unix_peer));
            let other: Pointer = Probe::read(peer, offset!(sock_socket));
            if other.is_null() {
                return sk;
            }
            let inode = other.wrapping_add(offset!(socket_inode) as usize);
            record.local[0] = socket.inode;
            record.remote[0] = Probe::read(inode, offset!(inode_ino));
            return sk;
        }
        record.local_port = Probe::read(sk, offset!(sock_num));
        record.remote_port = Probe::read(sk, offset!(sock_dport));
        if family == AF_INET {
            record.local[0] = Probe::read::<u32>(sk, offset!(sock_rcv_saddr)) as u64;
            record.remote[0] = Probe::read::<u32>(sk, offset!(sock_daddr)) as u64;
            return sk;
        }
        if family == AF_INET6 && offset!(sock_v6_daddr) != ABSENT {
            record.local = Probe::read(sk, offset!(sock_v6_rcv_saddr));
            record.remote = Probe::read(sk, offset!(sock_v6_daddr));
        }
        sk
    }
}
