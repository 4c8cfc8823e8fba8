//! Decoder of the Common Trace Format, version 1.8.
//!
//! *In*: a trace's metadata and packets. *Out*: one event at a time. *Source*: the specification,
//! diamon.org/ctf/v1.8.3. Modules in flow order: [`metadata`] reads the description in TSDL that
//! each trace carries, with [`lexer`] and [`parser`], into [`types`]. The types are compiled once
//! into a [`plan`] per scope, and [`packet`] runs the plans. No field, size or byte order is built
//! in.
//!
//! *Invariant*: no input makes the decoder panic, recurse deeper than [`types::DEPTH_MAX`], or
//! allocate more than a packet's size times a constant. Decoding an event allocates nothing,
//! because its items are reused.
//!
//! *Rejected*: a binding to libbabeltrace2, which takes 860 to 930 ns per event through its API.
//! The tests use babeltrace2 as the reference.

pub mod cursor;
pub mod lexer;
pub mod metadata;
pub mod packet;
pub mod parser;
pub mod plan;
mod resolve;
pub mod types;
mod unpack;
