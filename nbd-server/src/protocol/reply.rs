//! Replies: simple ones, and structured ones for clients that asked for them.
//!
//! *In*: a request and what came of it. *Out*: the bytes of its whole answer. *Invariant*: one request has one answer in
//! one piece: nothing is sent before it is known whether it succeeded, so a reply never has to be broken off.
//!
//! Holes are sent as data: a client that wants to know of them asks for block status.

use super::{Refusal, Request, Session};

/// "Simple reply message", "Structured reply chunk message".
const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
const DONE: u16 = 1;

/// "Structured reply types".
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 1 << 15 | 1;

/// The number that `base:allocation` has in every session: there is no other context.
pub const ALLOCATION: u32 = 1;

/// A range that is all data, or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Bytes, never 0.
    pub length: u32,
    /// Not allocated: it reads as zeroes.
    pub hole: bool,
}

/// `NBD_STATE_HOLE`, `NBD_STATE_ZERO`.
const HOLE_AND_ZERO: u32 = 3;

/// The head of the answer to a read, with room for the data that follows it.
pub fn reading(session: Session, request: &Request) -> Vec<u8> {
    let length = request.length as usize;
    if session.structured {
        let mut reply = Vec::with_capacity(28 + length);
        reply.resize(28, 0);
        put_chunk(&mut reply[..20], OFFSET_DATA, request.cookie, request.length + 8);
        reply[20..].copy_from_slice(&request.offset.to_be_bytes());
        reply
    } else {
        let mut reply = Vec::with_capacity(16 + length);
        reply.resize(16, 0);
        put_simple(&mut reply, 0, request.cookie);
        reply
    }
}

/// It was done.
pub fn done(session: Session, cookie: u64) -> Vec<u8> {
    if session.structured {
        let mut reply = vec![0; 20];
        put_chunk(&mut reply, NONE, cookie, 0);
        reply
    } else {
        let mut reply = vec![0; 16];
        put_simple(&mut reply, 0, cookie);
        reply
    }
}

/// It was not done. Without a text: the number says it all.
pub fn refused(session: Session, cookie: u64, refusal: Refusal) -> Vec<u8> {
    if session.structured {
        let mut reply = vec![0; 26];
        put_chunk(&mut reply[..20], ERROR, cookie, 6);
        reply[20..24].copy_from_slice(&refusal.number().to_be_bytes());
        reply
    } else {
        let mut reply = vec![0; 16];
        put_simple(&mut reply, refusal.number(), cookie);
        reply
    }
}

/// What is allocated. Only for sessions with structured replies.
pub fn status(cookie: u64, extents: &[Extent]) -> Vec<u8> {
    let payload = 4 + 8 * extents.len();
    let mut reply = vec![0; 20];
    put_chunk(&mut reply, BLOCK_STATUS, cookie, payload as u32);
    reply.reserve(payload);
    reply.extend(ALLOCATION.to_be_bytes());
    for extent in extents {
        reply.extend(extent.length.to_be_bytes());
        reply.extend(if extent.hole { HOLE_AND_ZERO } else { 0 }.to_be_bytes());
    }
    reply
}

fn put_simple(head: &mut [u8], error: u32, cookie: u64) {
    head[..4].copy_from_slice(&SIMPLE.to_be_bytes());
    head[4..8].copy_from_slice(&error.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
}

fn put_chunk(head: &mut [u8], kind: u16, cookie: u64, payload: u32) {
    head[..4].copy_from_slice(&STRUCTURED.to_be_bytes());
    head[4..6].copy_from_slice(&DONE.to_be_bytes());
    head[6..8].copy_from_slice(&kind.to_be_bytes());
    head[8..16].copy_from_slice(&cookie.to_be_bytes());
    head[16..20].copy_from_slice(&payload.to_be_bytes());
}
