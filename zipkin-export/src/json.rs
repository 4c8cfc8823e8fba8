//! One span as Zipkin v2 JSON.
//!
//! *In*: a [`Span`]. *Out*: one JSON object appended to a buffer that the caller reuses. *Invariant*: the bytes
//! are a function of the span alone, so that a span which is sent twice is the same span to Zipkin.
//!
//! What Zipkin has no place for becomes a tag:
//! - Zipkin counts in microseconds, and reads a duration of 0 as none. Both times are rounded down, a duration
//!   below 1 µs up to 1; the exact one is in tag `blkkin.duration.ns`.
//! - A span has one parent and no links: each link is a tag `link.0`, `link.1` … that says trace, span and
//!   relation.
//! - Any tag `error`, even an empty one, marks a span as failed: it is written from [`Span::error`] only.
//!
//! Zipkin lower-cases names of spans and services; that is done here, so that a file says what Zipkin will.
//!
//! *Rejected*: deriving serde for a mirror of `Span`: the mirror would be as long as this file, and the tags
//! that are made here would have to be allocated first.

use std::fmt;
use std::io::Write;

use blkkin_wire::span::{Span, SpanKind, SpanLink, TagValue};

/// A span's exact duration.
pub const DURATION_TAG: &str = "blkkin.duration.ns";
const ERROR_TAG: &str = "error";

/// Why no Zipkin would take a span: it would refuse the whole list in which the span stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// All zeros name nothing.
    #[error("its trace id is zero")]
    TraceIdZero,
    /// All zeros name nothing.
    #[error("its span id is zero")]
    SpanIdZero,
}

/// Whether a list that has this span in it would be taken, as Zipkin 3 has it.
pub fn check(span: &Span) -> Result<(), Unfit> {
    match span {
        _ if span.trace.0 == 0 => Err(Unfit::TraceIdZero),
        _ if span.id.0 == 0 => Err(Unfit::SpanIdZero),
        _ => Ok(()),
    }
}

