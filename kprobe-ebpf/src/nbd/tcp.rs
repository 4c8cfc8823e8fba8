//! TCP streams of NBD clients: the stream offset of a request, retransmissions, and the end of a
//! connection.
//!
//! *In*: a `struct sock`, and the kernel's TCP events of it. *Out*: the number of bytes that the
//! client sent before; a record for each retransmitted segment, and for a connection's end.
//! *Invariant*: an offset is the kernel's count and not a sum of observed sends, so a missed send
//! shifts no offset. An offset that cannot be read consistently is 0, which no request has.
//!
//! # Why stream offsets
//!
//! A cookie may repeat, and the clock difference of two nodes is known only to within the network's
//! minimum latency. Requests that took less cannot be distinguished by cookie and time. The number
//! of bytes before a request is unique on its connection, and the receiver counts the same
//! (`nbd-server/src/protocol/request_decoder.rs`). The offset also identifies the request whose
//! bytes a segment carries.
//!
//! # How the offset is computed
//!
//! `bytes_acked` is the number of acknowledged bytes (include/linux/tcp.h), `snd_una` the sequence
//! number of the next byte, and `write_seq` that of the next byte to be written. The connecting
//! side has its SYN acknowledged too (tcp_snd_una_update counts from the `write_seq` before it, as
//! tcp_connect_init sets it): one less. An acknowledgement may arrive between the reads, because no
//! lock is held at a system call's entry. So both numbers that it changes are read again
//! afterwards.
//!
//! *Rejected*: sequence numbers themselves, which a user-space receiver cannot read; `bytes_sent`,
//! which counts retransmissions again.

use super::{connection, socket};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::{NBD_DROPPED, NBD_FIRED};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// include/net/tcp_states.h
const ESTABLISHED: u32 = 1;
const FIN_WAIT1: u32 = 4;
const CLOSE: u32 = 7;
const CLOSE_WAIT: u32 = 8;
const LAST_ACK: u32 = 9;
/// Shutdown flag: no further data will be received (include/net/sock.h).
const RCV_SHUTDOWN: u8 = 1;

/// Reads the number of acknowledged bytes, and the sequence number of the next byte.
#[inline(always)]
fn acknowledged(sk: Pointer) -> (u64, u32) {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe { (ProbeRead::read(sk, offset!(tcp_bytes_acked)), ProbeRead::read(sk, offset!(tcp_snd_una))) }
}

/// Returns the number of bytes before the one with this sequence number.
#[inline(always)]
fn stream_offset((bytes, next): (u64, u32), number: u32) -> u64 {
    bytes.wrapping_add(number.wrapping_sub(next) as u64).wrapping_sub(1)
}

/// Returns the number of bytes sent on this socket before the next send; 0 if unknown.
#[inline(always)]
pub fn next_stream_offset(sk: Pointer) -> u64 {
    if offset!(tcp_bytes_acked) == ABSENT
        || offset!(tcp_snd_una) == ABSENT
        || offset!(tcp_write_seq) == ABSENT
    {
        return 0;
    }
    let before = acknowledged(sk);
    // SAFETY: as above.
    let next: u32 = unsafe { ProbeRead::read(sk, offset!(tcp_write_seq)) };
    let after = acknowledged(sk);
    if before.0 != after.0 || before.1 != after.1 {
        return 0;
    }
    stream_offset(before, next)
}

/// Handles tcp_retransmit_skb(sk, skb). The socket is locked here.
#[inline(always)]
pub fn retransmit(sk: Pointer, skb: Pointer) {
    let inode = socket::inode_of(sk);
    if inode == 0 || !connection::is_client(inode) {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::NbdRetransmit) else { return };
    let cb = offset!(skb_cb);
    let before = acknowledged(sk);
    // SAFETY: as above; the clock has no preconditions.
    let (from, to, time_ns): (u32, u32, u64) = unsafe {
        (
            ProbeRead::read(skb, cb + offset!(skb_cb_seq)),
            ProbeRead::read(skb, cb + offset!(skb_cb_end_seq)),
            bpf_ktime_get_ns(),
        )
    };
    let record = NbdRetransmitRecord {
        header: Header {
            tag: TAG_NBD_RETRANSMIT,
            sampling: 0,
            flags: 0,
            len: size_of::<NbdRetransmitRecord>() as u32,
            time_ns,
        },
        socket: inode,
        from: stream_offset(before, from),
        to: stream_offset(before, to),
    };
    ring::put_counted(percpu, NBD_FIRED, NBD_DROPPED, &record);
}

/// Handles inet_sock_set_state(sk, before, after): ends the connection if nothing can be received
/// on it any more. A server that has closed its side (CLOSE_WAIT) may have left unread replies, and
/// a client that has shut down its sending half may read on.
#[inline(always)]
pub fn state_change(sk: Pointer, before: u32, after: u32) {
    let open = before == ESTABLISHED || before == CLOSE_WAIT;
    if !open || (after != FIN_WAIT1 && after != CLOSE && after != LAST_ACK) {
        return;
    }
    let inode = socket::inode_of(sk);
    if inode == 0 || !connection::is_client(inode) {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::NbdEnd) else { return };
    // SAFETY: as above.
    if after != CLOSE && unsafe { ProbeRead::read::<u8>(sk, offset!(sock_shutdown)) } & RCV_SHUTDOWN == 0 {
        return;
    }
    // SAFETY: as above.
    let error = unsafe { ProbeRead::read::<i32>(sk, offset!(sock_err)) } as u32;
    connection::end_connection(percpu, inode, error);
}
