//! What a process says of itself, once for all its calls: who it is in the words of its own tracing library.
//!
//! *In*: what a process publishes (OpenTelemetry's process context, OTEP 4719; `tracer/src/context` reads it). *Out*: one event when it
//! is read, and one each time that it is another. *Invariant*: it is said no earlier than it was read, and holds for calls of that
//! process that return from then on, until the process executes another program, ends, or says something else.
//!
//! *Why not in [`TaskEvent`](crate::event::TaskEvent)*: that is the kernel's word and in force at the call; this is the process's own, and
//! found some ms after it was written.

use serde::{Deserialize, Serialize};

use crate::clock::MonotonicNs;
use crate::ids::Pid;

/// A process is, from this time on, as said here.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessEvent {
    /// Since when that is known.
    pub time: MonotonicNs,
    /// Which process.
    pub pid: Pid,
    /// Its attributes; none where it says nothing any more.
    pub attributes: Vec<Attribute>,
    /// Attributes that it says besides, and that were not taken: too many, too long, or neither text nor number.
    pub left_out: u32,
    /// Names of what its threads say, by number ([`ThreadAttribute::key`](crate::attributes::ThreadAttribute::key)). It only adds to them. An empty
    /// one is none: it was no text or too long.
    pub thread_keys: Vec<Box<str>>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attribute {
    /// `service.name`.
    pub key: Box<str>,
    /// What it says.
    pub value: AttributeValue,
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AttributeValue {
    /// Words.
    Text(Box<str>),
    /// A whole number.
    Number(i64),
}

impl ProcessEvent {
    /// Whether it takes back what was said.
    pub fn is_silence(&self) -> bool {
        self.attributes.is_empty() && self.left_out == 0 && self.thread_keys.is_empty()
    }
}
