//! The spans in what is posted to Zipkin: HTTP/1.1 requests one after another, each a list of spans in protobuf.
//!
//! *In*: bytes, cut anywhere. *Out*: the spans of each request that is whole. A request that is not understood ends it: there is then
//! nothing to measure, which the bench says.

use anyhow::{Context, Result};
use prost::Message as _;

/// `zipkin.proto3.ListOfSpans`, as far as it is of interest (zipkin.proto of openzipkin/zipkin-api).
#[derive(Clone, PartialEq, prost::Message)]
struct List {
    #[prost(message, repeated, tag = "1")]
    spans: Vec<Posted>,
}

/// `zipkin.proto3.Span`, likewise.
#[derive(Clone, PartialEq, prost::Message)]
pub(super) struct Posted {
    #[prost(bytes = "vec", tag = "1")]
    pub(super) trace: Vec<u8>,
    #[prost(string, tag = "5")]
    pub(super) name: String,
    /// µs since the Unix epoch.
    #[prost(fixed64, tag = "6")]
    pub(super) start: u64,
    /// µs.
    #[prost(uint64, tag = "7")]
    pub(super) duration: u64,
}

impl Posted {
    /// µs since the Unix epoch.
    pub(super) fn end(&self) -> u64 {
        self.start + self.duration
    }

    /// As it is asked for.
    pub(super) fn trace_id(&self) -> String {
        self.trace.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// One connection's.
#[derive(Default)]
pub(super) struct Posts {
    held: Vec<u8>,
}

impl Posts {
    /// Takes in what came.
    pub(super) fn take(&mut self, bytes: &[u8]) {
        self.held.extend_from_slice(bytes);
    }

    /// The spans of the next request; none until it is whole.
    pub(super) fn next(&mut self) -> Option<Result<Vec<Posted>>> {
        let head = self.held.windows(4).position(|window| window == b"\r\n\r\n")? + 4;
        let length = match content_length(&self.held[..head]) {
            Ok(length) => length,
            Err(error) => return Some(Err(error)),
        };
        if self.held.len() < head + length {
            return None;
        }
        let body: Vec<u8> = self.held.drain(..head + length).skip(head).collect();
        Some(List::decode(body.as_slice()).map(|list| list.spans).context("no list of spans"))
    }
}

fn content_length(head: &[u8]) -> Result<usize> {
    let head = std::str::from_utf8(head).context("a request's head is no text")?.to_ascii_lowercase();
    let length = head.lines().find_map(|line| line.strip_prefix("content-length:"));
    length.context("a request says no length")?.trim().parse().context("a request's length is no number")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_come_out_wherever_what_goes_by_is_cut() {
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
            let (mut posts, mut found) = (Posts::default(), Vec::new());
            for part in [&all[..cut], &all[cut..]] {
                posts.take(part);
                while let Some(spans) = posts.next() {
                    found.extend(spans.unwrap());
                }
            }
            let said: Vec<_> = found.iter().map(|span| (span.trace_id(), span.end())).collect();
            assert_eq!(said, [("0001".to_owned(), 6), ("0002".to_owned(), 7), ("0003".to_owned(), 8)]);
        }
    }

    #[test]
    fn a_request_of_no_length_is_an_error() {
        let mut posts = Posts::default();
        posts.take(b"POST / HTTP/1.1\r\n\r\n");
        assert!(posts.next().unwrap().is_err());
    }
}
