//! NBD connections: the parser state of each client socket, and the record that ends a request.
//!
//! *In*: the socket of a request, or of received bytes. *Out*: the state of its connection.
//! *Invariant*: no open connection is ever displaced: an entry is reused only when its socket is
//! closed. A connection without room is not traced, and each of its requests is counted.
//!
//! A connection may be in two sets of four ways, and takes a way of the emptier one: with random
//! inode numbers the first has no room at some 1,900 open connections of 4,096. No hook reports the end of a Unix connection. Its entry stays until a new connection
//! needs room, and is recognised then: the kernel detaches a closed `struct sock` from its socket.
//!
//! *Rejected*: an LRU map. It displaced the connections of requests in flight, whose replies were
//! then missing without a count. It also forgot the position in their streams, so that data of a
//! reply could be parsed as a header.

use super::socket::{self, Socket};
use crate::runtime::atomic::compare_exchange;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::Pointer;
use crate::runtime::{ring, table};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{NBD_DROPPED, NBD_FIRED, NBD_UNTRACKED};
use blkkin_probe_abi::in_flight::{Set, WAYS, Way};
use blkkin_probe_abi::record::*;

/// Parser state of a connection's two streams.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Connection {
    /// Address of the connection's `struct sock`.
    sock: u64,
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

/// Sets of the table: 4,096 connections, 192 KiB.
const SETS: usize = 1_024;
/// Key of a way whose value is being written. No inode has this number.
const CLAIMED: u64 = u64::MAX;

/// Connections by the inode of the client's socket. The loader shrinks the map to one set if NBD
/// tracing is off.
#[btf_map]
static NBD_CONNECTIONS: Array<Set<Connection>, SETS> = Array::new();

/// Returns the state of this socket's connection.
#[inline(always)]
pub fn of(socket: &Socket) -> Option<&'static mut Connection> {
    find(socket.inode)
}

/// Returns whether a request was sent on the socket of this inode.
#[inline(always)]
pub fn is_client(socket: u64) -> bool {
    find(socket).is_some()
}

/// Returns the state of the connection on which a request is sent, created for its first one. None
/// if there is no room, which is counted. `sock` is the socket's `struct sock`.
#[inline(always)]
pub fn of_sender(
    percpu: &mut PerCpuState,
    socket: &Socket,
    sock: Pointer,
) -> Option<&'static mut Connection> {
    if let Some(known) = of(socket) {
        return Some(known);
    }
    if open_connection(socket.inode, sock as u64) == 0 {
        percpu.count(NBD_UNTRACKED);
        return None;
    }
    of(socket)
}

/// Creates the entry of a connection, in the set with more usable ways. Returns 0 if neither has one.
/// A global function, which the verifier checks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn open_connection(socket: u64, sock: u64) -> u64 {
    let (bits, other) =
        if usable(socket, FIRST) >= usable(socket, SECOND) { (FIRST, SECOND) } else { (SECOND, FIRST) };
    u64::from(claim(socket, bits, sock) || claim(socket, other, sock))
}

/// Bits of an inode's hash that select the first and the second set of its connection.
const FIRST: u32 = 40;
const SECOND: u32 = 52;

/// Returns a set in which the connection of this inode may be.
#[inline(always)]
fn set(socket: u64, bits: u32) -> Option<*mut Set<Connection>> {
    let hash = socket.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    NBD_CONNECTIONS.get_ptr_mut((hash >> bits) as u32 & (SETS as u32 - 1))
}

/// Returns the entry of this inode.
///
/// One thread sends on a connection at a time and one receives, or their bytes would be mixed; the
/// two use different fields.
#[inline(always)]
fn find(socket: u64) -> Option<&'static mut Connection> {
    match find_in(socket, FIRST) {
        None => find_in(socket, SECOND),
        found => found,
    }
}

#[inline(always)]
fn find_in(socket: u64, bits: u32) -> Option<&'static mut Connection> {
    let set = set(socket, bits)?;
    let mut i = 0;
    while i < WAYS {
        // SAFETY: a way of a set of the map; keys are read whole.
        unsafe {
            let way = &raw mut (*set).ways[i];
            if core::ptr::read_volatile(&raw const (*way).key) == socket {
                return Some(&mut (*way).value);
            }
        }
        i += 1;
    }
    None
}

/// Counts the usable ways of a set.
#[inline(always)]
fn usable(socket: u64, bits: u32) -> u32 {
    let Some(set) = set(socket, bits) else { return 0 };
    let (mut ways, mut i) = (0, 0);
    while i < WAYS {
        // SAFETY: a way of a set of the map.
        ways += u32::from(unsafe { is_usable(&raw mut (*set).ways[i]).is_some() });
        i += 1;
    }
    ways
}

/// Claims a usable way of a set for a new connection.
#[inline(always)]
fn claim(socket: u64, bits: u32, sock: u64) -> bool {
    let Some(set) = set(socket, bits) else { return false };
    let mut i = 0;
    while i < WAYS {
        // SAFETY: as above; the exchange decides between two CPUs, and no lookup finds the way
        // before its value is written.
        unsafe {
            let way = &raw mut (*set).ways[i];
            if let Some(key) = is_usable(way)
                && compare_exchange(&raw mut (*way).key, key, CLAIMED) == key
            {
                let value = &mut (*way).value;
                (value.sock, value.cookie, value.to_send) = (sock, 0, 0);
                (value.to_receive, value.sending, value.received) = (0, 0, 0);
                compare_exchange(&raw mut (*way).key, CLAIMED, socket);
                return true;
            }
        }
        i += 1;
    }
    false
}

/// Returns the key of a way that is free or whose socket is closed.
///
/// # Safety
/// `way` is a way of the map.
#[inline(always)]
unsafe fn is_usable(way: *mut Way<Connection>) -> Option<u64> {
    // SAFETY: by the contract.
    let (key, sock) = unsafe {
        (
            core::ptr::read_volatile(&raw const (*way).key),
            core::ptr::read_volatile(&raw const (*way).value.sock),
        )
    };
    let closed = key != CLAIMED && socket::inode_of(sock as Pointer) != key;
    if key == 0 || closed { Some(key) } else { None }
}

/// Ends the connection: no further reply on it is possible.
#[inline(always)]
pub fn end_connection(percpu: &mut PerCpuState, socket: u64, error: u32) {
    if let Some(connection) = find(socket) {
        table::release(connection);
    }
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
            sampling: 0,
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
