//! Map of bounded size that evicts old entries: up to 2 × [`GENERATION_MAX`] entries.

use std::collections::HashMap;
use std::hash::Hash;

/// Maximum number of entries of a generation.
pub(crate) const GENERATION_MAX: usize = 1 << 16;

/// Map of two generations. When the younger is full, the older is evicted.
#[derive(Debug)]
pub(crate) struct BoundedMap<K, V> {
    young: HashMap<K, V>,
    old: HashMap<K, V>,
    /// Number of evicted entries.
    pub(crate) evicted: u64,
}

impl<K: Hash + Eq, V> Default for BoundedMap<K, V> {
    fn default() -> Self {
        Self { young: HashMap::new(), old: HashMap::new(), evicted: 0 }
    }
}

impl<K: Hash + Eq, V: Copy> BoundedMap<K, V> {
    pub(crate) fn insert(&mut self, key: K, value: V) {
        if self.young.len() >= GENERATION_MAX {
            self.evicted += self.old.len() as u64;
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
