//! What threads say besides their spans: each set once in a batch, as most calls of one span say the same.

use std::collections::HashMap;
use std::sync::Arc;

use super::Malformed;
use super::column::columns;
use super::message::ThreadAttributes;
use super::words::Words;
use crate::attributes::{ThreadAttribute, ThreadAttributes as Said};

/// The sets of a batch. Programs choose what is in them, so they are hashed with a key.
#[derive(Default)]
pub(super) struct AttributeSets<'a> {
    places: HashMap<&'a Said, u32>,
    said: Vec<&'a Said>,
    /// The one asked for last: neighbours are often of one span.
    last: Option<(&'a Said, u32)>,
}

impl<'a> AttributeSets<'a> {
    /// Its place.
    pub(super) fn place(&mut self, set: &'a Said) -> u32 {
        if let Some((_, place)) = self.last.filter(|(last, _)| *last == set) {
            return place;
        }
        let next = self.said.len() as u32;
        let place = *self.places.entry(set).or_insert(next);
        if place == next {
            self.said.push(set);
        }
        self.last = Some((set, place));
        place
    }

    /// None where no call has any: then there is not even a field of it.
    pub(super) fn end(self, words: &mut Words<'a>) -> Option<ThreadAttributes> {
        let mut message = ThreadAttributes::default();
        for set in &self.said {
            message.entries.push(set.entries.len() as u32);
            message.left_out.push(set.left_out);
            message.bytes_unread.push(set.bytes_unread);
            message.key.extend(set.entries.iter().map(|entry| u32::from(entry.key)));
            message.value.extend(set.entries.iter().map(|entry| words.place(&entry.value)));
        }
        (!self.said.is_empty()).then_some(message)
    }
}

columns! {
    Sets of ThreadAttributes { entries: u32, left_out: u32, bytes_unread: u32, key: u32, value: u32 } ids {}
}

/// All of a batch: calls share them, so that a short record does not grow when it is read.
pub(super) fn read(
    message: &ThreadAttributes,
    mut word: impl FnMut(&u32) -> Result<Box<str>, Malformed>,
) -> Result<Vec<Arc<Said>>, Malformed> {
    let mut columns = Sets::new(message);
    let mut one = |entries: u32| {
        let (left_out, bytes_unread) = (*columns.left_out.next()?, *columns.bytes_unread.next()?);
        let mut set = Said { entries: Vec::new(), left_out, bytes_unread };
        for _ in 0..entries {
            let said = *columns.key.next()?;
            let key = u8::try_from(said).map_err(|_| columns.key.refuse(said.into()))?;
            // By key, each once.
            if set.entries.last().is_some_and(|last| last.key >= key) {
                return Err(columns.key.refuse(said.into()));
            }
            set.entries.push(ThreadAttribute { key, value: word(columns.value.next()?)? });
        }
        Ok(Arc::new(set))
    };
    let sets = message.entries.iter().map(|entries| one(*entries)).collect::<Result<_, _>>()?;
    message.entries.iter().try_for_each(|_| columns.entries.next().map(drop))?;
    columns.end()?;
    Ok(sets)
}
