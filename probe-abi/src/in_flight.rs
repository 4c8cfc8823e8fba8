//! Bios, requests and asynchronous I/O in flight: the values of the eBPF side's set-associative tables, which are
//! arrays of [`Set`]s.
//!
//! User space reads the tables once, after all programs are detached: the entries left there had
//! not completed.

use crate::plain;
use crate::record::FileId;

/// Ways per set.
pub const WAYS: usize = 4;
/// Sets of the bio table: 65,536 bios in flight, 9.5 MiB.
pub const BIO_SETS: usize = 16_384;
/// Sets of the request table: 32,768 requests, 3.3 MiB. Requests come from a bounded pool
/// (nr_requests × hardware queues × devices).
pub const REQUEST_SETS: usize = 8_192;

/// Sets of the table of asynchronous I/O: 16,384 submissions, 2.1 MiB. The map has one set if no
/// asynchronous I/O is traced.
pub const ASYNC_SETS: usize = 4_096;

/// Returns the set of an address, of a table with `sets` sets, a power of two. Slab objects are
/// aligned to at least 64 B, so the lower bits carry no information.
#[inline(always)]
pub const fn set_of(address: u64, sets: usize) -> u32 {
    let hash = (address >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 40) as u32 & (sets as u32 - 1)
}

/// Way of a set: one entry of the table.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Way<V> {
    /// Address of the tracked object; 0 for a free way.
    pub key: u64,
    /// State of the tracked object.
    pub value: V,
}

/// Set of ways in which an address may be stored.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Set<V> {
    /// Ways of the set.
    pub ways: [Way<V>; WAYS],
}

/// Bio in flight. Fields without documentation are as in [`BioRecord`](crate::record::BioRecord).
#[allow(missing_docs, reason = "documented at the record")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Bio {
    pub span: u64,
    pub parent: u64,
    pub root: u64,
    pub task: u64,
    pub request: u64,
    pub queue_ns: u64,
    pub sector: u64,
    /// Bytes completed. Atomic, because parts of a split bio complete on several CPUs.
    pub done: u64,
    pub dev: u32,
    pub bytes: u32,
    pub opf: u32,
    pub status: u32,
    pub task_version: u16,
    pub flags: u16,
    /// Position of its libaio submission in the table of asynchronous I/O, from 1; 0 for none.
    pub iocb: u32,
    /// State of the request that carries only this bio.
    pub request_part: RequestPart,
}

/// Request that carries exactly one bio. Fields without documentation are as in
/// [`RequestRecord`](crate::record::RequestRecord).
#[allow(missing_docs, reason = "documented at the record")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct RequestPart {
    /// Address of the request; 0 where no request carries only this bio.
    pub rq: u64,
    pub span: u64,
    pub start_ns: u64,
    pub issue_ns: u64,
    pub sector: u64,
    pub disk: u32,
    pub opf: u32,
    pub tag: i32,
    pub flags: u16,
    /// Zero.
    pub reserved: u16,
}

/// Request in flight. Fields without documentation are as in
/// [`RequestRecord`](crate::record::RequestRecord).
#[allow(missing_docs, reason = "documented at the record")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Request {
    pub span: u64,
    pub parent: u64,
    pub root: u64,
    pub task: u64,
    pub start_ns: u64,
    pub insert_ns: u64,
    pub issue_ns: u64,
    pub sector: u64,
    pub dev: u32,
    pub bytes: u32,
    pub opf: u32,
    pub status: u32,
    pub task_version: u16,
    pub bios: u16,
    pub tag: i32,
    pub flags: u16,
    /// Zero.
    pub reserved: [u16; 3],
}

/// Asynchronous I/O in flight, keyed by the address of its kiocb. Fields without documentation are
/// as in [`AsyncIoRecord`](crate::record::AsyncIoRecord).
#[allow(missing_docs, reason = "documented at the record")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct AsyncIo {
    pub span: u64,
    pub parent: u64,
    /// Root of the trace: the system call, or the submission itself.
    pub root: u64,
    pub task: u64,
    pub start_ns: u64,
    /// io_uring: as in the record; libaio: end of the bio that ended last.
    pub queued_ns: u64,
    pub user_data: u64,
    pub offset: i64,
    pub file: FileId,
    /// Address of the ring (`io_ring_ctx`), or of the program's iocb, that the kiocb refers to: a
    /// kiocb without it is another object at the same address.
    pub context: u64,
    /// libaio: bios in flight, and 1 while the submitter may queue more. Atomic.
    pub in_flight: u64,
    pub length: u32,
    pub result: i32,
    pub fd: i32,
    pub bios: u32,
    pub ring_flags: u32,
    pub flags: u16,
    pub task_version: u16,
    pub opcode: u8,
    pub sqe_flags: u8,
    pub interface: u8,
    /// Verdict before its end, its own or that of its call: see [`deferred`](crate::deferred).
    pub verdict: u8,
    /// Zero.
    pub reserved: [u8; 4],
}

plain! {
    AsyncIo = 136, Set<AsyncIo> = 576,
    Bio = 144, RequestPart = 56, Request = 96,
    Set<Bio> = 608, Set<Request> = 416,
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    /// Counts how many of `objects` find room, at addresses as slabs and pools of requests give them:
    /// pages in random order (splitmix64), each full of objects of this size.
    fn tracked(objects: u64, bytes: u64, sets: usize) -> u64 {
        const PAGE: u64 = 4096;
        let page = |n: u64| {
            let z = n.wrapping_mul(0x9e37_79b9_7f4a_7c15);
            let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            // 22 bits of 4 KiB pages: 16 GiB of direct mapping.
            0xffff_8880_0000_0000 | ((z >> 42) * PAGE)
        };
        let mut used: HashMap<u32, usize> = HashMap::new();
        let each = PAGE / bytes;
        (0..objects)
            .filter(|n| {
                let used = used.entry(set_of(page(n / each) + n % each * bytes, sets)).or_default();
                *used += 1;
                *used <= WAYS
            })
            .count() as u64
    }

    /// The figures of docs/sizing.md: with random sets of four, the counts follow from the load alone.
    /// A bio takes 192 B of its slab, a request of virtio_blk 448 B.
    #[test]
    fn bios_and_requests_that_find_room() {
        const IN_FLIGHT: [u64; 5] = [1_000, 5_000, 10_000, 20_000, 100_000];
        let tracked = |bytes, sets| IN_FLIGHT.map(|objects| tracked(objects, bytes, sets));
        assert_eq!(tracked(192, BIO_SETS), [1_000, 5_000, 9_993, 19_804, 61_987]);
        assert_eq!(tracked(448, REQUEST_SETS), [1_000, 4_997, 9_929, 18_748, 32_742]);
    }
}
