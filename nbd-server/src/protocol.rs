//! NBD as its clients speak it: numbers, messages, the handshake. No sockets, no files.
//!
//! *In*: bytes of a client. *Out*: a [`Request`] that was checked, or the [`Refusal`] to answer with, or a
//! [`Violation`](intake::Violation) after which nothing more can be understood; and the bytes of replies.
//! *Invariant*: nothing outside this module reads a length that a client sent, before it was compared with a limit.
//!
//! The one source is doc/proto.md of github.com/NetworkBlockDevice/nbd; names of sections are in quotation marks.

pub mod handshake;
pub mod intake;
mod options;
pub mod reply;
pub mod request;

pub use request::{Command, Refusal, Request};

/// Bytes that one request may carry in either direction: what is told as the largest block size, and what clients that
/// were told nothing may use ("Block size constraints").
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// What the two ends have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Structured replies, which reads and block status need.
    pub structured: bool,
    /// `base:allocation` was selected.
    pub allocation: bool,
}

/// What a client is told of an export.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Offer {
    /// By which clients ask for it; the empty name means it as well.
    pub name: String,
    /// Bytes.
    pub size: u64,
    /// Nothing is written.
    pub read_only: bool,
}

/// "Transmission flags".
mod transmission {
    pub(super) const HAS_FLAGS: u16 = 1;
    pub(super) const READ_ONLY: u16 = 1 << 1;
    pub(super) const SEND_FLUSH: u16 = 1 << 2;
    pub(super) const SEND_FUA: u16 = 1 << 3;
    pub(super) const SEND_TRIM: u16 = 1 << 5;
    pub(super) const SEND_WRITE_ZEROES: u16 = 1 << 6;
    pub(super) const SEND_DF: u16 = 1 << 7;
    pub(super) const CAN_MULTI_CONN: u16 = 1 << 8;
    pub(super) const SEND_CACHE: u16 = 1 << 10;
    pub(super) const SEND_FAST_ZERO: u16 = 1 << 11;
}

impl Offer {
    /// Whether a client that says `name` means this one.
    fn is_meant_by(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// All connections share the kernel's one cache of the file, so a flush on one of them is a flush of all.
    fn flags(&self, session: Session) -> u16 {
        use transmission::*;
        let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        let writing = if self.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
        always | writing | if session.structured { SEND_DF } else { 0 }
    }
}

/// Big-endian numbers at places that the caller knows to be there.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}
