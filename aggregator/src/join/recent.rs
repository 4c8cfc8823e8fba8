//! A map that keeps about the last things used.
//!
//! Two generations: new and used entries are in the young one; when that holds half of what may be kept it
//! becomes the old one, and what was old is dropped. So at least the last half is kept, never more than all,
//! and no list of uses is maintained. (An exact LRU costs two more memory accesses a look-up.)

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash};

#[derive(Debug)]
pub(super) struct Recent<K, V, S> {
    young: HashMap<K, V, S>,
    old: HashMap<K, V, S>,
    half: usize,
}

impl<K: Copy + Eq + Hash, V, S: BuildHasher + Default> Recent<K, V, S> {
    pub(super) fn new(max: usize) -> Self {
        Recent { young: HashMap::default(), old: HashMap::default(), half: (max / 2).max(1) }
    }

    pub(super) fn insert(&mut self, key: K, value: V) {
        self.old.remove(&key);
        if self.young.len() >= self.half && !self.young.contains_key(&key) {
            std::mem::swap(&mut self.young, &mut self.old);
            self.young.clear();
        }
        self.young.insert(key, value);
    }

    /// Looks up without making it young.
    pub(super) fn peek(&self, key: &K) -> Option<&V> {
        self.young.get(key).or_else(|| self.old.get(key))
    }

    pub(super) fn get(&mut self, key: &K) -> Option<&V> {
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
