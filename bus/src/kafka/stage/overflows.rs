//! Losses of the stages of this member by full tables, for metrics.
//!
//! *In*: the counters of each assigned partition, once a second. *Out*: their sums by kind.
//! *Invariant*: the counters belong to the partition's state and move with it, so the sum over all
//! members loses none.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counters by kind of table.
type Counters = Vec<(&'static str, u64)>;

/// Shared counters of the assigned partitions.
#[derive(Clone, Debug, Default)]
pub struct Overflows(Arc<Mutex<Vec<Counters>>>);

impl Overflows {
    /// Replaces the counters by those of the partitions that are assigned now.
    pub(super) fn set(&self, partitions: impl Iterator<Item = Counters>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = partitions.collect();
    }

    /// Returns the sums over the partitions, by kind.
    pub fn sums(&self) -> BTreeMap<&'static str, u64> {
        let mut sums = BTreeMap::new();
        for (kind, count) in self.0.lock().unwrap_or_else(PoisonError::into_inner).iter().flatten() {
            *sums.entry(*kind).or_default() += count;
        }
        sums
    }
}
