//! Deduplication by origin and sequence: each part is delivered once, and gaps are counted.
//!
//! *In*: origin and sequence numbers of each record, in partition order. *Out*: how many parts are
//! duplicates and how many before them are missing. *Invariant*: no sequence of an origin is new
//! twice.
//!
//! An origin is a counter: of events one tracer start (node, boot, epoch), of trace fragments one
//! stage's state of one partition. A record has one or more consecutive sequences. A replay may cut
//! records elsewhere, so part of a record may be new.
//!
//! A sequence below the last one is a duplicate, never late: an origin writes to one partition in
//! order, and every replay keeps that order.
//!
//! # Persistence
//!
//! Committed offsets alone do not identify a replay behind the committed offset. The last sequence
//! of each origin is therefore stored in the commit's metadata ([`DuplicateDetector::to_metadata`]).
//! The metadata has 4,096 bytes (`offset.metadata.max.bytes`), room for the 120 most recently used
//! origins of a partition. Replays of older origins are recognised only while this member lives.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::codec::Numbers;

/// Number of origins in the commit metadata of a partition. An origin takes up to 33 bytes: 16 for
/// its id, 16 for its sequence, 1 separator.
const ORIGINS_MAX: usize = 120;

/// Relation of a record to those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DuplicateState {
    /// At least one part is new.
    New {
        /// Leading parts that were delivered before.
        duplicates: u64,
        /// Parts between the last delivered one and this record that never arrived.
        missing: u64,
    },
    /// Every part was delivered before.
    Duplicate,
}

/// Last sequence number of each origin.
#[derive(Clone, Debug, Default)]
pub(super) struct DuplicateDetector {
    last: HashMap<u64, Last>,
    uses: u64,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    number: u64,
    /// Value of `uses` at its last record: the most recently used origin has the highest.
    used: u64,
}

impl DuplicateDetector {
    /// Classifies a record and remembers its sequences. A record without parts is new.
    pub(super) fn classify(&mut self, numbers: Numbers) -> DuplicateState {
        let Numbers { origin, first, count } = numbers;
        let Some(ahead) = count.checked_sub(1) else {
            return DuplicateState::New { duplicates: 0, missing: 0 };
        };
        let newest = first.saturating_add(ahead);
        self.uses += 1;
        let now = Last { number: newest, used: self.uses };
        let Some(last) = self.last.get_mut(&origin) else {
            self.last.insert(origin, now);
            return DuplicateState::New { duplicates: 0, missing: 0 };
        };
        if newest <= last.number {
            return DuplicateState::Duplicate;
        }
        let next = last.number + 1;
        *last = now;
        DuplicateState::New { duplicates: next.saturating_sub(first), missing: first.saturating_sub(next) }
    }

    /// Encodes the most recently used origins for the next member.
    pub(super) fn to_metadata(&self) -> String {
        let mut latest: Vec<_> = self.last.iter().collect();
        latest.sort_by_key(|(_, last)| std::cmp::Reverse(last.used));
        let mut text = String::new();
        for (key, last) in latest.into_iter().take(ORIGINS_MAX) {
            // A write to a String does not fail.
            let _ = write!(text, "{key:016x}{:x} ", last.number);
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// Decodes metadata; entries in another format are skipped.
    pub(super) fn from_metadata(text: &str) -> DuplicateDetector {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let one = |word: &str| {
            let (key, last) = word.split_at_checked(16)?;
            Some((number(key)?, Last { number: number(last)?, used: 0 }))
        };
        DuplicateDetector { last: text.split(' ').filter_map(one).collect(), uses: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: DuplicateState = DuplicateState::New { duplicates: 0, missing: 0 };

    fn one(origin: u64, number: u64) -> Numbers {
        Numbers { origin, first: number, count: 1 }
    }

    #[test]
    fn a_record_is_new_once_and_gaps_are_counted() {
        let mut detector = DuplicateDetector::default();
        let records = [(1, 5), (1, 6), (1, 6), (1, 5), (1, 9), (2, 0), (1, 8), (1, 10)];
        let states = records.map(|(origin, number)| detector.classify(one(origin, number)));
        let after_gap = DuplicateState::New { duplicates: 0, missing: 2 };
        use DuplicateState::Duplicate;
        assert_eq!(states, [NEXT, NEXT, Duplicate, Duplicate, after_gap, NEXT, Duplicate, NEXT]);
    }

    #[test]
    fn a_record_with_several_parts_counts_its_duplicates() {
        let mut detector = DuplicateDetector::default();
        let mut classify = |first, count| detector.classify(Numbers { origin: 7, first, count });
        assert_eq!(classify(10, 5), NEXT);
        assert_eq!(classify(12, 3), DuplicateState::Duplicate);
        assert_eq!(classify(12, 6), DuplicateState::New { duplicates: 3, missing: 0 });
        assert_eq!(classify(18, 0), NEXT);
        assert_eq!(classify(20, 1), DuplicateState::New { duplicates: 0, missing: 2 });
        assert_eq!(classify(0, 30), DuplicateState::New { duplicates: 21, missing: 0 });
        assert_eq!(classify(u64::MAX - 1, 1), DuplicateState::New { duplicates: 0, missing: u64::MAX - 31 });
    }

    #[test]
    fn the_next_member_recognises_duplicates_by_the_metadata() {
        let mut detector = DuplicateDetector::default();
        (0..200).for_each(|origin| assert_eq!(detector.classify(one(origin, u64::MAX - 1)), NEXT));
        let metadata = detector.to_metadata();
        assert!(metadata.len() <= 4_096, "{}", metadata.len());
        let mut next = DuplicateDetector::from_metadata(&metadata);
        assert_eq!(next.classify(one(199, u64::MAX - 1)), DuplicateState::Duplicate);
        assert_eq!(next.classify(one(199, u64::MAX)), NEXT);
        assert_eq!(
            next.classify(one(0, 0)),
            NEXT,
            "beyond ORIGINS_MAX: only the most recently used origins are kept"
        );
        assert_eq!(DuplicateDetector::from_metadata("no metadata äöü").last.len(), 0);
    }
}
