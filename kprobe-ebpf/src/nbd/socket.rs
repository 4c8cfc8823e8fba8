//! Client sockets: the socket that a descriptor names, and the two endpoints of its connection.
//!
//! *In*: a descriptor of the current task. *Out*: the inode of its socket, and on request the
//! endpoint addresses, which the server finds too (`nbd-server/src/connection_name.rs`).
//! *Invariant*: this module follows only pointers that the kernel holds for the duration of the
//! system call. An unreadable value is 0, and then the endpoint has no address.
//!
//! Plain loads reach the socket's inode, as for any file (`file`). Beyond it, `private_data` is a
//! `void *`, for which the verifier has no type: bpf_probe_read_kernel, 20 to 35 ns each, which
//! only a request pays for.

use crate::file::{self, FdLookup, inode};
use crate::runtime::layout::offset;
use crate::runtime::read::{DirectLoad, KernelRead, Pointer, ProbeRead};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::NbdRequestRecord;

/// include/linux/socket.h
pub const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Socket that the current task has open.
pub struct Socket {
    /// Inode number: unique among the sockets of this boot during the socket's lifetime.
    pub inode: u64,
    /// Address of its `struct socket`.
    address: u64,
}

/// Looks up `fd` in the current task; none if it is not a socket.
#[inline(always)]
pub fn lookup_fd(task: Pointer, fd: u32) -> Option<Socket> {
    // SAFETY: each pointer is read by the way it was found.
    unsafe {
        match file::lookup_fd(task, fd) {
            FdLookup::Typed(file) => from_file::<DirectLoad>(file),
            FdLookup::Untyped(file) => from_file::<ProbeRead>(file),
            FdLookup::Closed => None,
        }
    }
}

#[inline(always)]
unsafe fn from_file<R: KernelRead>(file: Pointer) -> Option<Socket> {
    // SAFETY: by the contract of `R`.
    unsafe {
        let inode: Pointer = R::read(file, offset!(file_inode));
        if inode::file_type::<R>(inode) != inode::S_IFSOCK {
            return None;
        }
        let address = R::read(file, offset!(file_private_data));
        Some(Socket { inode: R::read(inode, offset!(inode_ino)), address })
    }
}

/// Returns the inode of the open socket of this `struct sock`; 0 if it is closed.
#[inline(always)]
pub fn inode_of(sk: Pointer) -> u64 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let socket: Pointer = ProbeRead::read(sk, offset!(sock_socket));
        if socket.is_null() {
            return 0;
        }
        let inode = socket.wrapping_add(offset!(socket_inode) as usize);
        ProbeRead::read(inode, offset!(inode_ino))
    }
}

/// Fills in the address family and both addresses; for other families only the family. Returns the
/// `struct sock`.
#[inline(always)]
pub fn fill_addresses(socket: &Socket, record: &mut NbdRequestRecord) -> Pointer {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let sk: Pointer = ProbeRead::read(socket.address as Pointer, offset!(socket_sk));
        let family: u16 = ProbeRead::read(sk, offset!(sock_family));
        record.family = family;
        if family == AF_UNIX {
            let peer: Pointer = ProbeRead::read(sk, offset!(unix_peer));
            let peer_socket: Pointer = ProbeRead::read(peer, offset!(sock_socket));
            if peer_socket.is_null() {
                return sk;
            }
            let inode = peer_socket.wrapping_add(offset!(socket_inode) as usize);
            record.local[0] = socket.inode;
            record.remote[0] = ProbeRead::read(inode, offset!(inode_ino));
            return sk;
        }
        record.local_port = ProbeRead::read(sk, offset!(sock_num));
        record.remote_port = ProbeRead::read(sk, offset!(sock_dport));
        if family == AF_INET {
            record.local[0] = ProbeRead::read::<u32>(sk, offset!(sock_rcv_saddr)) as u64;
            record.remote[0] = ProbeRead::read::<u32>(sk, offset!(sock_daddr)) as u64;
            return sk;
        }
        if family == AF_INET6 && offset!(sock_v6_daddr) != ABSENT {
            record.local = ProbeRead::read(sk, offset!(sock_v6_rcv_saddr));
            record.remote = ProbeRead::read(sk, offset!(sock_v6_daddr));
        }
        sk
    }
}
