//! What of each source was given out: so that a batch that comes twice is given out once, and one that never comes is
//! missed.
//!
//! *In*: the source and the sequence of each batch, in the order of a partition. *Out*: whether it is new, and how many before
//! it are missing. *Invariant*: of a source (a start of a tracer: node, boot, epoch) no sequence is new twice.
//!
//! A batch below the last one is old, never late: a source's batches lie in one partition in their order, and whatever sends
//! them again sends them in that order too.
//!
//! # It outlives the member
//!
//! Committed offsets alone do not say it: a repeat that lies behind the committed offset would be new to the next member. So it
//! travels with the offset, as the commit's metadata ([`Seen::note`]). That holds 4,096 bytes (`offset.metadata.max.bytes`), which
//! is 120 sources of a partition, those that were met last; of the others a repeat is known only while this member lives.

use std::collections::HashMap;
use std::fmt::Write as _;

use blkkin_wire::ids::Source;

/// Of a partition, in a note. A source takes 33 bytes at the most: 16 for itself, 16 for its sequence, 1 between.
const NOTED_MAX: usize = 120;

/// What a batch is to what came before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The first of its source, or the next.
    Next,
    /// New, and so many before it never came.
    After(u64),
    /// It was given out already.
    Again,
}

/// The last sequence of each source.
#[derive(Debug, Default)]
pub(super) struct Seen {
    last: HashMap<u64, Last>,
    met: u64,
}

#[derive(Debug)]
struct Last {
    sequence: u64,
    /// Counts meetings of all: who was met last has the highest.
    met: u64,
}

impl Seen {
    /// Takes note of a batch.
    pub(super) fn meet(&mut self, source: Source, sequence: u64) -> Standing {
        self.met += 1;
        let met = self.met;
        let Some(last) = self.last.get_mut(&key(&source)) else {
            self.last.insert(key(&source), Last { sequence, met });
            return Standing::Next;
        };
        if sequence <= last.sequence {
            return Standing::Again;
        }
        let missing = sequence - last.sequence - 1;
        *last = Last { sequence, met };
        if missing == 0 { Standing::Next } else { Standing::After(missing) }
    }

    /// As text, for who comes next.
    pub(super) fn note(&self) -> String {
        let mut latest: Vec<_> = self.last.iter().collect();
        latest.sort_by_key(|(_, last)| std::cmp::Reverse(last.met));
        let mut text = String::new();
        for (key, last) in latest.into_iter().take(NOTED_MAX) {
            // To a String it cannot fail.
            let _ = write!(text, "{key:016x}{:x} ", last.sequence);
        }
        text.truncate(text.trim_end().len());
        text
    }

    /// From such a text; of one that somebody else wrote what can be read.
    pub(super) fn from_note(text: &str) -> Seen {
        let number = |digits: &str| u64::from_str_radix(digits, 16).ok();
        let one = |word: &str| {
            let (key, sequence) = word.split_at_checked(16)?;
            Some((number(key)?, Last { sequence: number(sequence)?, met: 0 }))
        };
        Seen { last: text.split(' ').filter_map(one).collect(), met: 0 }
    }
}

/// A source in 64 bits: the half that its trace ids begin with.
fn key(source: &Source) -> u64 {
    (source.trace_id(blkkin_wire::ids::SpanId(0)).0 >> 64) as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::ids::{BootId, NodeId, StartEpoch};

    fn source(epoch: u64) -> Source {
        Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(epoch) }
    }

    #[test]
    fn a_batch_is_given_out_once_and_a_gap_is_missed() {
        let mut seen = Seen::default();
        let met = [(1, 5), (1, 6), (1, 6), (1, 5), (1, 9), (2, 0), (1, 8), (1, 10)];
        let met = met.map(|(epoch, sequence)| seen.meet(source(epoch), sequence));
        use Standing::*;
        assert_eq!(met, [Next, Next, Again, Again, After(2), Next, Again, Next]);
    }

    #[test]
    fn who_comes_next_knows_what_was_given_out() {
        let mut seen = Seen::default();
        (0..200).for_each(|epoch| assert_eq!(seen.meet(source(epoch), u64::MAX - 1), Standing::Next));
        let note = seen.note();
        assert!(note.len() <= 4_096, "{}", note.len());
        let mut next = Seen::from_note(&note);
        assert_eq!(next.meet(source(199), u64::MAX - 1), Standing::Again);
        assert_eq!(next.meet(source(199), u64::MAX), Standing::Next);
        assert_eq!(
            next.meet(source(0), 0),
            Standing::Next,
            "one too many: those that were met last are kept"
        );
        assert_eq!(Seen::from_note("no note äöü").last.len(), 0);
    }
}
