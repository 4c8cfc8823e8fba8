//! Deduplication of fragments by origin and number.
//!
//! *In*: the origin of a record and the numbers of its fragments. *Out*: how many of them are
//! duplicates, and the gap before them.
//!
//! *Invariant*: each number of an origin is new once, and every gap between two records is counted.

use std::collections::BTreeMap;

use blkkin_wire::fragment::FragmentOrigin;
use serde::{Deserialize, Serialize};

use super::snapshot;

/// Maximum number of remembered origins. A partition of the previous stage is one, and one more
/// after each change of its configuration. Beyond it the least recently active origin is forgotten.
const ORIGINS_MAX: usize = 4_096;

/// The next number of each origin.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SequenceTracker {
    origins: BTreeMap<(u8, u32, u64), OriginState>,
    records: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct OriginState {
    next: u64,
    /// Count of records at its last record.
    last_record: u64,
}

/// Result for the fragments of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Dedup {
    /// Number of leading fragments that were accepted before.
    pub(super) duplicates: usize,
    /// Number of fragments missing before it.
    pub(super) gap: u64,
}

impl SequenceTracker {
    pub(super) fn accept(&mut self, from: &FragmentOrigin, first: u64, fragments: usize) -> Dedup {
        self.records += 1;
        let key = (snapshot::stage_byte(from.stage), from.partition, from.incarnation.0);
        if !self.origins.contains_key(&key) {
            self.make_room();
        }
        let end = first.wrapping_add(fragments as u64);
        let origin = self.origins.entry(key).or_insert(OriginState { next: first, last_record: 0 });
        origin.last_record = self.records;
        let duplicates = origin.next.saturating_sub(first).min(fragments as u64) as usize;
        let gap = first.saturating_sub(origin.next);
        origin.next = origin.next.max(end);
        Dedup { duplicates, gap }
    }

    fn make_room(&mut self) {
        if self.origins.len() >= ORIGINS_MAX
            && let Some(key) =
                self.origins.iter().min_by_key(|(_, origin)| origin.last_record).map(|(key, _)| *key)
        {
            self.origins.remove(&key);
        }
    }
}
