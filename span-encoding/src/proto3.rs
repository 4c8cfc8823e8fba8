//! Span in Zipkin's protobuf (zipkin.proto of openzipkin/zipkin-api, message `zipkin.proto3.Span`).
//!
//! *In*: a [`Span`]. *Out*: its bytes as an element of a `ListOfSpans`; concatenated elements are
//! the list. *Invariant*: Zipkin shows it exactly as the span that [`crate::json`] writes. Of
//! Zipkin's formats, this one is the cheapest to decode.

use std::borrow::Cow;
use std::fmt::Write as _;

use blkkin_wire::span::{Span, SpanKind};

use crate::protobuf as pb;
use crate::tags::{self, Value};

/// Field number of `ListOfSpans.spans`.
const LISTED: u32 = 1;

/// Appends `span` to `out`.
pub(crate) fn encode(span: &Span, out: &mut Vec<u8>) {
    pb::message(out, LISTED, |out| fields(span, out));
}

fn fields(span: &Span, out: &mut Vec<u8>) {
    // A 64-bit trace id comes from a foreign tracer, which writes 8 bytes, as Zipkin does.
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
    tags::for_each(span, |key, value| {
        pb::message(out, 11, |out| {
            pb::text(out, 1, key);
            pb::text(out, 2, text(&value, &mut digits));
        });
    });
}

fn endpoint(field: u32, service: &str, out: &mut Vec<u8>) {
    if !service.is_empty() {
        pb::message(out, field, |out| pb::text(out, 1, &lower_case(service)));
    }
}

fn text<'a>(value: &'a Value<'_>, digits: &'a mut String) -> &'a str {
    digits.clear();
    // Writing to a String cannot fail.
    let _ = match value {
        Value::Text(text) => return text,
        Value::Number(number) => write!(digits, "{number}"),
        Value::Nanoseconds(number) => write!(digits, "{number}"),
    };
    digits
}

fn lower_case(text: &str) -> Cow<'_, str> {
    if text.chars().any(char::is_uppercase) { text.to_lowercase().into() } else { text.into() }
}
