//! The join's state as bytes and back.
//!
//! *In*: a [`Joiner`](super::Joiner) between two batches. *Out*: everything that what it will say depends on; and the same
//! joiner again, under bounds that are given anew.
//! *Invariant*: one state has one form. Maps are written by their keys' order, so that equal states are equal bytes, and a
//! test can compare the states of two joiners, not only what they have said so far.
//!
//! *Not kept*: free places and spare capacity (nothing depends on them), bounds (they are the configuration's), and which
//! names are shared (each trace has a copy of its own; they are equal).

/// A map as a list by key: postcard keeps the order that it is given.
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
