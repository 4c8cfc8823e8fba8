//! What the thread of a call said of its work, by the names that its process gave.
//!
//! *In*: a trace: its call has numbers and values, its process the names as of the time at which the call returned. *Out*: [`Said`].
//!
//! *A name that is wrong is worse than none*: a number that has no name is left out and counted, and of two with the same name the later
//! counts.

use blkkin_wire::thread_attributes::ThreadAttribute;

use crate::trace::Trace;

/// What was said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Said<'a> {
    /// Each name once, with its value, by number: those first that the program has named first.
    pub values: Vec<(&'a str, &'a str)>,
    /// Values besides.
    pub left_out: u32,
    /// Bytes of values that were not read.
    pub bytes_unread: u32,
}

/// By the thread that called; none where it said nothing.
pub fn by_thread(trace: &Trace) -> Option<Said<'_>> {
    let attributes = trace.call()?.attributes.as_deref()?;
    let keys = trace.names.process.as_ref().map_or(&[][..], |process| &process.thread_keys);
    let name = |entry: &ThreadAttribute| {
        let name = keys.get(usize::from(entry.key))?;
        (!name.is_empty()).then_some(&**name)
    };
    let mut said = Said {
        values: Vec::new(),
        left_out: attributes.dropped_attributes_count,
        bytes_unread: attributes.bytes_unread,
    };
    for (at, entry) in attributes.entries.iter().enumerate() {
        let later = &attributes.entries[at + 1..];
        match name(entry).filter(|own| !later.iter().any(|later| name(later) == Some(own))) {
            Some(name) => said.values.push((name, &entry.value)),
            None => said.left_out = said.left_out.saturating_add(1),
        }
    }
    Some(said)
}
