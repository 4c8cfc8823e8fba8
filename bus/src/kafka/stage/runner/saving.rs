//! What was said, then the state, then the commit.

use std::time::{Duration, Instant};

use blkkin_wire::piece::{Origin, Piece, PieceBatch};
use blkkin_wire::v1;

use super::super::super::{DEAD, KafkaError};
use super::super::note::Note;
use super::super::outbox::Lane;
use super::super::output::{Letter, Output};
use super::super::owned::Owned;
use super::super::state::{Shelf, Written};
use super::super::{Machine, Machines};
use super::{PATIENCE, StageConfig, StageRunner};

/// The partitions of a stage are saved in so many parts, which take half of the time after which a state is due.
///
/// A save waits for what was said, for the states and for the commit, and nothing is read meanwhile. A producer has one request on its
/// way to a broker, and each is of one partition: so all partitions at once are a pause as long as all of these together.
const SAVES: u32 = 12;

impl<F: Machines> StageRunner<F> {
    pub(super) fn save_due(&mut self, now: Instant) -> Result<(), KafkaError> {
        let every = self.config.save_every;
        if now.saturating_duration_since(self.rested_since) < every / (2 * SAVES) {
            return Ok(());
        }
        let due = self.owned.values().filter(|owned| owned.save_due(every, now));
        let mut due: Vec<_> = due.map(|owned| (owned.saved_at(), owned.partition)).collect();
        due.sort_unstable();
        due.truncate(self.owned.len().div_ceil(SAVES as usize));
        if due.is_empty() {
            return Ok(());
        }
        self.save(&due.into_iter().map(|(_, partition)| partition).collect::<Vec<_>>(), PATIENCE)?;
        self.rested_since = Instant::now();
        Ok(())
    }

    /// Saves the states of `partitions` as they are now: all that was said, then the states, then the commit. False where the
    /// cluster did not answer in time: then the last one counts still, and the next attempt says so again.
    pub(super) fn save(&mut self, partitions: &[i32], patience: Duration) -> Result<bool, KafkaError> {
        let mut written = Vec::new();
        for partition in partitions {
            let Some(owned) = self.owned.get_mut(partition).filter(|owned| owned.is_ahead()) else {
                continue;
            };
            owned.outbox.pack();
            if !send(&self.config, &self.output, owned, patience, &mut self.oversize)? {
                return Ok(false);
            }
            let (next, place, state) = (owned.next, owned.place(), owned.machine.save());
            let state = state.map_err(|why| self.no_state(*partition, &why))?;
            let Some(state) = self.shelf(*partition).write(place, &state, &self.output, patience)? else {
                return Ok(false);
            };
            written.push((*partition, next, state));
        }
        if written.is_empty() {
            return Ok(true);
        }
        self.commit(&written, patience)
    }

    pub(super) fn commit(
        &mut self,
        written: &[(i32, i64, Written)],
        patience: Duration,
    ) -> Result<bool, KafkaError> {
        let settled = self.output.settle(patience)?;
        let commits: Vec<(i32, i64, Note)> =
            written.iter().map(|(partition, next, state)| (*partition, *next, state.note())).collect();
        let committed = settled && self.member()?.commit(&commits)?;
        for (partition, next, note) in commits {
            let shelf = self.shelf(partition);
            let Some(owned) = self.owned.get_mut(&partition) else { continue };
            if committed {
                owned.is_saved(next, note.bytes);
                for (place, chunks) in owned.old.drain(..) {
                    shelf.empty(place, chunks, &self.output)?;
                }
            }
            // The next state makes it an old one; a commit without an answer may have been made, so until then it stays.
            owned.old.push((note.place, note.chunks));
        }
        Ok(committed)
    }

    pub(super) fn shelf(&self, partition: i32) -> Shelf {
        let bytes_max = self.settings.record_bytes();
        Shelf { stage: self.machines.stage(), partition, partitions: self.state_partitions, bytes_max }
    }

    pub(super) fn unanswered(&self, partition: i32) -> KafkaError {
        KafkaError {
            what: format!("the state of partition {partition} of {} cannot be saved", self.config.input),
            why: "the cluster did not answer in time, or has given the partition to another".to_owned(),
            remedy: "check that all brokers run; what was done stays done, start again".to_owned(),
        }
    }

