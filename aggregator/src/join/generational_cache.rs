//! A bounded map that retains the most recently used entries, approximately.
//!
//! *In*: keys and values. *Out*: look-ups. The map has two generations. New and used entries are in
//! the young one. When it holds half of the maximum it becomes the old one, and the previous old
//! one is dropped.
//!
//! *Invariant*: the map retains at least the last `max / 2` used entries and at most `max`.
//!
//! *Rejected*: an exact LRU list. It costs two more memory accesses per look-up.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use serde::{Deserialize, Serialize};

use super::snapshot::by_key;

#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Ord + Serialize, V: Serialize",
    deserialize = "K: Eq + Hash + Deserialize<'de>, V: Deserialize<'de>, S: BuildHasher + Default"
))]
pub(crate) struct GenerationalCache<K, V, S> {
    #[serde(with = "by_key")]
    young: HashMap<K, V, S>,
    #[serde(with = "by_key")]
    old: HashMap<K, V, S>,
    #[serde(skip)]
    half: usize,
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher + Default> GenerationalCache<K, V, S> {
    pub(crate) fn new(max: usize) -> Self {
        let mut recent = GenerationalCache { young: HashMap::default(), old: HashMap::default(), half: 1 };
        recent.set_max(max);
        recent
    }

    /// Sets the maximum number of entries.
    pub(crate) fn set_max(&mut self, max: usize) {
        self.half = (max / 2).max(1);
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    pub(crate) fn remove(&mut self, key: &K) {
        self.young.remove(key);
        self.old.remove(key);
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.young.is_empty() && self.old.is_empty()
    }

    /// Looks up an entry without marking it as used.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        // Until the young one was full once, a look-up is one look-up.
        if !self.old.is_empty() && !self.young.contains_key(key) {
            let value = self.old.remove(key)?;
            self.insert(*key, value);
        }
        self.young.get(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::RandomState;

    #[test]
    fn used_entries_stay_and_the_maximum_holds() {
        let mut recent = GenerationalCache::<u32, u32, RandomState>::new(8);
        for key in 0..100 {
            recent.insert(key, key);
            assert_eq!(recent.get(&0), Some(&0), "used after every insertion");
            assert!(recent.young.len() + recent.old.len() <= 8);
        }
        assert_eq!(recent.peek(&99), Some(&99));
        assert_eq!(recent.peek(&50), None);
    }

    #[test]
    fn a_key_has_one_value() {
        let mut recent = GenerationalCache::<u32, u32, RandomState>::new(4);
        for value in 0..20 {
            recent.insert(value % 3, value);
        }
        assert_eq!(recent.peek(&1), Some(&19));
        assert_eq!(recent.young.len() + recent.old.len(), 3);
    }
}
