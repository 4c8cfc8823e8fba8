//! Attributes that the thread of a call published, with their names.
//!
//! *In*: a trace. Its call has numbers and values; its process context has the names as of the
//! call's return. *Out*: [`ResolvedAttributes`].
//!
//! *Invariant*: a wrong name is worse than none. A number without a name is dropped and counted. Of
//! two attributes with the same name the later one is used.

use blkkin_wire::thread_attributes::ThreadAttribute;

use crate::trace::Trace;

/// Attributes with their names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedAttributes<'a> {
    /// Names with their values, each name once, in the order of the numbers.
    pub values: Vec<(&'a str, &'a str)>,
    /// Number of further attributes.
    pub dropped_attributes_count: u32,
    /// Bytes of values that were not read.
    pub bytes_unread: u32,
}

/// Resolves the attributes of the calling thread. Returns none if it published none.
pub fn resolve(trace: &Trace) -> Option<ResolvedAttributes<'_>> {
    let attributes = trace.call()?.attributes.as_deref()?;
    let keys = trace.names.process_context().map_or(&[][..], |process| &process.thread_keys);
    let name = |entry: &ThreadAttribute| {
        let name = keys.get(usize::from(entry.key))?;
        (!name.is_empty()).then_some(&**name)
    };
    let mut resolved = ResolvedAttributes {
        values: Vec::new(),
        dropped_attributes_count: attributes.dropped_attributes_count,
        bytes_unread: attributes.bytes_unread,
    };
    for (at, entry) in attributes.entries.iter().enumerate() {
        let later = &attributes.entries[at + 1..];
        match name(entry).filter(|own| !later.iter().any(|later| name(later) == Some(own))) {
            Some(name) => resolved.values.push((name, &entry.value)),
            None => resolved.dropped_attributes_count = resolved.dropped_attributes_count.saturating_add(1),
        }
    }
    Some(resolved)
}
