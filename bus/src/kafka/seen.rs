//! What of each origin was given out: so that what comes twice is given out once, and what never comes is missed.
//!
//! *In*: the origin and the numbers of each record, in the order of a partition. *Out*: how much of it is new, and how many
//! before it are missing. *Invariant*: of an origin no number is new twice.
//!
//! An origin is whoever counts: of events a start of a tracer (node, boot, epoch), of pieces a stage's state of one partition.
//! A record holds one number or many in a row; one that was sent again may be cut elsewhere, so a part of it may be new.
//!
//! A number below the last one is old, never late: what an origin writes lies in a partition in its order, and whatever sends
//! it again sends it in that order too.
//!
//! # It outlives the member
//!
//! Committed offsets alone do not say it: a repeat that lies behind the committed offset would be new to the next member. So it
//! travels with the offset, as the commit's metadata ([`Seen::note`]). That holds 4,096 bytes (`offset.metadata.max.bytes`), which
//! is 120 origins of a partition, those that were met last; of the others a repeat is known only while this member lives.

use std::collections::HashMap;
use std::fmt::Write as _;

use super::codec::Numbers;

/// Of a partition, in a note. An origin takes 33 bytes at the most: 16 for itself, 16 for its number, 1 between.
const NOTED_MAX: usize = 120;

/// What a record is to what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// All of it, or all but the first `again` numbers, is new, and so many before it never came.
    New {
        /// Were given out already.
        again: u64,
        /// Never came.
        missing: u64,
    },
    /// It was given out already.
    Again,
}

/// The last number of each origin.
#[derive(Clone, Debug, Default)]
pub(super) struct Seen {
    last: HashMap<u64, Last>,
    met: u64,
}

#[derive(Clone, Copy, Debug)]
struct Last {
    number: u64,
    /// Counts meetings of all: who was met last has the highest.
    met: u64,
}

impl Seen {
    /// Takes note of a record. One without any number says nothing, and is new.
    pub(super) fn meet(&mut self, numbers: Numbers) -> Standing {
        let Numbers { origin, first, count } = numbers;
        let Some(ahead) = count.checked_sub(1) else { return Standing::New { again: 0, missing: 0 } };
        let newest = first.saturating_add(ahead);
        self.met += 1;
        let now = Last { number: newest, met: self.met };
        let Some(last) = self.last.get_mut(&origin) else {
            self.last.insert(origin, now);
            return Standing::New { again: 0, missing: 0 };
        };
        if newest <= last.number {
            return Standing::Again;
        }
        let next = last.number + 1;
        *last = now;
        Standing::New { again: next.saturating_sub(first), missing: first.saturating_sub(next) }
    }

    /// As text, for who comes next.
    pub(super) fn note(&self) -> String {
        let mut latest: Vec<_> = self.last.iter().collect();
        latest.sort_by_key(|(_, last)| std::cmp::Reverse(last.met));
        let mut text = String::new();
        for (key, last) in latest.into_iter().take(NOTED_MAX) {
            // To a String it cannot fail.
            let _ = write!(text, "{key:016x}{:x} ", last.number);
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// From such a text; of one that somebody else wrote what can be read.
    pub(super) fn from_note(text: &str) -> Seen {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let one = |word: &str| {
            let (key, last) = word.split_at_checked(16)?;
            Some((number(key)?, Last { number: number(last)?, met: 0 }))
        };
        Seen { last: text.split(' ').filter_map(one).collect(), met: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEXT: Standing = Standing::New { again: 0, missing: 0 };

    fn one(origin: u64, number: u64) -> Numbers {
        Numbers { origin, first: number, count: 1 }
    }

    #[test]
    fn a_record_is_given_out_once_and_a_gap_is_missed() {
        let mut seen = Seen::default();
        let met = [(1, 5), (1, 6), (1, 6), (1, 5), (1, 9), (2, 0), (1, 8), (1, 10)];
        let met = met.map(|(origin, number)| seen.meet(one(origin, number)));
        let after = Standing::New { again: 0, missing: 2 };
        use Standing::Again;
        assert_eq!(met, [NEXT, NEXT, Again, Again, after, NEXT, Again, NEXT]);
    }

    #[test]
    fn of_many_numbers_the_new_ones_are_told() {
        let mut seen = Seen::default();
        let mut meet = |first, count| seen.meet(Numbers { origin: 7, first, count });
        assert_eq!(meet(10, 5), NEXT);
        assert_eq!(meet(12, 3), Standing::Again);
        assert_eq!(meet(12, 6), Standing::New { again: 3, missing: 0 });
        assert_eq!(meet(18, 0), NEXT);
        assert_eq!(meet(20, 1), Standing::New { again: 0, missing: 2 });
        assert_eq!(meet(0, 30), Standing::New { again: 21, missing: 0 });
        assert_eq!(meet(u64::MAX - 1, 1), Standing::New { again: 0, missing: u64::MAX - 31 });
    }

    #[test]
    fn who_comes_next_knows_what_was_given_out() {
        let mut seen = Seen::default();
        (0..200).for_each(|origin| assert_eq!(seen.meet(one(origin, u64::MAX - 1)), NEXT));
        let note = seen.note();
        assert!(note.len() <= 4_096, "{}", note.len());
        let mut next = Seen::from_note(&note);
        assert_eq!(next.meet(one(199, u64::MAX - 1)), Standing::Again);
        assert_eq!(next.meet(one(199, u64::MAX)), NEXT);
        assert_eq!(next.meet(one(0, 0)), NEXT, "one too many: those that were met last are kept");
        assert_eq!(Seen::from_note("no note äöü").last.len(), 0);
    }
}
