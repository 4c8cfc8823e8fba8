//! Replies: simple replies, and structured replies for clients that negotiated them.
//!
//! *In*: a request and its result. *Out*: the bytes of the complete reply. *Invariant*: each
//! request has one reply of one chunk. No byte is sent before the result is known, so a reply never
//! fails halfway.
//!
//! *Rejected*: `NBD_REPLY_TYPE_OFFSET_HOLE`. Holes are sent as data; a client that wants to skip
//! them requests block status.

use super::{NbdError, Request, Session};

/// "Simple reply message", "Structured reply chunk message".
const SIMPLE: u32 = 0x6744_6698;
const STRUCTURED: u32 = 0x668e_33ef;
const DONE: u16 = 1;

/// "Structured reply types".
const NONE: u16 = 0;
const OFFSET_DATA: u16 = 1;
const BLOCK_STATUS: u16 = 5;
const ERROR: u16 = 1 << 15 | 1;

/// Context id of `base:allocation` in every session. The server has no other context.
pub const ALLOCATION: u32 = 1;

/// Range that is either all data or all hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes, never 0.
    pub length: u32,
    /// True for a range that is not allocated and reads as zeroes.
    pub hole: bool,
}

/// `NBD_STATE_HOLE` and `NBD_STATE_ZERO`.
const HOLE_AND_ZERO: u32 = 3;

/// Returns the header of a successful reply to a read, with capacity for the data that follows it.
pub fn read_header(session: Session, request: &Request) -> Vec<u8> {
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

/// Returns the reply to a successful request without data.
pub fn success(session: Session, cookie: u64) -> Vec<u8> {
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

/// Returns the reply to a failed request. It has no message text.
pub fn error(session: Session, cookie: u64, error: NbdError) -> Vec<u8> {
    if session.structured {
        let mut reply = vec![0; 26];
        put_chunk(&mut reply[..20], ERROR, cookie, 6);
        reply[20..24].copy_from_slice(&error.number().to_be_bytes());
        reply
    } else {
        let mut reply = vec![0; 16];
        put_simple(&mut reply, error.number(), cookie);
        reply
    }
}

/// Returns the reply to a block status request. Only sessions with structured replies have it.
pub fn block_status(cookie: u64, extents: &[Extent]) -> Vec<u8> {
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

fn put_simple(header: &mut [u8], error: u32, cookie: u64) {
    header[..4].copy_from_slice(&SIMPLE.to_be_bytes());
    header[4..8].copy_from_slice(&error.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
}

fn put_chunk(header: &mut [u8], kind: u16, cookie: u64, payload: u32) {
    header[..4].copy_from_slice(&STRUCTURED.to_be_bytes());
    header[4..6].copy_from_slice(&DONE.to_be_bytes());
    header[6..8].copy_from_slice(&kind.to_be_bytes());
    header[8..16].copy_from_slice(&cookie.to_be_bytes());
    header[16..20].copy_from_slice(&payload.to_be_bytes());
}
