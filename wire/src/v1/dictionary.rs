//! Dictionary of repeated values: each value is stored once and referenced by index.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};

/// Distinct values of a batch, in order of first use.
pub(super) struct Dictionary<K> {
    indices: HashMap<K, u32, BuildHasherDefault<Folded>>,
    values: Vec<K>,
    /// Value of the last lookup: neighbouring events often share a task and a file.
    last: Option<(K, u32)>,
}

impl<K: Copy + Eq + Hash> Dictionary<K> {
    pub(super) fn new() -> Self {
        Dictionary { indices: HashMap::default(), values: Vec::new(), last: None }
    }

    /// Returns the index of `value`, adding it if it is new.
    pub(super) fn intern(&mut self, value: K) -> u32 {
        if let Some((_, index)) = self.last.filter(|(last, _)| *last == value) {
            return index;
        }
        let next = self.values.len() as u32;
        let index = *self.indices.entry(value).or_insert(next);
        if index == next {
            self.values.push(value);
        }
        self.last = Some((value, index));
        index
    }

    pub(super) fn values(&self) -> &[K] {
        &self.values
    }
}

/// Hasher that folds words by multiplication. The tracer generates the keys, so collisions cannot
/// be provoked. Exception: applications choose their contexts. All of a batch's 2,048 events can
/// collide there, which costs 2 million comparisons.
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
