//! Values that repeat: said once, and then by their place.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// The values of a batch, in the order in which they were met.
pub(super) struct Dictionary<K> {
    places: HashMap<K, u32, BuildHasherDefault<Folded>>,
    values: Vec<K>,
    /// The value asked for last: neighbours are often of one task and one file.
    last: Option<(K, u32)>,
}

impl<K: Copy + Eq + Hash> Dictionary<K> {
    pub(super) fn new() -> Self {
        Dictionary { places: HashMap::default(), values: Vec::new(), last: None }
    }

    /// Its place.
    pub(super) fn place(&mut self, value: K) -> u32 {
        if let Some((_, place)) = self.last.filter(|(last, _)| *last == value) {
            return place;
        }
        let next = self.values.len() as u32;
        let place = *self.places.entry(value).or_insert(next);
        if place == next {
            self.values.push(value);
        }
        self.last = Some((value, place));
        place
    }

    pub(super) fn values(&self) -> &[K] {
        &self.values
    }
}

/// Folds words by multiplication: the keys are the tracer's own, nobody chooses them to collide. (But applications choose their
/// contexts: of a batch's 2,048 events all may collide then, which is 2 million comparisons.)
#[derive(Default)]
pub(super) struct Folded(u64);

impl Hasher for Folded {
    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64((*byte).into()));
    }

    fn write_u32(&mut self, word: u32) {
        self.write_u64(word.into());
    }

    fn write_u64(&mut self, word: u64) {
        let product = u128::from(self.0 ^ word) * 0x9e37_79b9_7f4a_7c15_u128;
        self.0 = (product >> 64) as u64 ^ product as u64;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}
