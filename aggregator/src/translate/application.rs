//! What applications say of themselves: their processes, and their threads of the work that they call for.
//!
//! *Prefixes of their own*, so that no word of a program's stands for one of the kernel's or ours, nor a thread's for its process's:
//! `app.` is the process's and `app_thread.` the thread's. *Rejected*: `app.thread.`, which is what a process's own `thread.…` is called.

use blkkin_wire::process_context::{Attribute, AttributeValue};

use super::tags::Tags;
use crate::said;
use crate::trace::Trace;

/// Of its process.
pub(super) fn process_tags(trace: &Trace, tags: &mut Tags) {
    let Some(process) = &trace.names.process else { return };
    for Attribute { key, value } in &process.attributes {
        let key = format!("app.{key}");
        match value {
            AttributeValue::Text(text) => tags.said(&key, text),
            AttributeValue::Number(number) => tags.said_number(&key, *number),
        }
    }
    tags.count("blkkin.app.left_out", process.dropped_attributes_count);
}

/// Of the thread of its call.
pub(super) fn thread_tags(trace: &Trace, tags: &mut Tags) {
    let Some(said) = said::by_thread(trace) else { return };
    for (name, value) in said.values {
        tags.said(&format!("app_thread.{name}"), value);
    }
    tags.count("blkkin.app_thread.left_out", said.left_out);
    tags.count("blkkin.app_thread.bytes_unread", said.bytes_unread);
}
