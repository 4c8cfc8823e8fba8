//! Operations as columns.

use super::Malformed;
use super::column::columns;
use super::message::OperationEvents;
use super::read::Known;
use super::write::Shared;
use crate::clock::MonotonicNs;
use crate::ids::{Pid, SpanId, Tid, TraceId};
use crate::operation::{Note, NoteValue, OperationEvent, Outcome, WHOLE};
use crate::span::SpanKind;

const SERVER: u32 = 1 << 0;
const CLIENT: u32 = 1 << 1;
const PARENT: u32 = 1 << 2;
const FAILED: u32 = 1 << 3;
const UNFINISHED: u32 = 1 << 4;
const SAMPLED: u32 = 1 << 5;
/// It began in another thread than the process's first.
const THREAD: u32 = 1 << 6;

/// Its parent is of another process or node.
const CONTINUED: u32 = 1 << 7;

/// What a note is.
const MOMENT: u32 = 0;
const TEXT: u32 = 1;
const NUMBER: u32 = 2;

/// Columns while they are written.
#[derive(Default)]
pub(super) struct OperationWriter(OperationEvents);

impl OperationWriter {
    pub(super) fn put<'a>(&mut self, event: &'a OperationEvent, shared: &mut Shared<'a>) {
        let (columns, words) = (&mut self.0, &mut shared.words);
        let mut flags = match event.kind {
            SpanKind::Server => SERVER,
            SpanKind::Client => CLIENT,
            SpanKind::Local => 0,
        };
        columns.span.push(event.span.0);
        if let Some(parent) = event.parent {
            flags |= PARENT;
            columns.parent.push(parent.0);
        }
        if event.continued {
            flags |= CONTINUED;
        }
        columns.trace_high.push((event.trace.0 >> 64) as u64);
        columns.trace_low.push(event.trace.0 as u64);
        match event.outcome {
            Outcome::Done => {}
            Outcome::Failed(errno) => {
                flags |= FAILED;
                columns.errno.push(errno);
            }
            Outcome::Unfinished => flags |= UNFINISHED,
        }
        if event.kept != WHOLE {
            flags |= SAMPLED;
            columns.kept.push(event.kept);
        }
        columns.pid.push(event.pid.0);
        if event.tid.0 != event.pid.0 {
            flags |= THREAD;
            columns.tid.push(event.tid.0);
        }
        columns.flags.push(flags);
        columns.took.push(event.end.0.wrapping_sub(event.begin.0));
        columns.name.push(words.place(&event.name));
        columns.service.push(words.place(&event.service));
        columns.notes.push(event.notes.len() as u32);
        for note in &event.notes {
            columns.note_after.push(note.at.0.wrapping_sub(event.begin.0) as i64);
            columns.note_key.push(words.place(&note.key));
            columns.note_kind.push(match &note.value {
                NoteValue::Moment => MOMENT,
                NoteValue::Text(text) => {
                    columns.note_text.push(words.place(text));
                    TEXT
                }
                NoteValue::Number(number) => {
                    columns.note_number.push(*number);
                    NUMBER
                }
            });
        }
    }

    /// None where there was no operation, so that such a batch has no byte of them.
    pub(super) fn end(self) -> Option<OperationEvents> {
        (!self.0.flags.is_empty()).then_some(self.0)
    }
}

columns! {
    /// Columns while they are read.
    OperationReader of OperationEvents {
        flags: u32, span: u64, parent: u64, trace_high: u64, trace_low: u64, took: u64, name: u32, service: u32, pid: u32,
        tid: u32, errno: u32, kept: u32, notes: u32, note_after: i64, note_key: u32, note_kind: u32, note_text: u32,
        note_number: i64,
    } ids { }
}

impl OperationReader<'_> {
    /// The next.
    pub(super) fn next(&mut self, end: MonotonicNs, known: &Known<'_>) -> Result<OperationEvent, Malformed> {
        let flags = *self.flags.next()?;
        let begin = MonotonicNs(end.0.wrapping_sub(*self.took.next()?));
        let trace = u128::from(*self.trace_high.next()?) << 64 | u128::from(*self.trace_low.next()?);
        let pid = Pid(*self.pid.next()?);
        let errno = self.errno.next_if(flags & FAILED != 0)?;
        Ok(OperationEvent {
            span: SpanId(*self.span.next()?),
            parent: self.parent.next_if(flags & PARENT != 0)?.copied().map(SpanId),
            trace: TraceId(trace),
            continued: flags & CONTINUED != 0,
            kind: match (flags & SERVER != 0, flags & CLIENT != 0) {
                (true, _) => SpanKind::Server,
                (false, true) => SpanKind::Client,
                (false, false) => SpanKind::Local,
            },
            name: known.word(self.name.next()?, "OperationEvents.name")?,
            service: known.word(self.service.next()?, "OperationEvents.service")?,
            begin,
            end,
            pid,
            tid: self.tid.next_if(flags & THREAD != 0)?.map_or(Tid(pid.0), |tid| Tid(*tid)),
            outcome: match errno {
                Some(errno) => Outcome::Failed(*errno),
                None if flags & UNFINISHED != 0 => Outcome::Unfinished,
                None => Outcome::Done,
            },
            kept: self.kept.next_if(flags & SAMPLED != 0)?.copied().unwrap_or(WHOLE),
            notes: (0..*self.notes.next()?).map(|_| self.note(begin, known)).collect::<Result<_, _>>()?,
        })
    }

    fn note(&mut self, begin: MonotonicNs, known: &Known<'_>) -> Result<Note, Malformed> {
        let kind = *self.note_kind.next()?;
        Ok(Note {
            at: MonotonicNs(begin.0.wrapping_add_signed(*self.note_after.next()?)),
            key: known.word(self.note_key.next()?, "OperationEvents.note_key")?,
            value: match kind {
                MOMENT => NoteValue::Moment,
                TEXT => NoteValue::Text(known.word(self.note_text.next()?, "OperationEvents.note_text")?),
                NUMBER => NoteValue::Number(*self.note_number.next()?),
                _ => return Err(self.note_kind.refuse(kind.into())),
            },
        })
    }
}
