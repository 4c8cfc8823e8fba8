//! NBD connections: the parser state of each client socket, and the record that ends a request.

use super::socket::Socket;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::ring;
use aya_ebpf::btf_maps::LruHashMap;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{NBD_DROPPED, NBD_FIRED};
use blkkin_probe_abi::record::*;

/// Parser state of a connection's two streams.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Connection {
    /// Cookie of the request that is being sent.
    pub cookie: u64,
    /// Bytes of the request not yet sent, including its data.
    pub to_send: u64,
    /// Bytes of reply data not yet received.
    pub to_receive: u64,
    /// 1: the system call that begins to send the request has not returned.
    pub sending: u32,
    /// Received part of a reply header: its magic, or all but its length
    /// ([`AWAITING_LENGTH`](super::AWAITING_LENGTH)); 0 for none.
    pub received: u32,
}

/// Connections by the inode of the client's socket. Replies on a displaced connection are not
/// parsed until it sends again. The loader shrinks the map to the minimum if NBD tracing is off.
#[btf_map]
pub static NBD_CONNECTIONS: LruHashMap<u64, Connection, 1024> = LruHashMap::new();

/// Returns the state of this socket's connection.
#[inline(always)]
pub fn of(socket: &Socket) -> Option<&'static mut Connection> {
    // SAFETY: one thread sends on a connection at a time and one receives, or their bytes would be
    // mixed; the two use different fields.
    NBD_CONNECTIONS.get_ptr_mut(socket.inode).map(|state| unsafe { &mut *state })
}

/// Returns whether a request was sent on the socket of this inode.
#[inline(always)]
pub fn is_client(socket: u64) -> bool {
    NBD_CONNECTIONS.get_ptr_mut(socket).is_some()
}

/// Ends the connection: no further reply on it is possible.
#[inline(always)]
pub fn end_connection(percpu: &mut PerCpuState, socket: u64, error: u32) {
    let _ = NBD_CONNECTIONS.remove(socket);
    emit_reply(percpu, socket, NBD_ENDED, 0, error, 0, 0);
}

#[inline(always)]
pub fn emit_reply(
    percpu: &mut PerCpuState,
    socket: u64,
    flags: u16,
    cookie: u64,
    error: u32,
    kind: u16,
    kind_flags: u16,
) {
    let record = NbdReplyRecord {
        header: Header {
            tag: TAG_NBD_REPLY,
            reserved: 0,
            flags,
            len: size_of::<NbdReplyRecord>() as u32,
            // SAFETY: the clock has no preconditions.
            time_ns: unsafe { bpf_ktime_get_ns() },
        },
        socket,
        cookie,
        error,
        kind,
        kind_flags,
    };
    ring::put_counted(percpu, NBD_FIRED, NBD_DROPPED, &record);
}
