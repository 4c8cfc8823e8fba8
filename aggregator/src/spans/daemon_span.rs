//! Span of a daemon's own work: the daemon's annotations, and blkkin's tags.

use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SAMPLE_RATE_ALL, SpanStatus};
use blkkin_wire::span::Span;

use super::error;
use super::placement::{SpanHeader, SpanPlacement};
use super::process_tags::machine_tags;
use super::tags::Tags;

/// Adds the span of a daemon span event.
pub(super) fn add(placement: &SpanPlacement<'_>, event: &DaemonSpanEvent, spans: &mut Vec<Span>) {
    let mut span = placement.span(SpanHeader {
        id: event.span,
        parent: event.parent,
        // Lower case is the convention. Its cardinality is that of the daemon's names.
        name: event.name.to_lowercase().into(),
        service: (&*event.service).into(),
        kind: event.kind,
        start: event.begin,
        end: event.end,
    });
    let mut tags = Tags::of_block_io();
    for Annotation { time: at, key, value } in &event.annotations {
        match value {
            AnnotationValue::Event => {
                span.annotations.push((placement.anchor.wallclock(*at), key.to_string().into()))
            }
            AnnotationValue::Text(text) => tags.application_text(key.to_string(), text),
            AnnotationValue::Number(number) => tags.application_number(key.to_string(), *number),
        }
    }
    // 0: the pid in the initial pid namespace is unknown.
    if event.pid.0 != 0 {
        tags.number("process.pid", event.pid.0);
        tags.number("thread.id", event.tid.0);
    }
    machine_tags(placement.trace, &mut tags);
    match event.status {
        SpanStatus::Ok => {}
        SpanStatus::Error(errno) => {
            let errno = errno.try_into().unwrap_or(i32::MAX);
            span.error = Some(error::of_errno(errno));
            tags.owned("error.type", error::kind(errno));
        }
        SpanStatus::Unfinished => {
            // A span of an observed process (NBD client) has the state of the reply as an
            // annotation.
            let why = match event.annotations.iter().any(|note| &*note.key == "nbd.reply") {
                true => "no reply was observed",
                false => "no end event: its process was killed or ended first, or the event was lost",
            };
            span.error = Some(why.into());
            tags.text("blkkin.incomplete", why);
        }
    }
    if event.sample_rate != SAMPLE_RATE_ALL {
        tags.number("blkkin.sampled_per_million", event.sample_rate);
    }
    tags.times(event.begin, event.end);
    placement.root_tags(&mut tags);
    span.tags = tags.0;
    spans.push(span);
}
