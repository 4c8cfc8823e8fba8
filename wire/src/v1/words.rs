//! A batch's dictionary of words.

use std::collections::HashMap;

/// Words and where each of them lies. Others choose some of them, so they are hashed with a key.
#[derive(Default)]
pub(super) struct Words {
    places: HashMap<Box<str>, u32>,
    words: Vec<String>,
}

impl Words {
    /// Where it lies.
    pub(super) fn place(&mut self, word: &str) -> u32 {
        if let Some(place) = self.places.get(word) {
            return *place;
        }
        let place = self.words.len() as u32;
        self.words.push(word.to_owned());
        self.places.insert(word.into(), place);
        place
    }

    /// The dictionary, for the batch.
    pub(super) fn end(self) -> Vec<String> {
        self.words
    }
}
