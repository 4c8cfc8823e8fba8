//! Process contexts: attributes of a process as its own tracing library publishes them, once for
//! all its system calls.
//!
//! *In*: the process context that a process publishes (OTEP 4719; `tracer/src/enrich/contexts`
//! reads it). *Out*: one event when the tracer reads it, and one for each change. *Invariant*: the
//! event's time is not before the read. The context applies to system calls of the process that
//! return later, until the process executes another program, ends, or publishes another context.
//!
//! *Why not in [`TaskEvent`](crate::event::TaskEvent)*: a task event comes from the kernel and is
//! in force at the call. A process context comes from the process and is read some ms after it was
//! published.

use serde::{Deserialize, Serialize};

use crate::clock::MonotonicNs;
use crate::ids::Pid;

/// Context of a process from `time` on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessContextEvent {
    /// Time of the read.
    pub time: MonotonicNs,
    /// Process.
    pub pid: Pid,
    /// Attributes; empty if the process withdrew its context.
    pub attributes: Vec<Attribute>,
    /// Number of attributes not included: too many, too long, or neither text nor number.
    pub dropped_attributes_count: u32,
    /// Names of thread attributes by key number
    /// ([`ThreadAttribute::key`](crate::thread_attributes::ThreadAttribute::key)). The list only
    /// grows. An empty name is invalid: it was not text, or too long.
    pub thread_keys: Vec<Box<str>>,
}

/// An attribute of a resource.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Attribute {
    /// Attribute key: `service.name`.
    pub key: Box<str>,
    /// Attribute value.
    pub value: AttributeValue,
}

/// Value of an attribute: the types that a tag can show.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum AttributeValue {
    /// Text.
    Text(Box<str>),
    /// Integer.
    Number(i64),
}

impl ProcessContextEvent {
    /// Returns whether this event withdraws the context.
    pub fn is_withdrawal(&self) -> bool {
        self.attributes.is_empty() && self.dropped_attributes_count == 0 && self.thread_keys.is_empty()
    }
}
