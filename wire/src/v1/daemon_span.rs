//! Columns of daemon spans.

use super::Malformed;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::message::DaemonSpanEvents;
use crate::clock::MonotonicNs;
use crate::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SAMPLE_RATE_ALL, SpanStatus};
use crate::ids::{Pid, SpanId, Tid, TraceId};
use crate::span::SpanKind;

const SERVER: u32 = 1 << 0;
const CLIENT: u32 = 1 << 1;
const PARENT: u32 = 1 << 2;
const FAILED: u32 = 1 << 3;
const UNFINISHED: u32 = 1 << 4;
const SAMPLED: u32 = 1 << 5;
/// The span began in a thread other than the main thread.
const THREAD: u32 = 1 << 6;

/// The parent belongs to another process or node.
const PARENT_IS_REMOTE: u32 = 1 << 7;

/// Annotation kinds.
const EVENT: u32 = 0;
const TEXT: u32 = 1;
const NUMBER: u32 = 2;

/// Writer of daemon span columns.
#[derive(Default)]
pub(super) struct DaemonSpanWriter(DaemonSpanEvents);

impl DaemonSpanWriter {
    pub(super) fn put<'a>(&mut self, event: &'a DaemonSpanEvent, tables: &mut EncodeTables<'a>) {
        let (columns, strings) = (&mut self.0, &mut tables.strings);
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
        if event.parent_is_remote {
            flags |= PARENT_IS_REMOTE;
        }
        columns.trace_high.push((event.trace.0 >> 64) as u64);
        columns.trace_low.push(event.trace.0 as u64);
        match event.status {
            SpanStatus::Ok => {}
            SpanStatus::Error(errno) => {
                flags |= FAILED;
                columns.errno.push(errno);
            }
            SpanStatus::Unfinished => flags |= UNFINISHED,
        }
        if event.sample_rate != SAMPLE_RATE_ALL {
            flags |= SAMPLED;
            columns.sample_rate.push(event.sample_rate);
        }
        columns.pid.push(event.pid.0);
        if event.tid.0 != event.pid.0 {
            flags |= THREAD;
            columns.tid.push(event.tid.0);
        }
        columns.flags.push(flags);
        columns.duration.push(event.end.0.wrapping_sub(event.begin.0));
        columns.name.push(strings.intern(&event.name));
        columns.service.push(strings.intern(&event.service));
        columns.annotations.push(event.annotations.len() as u32);
        for annotation in &event.annotations {
            columns.annotation_after.push(annotation.time.0.wrapping_sub(event.begin.0) as i64);
            columns.annotation_key.push(strings.intern(&annotation.key));
            columns.annotation_kind.push(match &annotation.value {
                AnnotationValue::Event => EVENT,
                AnnotationValue::Text(text) => {
                    columns.annotation_text.push(strings.intern(text));
                    TEXT
                }
                AnnotationValue::Number(number) => {
                    columns.annotation_number.push(*number);
                    NUMBER
                }
            });
        }
    }

    /// Returns the message; none without spans, so that such a batch has no bytes for them.
    pub(super) fn end(self) -> Option<DaemonSpanEvents> {
        (!self.0.flags.is_empty()).then_some(self.0)
    }
}

columns! {
    /// Reader of daemon span columns.
    DaemonSpanReader of DaemonSpanEvents {
        flags: u32, span: u64, parent: u64, trace_high: u64, trace_low: u64, duration: u64, name: u32, service: u32, pid: u32,
        tid: u32, errno: u32, sample_rate: u32, annotations: u32, annotation_after: i64, annotation_key: u32, annotation_kind: u32, annotation_text: u32,
        annotation_number: i64,
    } ids { }
}

impl DaemonSpanReader<'_> {
    /// Reads the next span.
    pub(super) fn next(
        &mut self,
        end: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<DaemonSpanEvent, Malformed> {
        let flags = *self.flags.next()?;
        let begin = MonotonicNs(end.0.wrapping_sub(*self.duration.next()?));
        let trace = u128::from(*self.trace_high.next()?) << 64 | u128::from(*self.trace_low.next()?);
        let pid = Pid(*self.pid.next()?);
        let errno = self.errno.next_if(flags & FAILED != 0)?;
        Ok(DaemonSpanEvent {
            span: SpanId(*self.span.next()?),
            parent: self.parent.next_if(flags & PARENT != 0)?.copied().map(SpanId),
            trace: TraceId(trace),
            parent_is_remote: flags & PARENT_IS_REMOTE != 0,
            kind: match (flags & SERVER != 0, flags & CLIENT != 0) {
                (true, _) => SpanKind::Server,
                (false, true) => SpanKind::Client,
                (false, false) => SpanKind::Local,
            },
            name: tables.string(self.name.next()?, "DaemonSpanEvents.name")?,
            service: tables.string(self.service.next()?, "DaemonSpanEvents.service")?,
            begin,
            end,
            pid,
            tid: self.tid.next_if(flags & THREAD != 0)?.map_or(Tid(pid.0), |tid| Tid(*tid)),
            status: match errno {
                Some(errno) => SpanStatus::Error(*errno),
                None if flags & UNFINISHED != 0 => SpanStatus::Unfinished,
                None => SpanStatus::Ok,
            },
            sample_rate: self.sample_rate.next_if(flags & SAMPLED != 0)?.copied().unwrap_or(SAMPLE_RATE_ALL),
            annotations: (0..*self.annotations.next()?)
                .map(|_| self.annotation(begin, tables))
                .collect::<Result<_, _>>()?,
        })
    }

    fn annotation(&mut self, begin: MonotonicNs, tables: &DecodeTables<'_>) -> Result<Annotation, Malformed> {
        let kind = *self.annotation_kind.next()?;
        Ok(Annotation {
            time: MonotonicNs(begin.0.wrapping_add_signed(*self.annotation_after.next()?)),
            key: tables.string(self.annotation_key.next()?, "DaemonSpanEvents.annotation_key")?,
            value: match kind {
                EVENT => AnnotationValue::Event,
                TEXT => AnnotationValue::Text(
                    tables.string(self.annotation_text.next()?, "DaemonSpanEvents.annotation_text")?,
                ),
                NUMBER => AnnotationValue::Number(*self.annotation_number.next()?),
                _ => return Err(self.annotation_kind.refuse(kind.into())),
            },
        })
    }
}
