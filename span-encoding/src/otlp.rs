//! Spans in OpenTelemetry's protobuf (opentelemetry-proto 1.x: trace/v1/trace.proto,
//! collector/trace/v1/trace_service.proto).
//!
//! *In*: [`Span`]s. *Out*: an `ExportTraceServiceRequest`. *Invariant*: nothing is rounded or
//! needlessly converted to text. Times are in ns, numbers are `int_value`, links are links with
//! their relation as attribute `blkkin.relation`. The tag [`TRACE_STATE_TAG`] is the field `trace_state`. A remote service is `peer.service`; a failed span
//! has status ERROR with its reason.
//!
//! A service is a *resource* in OpenTelemetry: the spans of a request are grouped by it, in order
//! of first use.
//!
//! *Rejected*: the crate opentelemetry-proto, whose types bring the SDK (22 crates, including an
//! executor) and own each of their strings.

use std::sync::Arc;

use blkkin_wire::span::{Span, SpanKind, TRACE_STATE_TAG};

use crate::protobuf as pb;
use crate::tags::{ERROR_TAG, Value};

/// `SpanKind` and `Status.StatusCode` of trace.proto.
const INTERNAL: u64 = 1;
const SERVER: u64 = 2;
const CLIENT: u64 = 3;
const STATUS_ERROR: u64 = 2;

/// Maximum bytes of a group without its service name and its spans.
pub const GROUP_BYTES_MAX: usize = 80;

/// Appends the fields of `span` to `out`; [`request`] puts them into a group.
pub fn encode(span: &Span, out: &mut Vec<u8>) {
    pb::bytes(out, 1, &span.trace.0.to_be_bytes());
    pb::bytes(out, 2, &span.id.0.to_be_bytes());
    let is_state = |key: &str| key == TRACE_STATE_TAG;
    let state = span.tags.iter().find(|(key, _)| is_state(key)).map(|(_, state)| state.into());
    if let Some(Value::Text(state)) = state {
        pb::text(out, 3, state);
    }
    if let Some(parent) = span.parent {
        pb::bytes(out, 4, &parent.0.to_be_bytes());
    }
    pb::text(out, 5, &span.name);
    pb::uint(
        out,
        6,
        match span.kind {
            SpanKind::Local => INTERNAL,
            SpanKind::Server => SERVER,
            SpanKind::Client => CLIENT,
        },
    );
    pb::fixed64(out, 7, span.start.0);
    pb::fixed64(out, 8, span.start.0.saturating_add(span.duration.0));
    for (key, value) in span.tags.iter().filter(|(key, _)| key != ERROR_TAG && !is_state(key)) {
        attribute(9, key, &value.into(), out);
    }
    if let Some(remote) = &span.remote_service {
        attribute(9, "peer.service", &Value::Text(remote), out);
    }
    for (time, name) in &span.annotations {
        pb::message(out, 11, |out| {
            pb::fixed64(out, 1, time.0);
            pb::text(out, 2, name);
        });
    }
    for link in &span.links {
        pb::message(out, 13, |out| {
            pb::bytes(out, 1, &link.trace.0.to_be_bytes());
            pb::bytes(out, 2, &link.span.0.to_be_bytes());
            attribute(4, "blkkin.relation", &Value::Text(&link.relation), out);
        });
    }
    if let Some(error) = &span.error {
        pb::message(out, 15, |out| {
            pb::text(out, 2, error);
            pb::uint(out, 3, STATUS_ERROR);
        });
    }
}

fn attribute(field: u32, key: &str, value: &Value<'_>, out: &mut Vec<u8>) {
    pb::message(out, field, |out| {
        pb::text(out, 1, key);
        pb::message(out, 2, |out| match value {
            Value::Text(text) => pb::text(out, 1, text),
            Value::Number(number) => pb::int(out, 3, *number),
            Value::Nanoseconds(number) => pb::uint(out, 3, *number),
        });
    });
}

/// Appends a request of these spans, each with the index of its service in `services`.
pub fn request<'a>(
    services: &[Arc<str>],
    spans: impl Iterator<Item = (usize, &'a [u8])> + Clone,
    out: &mut Vec<u8>,
) {
    for (index, service) in services.iter().enumerate() {
        let mut own = spans.clone().filter(|(of, _)| *of == index).map(|(_, span)| span).peekable();
        if own.peek().is_none() {
            continue;
        }
        pb::message(out, 1, |out| {
            pb::message(out, 1, |out| attribute(1, "service.name", &Value::Text(service), out));
            pb::message(out, 2, |out| {
                pb::message(out, 1, |out| pb::text(out, 1, "blkkin"));
                own.for_each(|span| pb::bytes(out, 2, span));
            });
        });
    }
}

