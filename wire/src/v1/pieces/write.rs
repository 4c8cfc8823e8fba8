//! Pieces to bytes.

use std::collections::HashMap;

use super::across;
use super::dictionary::{Dictionary, in_record};
use super::message;
use super::{
    AWAITS, BELOW, BY_PROGRAM, COMPLETE, ERROR, FORWARDED, HALF, HEAD, LATER, MOVED, OTHER_TRACE,
    PARENT_ELSEWHERE, PARENT_HERE, REMOTE, SAMPLED,
};
use crate::ids::{SpanId, TraceId};
use crate::meeting::Across;
use crate::piece::{Origin, Part, Piece, PieceBatch, Stage};
use crate::span::{Span, SpanKind, TagValue};
use crate::v1::VERSION;
use crate::v1::column::Delta;
use crate::v1::packed::{Packed, packed_message};

/// The pieces as bytes, to be compressed by whoever carries them.
pub fn encode_pieces(batch: &PieceBatch) -> Vec<u8> {
    let mut writer = PieceWriter::begin(batch.from, batch.first);
    batch.pieces.iter().for_each(|piece| writer.piece(piece));
    writer.end()
}

packed_message! {
    /// `Pieces` of `blkkin.proto`.
    Pieces { flags, trace_high, trace_low, spans, rule, one_in, moves }
}

packed_message! {
    /// `Spans`.
    Spans {
        flags, id, parent_here, parent_elsewhere, trace_high, trace_low, name, service, remote_service, start, duration,
        error, annotations, tags, links,
    }
}

packed_message! {
    /// `Annotations`.
    Annotations { time, value }
}

packed_message! {
    /// `Tags`.
    Tags { key, value, number }
}

packed_message! {
    /// `Links`.
    Links { trace_high, trace_low, span, relation }
}

/// A record while it is written: a piece is in it, and need not be kept.
#[derive(Debug)]
pub struct PieceWriter {
    from: Origin,
    first: u64,
    words: Dictionary,
    pieces: Pieces,
    spans: Spans,
    annotations: Annotations,
    tags: Tags,
    links: Links,
    halves: Vec<message::LinkHalf>,
    moves: Vec<message::Moved>,
    start: Delta,
    count: Count,
    /// Of a long piece at hand: where each id stands first.
    here: HashMap<SpanId, u32>,
}

/// What a record holds so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Count {
    /// Pieces.
    pub pieces: usize,
    /// Spans in them.
    pub spans: usize,
}

/// Of what stands before the columns (22), and of the keys and lengths of the five messages around them.
const HEAD_BYTES: usize = 64;
/// A row at the most, its words aside: protobuf's bounds for its fields.
const HALF_BYTES: usize = 256;
const MOVED_BYTES: usize = 96;
/// What a piece, a span, an annotation, a tag and a link have in the columns at the most: 5 bytes for each `uint32`, 10 for each
/// `uint64` and `sint64`, 8 for each `fixed64`.
const PIECE_BYTES: usize = 5 * 5 + 2 * 8;
const SPAN_BYTES: usize = 9 * 5 + 2 * 10 + 4 * 8;
const ANNOTATION_BYTES: usize = 5 + 10;
const TAG_BYTES: usize = 2 * 5 + 10;
const LINK_BYTES: usize = 3 * 8 + 5;

/// Where an id stands is searched for in pieces of at most so many spans, and looked up in longer ones.
const SEARCHED_MAX: usize = 8;

impl PieceWriter {
    /// A record of this origin whose first piece has this number.
    pub fn begin(from: Origin, first: u64) -> Self {
        PieceWriter {
            from,
            first,
            words: Dictionary::default(),
            pieces: Pieces::default(),
            spans: Spans::default(),
            annotations: Annotations::default(),
            tags: Tags::default(),
            links: Links::default(),
            halves: Vec::new(),
            moves: Vec::new(),
            start: Delta::default(),
            count: Count::default(),
            here: HashMap::new(),
        }
    }

    /// What is in it.
    pub fn count(&self) -> Count {
        self.count
    }

    /// How long the record is at the most, as it is now.
    pub fn bytes_max(&self) -> usize {
        let columns = [
            self.pieces.bytes(),
            self.spans.bytes(),
            self.annotations.bytes(),
            self.tags.bytes(),
            self.links.bytes(),
        ];
        let rows = self.halves.len() * HALF_BYTES + self.moves.len() * MOVED_BYTES;
        HEAD_BYTES + self.words.bytes() + columns.iter().sum::<usize>() + rows
    }

    /// How long it is at the most with this piece too: as if all of its words were new.
    pub fn bytes_with(&self, piece: &Piece) -> usize {
        let across = match &piece.across {
            Across::Half(half) => {
                HALF_BYTES + in_record(&half.event.meeting.rule) + in_record(&half.event.meeting.connection)
            }
            Across::Moved(moved) => MOVED_BYTES + in_record(&moved.rule),
            Across::Forwarded(_) | Across::Nothing | Across::Head | Across::Below | Across::Awaits => 0,
        };
        let rule = piece.sampled.as_ref().map_or(0, |sampled| in_record(&sampled.rule));
        let spans: usize = piece.spans.iter().map(span_bytes).sum();
        self.bytes_max() + PIECE_BYTES + across + rule + spans
    }

