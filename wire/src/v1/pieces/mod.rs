//! Pieces of traces as bytes: version 1 of what the topics `blkkin.spans`, `blkkin.traces` and `blkkin.links` hold.
//!
//! ```text
//! PieceBatch → columns (one dictionary of words, deltas, parents by place) → protobuf → Kafka's zstd
//! ```
//!
//! *In*: pieces, or bytes of a record that anybody may have written. *Out*: the bytes, or the same pieces again, or why not.
//! `PieceBatch` of `blkkin.proto` is the contract for everybody else.
//!
//! *Invariant*: `decode_pieces(encode_pieces(x)) == x` for whatever a [`PieceBatch`](crate::piece::PieceBatch) can hold, and the bytes are a function of
//! it; any other bytes are an error or a batch, never a panic. Spans own their names and the keys of their tags, so a long word that a
//! short record repeats grows when it is read: beyond [`COPIED_BYTES_MAX`] the record is refused.
//!
//! # Words once
//!
//! A span has about a dozen tags, and their keys and most of their values are those of the span before. Each word stands
//! once in the batch, in the order in which it is met, and is its place from then on. A parent mostly lies in the same
//! piece, so it is said by its place there: one byte where its id would take eight that no compressor makes smaller.
//!
//! *Rejected*: a table of the known tag keys in the schema (other mappings bring others, and a table has to be kept in
//! step with them), rows (a message a span: 2 to 3 times the bytes behind zstd for events, see the module above).

mod across;
mod dictionary;
mod message;
mod read;
#[cfg(test)]
mod tests;
mod write;

pub use read::{COPIED_BYTES_MAX, decode_pieces};
pub use write::{Count, PieceWriter, encode_pieces};

/// Bits of `Pieces.flags`.
const LATER: u32 = 1;
const COMPLETE: u32 = 1 << 1;
const SAMPLED: u32 = 1 << 2;
const AWAITS: u32 = 1 << 3;
const HALF: u32 = 1 << 4;
const MOVED: u32 = 1 << 5;
const HEAD: u32 = 1 << 7;
const BELOW: u32 = 1 << 8;
const FORWARDED: u32 = 1 << 6;
const BY_PROGRAM: u32 = 1 << 9;

/// Bits of `Spans.flags`; the lowest two are the kind.
const KIND: u32 = 0b11;
const PARENT_HERE: u32 = 1 << 2;
const PARENT_ELSEWHERE: u32 = 1 << 3;
const REMOTE: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
const OTHER_TRACE: u32 = 1 << 6;
