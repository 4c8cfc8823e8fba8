//! A map that keeps about the last things used.
//!
//! Two generations: new and used entries are in the young one; when that holds half of what may be kept it
//! becomes the old one, and what was old is dropped. So at least the last half is kept, never more than all,
//! and no list of uses is maintained. (An exact LRU costs two more memory accesses a look-up.)

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

use serde::{Deserialize, Serialize};

use super::saved::by_key;

#[derive(Debug, Serialize, Deserialize)]
#[serde(bound(
    serialize = "K: Ord + Serialize, V: Serialize",
    deserialize = "K: Eq + Hash + Deserialize<'de>, V: Deserialize<'de>, S: BuildHasher + Default"
))]
pub(crate) struct Recent<K, V, S> {
    #[serde(with = "by_key")]
    young: HashMap<K, V, S>,
    #[serde(with = "by_key")]
    old: HashMap<K, V, S>,
    #[serde(skip)]
    half: usize,
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher + Default> Recent<K, V, S> {
    pub(crate) fn new(max: usize) -> Self {
        let mut recent = Recent { young: HashMap::default(), old: HashMap::default(), half: 1 };
        recent.set_max(max);
        recent
    }

    /// Keeps so many at the most from now on.
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

    /// Looks up without making it young.
    pub(crate) fn peek(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(crate) fn get(&mut self, key: &K) -> Option<&V> {
        if !self.young.contains_key(key) {
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
    fn what_is_used_stays_and_the_bound_holds() {
        let mut recent = Recent::<u32, u32, RandomState>::new(8);
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
        let mut recent = Recent::<u32, u32, RandomState>::new(4);
        for value in 0..20 {
            recent.insert(value % 3, value);
        }
        assert_eq!(recent.peek(&1), Some(&19));
        assert_eq!(recent.young.len() + recent.old.len(), 3);
    }
}
