//! NBD protocol: constants, messages and the handshake, without sockets and files.
//!
//! *In*: bytes of a client. *Out*: [`Request`]s; the [`NbdError`] for a request that must not be
//! executed; a [`Violation`](request_decoder::Violation) if the stream cannot be decoded any
//! further; and the bytes of replies. *Invariant*: every length that a client sends is compared
//! with a limit before code outside this module reads it.
//!
//! The one source is doc/proto.md of github.com/NetworkBlockDevice/nbd. Comments quote the names
//! of its sections.

pub mod handshake;
mod options;
pub mod reply;
pub mod request;
pub mod request_decoder;

pub use request::{Command, NbdError, Request};

/// Largest number of data bytes in one request or reply. The server advertises it as the maximum
/// block size, and clients that negotiated no block size may use it ("Block size constraints").
pub const PAYLOAD_MAX: u32 = 32 << 20;

/// Features that client and server negotiated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Session {
    /// Structured replies, which block status requires.
    pub structured: bool,
    /// The client selected the metadata context `base:allocation`.
    pub allocation: bool,
}

/// Description of the export that the handshake sends to clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportInfo {
    /// Export name. The empty name selects the same export.
    pub name: String,
    /// Size in bytes.
    pub size: u64,
    /// True if the server refuses every request that changes the file.
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

impl ExportInfo {
    /// Returns whether a client that requests `name` selects this export.
    fn matches_name(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.name.as_bytes()
    }

    /// Returns the transmission flags. `CAN_MULTI_CONN` is correct because all connections share
    /// the kernel's page cache of the file: a flush on one connection flushes the writes of all.
    fn flags(&self, session: Session) -> u16 {
        use transmission::*;
        let always = HAS_FLAGS | SEND_FLUSH | SEND_FUA | CAN_MULTI_CONN | SEND_CACHE;
        let writing = if self.read_only { READ_ONLY } else { SEND_TRIM | SEND_WRITE_ZEROES | SEND_FAST_ZERO };
        always | writing | if session.structured { SEND_DF } else { 0 }
    }
}

/// Reads a big-endian number. The caller has checked that `bytes` is long enough.
fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_be_bytes(std::array::from_fn(|byte| bytes[at + byte]))
}
