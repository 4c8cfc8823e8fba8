//! Bytes to pieces: the one place where they are believed, and only value by value.

use std::borrow::Cow;
use std::sync::Arc;

use prost::Message;

use super::across;
use super::message::{self, Annotations, Links, Pieces, Spans, Tags};
use super::{
    AWAITS, BELOW, BY_PROGRAM, COMPLETE, ERROR, FORWARDED, HALF, HEAD, KIND, LATER, MOVED, OTHER_TRACE,
    PARENT_ELSEWHERE, PARENT_HERE, REMOTE, SAMPLED,
};
use crate::clock::{DurationNs, WallclockNs};
use crate::ids::{SpanId, TraceId};
use crate::meeting::Across;
use crate::piece::{Epoch, Origin, Part, Piece, PieceBatch, Sampled, Stage};
use crate::span::{Span, SpanKind, SpanLink, TagValue};
use crate::v1::column::{Column, Delta, columns};
use crate::v1::{Malformed, VERSION};

/// What the names and keys of a record's spans may come to, all together. A record of Kafka is 1 MiB by default, and what we
/// write grows to 5 times its length; this is 64 times.
pub const COPIED_BYTES_MAX: usize = 64 << 20;

/// Reads a record of the topics of spans and traces.
pub fn decode_pieces(bytes: &[u8]) -> Result<PieceBatch, Malformed> {
    let message =
        message::PieceBatch::decode(bytes).map_err(|error| Malformed::Protobuf(error.to_string()))?;
    if message.version != VERSION {
        return Err(Malformed::Version(message.version));
    }
    let stage = match message::Stage::try_from(message.stage) {
        Ok(message::Stage::Join) => Stage::Join,
        Ok(message::Stage::Assemble) => Stage::Assemble,
        Ok(message::Stage::Meet) => Stage::Meet,
        Ok(message::Stage::Unspecified) | Err(_) => {
            return Err(Malformed::Value { column: "PieceBatch.stage", value: message.stage as u64 });
        }
    };
    let mut reader = Reader {
        words: Words {
            said: message.words.iter().map(|word| Arc::from(word.as_str())).collect(),
            left: COPIED_BYTES_MAX,
        },
        pieces: PieceColumns::new(&message.pieces),
        spans: SpanColumns::new(&message.spans),
        annotations: AnnotationColumns::new(&message.annotations),
        tags: TagColumns::new(&message.tags),
        links: LinkColumns::new(&message.links),
        halves: Column::new(&message.halves, "PieceBatch.halves"),
        moves: Column::new(&message.moves, "PieceBatch.moves"),
        start: Delta::default(),
    };
    let pieces = message.pieces.flags.iter().map(|_| reader.piece()).collect::<Result<_, _>>()?;
    reader.end()?;
    let from = Origin { stage, partition: message.partition, epoch: Epoch(message.epoch) };
    Ok(PieceBatch { from, first: message.first, pieces })
}

struct Words {
    said: Vec<Arc<str>>,
    /// Bytes that may still be copied.
    left: usize,
}

impl Words {
    fn shared(&self, place: u32, column: &'static str) -> Result<Arc<str>, Malformed> {
        self.said.get(place as usize).cloned().ok_or(Malformed::Value { column, value: place.into() })
    }

    fn owned(&mut self, place: u32, column: &'static str) -> Result<Cow<'static, str>, Malformed> {
        let refuse = || Malformed::Value { column, value: place.into() };
        let word = self.said.get(place as usize).ok_or_else(refuse)?;
        self.left = self.left.checked_sub(word.len()).ok_or_else(refuse)?;
        Ok(Cow::Owned(word.as_ref().to_owned()))
    }
}

columns! {
    PieceColumns of Pieces {
        flags: u32, trace_high: u64, trace_low: u64, spans: u32, rule: u32, one_in: u32, moves: u32,
    } ids {}
}

columns! {
    SpanColumns of Spans {
        flags: u32, id: u64, parent_here: u32, parent_elsewhere: u64, trace_high: u64, trace_low: u64, name: u32,
        service: u32, remote_service: u32, start: i64, duration: u64, error: u32, annotations: u32, tags: u32, links: u32,
    } ids {}
}

columns! {
    AnnotationColumns of Annotations { time: i64, value: u32 } ids {}
}

columns! {
    TagColumns of Tags { key: u32, value: u32, number: i64 } ids {}
}

columns! {
    LinkColumns of Links { trace_high: u64, trace_low: u64, span: u64, relation: u32 } ids {}
}

/// Columns while they are read.
struct Reader<'a> {
    words: Words,
    pieces: PieceColumns<'a>,
    spans: SpanColumns<'a>,
    annotations: AnnotationColumns<'a>,
    tags: TagColumns<'a>,
    links: LinkColumns<'a>,
    halves: Column<'a, message::LinkHalf>,
    moves: Column<'a, message::Moved>,
    start: Delta,
}