    pub(super) fn no_state(&self, partition: i32, why: &str) -> KafkaError {
        KafkaError {
            what: format!("the state of partition {partition} of {} cannot be saved", self.config.input),
            why: why.to_owned(),
            remedy: format!("it is a fault of blkkin: report it; what cannot be read lies in {DEAD}"),
        }
    }
}

/// Sends the records that are ready; whether there was room for all.
pub(super) fn send<M: Machine>(
    config: &StageConfig,
    output: &Output,
    owned: &mut Owned<M>,
    patience: Duration,
    oversize: &mut u64,
) -> Result<bool, KafkaError> {
    while let Some(packed) = owned.outbox.first() {
        let partition = packed.partition as i32;
        let topic = match packed.lane {
            Lane::Output => &config.output,
            Lane::Aside => &config.aside,
        };
        let letter =
            Letter { topic, partition: Some(partition), payload: Some(&packed.bytes), ..Letter::default() };
        if !output.send(&letter, patience)? {
            return Ok(false);
        }
        if let Some((from, number, piece)) = &packed.oversize {
            *oversize += 1;
            let why = format!("trace {}: {} spans are longer than a record", piece.trace, piece.spans.len());
            for part in parts(*from, *number, piece.clone(), output.record_bytes()) {
                let headers = [
                    ("blkkin.by", config.group.name.clone()),
                    ("blkkin.reason", why.clone()),
                    ("blkkin.topic", topic.clone()),
                    ("blkkin.partition", partition.to_string()),
                    ("blkkin.origin", from.to_string()),
                    ("blkkin.number", number.to_string()),
                ];
                output.bury(&headers, &part, patience)?;
            }
        }
        owned.outbox.sent();
    }
    Ok(true)
}

/// A piece that is longer than a record, in records that are not: each a piece of the same number with some of its spans. A
/// span that is too long by itself stays so, and only its length is kept.
fn parts(from: Origin, first: u64, mut piece: Piece, bytes_max: usize) -> Vec<Vec<u8>> {
    let bytes = v1::encode_pieces(&PieceBatch { from, first, pieces: vec![piece.clone()] });
    if bytes.len() <= bytes_max || piece.spans.len() < 2 {
        return vec![bytes];
    }
    let spans = piece.spans.split_off(piece.spans.len() / 2);
    let rest = Piece { spans, ..piece.clone() };
    let mut all = parts(from, first, piece, bytes_max);
    all.extend(parts(from, first, rest, bytes_max));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::clock::{DurationNs, WallclockNs};
    use blkkin_wire::ids::{SpanId, TraceId};
    use blkkin_wire::meeting::Across;
    use blkkin_wire::piece::{Epoch, Part, Stage};
    use blkkin_wire::span::{Span, SpanKind, TagValue};

    #[test]
    fn a_piece_that_is_too_long_is_buried_span_by_span_if_need_be() {
        let span = |n: u64| Span {
            trace: TraceId(7),
            id: SpanId(n + 1),
            parent: None,
            name: "pwrite64".into(),
            service: "db".into(),
            remote_service: None,
            kind: SpanKind::Local,
            start: WallclockNs(1),
            duration: DurationNs(1),
            annotations: Vec::new(),
            tags: vec![("file.path".into(), TagValue::Text(format!("{n:05}").repeat(200).into()))],
            error: None,
            links: Vec::new(),
        };
        let spans: Vec<Span> = (0..20).map(span).collect();
        let piece = Piece {
            trace: TraceId(7),
            spans,
            part: Part::First,
            complete: true,
            sampled: None,
            sampled_by_program: false,
            across: Across::Nothing,
        };
        let from = Origin { stage: Stage::Join, partition: 0, epoch: Epoch(1) };
        let parts = parts(from, 9, piece.clone(), 3_000);
        assert!(parts.iter().all(|part| part.len() <= 3_000));
        let read = parts.iter().map(|part| v1::decode_pieces(part).unwrap());
        let spans: Vec<Span> = read
            .flat_map(|batch| {
                assert_eq!(batch.first, 9);
                batch.pieces.into_iter().flat_map(|piece| piece.spans)
            })
            .collect();
        assert_eq!(spans, piece.spans);
    }
}
