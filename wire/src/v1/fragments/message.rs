//! `FragmentBatch` of `blkkin.proto` in Rust, field by field; the schema documents it.

use prost::{Enumeration, Message};

use crate::v1::message::Anchor;

/// Writer of fragments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Enumeration)]
#[repr(i32)]
pub(super) enum Stage {
    Unspecified = 0,
    Join = 1,
    Assemble = 2,
    Link = 3,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct FragmentBatch {
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    #[prost(enumeration = "Stage", tag = "2")]
    pub(super) stage: i32,
    #[prost(uint32, tag = "3")]
    pub(super) partition: u32,
    #[prost(fixed64, tag = "4")]
    pub(super) incarnation: u64,
    #[prost(uint64, tag = "5")]
    pub(super) first: u64,
    #[prost(string, repeated, tag = "6")]
    pub(super) strings: Vec<String>,
    #[prost(message, required, tag = "7")]
    pub(super) fragments: Fragments,
    #[prost(message, required, tag = "8")]
    pub(super) spans: Spans,
    #[prost(message, required, tag = "9")]
    pub(super) annotations: Annotations,
    #[prost(message, required, tag = "10")]
    pub(super) tags: Tags,
    #[prost(message, required, tag = "11")]
    pub(super) links: Links,
    #[prost(message, repeated, tag = "12")]
    pub(super) endpoints: Vec<LinkEndpoint>,
    #[prost(message, repeated, tag = "13")]
    pub(super) reparented: Vec<Reparented>,
}

/// Fields of a [`FragmentBatch`] before its columns, for the encoder.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Header {
    #[prost(uint32, tag = "1")]
    pub(super) version: u32,
    #[prost(enumeration = "Stage", tag = "2")]
    pub(super) stage: i32,
    #[prost(uint32, tag = "3")]
    pub(super) partition: u32,
    #[prost(fixed64, tag = "4")]
    pub(super) incarnation: u64,
    #[prost(uint64, tag = "5")]
    pub(super) first: u64,
    #[prost(string, repeated, tag = "6")]
    pub(super) strings: Vec<String>,
}

/// Fields of a [`FragmentBatch`] after its columns, for the encoder.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Rows {
    #[prost(message, repeated, tag = "12")]
    pub(super) endpoints: Vec<LinkEndpoint>,
    #[prost(message, repeated, tag = "13")]
    pub(super) reparented: Vec<Reparented>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Fragments {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) trace_high: Vec<u64>,
    #[prost(fixed64, repeated, tag = "3")]
    pub(super) trace_low: Vec<u64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) spans: Vec<u32>,
    #[prost(uint32, repeated, tag = "5")]
    pub(super) rule: Vec<u32>,
    #[prost(uint32, repeated, tag = "6")]
    pub(super) one_in: Vec<u32>,
    #[prost(uint32, repeated, tag = "7")]
    pub(super) hops: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Spans {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) flags: Vec<u32>,
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) id: Vec<u64>,
    #[prost(uint32, repeated, tag = "3")]
    pub(super) parent_index: Vec<u32>,
    #[prost(fixed64, repeated, tag = "4")]
    pub(super) parent_id: Vec<u64>,
    #[prost(fixed64, repeated, tag = "5")]
    pub(super) trace_high: Vec<u64>,
    #[prost(fixed64, repeated, tag = "6")]
    pub(super) trace_low: Vec<u64>,
    #[prost(uint32, repeated, tag = "7")]
    pub(super) name: Vec<u32>,
    #[prost(uint32, repeated, tag = "8")]
    pub(super) service: Vec<u32>,
    #[prost(uint32, repeated, tag = "9")]
    pub(super) remote_service: Vec<u32>,
    #[prost(sint64, repeated, tag = "10")]
    pub(super) start: Vec<i64>,
    #[prost(uint64, repeated, tag = "11")]
    pub(super) duration: Vec<u64>,
    #[prost(uint32, repeated, tag = "12")]
    pub(super) error: Vec<u32>,
    #[prost(uint32, repeated, tag = "13")]
    pub(super) annotations: Vec<u32>,
    #[prost(uint32, repeated, tag = "14")]
    pub(super) tags: Vec<u32>,
    #[prost(uint32, repeated, tag = "15")]
    pub(super) links: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Annotations {
    #[prost(sint64, repeated, tag = "1")]
    pub(super) time: Vec<i64>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) value: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Tags {
    #[prost(uint32, repeated, tag = "1")]
    pub(super) key: Vec<u32>,
    #[prost(uint32, repeated, tag = "2")]
    pub(super) value: Vec<u32>,
    #[prost(sint64, repeated, tag = "3")]
    pub(super) number: Vec<i64>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Links {
    #[prost(fixed64, repeated, tag = "1")]
    pub(super) trace_high: Vec<u64>,
    #[prost(fixed64, repeated, tag = "2")]
    pub(super) trace_low: Vec<u64>,
    #[prost(fixed64, repeated, tag = "3")]
    pub(super) span: Vec<u64>,
    #[prost(uint32, repeated, tag = "4")]
    pub(super) relation: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LinkEndpoint {
    #[prost(uint32, tag = "1")]
    pub(super) flags: u32,
    #[prost(fixed64, tag = "2")]
    pub(super) span: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) root: u64,
    #[prost(uint32, tag = "4")]
    pub(super) protocol: u32,
    #[prost(uint32, tag = "5")]
    pub(super) connection: u32,
    #[prost(fixed64, tag = "6")]
    pub(super) cookie: u64,
    #[prost(uint64, tag = "7")]
    pub(super) begin: u64,
    #[prost(uint64, tag = "8")]
    pub(super) end: u64,
    #[prost(bytes = "vec", tag = "9")]
    pub(super) node: Vec<u8>,
    #[prost(bytes = "vec", tag = "10")]
    pub(super) boot: Vec<u8>,
    #[prost(fixed64, tag = "11")]
    pub(super) epoch: u64,
    #[prost(message, required, tag = "12")]
    pub(super) anchor: Anchor,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Reparented {
    #[prost(fixed64, tag = "1")]
    pub(super) trace_high: u64,
    #[prost(fixed64, tag = "2")]
    pub(super) trace_low: u64,
    #[prost(fixed64, tag = "3")]
    pub(super) parent: u64,
    #[prost(uint32, tag = "4")]
    pub(super) rule: u32,
    #[prost(sint64, tag = "5")]
    pub(super) shift: i64,
    #[prost(uint64, tag = "6")]
    pub(super) error: u64,
}
