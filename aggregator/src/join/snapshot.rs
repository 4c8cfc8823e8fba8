//! Serialization of the join's state.
//!
//! *In*: a [`Joiner`](super::Joiner) between two batches. *Out*: all state on which its further
//! output depends. Limits are set again after a restore.
//!
//! *Invariant*: one state has one form. Maps are written in the order of their keys, so equal
//! states are equal bytes. A test can compare the states of two joiners and not only their output
//! so far.
//!
//! *Not included*: free slots and spare capacity, on which nothing depends; limits, which are
//! configuration; and the sharing of names. Each restored trace has its own equal copy.

/// Serializes a map as a list ordered by key. postcard retains the given order.
pub(crate) mod by_key {
    use std::collections::HashMap;
    use std::hash::{BuildHasher, Hash};

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<K, V, S, T>(map: &HashMap<K, V, S>, to: T) -> Result<T::Ok, T::Error>
    where
        K: Ord + Serialize,
        V: Serialize,
        T: Serializer,
    {
        let mut entries: Vec<_> = map.iter().collect();
        entries.sort_unstable_by(|a, b| a.0.cmp(b.0));
        to.collect_seq(entries)
    }

    pub(crate) fn deserialize<'de, K, V, S, D>(from: D) -> Result<HashMap<K, V, S>, D::Error>
    where
        K: Eq + Hash + Deserialize<'de>,
        V: Deserialize<'de>,
        S: BuildHasher + Default,
        D: Deserializer<'de>,
    {
        Ok(Vec::<(K, V)>::deserialize(from)?.into_iter().collect())
    }
}
