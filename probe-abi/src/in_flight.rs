//! Bios and requests in flight: the values of the eBPF side's set-associative tables, which are
//! arrays of [`Set`]s.
//!
//! User space reads the tables once, after all programs are detached: the entries left there had
//! not completed.

use crate::plain;

/// Ways per set.
pub const WAYS: usize = 4;

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
    /// Zero.
    pub reserved: u32,
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

plain! {
    Bio = 144, RequestPart = 56, Request = 96,
    Set<Bio> = 608, Set<Request> = 416,
}
