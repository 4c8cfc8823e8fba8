//! What a thread says of the work that it calls for, besides its span: attributes of its own program's (OpenTelemetry's thread context,
//! OTEP 4947), as `http.route` and its value.
//!
//! *In*: what was read at the call. *Out*: values under numbers. *Invariant*: of each number one value, the last that the thread has
//! said, by number; what was said and is not here is counted here.
//!
//! *Numbers, not names*: which name a number has is said by the thread's process ([`ProcessEvent::thread_keys`]), once and often some ms
//! later than the first call: who knows what a process says at a moment gives the name, or none.
//!
//! [`ProcessEvent::thread_keys`]: crate::process::ProcessEvent::thread_keys

use serde::{Deserialize, Serialize};

/// All that a thread said at one call.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadAttributes {
    /// By key, each once.
    pub entries: Vec<ThreadAttribute>,
    /// Attributes besides: no text, cut off, or too many.
    pub left_out: u32,
    /// Bytes of attributes that were not read, and so nothing of them: too many, or not there.
    pub bytes_unread: u32,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ThreadAttribute {
    /// Its name's place among the keys of the process.
    pub key: u8,
    /// What it says.
    pub value: Box<str>,
}

impl ThreadAttributes {
    /// Whether there was anything.
    pub fn is_empty(&self) -> bool {
        *self == ThreadAttributes::default()
    }
}
