//! A daemon's own operation as a span: its words, and what blkkin has to add.

use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SAMPLE_RATE_ALL, SpanStatus};
use blkkin_wire::span::Span;

use super::error;
use super::place::{Outline, Place};
use super::tags::Tags;

/// Adds it.
pub(super) fn add(place: &Place<'_>, operation: &DaemonSpanEvent, spans: &mut Vec<Span>) {
    let mut span = place.span(Outline {
        id: operation.span,
        parent: operation.parent,
        // One span's name is of low cardinality if those that the daemon gives are, and small letters are the custom.
        name: operation.name.to_lowercase().into(),
        service: (&*operation.service).into(),
        kind: operation.kind,
        start: operation.begin,
        end: operation.end,
    });
    let mut tags = Tags::of_block_io();
    for Annotation { time: at, key, value } in &operation.annotations {
        match value {
            AnnotationValue::Event => {
                span.annotations.push((place.anchor.wallclock(*at), key.to_string().into()))
            }
            AnnotationValue::Text(text) => tags.said(key, text),
            AnnotationValue::Number(number) => tags.said_number(key, *number),
        }
    }
    // 0: what its program is called in the initial pid namespace was never heard.
    if operation.pid.0 != 0 {
        tags.number("process.pid", operation.pid.0);
        tags.number("thread.id", operation.tid.0);
    }
    match operation.status {
        SpanStatus::Ok => {}
        SpanStatus::Error(errno) => {
            let errno = errno.try_into().unwrap_or(i32::MAX);
            span.error = Some(error::of_errno(errno));
            tags.owned("error.type", error::kind(errno));
        }
        SpanStatus::Unfinished => {
            // Who is watched from outside says nothing itself, and of its request it is noted what became of the reply.
            let why = match operation.annotations.iter().any(|note| &*note.key == "nbd.reply") {
                true => "its answer was never seen",
                false => {
                    "its end was never said: its process was killed or ended first, or the event was lost"
                }
            };
            span.error = Some(why.into());
            tags.text("blkkin.incomplete", why);
        }
    }
    if operation.sample_rate != SAMPLE_RATE_ALL {
        tags.number("blkkin.kept_per_million", operation.sample_rate);
    }
    tags.times(operation.begin, operation.end);
    place.root_tags(&mut tags);
    span.tags = tags.0;
    spans.push(span);
}