    /// The record.
    pub fn end(self) -> Vec<u8> {
        let mut out = Packed::with_room(self.bytes_max());
        let head = message::Head {
            version: VERSION,
            stage: match self.from.stage {
                Stage::Join => message::Stage::Join,
                Stage::Assemble => message::Stage::Assemble,
                Stage::Meet => message::Stage::Meet,
            }
            .into(),
            partition: self.from.partition,
            epoch: self.from.epoch.0,
            first: self.first,
            words: self.words.end(),
        };
        out.append(&head);
        self.pieces.write(7, &mut out);
        self.spans.write(8, &mut out);
        self.annotations.write(9, &mut out);
        self.tags.write(10, &mut out);
        self.links.write(11, &mut out);
        out.append(&message::Rows { halves: self.halves, moves: self.moves });
        out.into_bytes()
    }

    /// The next piece.
    pub fn piece(&mut self, piece: &Piece) {
        self.count.pieces += 1;
        self.count.spans += piece.spans.len();
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
            self.pieces.rule.push(self.words.name(&sampled.rule));
            self.pieces.one_in.push(sampled.one_in);
        }
        match &piece.across {
            Across::Nothing => {}
            Across::Head => flags |= HEAD,
            Across::Below => flags |= BELOW,
            Across::Awaits => flags |= AWAITS,
            Across::Half(half) => {
                flags |= HALF;
                let place = &mut |word: &str| self.words.owned(word);
                self.halves.push(across::half_out(half, place));
            }
            Across::Moved(moved) => {
                flags |= MOVED;
                self.moves.push(across::moved_out(moved, self.words.owned(&moved.rule)));
            }
            Across::Forwarded(moves) => {
                flags |= FORWARDED;
                self.pieces.moves.push(*moves);
            }
        }
        let (high, low) = halves(piece.trace);
        self.pieces.flags.push(flags);
        self.pieces.trace_high.push_fixed(high);
        self.pieces.trace_low.push_fixed(low);
        self.pieces.spans.push(piece.spans.len() as u32);
        self.here.clear();
        if piece.spans.len() > SEARCHED_MAX {
            for (place, span) in (0..).zip(&piece.spans) {
                self.here.entry(span.id).or_insert(place);
            }
        }
        piece.spans.iter().for_each(|span| self.span(span, piece));
    }

    fn span(&mut self, span: &Span, piece: &Piece) {
        let (columns, words) = (&mut self.spans, &mut self.words);
        let mut flags = match span.kind {
            SpanKind::Local => 0,
            SpanKind::Client => 1,
            SpanKind::Server => 2,
        };
        if let Some(parent) = span.parent {
            match place_of(parent, piece, &self.here) {
                Some(place) => {
                    flags |= PARENT_HERE;
                    columns.parent_here.push(place);
                }
                None => {
                    flags |= PARENT_ELSEWHERE;
                    columns.parent_elsewhere.push_fixed(parent.0);
                }
            }
        }
        if let Some(remote) = &span.remote_service {
            flags |= REMOTE;
            columns.remote_service.push(words.shared(remote));
        }
        if let Some(error) = &span.error {
            flags |= ERROR;
            columns.error.push(words.name(error));
        }
        if span.trace != piece.trace {
            flags |= OTHER_TRACE;
            let (high, low) = halves(span.trace);
            columns.trace_high.push_fixed(high);
            columns.trace_low.push_fixed(low);
        }
        columns.flags.push(flags);
        columns.id.push_fixed(span.id.0);
        columns.name.push(words.name(&span.name));
        columns.service.push(words.shared(&span.service));
        columns.start.push_signed(self.start.of(span.start.0));
        columns.duration.push(span.duration.0);
        columns.annotations.push(span.annotations.len() as u32);
        columns.tags.push(span.tags.len() as u32);
        columns.links.push(span.links.len() as u32);
        self.details(span);
    }

    fn details(&mut self, span: &Span) {
        for (time, value) in &span.annotations {
            self.annotations.time.push_signed(time.0.wrapping_sub(span.start.0) as i64);
            self.annotations.value.push(self.words.name(value));
        }
        for (key, value) in &span.tags {
            self.tags.key.push(self.words.name(key));
            match value {
                TagValue::Number(number) => {
                    self.tags.value.push(0_u32);
                    self.tags.number.push_signed(*number);
                }
                TagValue::Text(words) => self.tags.value.push(self.words.name(words) + 1),
                TagValue::Shared(words) => self.tags.value.push(self.words.shared(words) + 1),
            }
        }
        for link in &span.links {
            let (high, low) = halves(link.trace);
            self.links.trace_high.push_fixed(high);
            self.links.trace_low.push_fixed(low);
            self.links.span.push_fixed(link.span.0);
            self.links.relation.push(self.words.name(&link.relation));
        }
    }
}

/// What a span takes at the most, as if all of its words were new.
fn span_bytes(span: &Span) -> usize {
    let may = |word: Option<&str>| word.map_or(0, in_record);
    let words = in_record(&span.name) + in_record(&span.service) + may(span.remote_service.as_deref());
    let annotations: usize =
        span.annotations.iter().map(|(_, value)| ANNOTATION_BYTES + in_record(value)).sum();
    let tags: usize =
        span.tags.iter().map(|(key, value)| TAG_BYTES + in_record(key) + may(value.words())).sum();
    let links: usize = span.links.iter().map(|link| LINK_BYTES + in_record(&link.relation)).sum();
    SPAN_BYTES + words + may(span.error.as_deref()) + annotations + tags + links
}

/// Where an id stands first in its piece.
fn place_of(id: SpanId, piece: &Piece, here: &HashMap<SpanId, u32>) -> Option<u32> {
    if piece.spans.len() > SEARCHED_MAX {
        return here.get(&id).copied();
    }
    piece.spans.iter().position(|span| span.id == id).map(|place| place as u32)
}

pub(super) fn halves(trace: TraceId) -> (u64, u64) {
    ((trace.0 >> 64) as u64, trace.0 as u64)
}
