//! Span as Zipkin v2 JSON.
//!
//! *In*: a [`Span`]. *Out*: one JSON object appended to a buffer that the caller reuses.
//! *Invariant*: the bytes are a function of the span alone, so a span sent twice is one span to
//! Zipkin.
//!
//! Fields without an equivalent in Zipkin become tags, see `tags.rs`. Zipkin converts span and
//! service names to lower case; this module does the same, so a file has the names that Zipkin
//! shows.
//!
//! *Rejected*: deriving serde for a mirror of `Span`: the mirror would be as long as this file, and
//! the generated tags would have to be allocated first.

use std::fmt;
use std::io::Write;

use blkkin_wire::span::{Span, SpanKind};

pub use crate::tags::DURATION_TAG;
use crate::tags::{self, Value};

/// Reason why Zipkin rejects a span, and with it the whole list that contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidSpan {
    /// The trace id is zero.
    #[error("its trace id is zero")]
    TraceIdZero,
    /// The span id is zero.
    #[error("its span id is zero")]
    SpanIdZero,
}

/// Checks whether Zipkin 3 accepts a list with this span.
pub fn check(span: &Span) -> Result<(), InvalidSpan> {
    match span {
        _ if span.trace.0 == 0 => Err(InvalidSpan::TraceIdZero),
        _ if span.id.0 == 0 => Err(InvalidSpan::SpanIdZero),
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
    let duration = tags::micros(span);
    put(out, format_args!(r#","timestamp":{},"duration":{duration}"#, span.start.micros()));
    endpoint("localEndpoint", &span.service, out);
    endpoint("remoteEndpoint", span.remote_service.as_deref().unwrap_or_default(), out);
    annotations(span, out);
    write_tags(span, out);
    out.push(b'}');
}

fn ids(span: &Span, out: &mut Vec<u8>) {
    // A 64-bit trace id comes from a foreign tracer, which writes 16 digits, as Zipkin does.
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

fn write_tags(span: &Span, out: &mut Vec<u8>) {
    text(out, r#","tags":{"#);
    let first = out.len();
    tags::for_each(span, |key, value| {
        if out.len() > first {
            out.push(b',');
        }
        string(key, out);
        out.push(b':');
        match value {
            Value::Text(words) => string(words, out),
            Value::Number(number) => put(out, format_args!("\"{number}\"")),
            Value::Nanoseconds(number) => put(out, format_args!("\"{number}\"")),
        }
    });
    out.push(b'}');
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
    use crate::tags::ERROR_TAG;
    use crate::testing::span;
    use blkkin_wire::clock::DurationNs;
    use blkkin_wire::ids::{SpanId, TraceId};
    use blkkin_wire::span::TagValue;
    use serde_json::Value;

    fn json(span: &Span) -> Value {
        let mut out = Vec::new();
        encode(span, &mut out);
        serde_json::from_slice(&out).unwrap()
    }

    #[test]
    fn duration_is_at_least_1_us_and_exact_in_its_tag() {
        for (ns, us) in
            [(0, 1), (1, 1), (999, 1), (1000, 1), (1999, 1), (2000, 2), (u64::MAX, u64::MAX / 1000)]
        {
            let json = json(&Span { duration: DurationNs(ns), ..span(1) });
            assert_eq!(json["duration"], us);
            assert_eq!(json["tags"][DURATION_TAG], ns.to_string());
        }
    }

    #[test]
    fn duration_tag_of_the_producer_takes_precedence() {
        let given = vec![(DURATION_TAG.into(), TagValue::Number(5))];
        let json = json(&Span { tags: given, duration: DurationNs(9), ..span(1) });
        assert_eq!(json["tags"], serde_json::json!({ DURATION_TAG: "5" }));
    }

    #[test]
    fn only_the_error_field_marks_a_span_as_failed() {
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
    fn names_are_lower_case_and_empty_services_are_omitted() {
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
    fn zero_ids_are_invalid() {
        assert_eq!(check(&span(1)), Ok(()));
        assert_eq!(check(&Span { id: SpanId(0), ..span(1) }), Err(InvalidSpan::SpanIdZero));
        assert_eq!(check(&Span { trace: TraceId(0), ..span(1) }), Err(InvalidSpan::TraceIdZero));
    }
}
