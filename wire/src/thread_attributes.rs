//! Thread attributes at a system call: attributes that the application attached to its thread
//! (OpenTelemetry's thread context, OTEP 4947), such as `http.route`.
//!
//! *In*: what the tracer read at the call. *Out*: values by key number. *Invariant*: each key
//! number has one value, the last that the thread published. Entries are sorted by key number.
//! Attributes that are not included are counted.
//!
//! *Key numbers, not names*: the process context names the keys
//! ([`ProcessContextEvent::thread_keys`]), once and often some ms later than the first call. A
//! reader resolves a key with the process context in force at the call, or leaves it unnamed.
//!
//! [`ProcessContextEvent::thread_keys`]: crate::process_context::ProcessContextEvent::thread_keys

use serde::{Deserialize, Serialize};

/// Attributes of a thread at one system call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadAttributes {
    /// Attributes, sorted by key, without duplicates.
    pub entries: Vec<ThreadAttribute>,
    /// Number of attributes not included: not text, truncated, or too many.
    pub dropped_attributes_count: u32,
    /// Bytes of attributes that the tracer did not read, because they were too many or unreadable.
    /// Then `entries` is empty.
    pub bytes_unread: u32,
}

/// An attribute of a thread's work, with its key by number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadAttribute {
    /// Index of its name in the key list of the process.
    pub key: u8,
    /// Attribute value.
    pub value: Box<str>,
}

impl ThreadAttributes {
    /// Returns whether the thread published no attributes.
    pub fn is_empty(&self) -> bool {
        *self == ThreadAttributes::default()
    }
}
