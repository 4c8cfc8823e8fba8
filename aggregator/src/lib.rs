//! Joins the events of the storage layers into traces, and turns traces into spans.
//!
//! *In*: [`EventBatch`](blkkin_wire::batch::EventBatch)es of one or many nodes. Their order is free
//! within the window that their watermarks leave open. *Out*: one [`Trace`](trace::Trace) for each
//! storage operation, and the [`Span`](blkkin_wire::span::Span)s of each trace.
//!
//! *Invariant*: the crate is pure. It does no I/O, reads no clock and starts no thread. Time is the
//! time of events, watermarks and log records, so the same input always gives the same traces and
//! spans.
//!
//! # Reading order
//!
//! 1. [`trace`] is the data model: a storage operation with its bios, requests and links.
//! 2. [`join`] receives the events of one source and emits each trace when it is complete.
//! 3. [`latency`] splits the duration of a trace's root by layer.
//! 4. [`spans`] translates a trace into OpenTelemetry terms.
//! 5. [`stage`] runs these steps for a fleet: each partition of a Kafka topic is a state machine.
//!
//! *Rejected*: a join inside the consumer of the Kafka topics. Pure state machines replay a
//! recorded log in a test, byte by byte, without a broker.

#![cfg_attr(test, allow(clippy::unwrap_used, reason = "a test fails by panicking"))]

pub mod trace;

pub mod join;

pub mod latency;
pub mod spans;

pub mod stage;

#[cfg(test)]
mod fixtures;
