//! Pieces on their way into records.
//!
//! *In*: pieces with their numbers, by output partition. *Out*: records, each of one origin and one partition, with numbers
//! that follow each other. *Invariant*: each piece is in one record; where a record ends follows the clock and is no part
//! of anything's identity.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use blkkin_wire::piece::{Origin, Piece, PieceBatch};
use blkkin_wire::v1;

/// Spans of one record at the most; some 300 KiB before compression.
const SPANS_MAX: usize = 2_000;
/// How long a piece waits for others at the most, as an event does in an agent.
pub(super) const AGE_MAX: Duration = Duration::from_millis(75);

/// What a machine has said and nobody has sent yet.
#[derive(Debug)]
pub struct Outbox {
    from: Origin,
    open: BTreeMap<(Lane, u32), Open>,
    /// Records that wait for room in the producer, in order.
    ready: VecDeque<Packed>,
    dead: Option<String>,
    since: Option<Instant>,
    /// Longest record, before compression.
    bytes_max: usize,
}

#[derive(Debug, Default)]
struct Open {
    first: u64,
    pieces: Vec<Piece>,
    spans: usize,
}

/// Which of a stage's outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Lane {
    /// Its own.
    Output,
    /// The one beside it.
    Aside,
}

/// A record.
#[derive(Debug)]
pub(super) struct Packed {
    pub(super) lane: Lane,
    pub(super) partition: u32,
    pub(super) bytes: Vec<u8>,
    /// A piece that is longer than a record may be, with its number: the number is there, its spans are left out.
    pub(super) oversize: Option<(Origin, u64, Piece)>,
}

impl Outbox {
    pub(super) fn new(from: Origin, bytes_max: usize) -> Outbox {
        Outbox { from, open: BTreeMap::new(), ready: VecDeque::new(), dead: None, since: None, bytes_max }
    }

    /// Takes a piece, which has this number in this partition.
    pub fn piece(&mut self, partition: u32, number: u64, piece: Piece) {
        self.put((Lane::Output, partition), number, piece);
    }

    /// The same for the output beside it.
    pub fn aside(&mut self, partition: u32, number: u64, piece: Piece) {
        self.put((Lane::Aside, partition), number, piece);
    }

    fn put(&mut self, place: (Lane, u32), number: u64, piece: Piece) {
        let open = self.open.entry(place).or_default();
        if open.pieces.is_empty() {
            open.first = number;
        }
        open.spans += piece.spans.len();
        open.pieces.push(piece);
        if open.spans >= SPANS_MAX || open.pieces.len() >= SPANS_MAX {
            let open = std::mem::take(open);
            pack((self.from, self.bytes_max), place, open.first, open.pieces, &mut self.ready);
        }
    }

    /// The entry in hand cannot be read, for this reason.
    pub fn dead(&mut self, why: String) {
        self.dead = Some(why);
    }

    /// Why the last entry could not be read.
    pub(super) fn take_dead(&mut self) -> Option<String> {
        self.dead.take()
    }

    /// Makes records of all, once the oldest piece has waited long enough.
    pub(super) fn pack_due(&mut self, now: Instant) {
        if self.open.values().all(|open| open.pieces.is_empty()) {
            self.since = None;
        } else if now.saturating_duration_since(*self.since.get_or_insert(now)) >= AGE_MAX {
            self.pack();
        }
    }

    /// The record to be sent next.
    pub(super) fn first(&self) -> Option<&Packed> {
        self.ready.front()
    }

    /// It is on its way.
    pub(super) fn sent(&mut self) {
        self.ready.pop_front();
    }

    /// Makes records of all.
    pub(super) fn pack(&mut self) {
        self.since = None;
        for (place, open) in std::mem::take(&mut self.open) {
            if !open.pieces.is_empty() {
                pack((self.from, self.bytes_max), place, open.first, open.pieces, &mut self.ready);
            }
        }
    }
}

/// One record, or, where that would be too long, each half by itself.
fn pack(
    (from, bytes_max): (Origin, usize),
    place: (Lane, u32),
    first: u64,
    mut pieces: Vec<Piece>,
    out: &mut VecDeque<Packed>,
) {
    let (lane, partition) = place;
    let batch = PieceBatch { from, first, pieces };
    let bytes = v1::encode_pieces(&batch);
    pieces = batch.pieces;
    if bytes.len() <= bytes_max {
        return out.push_back(Packed { lane, partition, bytes, oversize: None });
    }
    if pieces.len() > 1 {
        let second = pieces.split_off(pieces.len() / 2);
        let middle = first.wrapping_add(pieces.len() as u64);
        pack((from, bytes_max), place, first, pieces, out);
        return pack((from, bytes_max), place, middle, second, out);
    }
    let emptied = pieces.iter().map(|piece| Piece { spans: Vec::new(), ..piece.clone() }).collect();
    let bytes = v1::encode_pieces(&PieceBatch { from, first, pieces: emptied });
    out.push_back(Packed {
        lane,
        partition,
        bytes,
        oversize: pieces.pop().map(|piece| (from, first, piece)),
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::ids::TraceId;
    use blkkin_wire::meeting::Across;
    use blkkin_wire::piece::{Epoch, Part, Stage};

    const BYTES_MAX: usize = 1_000_000;

    fn piece(n: u64) -> Piece {
        Piece {
            trace: TraceId(n.into()),
            spans: Vec::new(),
            part: Part::First,
            complete: true,
            sampled: None,
            sampled_by_program: false,
            across: Across::Nothing,
        }
    }

    #[test]
    fn each_piece_leaves_once_and_under_its_number_however_they_are_cut() {
        let mut outbox = Outbox::new(Origin { stage: Stage::Join, partition: 1, epoch: Epoch(2) }, BYTES_MAX);
        let begun = Instant::now();
        let (mut packed, mut next) = (Vec::new(), [100_u64, 200]);
        for n in 0..50 {
            let partition = n % 3 % 2;
            outbox.piece(partition, next[partition as usize], piece(n.into()));
            next[partition as usize] += 1;
            outbox.pack_due(begun + AGE_MAX * n / 7);
            packed.extend(std::mem::take(&mut outbox.ready));
        }
        outbox.pack();
        packed.extend(outbox.ready);
        assert!(packed.len() > 4, "{}", packed.len());
        let mut seen = [100_u64, 200];
        for record in packed {
            let batch = v1::decode_pieces(&record.bytes).unwrap();
            assert_eq!(batch.first, seen[record.partition as usize]);
            seen[record.partition as usize] += batch.pieces.len() as u64;
        }
        assert_eq!(seen, next);
    }
}
