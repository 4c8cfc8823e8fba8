//! Which pieces were taken already, by who wrote them and their numbers.
//!
//! *In*: the origin of a record and the numbers of its pieces. *Out*: how many of them are not new.
//! *Invariant*: of one origin each number is new once; what was left out between two records is counted.

use std::collections::BTreeMap;

use blkkin_wire::fragment::FragmentOrigin;
use serde::{Deserialize, Serialize};

use super::saved;

/// Origins remembered: a partition of the stage before is one, and one more after each change of its configuration. Beyond it
/// the one heard of longest ago is forgotten.
const ORIGINS_MAX: usize = 4_096;

/// The next number of each origin.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Taken {
    seen: BTreeMap<(u8, u32, u64), Seen>,
    records: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct Seen {
    next: u64,
    /// Records counted when it was last heard of.
    heard: u64,
}

/// What is known of a record's pieces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Known {
    /// So many of them, the first, were taken before.
    pub(super) repeated: usize,
    /// So many before it never came.
    pub(super) missed: u64,
}

impl Taken {
    pub(super) fn take(&mut self, from: &FragmentOrigin, first: u64, pieces: usize) -> Known {
        self.records += 1;
        let key = (saved::stage_byte(from.stage), from.partition, from.incarnation.0);
        if !self.seen.contains_key(&key) {
            self.make_room();
        }
        let end = first.wrapping_add(pieces as u64);
        let seen = self.seen.entry(key).or_insert(Seen { next: first, heard: 0 });
        seen.heard = self.records;
        let repeated = seen.next.saturating_sub(first).min(pieces as u64) as usize;
        let missed = first.saturating_sub(seen.next);
        seen.next = seen.next.max(end);
        Known { repeated, missed }
    }

    fn make_room(&mut self) {
        if self.seen.len() >= ORIGINS_MAX
            && let Some(key) = self.seen.iter().min_by_key(|(_, seen)| seen.heard).map(|(key, _)| *key)
        {
            self.seen.remove(&key);
        }
    }
}