impl Reader<'_> {
    fn end(&self) -> Result<(), Malformed> {
        self.pieces.end()?;
        self.spans.end()?;
        self.annotations.end()?;
        self.tags.end()?;
        self.links.end()?;
        self.halves.end()?;
        self.moves.end()
    }

    fn piece(&mut self) -> Result<Piece, Malformed> {
        let flags = *self.pieces.flags.next()?;
        let trace = whole(self.pieces.trace_high.next()?, self.pieces.trace_low.next()?);
        let count = *self.pieces.spans.next()?;
        let sampled = if flags & SAMPLED != 0 {
            let rule = self.words.owned(*self.pieces.rule.next()?, "Pieces.rule")?;
            Some(Sampled { rule, one_in: *self.pieces.one_in.next()? })
        } else {
            None
        };
        let across = self.across(flags, trace)?;
        Ok(Piece {
            trace,
            spans: self.spans(count, trace)?,
            part: if flags & LATER != 0 { Part::Later } else { Part::First },
            complete: flags & COMPLETE != 0,
            sampled,
            sampled_by_program: flags & BY_PROGRAM != 0,
            across,
        })
    }

    fn across(&mut self, flags: u32, trace: TraceId) -> Result<Across, Malformed> {
        let words = &mut self.words;
        let word = |place, column| words.shared(place, column).map(|word| Box::from(&*word));
        Ok(match flags & (HEAD | BELOW | AWAITS | HALF | MOVED | FORWARDED) {
            0 => Across::Nothing,
            HEAD => Across::Head,
            BELOW => Across::Below,
            AWAITS => Across::Awaits,
            HALF => Across::Half(across::half_in(self.halves.next()?, trace, word)?.into()),
            MOVED => Across::Moved(across::moved_in(self.moves.next()?, word)?.into()),
            FORWARDED => {
                let moves = *self.pieces.moves.next()?;
                let refuse = |_| Malformed::Value { column: "Pieces.moves", value: moves.into() };
                Across::Forwarded(u8::try_from(moves).map_err(refuse)?)
            }
            _ => return Err(self.pieces.flags.refuse(flags.into())),
        })
    }

    /// A parent may stand behind its child, so its place is looked at when all are there.
    fn spans(&mut self, count: u32, trace: TraceId) -> Result<Vec<Span>, Malformed> {
        let (mut spans, mut parents) = (Vec::new(), Vec::new());
        for place in 0..count {
            let flags = *self.spans.flags.next()?;
            if flags & PARENT_HERE != 0 {
                parents.push((place, *self.spans.parent_here.next()?));
            }
            spans.push(self.span(flags, trace)?);
        }
        for (child, parent) in parents {
            let refuse = Malformed::Value { column: "Spans.parent_here", value: parent.into() };
            let id = spans.get(parent as usize).map(|span| span.id).ok_or(refuse)?;
            if let Some(child) = spans.get_mut(child as usize) {
                child.parent = Some(id);
            }
        }
        Ok(spans)
    }

    fn span(&mut self, flags: u32, trace: TraceId) -> Result<Span, Malformed> {
        let columns = &mut self.spans;
        let elsewhere = columns.parent_elsewhere.next_if(flags & PARENT_ELSEWHERE != 0)?;
        let remote = columns.remote_service.next_if(flags & REMOTE != 0)?;
        let error = columns.error.next_if(flags & ERROR != 0)?;
        let trace = match flags & OTHER_TRACE {
            0 => trace,
            _ => whole(columns.trace_high.next()?, columns.trace_low.next()?),
        };
        let start = WallclockNs(self.start.undo(*columns.start.next()?));
        let counts = [columns.annotations.next()?, columns.tags.next()?, columns.links.next()?];
        let words = &mut self.words;
        Ok(Span {
            trace,
            id: SpanId(*columns.id.next()?),
            parent: elsewhere.copied().map(SpanId),
            name: words.owned(*columns.name.next()?, "Spans.name")?,
            service: words.shared(*columns.service.next()?, "Spans.service")?,
            remote_service: remote.map(|word| words.shared(*word, "Spans.remote_service")).transpose()?,
            kind: match flags & KIND {
                0 => SpanKind::Local,
                1 => SpanKind::Client,
                2 => SpanKind::Server,
                _ => return Err(columns.flags.refuse(flags.into())),
            },
            start,
            duration: DurationNs(*columns.duration.next()?),
            error: error.map(|word| words.owned(*word, "Spans.error")).transpose()?,
            annotations: self.annotations(*counts[0], start)?,
            tags: self.tags(*counts[1])?,
            links: self.links(*counts[2])?,
        })
    }

    fn annotations(
        &mut self,
        count: u32,
        start: WallclockNs,
    ) -> Result<Vec<(WallclockNs, Cow<'static, str>)>, Malformed> {
        let (columns, words) = (&mut self.annotations, &mut self.words);
        let one = |_| {
            let time = WallclockNs(start.0.wrapping_add(*columns.time.next()? as u64));
            Ok((time, words.owned(*columns.value.next()?, "Annotations.value")?))
        };
        (0..count).map(one).collect()
    }

    fn tags(&mut self, count: u32) -> Result<Vec<(Cow<'static, str>, TagValue)>, Malformed> {
        let (columns, words) = (&mut self.tags, &mut self.words);
        let one = |_| {
            let key = words.owned(*columns.key.next()?, "Tags.key")?;
            let value = match columns.value.next()?.checked_sub(1) {
                None => TagValue::Number(*columns.number.next()?),
                Some(place) => TagValue::Shared(words.shared(place, "Tags.value")?),
            };
            Ok((key, value))
        };
        (0..count).map(one).collect()
    }

    fn links(&mut self, count: u32) -> Result<Vec<SpanLink>, Malformed> {
        let (columns, words) = (&mut self.links, &mut self.words);
        let one = |_| {
            Ok(SpanLink {
                trace: whole(columns.trace_high.next()?, columns.trace_low.next()?),
                span: SpanId(*columns.span.next()?),
                relation: words.owned(*columns.relation.next()?, "Links.relation")?,
            })
        };
        (0..count).map(one).collect()
    }
}

pub(super) fn whole(high: &u64, low: &u64) -> TraceId {
    TraceId(u128::from(*high) << 64 | u128::from(*low))
}
