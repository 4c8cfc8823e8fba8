//! Where a request lies in its TCP connection's stream of bytes, and what becomes of that stream below the client.
//!
//! *In*: a `struct sock`; the kernel's own events of it. *Out*: how many bytes the client has sent before; a record for each segment
//! that is sent once more, and for a connection's end. *Invariant*: a place is the kernel's count, not a sum of what was seen, so what
//! was missed moves no place; a place that cannot be had whole is 0, which none is.
//!
//! # Why places
//!
//! A cookie may come again, and the clocks of two nodes are known to what the network takes at the best: a request that took less is
//! told from its neighbours by neither. What was sent before it on its connection is another number for each, and whoever receives
//! counts the same (`nbd-server/src/protocol/intake.rs`). It is also how a segment says whose bytes it carries.
//!
//! # How it is counted
//!
//! `bytes_acked` is all that was acknowledged (include/linux/tcp.h), `snd_una` the number of the next byte after that, and `write_seq`
//! that of the next byte to come. Who connects has its SYN acknowledged too (tcp_snd_una_update counts from `write_seq` before it, as
//! tcp_connect_init leaves it): one less. An acknowledgement may come between the reads, as nothing is locked at a call's entry: so both
//! numbers that it changes are read again behind.
//!
//! *Rejected*: sequence numbers themselves (a receiver in user space is not told them); `bytes_sent` (what is sent again counts again).

use crate::access::{Access, Pointer, Probe};
use crate::layout::offset;
use crate::local::Local;
use crate::{nbd, ring, socket};
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
/// Nothing will be received (include/net/sock.h).
const RCV_SHUTDOWN: u8 = 1;

/// What was acknowledged, and the number of the next byte.
#[inline(always)]
fn acknowledged(sk: Pointer) -> (u64, u32) {
    // SAFETY: reads by helper take any address.
    unsafe { (Probe::read(sk, offset!(tcp_bytes_acked)), Probe::read(sk, offset!(tcp_snd_una))) }
}

/// Bytes before the one of this number.
#[inline(always)]
fn place((bytes, next): (u64, u32), number: u32) -> u64 {
    bytes.wrapping_add(number.wrapping_sub(next) as u64).wrapping_sub(1)
}

/// How many bytes were sent on this socket before those that are sent next; 0 where that is not known.
#[inline(always)]
pub fn place_of_next(sk: Pointer) -> u64 {
    if offset!(tcp_bytes_acked) == ABSENT
        || offset!(tcp_snd_una) == ABSENT
        || offset!(tcp_write_seq) == ABSENT
    {
        return 0;
    }
    let before = acknowledged(sk);
    // SAFETY: as above.
    let next: u32 = unsafe { Probe::read(sk, offset!(tcp_write_seq)) };
    let behind = acknowledged(sk);
    if before.0 != behind.0 || before.1 != behind.1 {
        return 0;
    }
    place(before, next)
}

/// tcp_retransmit_skb(sk, skb). The socket is locked here.
#[inline(always)]
pub fn resent(sk: Pointer, skb: Pointer) {
    let inode = socket::inode(sk);
    if inode == 0 || !nbd::knows(inode) {
        return;
    }
    let Some(local) = Local::of(Program::NbdResend) else { return };
    let cb = offset!(skb_cb);
    let before = acknowledged(sk);
    // SAFETY: as above; the clock has no preconditions.
    let (from, to, time_ns): (u32, u32, u64) = unsafe {
        (
            Probe::read(skb, cb + offset!(skb_cb_seq)),
            Probe::read(skb, cb + offset!(skb_cb_end_seq)),
            bpf_ktime_get_ns(),
        )
    };
    let record = NbdResent {
        header: Header {
            tag: TAG_NBD_RESENT,
            reserved: 0,
            flags: 0,
            len: size_of::<NbdResent>() as u32,
            time_ns,
        },
        socket: inode,
        from: place(before, from),
        to: place(before, to),
    };
    ring::put_counted(local, NBD_FIRED, NBD_DROPPED, &record);
}

/// inet_sock_set_state(sk, before, after): whether nothing will be received on it any more. A server that has closed its side (CLOSE_WAIT)
/// may have left answers that are still to be read, and a client that has closed its own half (shutdown) may read on.
#[inline(always)]
pub fn state(sk: Pointer, before: u32, after: u32) {
    let open = before == ESTABLISHED || before == CLOSE_WAIT;
    if !open || (after != FIN_WAIT1 && after != CLOSE && after != LAST_ACK) {
        return;
    }
    let inode = socket::inode(sk);
    if inode == 0 || !nbd::knows(inode) {
        return;
    }
    let Some(local) = Local::of(Program::NbdEnd) else { return };
    // SAFETY: as above.
    if after != CLOSE && unsafe { Probe::read::<u8>(sk, offset!(sock_shutdown)) } & RCV_SHUTDOWN == 0 {
        return;
    }
    // SAFETY: as above.
    let error = unsafe { Probe::read::<i32>(sk, offset!(sock_err)) } as u32;
    nbd::end(local, inode, error);
}
