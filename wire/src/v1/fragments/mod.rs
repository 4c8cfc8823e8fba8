//! Trace fragments: version 1 of the records in `blkkin.spans`, `blkkin.traces` and `blkkin.links`.
//!
//! ```text
//! FragmentBatch → columns (one string dictionary, deltas, parents by index) → protobuf → Kafka's zstd
//! ```
//!
//! *In*: fragments, or bytes of a record from an untrusted writer. *Out*: the bytes, or the same
//! fragments, or an error. `FragmentBatch` in `blkkin.proto` is the schema for other readers.
//!
//! *Invariant*: `decode_fragments(encode_fragments(x)) == x` for each
//! [`FragmentBatch`](crate::fragment::FragmentBatch), and the bytes are a function of it. Any other
//! bytes yield an error or a batch, never a panic. Spans own their names and tag keys, so a long
//! string that a short record repeats grows when it is decoded: beyond [`COPIED_BYTES_MAX`] the
//! decoder rejects the record.
//!
//! # Each string once
//!
//! A span has about a dozen tags, whose keys and most values equal those of the previous span. Each
//! string is stored once in the batch, in order of first use, and referenced by index. A parent is
//! usually in the same fragment, so it is stored by its index there: one byte instead of eight
//! incompressible bytes of an id.
//!
//! *Rejected*: a table of the known tag keys in the schema (other mappings add keys, and the table
//! would have to be kept in sync with them); rows, that is a message for each span (2 to 3 times
//! the bytes after zstd for events, see the parent module).

mod dictionary;
mod read;
mod remote_link;
#[cfg(test)]
mod tests;
mod trace_id;
mod write;

pub use read::{COPIED_BYTES_MAX, decode_fragments};
pub use write::{FragmentCount, FragmentWriter, encode_fragments};

/// Bits of `Fragments.flags`.
const LATE: u32 = 1;
const COMPLETE: u32 = 1 << 1;
const SAMPLED: u32 = 1 << 2;
const PENDING_PARENT: u32 = 1 << 3;
const ENDPOINT: u32 = 1 << 4;
const REPARENTED: u32 = 1 << 5;
const ROOT: u32 = 1 << 7;
const CHILD: u32 = 1 << 8;
const FORWARDED: u32 = 1 << 6;
const SAMPLED_BY_APPLICATION: u32 = 1 << 9;
const UNLINKED: u32 = 1 << 10;

/// Bits of `Spans.flags`; the lowest two are the kind.
const KIND: u32 = 0b11;
const PARENT_INDEX: u32 = 1 << 2;
const PARENT_ID: u32 = 1 << 3;
const REMOTE: u32 = 1 << 4;
const ERROR: u32 = 1 << 5;
const OTHER_TRACE: u32 = 1 << 6;
