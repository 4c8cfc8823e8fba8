//! Meetings as columns.

use super::Malformed;
use super::column::columns;
use super::ids::IdWriter;
use super::message::MeetingEvents;
use super::read::Known;
use super::write::Shared;
use crate::clock::MonotonicNs;
use crate::ids::SpanId;
use crate::meeting::{Meeting, MeetingEvent, Side};

pub(super) const ANSWERED: u32 = 1 << 0;
pub(super) const UNIQUE: u32 = 1 << 1;
/// The span is the root of its trace, which is not said again.
const ROOT: u32 = 1 << 2;
pub(super) const UNANSWERED: u32 = 1 << 3;

/// Columns while they are written.
#[derive(Default)]
pub(super) struct MeetingWriter {
    columns: MeetingEvents,
    span: IdWriter,
    root: IdWriter,
}

impl MeetingWriter {
    pub(super) fn put<'a>(&mut self, event: &'a MeetingEvent, shared: &mut Shared<'a>) {
        let columns = &mut self.columns;
        let mut flags = 0;
        if event.side == Side::Answered {
            flags |= ANSWERED;
        }
        if event.unique {
            flags |= UNIQUE;
        }
        if event.unanswered {
            flags |= UNANSWERED;
        }
        shared.origins.put(&mut self.span, event.span.0);
        if event.root == event.span {
            flags |= ROOT;
        } else {
            shared.origins.put(&mut self.root, event.root.0);
        }
        columns.flags.push(flags);
        columns.took.push(event.end.0.wrapping_sub(event.begin.0));
        columns.cookie.push(event.meeting.cookie);
        columns.rule.push(shared.words.place(&event.meeting.rule));
        columns.connection.push(shared.words.place(&event.meeting.connection));
    }

    /// None where there was no meeting, so that such a batch has no byte of them.
    pub(super) fn end(self) -> Option<MeetingEvents> {
        let MeetingWriter { columns, span, root } = self;
        let any = !columns.flags.is_empty();
        any.then(|| MeetingEvents { span: span.end(), root: root.end(), ..columns })
    }
}

columns! {
    /// Columns while they are read.
    MeetingReader of MeetingEvents {
        flags: u32, took: u64, rule: u32, connection: u32, cookie: u64,
    } ids { span, root }
}

impl MeetingReader<'_> {
    /// The next.
    pub(super) fn next(&mut self, end: MonotonicNs, known: &Known<'_>) -> Result<MeetingEvent, Malformed> {
        let flags = *self.flags.next()?;
        let span = SpanId(self.span.next(&known.ids)?);
        let root = self.root.next_if(flags & ROOT == 0, &known.ids)?.map_or(span, SpanId);
        Ok(MeetingEvent {
            span,
            root,
            side: if flags & ANSWERED != 0 { Side::Answered } else { Side::Asked },
            meeting: Meeting {
                rule: known.word(self.rule.next()?, "MeetingEvents.rule")?,
                connection: known.word(self.connection.next()?, "MeetingEvents.connection")?,
                cookie: *self.cookie.next()?,
            },
            unique: flags & UNIQUE != 0,
            unanswered: flags & UNANSWERED != 0,
            begin: MonotonicNs(end.0.wrapping_sub(*self.took.next()?)),
            end,
        })
    }
}
