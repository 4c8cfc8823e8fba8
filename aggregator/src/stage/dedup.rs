//! Decoding of fragment records, and deduplication by origin and number.
//!
//! *In*: records of fragments. *Out*: their fragments that are new, and counts of the rest.
//!
//! *Invariant*: each number of an origin is new once, and every gap between two records is counted.

use std::collections::BTreeMap;

use blkkin_wire::fragment::{FragmentOrigin, TraceFragment};
use blkkin_wire::stage::StageOutput;
use blkkin_wire::v1;
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
    /// Origins forgotten because there were too many. Their next record is taken for the first.
    forgotten: u64,
}

#[derive(Debug, Serialize, Deserialize)]
struct OriginState {
    next: u64,
    /// Count of records at its last record.
    last_record: u64,
}

/// The counters of a stage's input, which are among its own.
pub(super) struct InputCounters<'a> {
    pub(super) poison: &'a mut u64,
    pub(super) ticks: &'a mut u64,
    pub(super) duplicates: &'a mut u64,
    pub(super) missed: &'a mut u64,
}

impl SequenceTracker {
    /// Decodes a record, and returns its new fragments with their numbers; none for a tick and for
    /// unreadable bytes, which are a dead letter.
    pub(super) fn receive(
        &mut self,
        bytes: &[u8],
        counters: InputCounters<'_>,
        out: &mut dyn StageOutput,
    ) -> Option<impl Iterator<Item = (u64, TraceFragment)> + use<>> {
        let batch = match v1::decode_fragments(bytes) {
            Ok(batch) => batch,
            Err(why) => {
                *counters.poison += 1;
                out.dead_letter(why.to_string());
                return None;
            }
        };
        if batch.fragments.is_empty() {
            *counters.ticks += 1;
            return None;
        }
        let (duplicates, gap) = self.accept(&batch.origin, batch.first, batch.fragments.len());
        *counters.duplicates += duplicates as u64;
        *counters.missed += gap;
        let numbers = (0..).map(move |n| batch.first.wrapping_add(n));
        Some(numbers.zip(batch.fragments).skip(duplicates))
    }

    /// Returns the number of origins forgotten because there were too many.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    /// Returns the number of leading fragments that were accepted before, and the number of
    /// fragments missing before the first.
    fn accept(&mut self, from: &FragmentOrigin, first: u64, fragments: usize) -> (usize, u64) {
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
        (duplicates, gap)
    }

    fn make_room(&mut self) {
        if self.origins.len() >= ORIGINS_MAX
            && let Some(key) =
                self.origins.iter().min_by_key(|(_, origin)| origin.last_record).map(|(key, _)| *key)
        {
            self.origins.remove(&key);
            self.forgotten += 1;
        }
    }
}
