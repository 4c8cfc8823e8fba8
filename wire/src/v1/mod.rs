//! Batches as bytes: version 1 of what the topics hold. Of events here, for `blkkin.events`; of spans, in `pieces`, for
//! `blkkin.spans` and `blkkin.traces`.
//!
//! ```text
//! EventBatch → columns (dictionaries, deltas, ids as they were counted) → protobuf → Kafka's zstd
//! ```
//!
//! *In*: a batch, or bytes of a record that anybody may have written. *Out*: the bytes, or the same batch again, or why not.
//! `blkkin.proto` beside this crate is the contract for everybody else.
//!
//! *Invariant*: `decode(encode(batch)) == batch` for each batch that a tracer makes; any other bytes are an error or a
//! batch, never a panic. What they take in memory grows with their length: some 100 times it at the worst (an event of
//! six bytes is 264 in memory), and a record of Kafka is 1 MiB at the most by default.
//!
//! # Ids cost nothing
//!
//! An id is 64 bits that look random: eight incompressible bytes, three or four times an event, would be most of what is
//! sent. But the kernel side makes them by a bijection of (CPU, program, counter) keyed by the start's epoch, which is in
//! each batch: undone here, most are the last one of their origin plus one. It stays a bijection of all of 64 bits: an id that was
//! made otherwise comes through as well, only longer.
//!
//! # A pair is a bio and a request
//!
//! It takes a row of either's columns; what the two share by being a pair is left out by flags. A schema of its own for
//! pairs would say the same eleven fields a second time.
//!
//! *What is not sent*: registers behind a call's own arguments. They are what was left there by chance, nobody may read
//! them, and they compress badly.
//!
//! # Rejected
//!
//! Rows (23–27 B an event behind zstd where columns take 12–14), Arrow (17–26 B, and a large dependency in each consumer),
//! a format of our own without a schema (each consumer would have to be written by us), zstd inside of the record (Kafka
//! does it, and every client undoes it).

mod attributes;
mod block;
mod call;
mod column;
mod commit;
mod dictionary;
mod ids;
mod killed;
mod meeting;
mod message;
mod name;
mod operation;
mod packed;
mod peek;
mod pieces;
mod process;
mod read;
#[cfg(test)]
mod tests;
mod totals;
mod words;
mod write;

use thiserror::Error;

pub use peek::{Peeked, peek};
pub use pieces::{COPIED_BYTES_MAX, Count, PieceWriter, decode_pieces, encode_pieces};
pub use read::{Decoded, decode};
pub use write::encode;

/// The version that this module writes and reads.
pub const VERSION: u32 = 1;

/// Why bytes are no batch.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Not protobuf, or of other types.
    #[error("no protobuf of this schema: {0}")]
    Protobuf(String),
    /// Of a version that this reader does not know.
    #[error("version {0} of the schema, and this reader knows version {VERSION}")]
    Version(u32),
    /// A column ends before its events do.
    #[error("the column {0} is too short")]
    Short(&'static str),
    /// A column has more than its events have.
    #[error("the column {0} is too long")]
    Long(&'static str),
    /// A value that nothing may have.
    #[error("the column {column} holds {value}")]
    Value {
        /// Which.
        column: &'static str,
        /// What is in it.
        value: u64,
    },
}
