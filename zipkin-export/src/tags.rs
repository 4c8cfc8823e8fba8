//! A span's tags as Zipkin has them: what Zipkin has no place for becomes a tag.
//!
//! - Zipkin counts in microseconds, and reads a duration of 0 as none. Both times are rounded down, a duration
//!   below 1 µs up to 1; the exact one is in tag `blkkin.duration.ns`.
//! - A span has one parent and no links: each link is a tag `link.0`, `link.1` … that says trace, span and
//!   relation.
//! - Any tag `error`, even an empty one, marks a span as failed: it is written from [`Span::error`] only.
//!
//! *Invariant*: every format of Zipkin's asks here, so a span is the same to it by whatever way it comes.

use blkkin_wire::span::{Span, TagValue};

/// A span's exact duration.
pub const DURATION_TAG: &str = "blkkin.duration.ns";
pub(crate) const ERROR_TAG: &str = "error";

/// What a tag says.
pub(crate) enum Value<'a> {
    Words(&'a str),
    Number(i64),
    Nanoseconds(u64),
}

impl<'a> From<&'a TagValue> for Value<'a> {
    fn from(value: &'a TagValue) -> Self {
        match value {
            TagValue::Text(words) => Value::Words(words),
            TagValue::Shared(words) => Value::Words(words),
            TagValue::Number(number) => Value::Number(*number),
        }
    }
}

/// Microseconds for Zipkin.
pub(crate) fn micros(span: &Span) -> u64 {
    (span.duration.0 / 1000).max(1)
}

/// Gives each tag, in the order in which they stand.
pub(crate) fn each(span: &Span, mut give: impl FnMut(&str, Value<'_>)) {
    for (key, value) in span.tags.iter().filter(|(key, _)| key != ERROR_TAG) {
        give(key, value.into());
    }
    if !span.tags.iter().any(|(key, _)| key == DURATION_TAG) {
        give(DURATION_TAG, Value::Nanoseconds(span.duration.0));
    }
    for (n, link) in span.links.iter().enumerate() {
        let words = format!("trace={} span={} relation={}", link.trace, link.span, link.relation);
        give(&format!("link.{n}"), Value::Words(&words));
    }
    if let Some(error) = &span.error {
        give(ERROR_TAG, Value::Words(error));
    }
}
