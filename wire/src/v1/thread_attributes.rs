//! Thread attributes: each distinct set once in a batch, because most calls of one span have equal
//! attributes.

use std::collections::HashMap;
use std::sync::Arc;

use super::Malformed;
use super::columns::columns;
use super::interned_strings::InternedStrings;
use super::message::ThreadAttributes;
use crate::thread_attributes::{ThreadAttribute, ThreadAttributes as AttributeSet};

/// Distinct attribute sets of a batch. Applications choose their content, so the hash is keyed.
#[derive(Default)]
pub(super) struct AttributeSets<'a> {
    indices: HashMap<&'a AttributeSet, u32>,
    values: Vec<&'a AttributeSet>,
    /// Set of the last lookup: neighbouring calls often belong to one span.
    last: Option<(&'a AttributeSet, u32)>,
}

impl<'a> AttributeSets<'a> {
    /// Returns the index of `set`, adding it if it is new.
    pub(super) fn intern(&mut self, set: &'a AttributeSet) -> u32 {
        if let Some((_, index)) = self.last.filter(|(last, _)| *last == set) {
            return index;
        }
        let next = self.values.len() as u32;
        let index = *self.indices.entry(set).or_insert(next);
        if index == next {
            self.values.push(set);
        }
        self.last = Some((set, index));
        index
    }

    /// Returns the message; none if no call has attributes, so that the field is absent.
    pub(super) fn end(self, strings: &mut InternedStrings<'a>) -> Option<ThreadAttributes> {
        let mut message = ThreadAttributes::default();
        for set in &self.values {
            message.entries.push(set.entries.len() as u32);
            message.dropped_attributes_count.push(set.dropped_attributes_count);
            message.bytes_unread.push(set.bytes_unread);
            message.key.extend(set.entries.iter().map(|entry| u32::from(entry.key)));
            message.value.extend(set.entries.iter().map(|entry| strings.intern(&entry.value)));
        }
        (!self.values.is_empty()).then_some(message)
    }
}

columns! {
    Sets of ThreadAttributes { entries: u32, dropped_attributes_count: u32, bytes_unread: u32, key: u32, value: u32 } ids {}
}

/// Decodes all sets of a batch. Calls share them, so a short record does not grow when it is
/// decoded.
pub(super) fn read(
    message: &ThreadAttributes,
    mut string: impl FnMut(&u32) -> Result<Box<str>, Malformed>,
) -> Result<Vec<Arc<AttributeSet>>, Malformed> {
    let mut columns = Sets::new(message);
    let mut one = |entries: u32| {
        let (left_out, bytes_unread) =
            (*columns.dropped_attributes_count.next()?, *columns.bytes_unread.next()?);
        let mut set = AttributeSet { entries: Vec::new(), dropped_attributes_count: left_out, bytes_unread };
        for _ in 0..entries {
            let values = *columns.key.next()?;
            let key = u8::try_from(values).map_err(|_| columns.key.refuse(values.into()))?;
            // Keys are ascending and distinct.
            if set.entries.last().is_some_and(|last| last.key >= key) {
                return Err(columns.key.refuse(values.into()));
            }
            set.entries.push(ThreadAttribute { key, value: string(columns.value.next()?)? });
        }
        Ok(Arc::new(set))
    };
    let sets = message.entries.iter().map(|entries| one(*entries)).collect::<Result<_, _>>()?;
    message.entries.iter().try_for_each(|_| columns.entries.next().map(drop))?;
    columns.end()?;
    Ok(sets)
}
