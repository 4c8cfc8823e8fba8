//! One span in Zipkin's protobuf (zipkin.proto of openzipkin/zipkin-api, message `zipkin.proto3.Span`).
//!
//! *In*: a [`Span`]. *Out*: its bytes as an element of a `ListOfSpans`: such elements one after another are the list.
//! *Invariant*: Zipkin shows it as it shows the span that [`crate::json`] writes; what differs is the cost: of its formats
//! this one is read with the least work.

use std::borrow::Cow;
use std::fmt::Write as _;

use blkkin_wire::span::{Span, SpanKind};

use crate::protobuf as pb;
use crate::tags::{self, Value};

/// `ListOfSpans.spans`.
const LISTED: u32 = 1;

/// Appends `span` to `out`.
pub(crate) fn encode(span: &Span, out: &mut Vec<u8>) {
    pb::message(out, LISTED, |out| fields(span, out));
}

fn fields(span: &Span, out: &mut Vec<u8>) {
    // A trace id of 64 bits was given by a foreign tracer, which writes 8 bytes, as Zipkin does.
    match u64::try_from(span.trace.0) {
        Ok(short) => pb::bytes(out, 1, &short.to_be_bytes()),
        Err(_) => pb::bytes(out, 1, &span.trace.0.to_be_bytes()),
    }
    if let Some(parent) = span.parent {
        pb::bytes(out, 2, &parent.0.to_be_bytes());
    }
    pb::bytes(out, 3, &span.id.0.to_be_bytes());
    match span.kind {
        SpanKind::Client => pb::uint(out, 4, 1),
        SpanKind::Server => pb::uint(out, 4, 2),
        SpanKind::Local => {}
    }
    pb::text(out, 5, &lower_case(&span.name));
    pb::fixed64(out, 6, span.start.micros());
    pb::uint(out, 7, tags::micros(span));
    endpoint(8, &span.service, out);
    endpoint(9, span.remote_service.as_deref().unwrap_or_default(), out);
    for (time, value) in &span.annotations {
        pb::message(out, 10, |out| {
            pb::fixed64(out, 1, time.micros());
            pb::text(out, 2, value);
        });
    }
    let mut digits = String::new();
    tags::each(span, |key, value| {
        pb::message(out, 11, |out| {
            pb::text(out, 1, key);
            pb::text(out, 2, words(&value, &mut digits));
        });
    });
}

fn endpoint(field: u32, service: &str, out: &mut Vec<u8>) {
    if !service.is_empty() {
        pb::message(out, field, |out| pb::text(out, 1, &lower_case(service)));
    }
}

fn words<'a>(value: &'a Value<'_>, digits: &'a mut String) -> &'a str {
    digits.clear();
    // To a String it cannot fail.
    let _ = match value {
        Value::Words(words) => return words,
        Value::Number(number) => write!(digits, "{number}"),
        Value::Nanoseconds(number) => write!(digits, "{number}"),
    };
    digits
}

fn lower_case(words: &str) -> Cow<'_, str> {
    if words.chars().any(char::is_uppercase) { words.to_lowercase().into() } else { words.into() }
}