/// Appends `span` to `out`.
pub fn encode(span: &Span, out: &mut Vec<u8>) {
    ids(span, out);
    match span.kind {
        SpanKind::Client => text(out, r#","kind":"CLIENT""#),
        SpanKind::Server => text(out, r#","kind":"SERVER""#),
        SpanKind::Local => {}
    }
    text(out, r#","name":"#);
    lower_case(&span.name, out);
    let duration = (span.duration.0 / 1000).max(1);
    put(out, format_args!(r#","timestamp":{},"duration":{duration}"#, span.start.micros()));
    endpoint("localEndpoint", &span.service, out);
    endpoint("remoteEndpoint", span.remote_service.as_deref().unwrap_or_default(), out);
    annotations(span, out);
    tags(span, out);
    out.push(b'}');
}

fn ids(span: &Span, out: &mut Vec<u8>) {
    // A trace id of 64 bits was given by a foreign tracer, which writes 16 digits, as Zipkin does.
    match u64::try_from(span.trace.0) {
        Ok(short) => put(out, format_args!(r#"{{"traceId":"{short:016x}""#)),
        Err(_) => put(out, format_args!(r#"{{"traceId":"{}""#, span.trace)),
    }
    if let Some(parent) = span.parent {
        put(out, format_args!(r#","parentId":"{parent}""#));
    }
    put(out, format_args!(r#","id":"{}""#, span.id));
}

fn endpoint(key: &str, service: &str, out: &mut Vec<u8>) {
    if !service.is_empty() {
        put(out, format_args!(r#","{key}":{{"serviceName":"#));
        lower_case(service, out);
        out.push(b'}');
    }
}

fn annotations(span: &Span, out: &mut Vec<u8>) {
    for (n, (time, value)) in span.annotations.iter().enumerate() {
        text(out, if n == 0 { r#","annotations":["# } else { "," });
        put(out, format_args!(r#"{{"timestamp":{},"value":"#, time.micros()));
        string(value, out);
        out.push(b'}');
    }
    if !span.annotations.is_empty() {
        out.push(b']');
    }
}

fn tags(span: &Span, out: &mut Vec<u8>) {
    text(out, r#","tags":{"#);
    let first = out.len();
    for (key, value) in span.tags.iter().filter(|(key, _)| key != ERROR_TAG) {
        tag_key(key, first, out);
        tag_value(value, out);
    }
    if !span.tags.iter().any(|(key, _)| key == DURATION_TAG) {
        tag_key(DURATION_TAG, first, out);
        put(out, format_args!("\"{}\"", span.duration.0));
    }
    for (n, link) in span.links.iter().enumerate() {
        separate(first, out);
        put(out, format_args!("\"link.{n}\":"));
        link_value(link, out);
    }
    if let Some(error) = &span.error {
        tag_key(ERROR_TAG, first, out);
        string(error, out);
    }
    out.push(b'}');
}

fn link_value(link: &SpanLink, out: &mut Vec<u8>) {
    string(&format!("trace={} span={} relation={}", link.trace, link.span, link.relation), out);
}

fn tag_key(key: &str, first: usize, out: &mut Vec<u8>) {
    separate(first, out);
    string(key, out);
    out.push(b':');
}

fn separate(first: usize, out: &mut Vec<u8>) {
    if out.len() > first {
        out.push(b',');
    }
}

fn tag_value(value: &TagValue, out: &mut Vec<u8>) {
    match value {
        TagValue::Text(words) => string(words, out),
        TagValue::Shared(words) => string(words, out),
        TagValue::Number(number) => put(out, format_args!("\"{number}\"")),
    }
}

fn lower_case(words: &str, out: &mut Vec<u8>) {
    if words.chars().any(char::is_uppercase) {
        string(&words.to_lowercase(), out);
    } else {
        string(words, out);
    }
}

fn string(words: &str, out: &mut Vec<u8>) {
    serde_json::to_writer(out, words).expect("invariant: a string is JSON, and a Vec takes all bytes");
}

fn put(out: &mut Vec<u8>, args: fmt::Arguments<'_>) {
    out.write_fmt(args).expect("invariant: a Vec takes all bytes");
}

fn text(out: &mut Vec<u8>, words: &str) {
    out.extend_from_slice(words.as_bytes());
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::testing::span;
    use blkkin_wire::clock::DurationNs;
    use blkkin_wire::ids::{SpanId, TraceId};
    use serde_json::Value;

    fn json(span: &Span) -> Value {
        let mut out = Vec::new();
        encode(span, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn a_duration_is_never_zero_and_stays_exact_in_its_tag() {
        for (ns, us) in
            [(0, 1), (1, 1), (999, 1), (1000, 1), (1999, 1), (2000, 2), (u64::MAX, u64::MAX / 1000)]
        {
            let json = json(&Span { duration: DurationNs(ns), ..span(1) });
            assert_eq!(json["duration"], us);
            assert_eq!(json["tags"][DURATION_TAG], ns.to_string());
        }
    }

    #[test]
    fn the_producers_own_duration_tag_wins() {
        let given = vec![(DURATION_TAG.into(), TagValue::Number(5))];
        let json = json(&Span { tags: given, duration: DurationNs(9), ..span(1) });
        assert_eq!(json["tags"], serde_json::json!({ DURATION_TAG: "5" }));
    }

    #[test]
    fn a_span_is_failed_only_by_its_error() {
        let tags = vec![(ERROR_TAG.into(), TagValue::Text("no".into()))];
        assert!(json(&Span { tags: tags.clone(), ..span(1) })["tags"].get(ERROR_TAG).is_none());
        let failed = Span { tags, error: Some("EIO".into()), ..span(1) };
        assert_eq!(json(&failed)["tags"][ERROR_TAG], "EIO");
    }

    #[test]
    fn every_character_survives() {
        let all: String =
            (0..0x500).chain(0x2020..0x2030).chain([0xfffd, 0x1f600]).filter_map(char::from_u32).collect();
        let tags = vec![("t".into(), TagValue::Shared(all.as_str().into()))];
        assert_eq!(json(&Span { tags, ..span(1) })["tags"]["t"], all);
    }

    #[test]
    fn names_are_lower_case_and_an_empty_service_is_none() {
        let json = json(&Span { name: "FSync".into(), service: "".into(), ..span(1) });
        assert_eq!(json["name"], "fsync");
        assert!(json.get("localEndpoint").is_none());
        assert!(json.get("remoteEndpoint").is_none());
    }

    #[test]
    fn short_trace_ids_have_16_digits() {
        assert_eq!(json(&Span { trace: TraceId(0xab), ..span(1) })["traceId"], "00000000000000ab");
        let long = Span { trace: TraceId(1 << 64), ..span(1) };
        assert_eq!(json(&long)["traceId"], "00000000000000010000000000000000");
    }

    #[test]
    fn zero_ids_are_unfit() {
        assert_eq!(check(&span(1)), Ok(()));
        assert_eq!(check(&Span { id: SpanId(0), ..span(1) }), Err(Unfit::SpanIdZero));
        assert_eq!(check(&Span { trace: TraceId(0), ..span(1) }), Err(Unfit::TraceIdZero));
    }
}
