//! Bios and requests in flight, as the kernel side keeps them in its tables: an array of [`Set`]s each.
//!
//! The user side reads them once, when nothing is attached any more: what is left there had not ended.

use crate::plain;

/// Ways of a set.
pub const WAYS: usize = 4;

/// One place.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Way<V> {
    /// The address of what is there; 0 where nothing is.
    pub key: u64,
    /// What is known of it.
    pub value: V,
}

/// Places that an address may be in.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Set<V> {
    /// The places.
    pub ways: [Way<V>; WAYS],
}

/// A bio in flight. What is not said here is as in [`BioRecord`](crate::record::BioRecord).
#[allow(missing_docs, reason = "said there")]
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
    /// Bytes completed; atomic, since parts of a split end on several CPUs.
    pub done: u64,
    pub dev: u32,
    pub bytes: u32,
    pub opf: u32,
    pub status: u32,
    pub task_version: u16,
    pub flags: u16,
    /// Zero.
    pub reserved: u32,
    /// The request in which it is alone.
    pub carrier: Carrier,
}

/// A request that carries one bio. What is not said here is as in [`RequestRecord`](crate::record::RequestRecord).
#[allow(missing_docs, reason = "said there")]
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Carrier {
    /// Its address; 0 where a bio is alone in no request.
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

/// A request in flight. What is not said here is as in [`RequestRecord`](crate::record::RequestRecord).
#[allow(missing_docs, reason = "said there")]
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
    Bio = 144, Carrier = 56, Request = 96,
    Set<Bio> = 608, Set<Request> = 416,
}