/// Returns the number of rejected spans in an `ExportTraceServiceResponse`, and the reason. The
/// response does not identify them.
pub fn rejected_spans(mut response: &[u8]) -> Option<(u64, String)> {
    // ExportTraceServiceResponse.partial_success = 1.
    let mut partial = field(&mut response, 1)?;
    let (mut spans, mut why) = (0, String::new());
    while let Some((number, value)) = next(&mut partial) {
        match (number, value) {
            (1, Field::Varint(rejected)) => spans = rejected,
            (2, Field::Bytes(text)) => why = String::from_utf8_lossy(text).into_owned(),
            _ => {}
        }
    }
    (spans > 0).then_some((spans, why))
}

enum Field<'a> {
    Varint(u64),
    Bytes(&'a [u8]),
    Other,
}

fn field<'a>(message: &mut &'a [u8], wanted: u64) -> Option<&'a [u8]> {
    loop {
        match next(message)? {
            (number, Field::Bytes(bytes)) if number == wanted => return Some(bytes),
            _ => {}
        }
    }
}

fn next<'a>(message: &mut &'a [u8]) -> Option<(u64, Field<'a>)> {
    let key = varint(message)?;
    let fixed = |message: &mut &'a [u8], length: usize| {
        let (value, rest) = message.split_at_checked(length)?;
        *message = rest;
        Some(value)
    };
    let value = match key & 7 {
        0 => Field::Varint(varint(message)?),
        1 => fixed(message, 8).map(|_| Field::Other)?,
        2 => {
            let length = usize::try_from(varint(message)?).ok()?;
            Field::Bytes(fixed(message, length)?)
        }
        5 => fixed(message, 4).map(|_| Field::Other)?,
        _ => return None,
    };
    Some((key >> 3, value))
}

fn varint(message: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in 0..10 {
        let (byte, rest) = message.split_first()?;
        *message = rest;
        value |= u64::from(byte & 0x7f) << (7 * shift);
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::span;

    #[test]
    fn response_has_the_number_of_rejected_spans() {
        assert_eq!(rejected_spans(&[]), None);
        let mut response = Vec::new();
        pb::message(&mut response, 1, |out| {
            pb::uint(out, 1, 3);
            pb::text(out, 2, "zero ids");
        });
        assert_eq!(rejected_spans(&response), Some((3, "zero ids".into())));
        // A warning: all spans were accepted.
        let mut response = Vec::new();
        pb::message(&mut response, 1, |out| pb::text(out, 2, "slow down"));
        assert_eq!(rejected_spans(&response), None);
        for cut in 0..response.len() {
            let _ = rejected_spans(&response[..cut]);
        }
    }

    #[test]
    fn the_trace_state_is_a_field_and_no_attribute() {
        let mut sampled = span(1);
        let plain = |span: &Span| {
            let mut bytes = Vec::new();
            encode(span, &mut bytes);
            bytes
        };
        let without = plain(&sampled);
        let state = blkkin_wire::span::TagValue::Text("ot=th:c".into());
        sampled.tags.push((TRACE_STATE_TAG.into(), state));
        let with = plain(&sampled);
        // Field 3, of 7 bytes.
        let expected = [&[3 << 3 | 2, 7][..], b"ot=th:c"].concat();
        assert_eq!(with.len(), without.len() + expected.len());
        assert!(with.windows(expected.len()).any(|window| window == expected));
    }

    #[test]
    fn spans_are_grouped_by_service() {
        let mut one = Vec::new();
        encode(&span(1), &mut one);
        let (services, spans) =
            ([Arc::from("a"), Arc::from("b"), Arc::from("c")], [(0, &one[..]), (1, &one), (0, &one)]);
        let mut out = Vec::new();
        request(&services, spans.into_iter(), &mut out);
        let (mut rest, mut groups) = (&out[..], 0);
        while field(&mut rest, 1).is_some() {
            groups += 1;
        }
        assert_eq!(groups, 2);
    }
}
