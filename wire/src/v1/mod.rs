//! Version 1 of the topic records: event batches here, for `blkkin.events`; trace fragments in
//! `fragments`, for `blkkin.spans`, `blkkin.traces` and `blkkin.links`.
//!
//! ```text
//! EventBatch → columns (dictionaries, deltas, counted ids) → protobuf → Kafka's zstd
//! ```
//!
//! *In*: a batch, or bytes of a record from an untrusted writer. *Out*: the bytes, or the same
//! batch, or an error. `blkkin.proto` in this crate is the schema for other readers.
//!
//! *Invariant*: `decode(encode(batch)) == batch` for each batch of a tracer. Any other bytes yield
//! an error or a batch, never a panic. Memory use is proportional to the input length: up to about
//! 100 times (an event of six bytes takes 264 in memory), and a Kafka record is limited to 1 MiB by
//! default.
//!
//! # Ids are sent as counters
//!
//! An id is 64 bits that look random. Eight incompressible bytes, three or four times per event,
//! would dominate the record. But the eBPF programs generate ids with a bijection of (CPU, program,
//! counter), keyed by the start's epoch, which each batch contains. The encoder inverts it, so most
//! ids are the previous id of their origin plus one. It is a bijection of all 64 bits: an id from
//! another generator also survives, only longer.
//!
//! # A pair is a bio and a request
//!
//! It takes a row of both column sets; flags omit what the two share as a pair. A separate schema
//! for pairs would duplicate eleven fields.
//!
//! *Not encoded*: registers after a call's last argument. They hold leftovers of earlier code, and
//! compress badly.
//!
//! # Rejected
//!
//! Rows (23–27 B per event after zstd, where columns took 12–14), Arrow (17–26 B, and a large
//! dependency in each consumer), a private format without a schema (we would have to write each
//! consumer), zstd inside the record (Kafka compresses, and every client decompresses).

mod async_io;
mod block;
mod call_sleeps;
mod call_waits;
mod column;
mod columns;
mod commit;
mod crash_report;
mod daemon_span;
mod decode_tables;
mod dictionary;
mod encode_tables;
mod fragments;
mod frame;
mod ids;
mod interned_strings;
mod message;
mod name;
mod packed;
mod page_fault;
mod page_origin;
mod peek;
mod process_context;
mod read;
mod rpc_endpoint;
mod syscall;
#[cfg(test)]
mod tests;
mod thread_attributes;
mod virtual_machine;
mod write;

use thiserror::Error;

pub use fragments::{COPIED_BYTES_MAX, FragmentCount, FragmentWriter, decode_fragments, encode_fragments};
pub use peek::{Peeked, peek};
pub use read::{Decoded, decode};
pub use virtual_machine::append_virtual_machine;
pub use write::encode;

/// Flag of a context, above the W3C trace flags: derived by rule.
const BY_RULE: u32 = 1 << 8;

/// Schema version that this module writes and reads.
pub const VERSION: u32 = 1;

/// Error of a decoder.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Malformed {
    /// Not protobuf, or wrong field types.
    #[error("not a protobuf message of this schema: {0}")]
    Protobuf(String),
    /// Unsupported schema version.
    #[error("schema version {0}, expected {VERSION}")]
    Version(u32),
    /// A column has fewer values than its events.
    #[error("column {0} is too short")]
    Short(&'static str),
    /// A column has more values than its events.
    #[error("column {0} is too long")]
    Long(&'static str),
    /// Invalid value.
    #[error("column {column} has the invalid value {value}")]
    Value {
        /// Column.
        column: &'static str,
        /// Value.
        value: u64,
    },
}
