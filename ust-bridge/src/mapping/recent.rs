//! A map that forgets what was not touched for long, so that its size is bounded: 2 × [`GENERATION`] entries.

use std::collections::HashMap;
use std::hash::Hash;

/// Entries of a generation.
pub(crate) const GENERATION: usize = 1 << 16;

/// Two generations: when the younger is full the older is forgotten.
#[derive(Debug)]
pub(crate) struct Recent<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// Entries that were forgotten.
    pub(crate) forgotten: u64,
}

impl<K: Hash + Eq, V> Default for Recent<K, V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), forgotten: 0 }
    }
}

impl<K: Hash + Eq, V: Copy> Recent<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION {
            self.forgotten += self.old.len() as u64;
            self.old = std::mem::take(&mut self.young);
        }
        self.old.remove(&key);
        self.young.insert(key, value);
    }

    pub(crate) fn retain(&mut self, keep: impl Fn(&K) -> bool) {
        self.young.retain(|key, _| keep(key));
        self.old.retain(|key, _| keep(key));
    }

    pub(crate) fn get(&self, key: &K) -> Option<V> {
        self.young.get(key).or_else(|| self.old.get(key)).copied()
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        self.young.remove(key).or_else(|| self.old.remove(key))
    }
}
