//! Pieces to bytes.

use std::collections::HashMap;

use prost::Message;

use super::across;
use super::message::{self, Annotations, Links, Pieces, Spans, Tags};
use super::{
    AWAITS, BELOW, BY_PROGRAM, COMPLETE, ERROR, FORWARDED, HALF, HEAD, LATER, MOVED, OTHER_TRACE,
    PARENT_ELSEWHERE, PARENT_HERE, REMOTE, SAMPLED,
};
use crate::ids::{SpanId, TraceId};
use crate::meeting::Across;
use crate::piece::{Part, Piece, PieceBatch, Stage};
use crate::span::{Span, SpanKind, TagValue};
use crate::v1::VERSION;
use crate::v1::column::Delta;
use crate::v1::words::Words;

/// The pieces as bytes, to be compressed by whoever carries them.
pub fn encode_pieces(batch: &PieceBatch) -> Vec<u8> {
    let mut writer = Writer::default();
    batch.pieces.iter().for_each(|piece| writer.piece(piece));
    let message = message::PieceBatch {
        version: VERSION,
        stage: match batch.from.stage {
            Stage::Join => message::Stage::Join,
            Stage::Assemble => message::Stage::Assemble,
            Stage::Meet => message::Stage::Meet,
        }
        .into(),
        partition: batch.from.partition,
        epoch: batch.from.epoch.0,
        first: batch.first,
        words: writer.words.end(),
        pieces: writer.pieces,
        spans: writer.spans,
        annotations: writer.annotations,
        tags: writer.tags,
        links: writer.links,
        halves: writer.halves,
        moves: writer.moves,
    };
    message.encode_to_vec()
}

/// Columns while they are written.
#[derive(Default)]
struct Writer<'a> {
    words: Words<'a>,
    pieces: Pieces,
    spans: Spans,
    annotations: Annotations,
    tags: Tags,
    links: Links,
    halves: Vec<message::LinkHalf>,
    moves: Vec<message::Moved>,
    start: Delta,
    /// Of the piece at hand: where each id stands first.
    here: HashMap<SpanId, u32>,
}

impl<'a> Writer<'a> {
    fn piece(&mut self, piece: &'a Piece) {
        let mut flags = 0;
        if piece.part == Part::Later {
            flags |= LATER;
        }
        if piece.complete {
            flags |= COMPLETE;
        }
        if piece.sampled_by_program {
            flags |= BY_PROGRAM;
        }
        if let Some(sampled) = &piece.sampled {
            flags |= SAMPLED;
            self.pieces.rule.push(self.words.place(&sampled.rule));
            self.pieces.one_in.push(sampled.one_in);
        }
        match &piece.across {
            Across::Nothing => {}
            Across::Head => flags |= HEAD,
            Across::Below => flags |= BELOW,
            Across::Awaits => flags |= AWAITS,
            Across::Half(half) => {
                flags |= HALF;
                let place = &mut |word| self.words.place(word);
                self.halves.push(across::half_out(half, place));
            }
            Across::Moved(moved) => {
                flags |= MOVED;
                self.moves.push(across::moved_out(moved, self.words.place(&moved.rule)));
            }
            Across::Forwarded(moves) => {
                flags |= FORWARDED;
                self.pieces.moves.push((*moves).into());
            }
        }
        let (high, low) = halves(piece.trace);
        self.pieces.flags.push(flags);
        self.pieces.trace_high.push(high);
        self.pieces.trace_low.push(low);
        self.pieces.spans.push(piece.spans.len() as u32);
        self.here.clear();
        for (place, span) in (0..).zip(&piece.spans) {
            self.here.entry(span.id).or_insert(place);
        }
        piece.spans.iter().for_each(|span| self.span(span, piece.trace));
    }

    fn span(&mut self, span: &'a Span, trace: TraceId) {
        let (columns, words) = (&mut self.spans, &mut self.words);
        let mut flags = match span.kind {
            SpanKind::Local => 0,
            SpanKind::Client => 1,
            SpanKind::Server => 2,
        };
        if let Some(parent) = span.parent {
            match self.here.get(&parent) {
                Some(place) => {
                    flags |= PARENT_HERE;
                    columns.parent_here.push(*place);
                }
                None => {
                    flags |= PARENT_ELSEWHERE;
                    columns.parent_elsewhere.push(parent.0);
                }
            }
        }
        if let Some(remote) = &span.remote_service {
            flags |= REMOTE;
            columns.remote_service.push(words.place(remote));
        }
        if let Some(error) = &span.error {
            flags |= ERROR;
            columns.error.push(words.place(error));
        }
        if span.trace != trace {
            flags |= OTHER_TRACE;
            let (high, low) = halves(span.trace);
            columns.trace_high.push(high);
            columns.trace_low.push(low);
        }
        columns.flags.push(flags);
        columns.id.push(span.id.0);
        columns.name.push(words.place(&span.name));
        columns.service.push(words.place(&span.service));
        columns.start.push(self.start.of(span.start.0));
        columns.duration.push(span.duration.0);
        columns.annotations.push(span.annotations.len() as u32);
        columns.tags.push(span.tags.len() as u32);
        columns.links.push(span.links.len() as u32);
        self.details(span);
    }

    fn details(&mut self, span: &'a Span) {
        for (time, value) in &span.annotations {
            self.annotations.time.push(time.0.wrapping_sub(span.start.0) as i64);
            self.annotations.value.push(self.words.place(value));
        }
        for (key, value) in &span.tags {
            self.tags.key.push(self.words.place(key));
            match value {
                TagValue::Number(number) => {
                    self.tags.value.push(0);
                    self.tags.number.push(*number);
                }
                TagValue::Text(words) => self.tags.value.push(self.words.place(words) + 1),
                TagValue::Shared(words) => self.tags.value.push(self.words.place(words) + 1),
            }
        }
        for link in &span.links {
            let (high, low) = halves(link.trace);
            self.links.trace_high.push(high);
            self.links.trace_low.push(low);
            self.links.span.push(link.span.0);
            self.links.relation.push(self.words.place(&link.relation));
        }
    }
}

pub(super) fn halves(trace: TraceId) -> (u64, u64) {
    ((trace.0 >> 64) as u64, trace.0 as u64)
}
