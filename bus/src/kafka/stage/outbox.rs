//! Pieces on their way into records.
//!
//! *In*: pieces with their numbers, by output partition. *Out*: records, each of one origin and one partition, with numbers
//! that follow each other. *Invariant*: each piece is in one record; where a record ends follows the clock and is no part
//! of anything's identity.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use blkkin_wire::piece::{Origin, Piece};
use blkkin_wire::v1::{Count, PieceWriter};

/// Spans of one record at the most; some 300 KiB before compression.
const SPANS_MAX: usize = 2_000;
/// How long a piece waits for others at the most, as an event does in an agent.
pub(super) const AGE_MAX: Duration = Duration::from_millis(75);

/// What a machine has said and nobody has sent yet.
#[derive(Debug)]
pub struct Outbox {
    from: Origin,
    open: BTreeMap<(Lane, u32), PieceWriter>,
    /// Records that wait for room in the producer, in order.
    ready: VecDeque<Packed>,
    dead: Option<String>,
    since: Option<Instant>,
    /// Longest record, before compression.
    bytes_max: usize,
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

impl Packed {
    fn whole((lane, partition): (Lane, u32), record: PieceWriter) -> Self {
        Packed { lane, partition, bytes: record.end(), oversize: None }
    }

    /// A piece that is too long without its spans, which leave by another way.
    fn emptied(place: (Lane, u32), (from, number): (Origin, u64), piece: Piece) -> Self {
        let mut record = PieceWriter::begin(from, number);
        record.piece(&Piece { spans: Vec::new(), ..piece.clone() });
        Packed { oversize: Some((from, number, piece)), ..Packed::whole(place, record) }
    }
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

    /// A piece is written at once and dropped: its memory serves the next one while it is in the processor's cache.
    fn put(&mut self, place: (Lane, u32), number: u64, piece: Piece) {
        let (from, bytes_max) = (self.from, self.bytes_max);
        let begin = || PieceWriter::begin(from, number);
        let record = self.open.entry(place).or_insert_with(begin);
        if record.count().pieces > 0 && record.bytes_with(&piece) > bytes_max {
            let full = std::mem::replace(record, begin());
            self.ready.push_back(Packed::whole(place, full));
        }
        record.piece(&piece);
        let Count { pieces, spans } = record.count();
        let long = record.bytes_max() > bytes_max;
        if (long || spans >= SPANS_MAX || pieces >= SPANS_MAX)
            && let Some(record) = self.open.remove(&place)
        {
            let packed = Packed::whole(place, record);
            // Of one piece: another was not put beside it unless both fit.
            let long = packed.bytes.len() > bytes_max;
            self.ready.push_back(if long { Packed::emptied(place, (from, number), piece) } else { packed });
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
        if self.open.is_empty() {
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
        let open = std::mem::take(&mut self.open);
        self.ready.extend(open.into_iter().map(|(place, record)| Packed::whole(place, record)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::clock::{DurationNs, WallclockNs};
    use blkkin_wire::ids::{SpanId, TraceId};
    use blkkin_wire::meeting::Across;
    use blkkin_wire::piece::{Epoch, Part, Stage};
    use blkkin_wire::span::{Span, SpanKind};
    use blkkin_wire::v1;

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

    fn span(name: String) -> Span {
        Span {
            trace: TraceId(1),
            id: SpanId(1),
            parent: None,
            name: name.into(),
            service: "a".into(),
            remote_service: None,
            kind: SpanKind::Local,
            start: WallclockNs(0),
            duration: DurationNs(0),
            annotations: Vec::new(),
            tags: Vec::new(),
            error: None,
            links: Vec::new(),
        }
    }

    #[test]
    fn a_record_is_as_long_as_it_may_be_and_what_is_longer_leaves_without_its_spans() {
        let from = Origin { stage: Stage::Join, partition: 1, epoch: Epoch(2) };
        let named = |n: u64, bytes: usize| Piece { spans: vec![span(format!("{n:0bytes$}"))], ..piece(n) };
        let mut outbox = Outbox::new(from, 5_000);
        let lengths = [900, 900, 900, 900, 900, 900, 4_500, 100, 6_000, 100];
        for (n, bytes) in (0..).zip(lengths) {
            outbox.piece(0, n, named(n, bytes));
        }
        outbox.pack();
        let mut next = 0;
        for record in &outbox.ready {
            assert!(record.bytes.len() <= 5_000 || record.oversize.is_some(), "{}", record.bytes.len());
            let batch = v1::decode_pieces(&record.bytes).unwrap();
            assert_eq!(batch.first, next);
            next += batch.pieces.len() as u64;
        }
        assert_eq!(next, 10);
        let cut: Vec<_> = outbox
            .ready
            .iter()
            .map(|record| v1::decode_pieces(&record.bytes).unwrap().pieces.len())
            .collect();
        assert_eq!(cut, [4, 2, 1, 1, 1, 1]);
        let oversize = outbox.ready.iter().filter_map(|record| record.oversize.as_ref());
        assert_eq!(oversize.map(|(_, number, _)| *number).collect::<Vec<_>>(), [8]);
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
