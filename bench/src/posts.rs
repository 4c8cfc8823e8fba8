//! Parser of the spans posted to Zipkin: consecutive HTTP/1.1 requests, each with a list of spans
//! in protobuf.
//!
//! *In*: bytes, split anywhere. *Out*: the spans of each complete request. A request that cannot be
//! parsed ends the benchmark with an error.

use anyhow::{Context, Result};
use prost::Message as _;

/// Fields of `zipkin.proto3.ListOfSpans` that are used (zipkin.proto of openzipkin/zipkin-api).
#[derive(Clone, PartialEq, prost::Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    spans: Vec<Posted>,
}

/// Fields of `zipkin.proto3.Span` that are used.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct Posted {
    #[prost(bytes = "vec", tag = "1")]
    pub(crate) trace: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(crate) name: String,
    /// Start in µs since the Unix epoch.
    #[prost(fixed64, tag = "6")]
    pub(crate) start: u64,
    /// Duration in µs.
    #[prost(uint64, tag = "7")]
    pub(crate) duration: u64,
}

impl Posted {
    /// Returns the end in µs since the Unix epoch.
    pub(crate) fn end(&self) -> u64 {
        self.start + self.duration
    }

    /// Returns the trace id.
    pub(crate) fn trace_id(&self) -> u128 {
        self.trace.iter().fold(0, |id, byte| id << 8 | u128::from(*byte))
    }
}

/// Parser of one connection.
#[derive(Default)]
pub(crate) struct PostParser {
    buffer: Vec<u8>,
}

impl PostParser {
    /// Appends received bytes.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        self.buffer.extend_from_slice(bytes);
    }

    /// Parses the spans of the next request; `None` until it is complete.
    pub(crate) fn next(&mut self) -> Option<Result<Vec<Posted>>> {
        let head = self.buffer.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let length = match content_length(&self.buffer[..head]) {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        };
        if self.buffer.len() < head + length {
            return None;
        }
        let body: Vec<u8> = self.buffer.drain(..head + length).skip(head).collect();
        Some(List::decode(body.as_slice()).map(|list| list.spans).context("no list of spans"))
    }
}

fn content_length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head).context("a request's head is no text")?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length
        .context("a request has no content-length")?
        .trim()
        .parse()
        .context("a request's content-length is not a number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_are_parsed_however_bytes_are_split() {
        let posted = |n: u8| Posted {
            trace: vec![0, n],
            name: "nbd read".to_owned(),
            start: 5,
            duration: u64::from(n),
        };
        let request = |spans: Vec<Posted>| {
            let body = List { spans }.encode_to_vec();
            let head = format!("POST /api/v2/spans HTTP/1.1\r\nContent-Length: {}\r\n\r\n", body.len());
            [head.as_bytes(), &body].concat()
        };
        let all = [request(vec![posted(1), posted(2)]), request(vec![posted(3)])].concat();
        for cut in 0..all.len() {
            let (mut parser, mut found) = (PostParser::default(), Vec::new());
            for part in [&all[..cut], &all[cut..]] {
                parser.take(part);
                while let Some(spans) = parser.next() {
                    found.extend(spans.unwrap());
                }
            }
            let decoded: Vec<_> = found.iter().map(|span| (span.trace_id(), span.end())).collect();
            assert_eq!(decoded, [(1, 6), (2, 7), (3, 8)]);
        }
    }

    #[test]
    fn request_without_length_is_an_error() {
        let mut parser = PostParser::default();
        parser.take(b"POST / HTTP/1.1\r\n\r\n");
        assert!(parser.next().unwrap().is_err());
    }
}
