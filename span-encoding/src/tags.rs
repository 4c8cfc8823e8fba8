//! Tags of a span for Zipkin: fields without an equivalent in Zipkin become tags.
//!
//! - Zipkin counts in microseconds and treats a duration of 0 as none. Times are rounded down, and
//!   a duration below 1 µs becomes 1; the exact duration is in tag `blkkin.duration.ns`.
//! - A span has one parent and no links: each link becomes a tag `link.0`, `link.1` … with trace,
//!   span and relation.
//! - A tag `error`, even an empty one, marks a span as failed: only [`Span::error`] creates it.
//!
//! *Invariant*: both Zipkin formats use this module, so a span is the same in either.

use blkkin_wire::span::{Span, TagValue};

/// Tag with the exact duration of a span.
pub const DURATION_TAG: &str = "blkkin.duration.ns";
pub(crate) const ERROR_TAG: &str = "error";

/// Value of a tag.
pub(crate) enum Value<'a> {
    Text(&'a str),
    Number(i64),
    Nanoseconds(u64),
}

impl<'a> From<&'a TagValue> for Value<'a> {
    fn from(value: &'a TagValue) -> Self {
        match value {
            TagValue::Text(text) => Value::Text(text),
            TagValue::Shared(text) => Value::Text(text),
            TagValue::Number(number) => Value::Number(*number),
        }
    }
}

/// Returns the duration in µs for Zipkin.
pub(crate) fn micros(span: &Span) -> u64 {
    (span.duration.0 / 1000).max(1)
}

/// Calls `emit` for each tag, in order.
pub(crate) fn for_each(span: &Span, mut emit: impl FnMut(&str, Value<'_>)) {
    for (key, value) in span.tags.iter().filter(|(key, _)| key != ERROR_TAG) {
        emit(key, value.into());
    }
    if !span.tags.iter().any(|(key, _)| key == DURATION_TAG) {
        emit(DURATION_TAG, Value::Nanoseconds(span.duration.0));
    }
    for (n, link) in span.links.iter().enumerate() {
        let text = format!("trace={} span={} relation={}", link.trace, link.span, link.relation);
        emit(&format!("link.{n}"), Value::Text(&text));
    }
    if let Some(error) = &span.error {
        emit(ERROR_TAG, Value::Text(error));
    }
}
