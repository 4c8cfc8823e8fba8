//! Translation of NBD records. Protocol numbers are those of doc/proto.md of NBD.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use blkkin_probe_abi::record as raw;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SAMPLE_RATE_ALL, SpanStatus};
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};
use blkkin_wire::remote_link::RpcKey;
use blkkin_wire::span::SpanKind;

/// Bytes of a request's header.
const HEADER: u64 = 28;
/// NBD_CMD_WRITE; its data follow the header.
const WRITE: u16 = 1;
/// NBD_CMD_DISC.
const DISCONNECT: u16 = 2;
/// NBD_REPLY_FLAG_DONE.
const REPLY_DONE: u16 = 1;
/// Bit 15 of a chunk's type: "error".
const ERROR: u16 = 1 << 15;
/// include/linux/socket.h
const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// Outcome of a request.
pub(crate) enum ReplyOutcome {
    /// The request was not sent.
    NotSent,
    /// The server reports success.
    Done,
    /// The server reports this errno.
    Failed(u32),
    /// The server reports an error without its number; `last` if no further chunk follows.
    FailedUnknown { last: bool },
}

pub(crate) fn is_disconnect(record: &raw::NbdRequestRecord) -> bool {
    record.command == DISCONNECT
}

/// Creates the request's client span, without its end.
pub(crate) fn client_span(
    record: &raw::NbdRequestRecord,
    trace: TraceId,
    service: Box<str>,
) -> DaemonSpanEvent {
    let begin = MonotonicNs(record.header.time_ns);
    let number = |key: &str, value: i64| Annotation {
        time: begin,
        key: key.into(),
        value: AnnotationValue::Number(value),
    };
    // Stored as signed 64 bits: no file is longer, and a cookie is opaque.
    let mut notes = vec![
        number("nbd.offset", record.offset as i64),
        number("nbd.length", record.length.into()),
        number("nbd.cookie", record.cookie as i64),
    ];
    if record.command_flags != 0 {
        notes.push(number("nbd.flags", record.command_flags.into()));
    }
    DaemonSpanEvent {
        span: SpanId(record.span),
        parent: None,
        parent_is_remote: false,
        trace,
        kind: SpanKind::Client,
        name: name(record.command).into(),
        service,
        begin,
        end: begin,
        pid: Pid(record.pid),
        tid: Tid(record.tid),
        status: SpanStatus::Ok,
        sample_rate: SAMPLE_RATE_ALL,
        annotations: notes,
    }
}

/// Returns the range of the request's bytes in its connection's stream.
pub(crate) fn bytes(record: &raw::NbdRequestRecord) -> Range<u64> {
    let data = if record.command == WRITE { record.length.into() } else { 0 };
    let end = if record.stream_offset == 0 { 0 } else { record.stream_offset.saturating_add(HEADER + data) };
    record.stream_offset..end
}

/// Returns the key that links the request to the server's span, and whether it is unique.
///
/// Between two machines the key is the position in the stream (`nbd-server/src/request_span.rs`
/// computes the same) and the last 16 bits of the cookie; no other request of the connection has
/// it. Within one machine the key is the cookie: one clock separates requests that reuse it, and
/// the server needs nothing but the protocol's own number.
pub(crate) fn rpc_key(record: &raw::NbdRequestRecord, boot: &str) -> Option<(RpcKey, bool)> {
    let connection = connection(record, boot)?;
    let far = record.stream_offset != 0 && remote(record).is_some_and(|address| !address.is_loopback());
    let (rule, cookie) = match far {
        true => ("nbd-stream", record.stream_offset << 16 | record.cookie & 0xffff),
        false => ("nbd", record.cookie),
    };
    Some((RpcKey { protocol: rule.into(), connection, cookie }, far))
}

/// Returns the name of the operation, as in the server's span (`nbd-server/src/request_span.rs`).
fn name(command: u16) -> &'static str {
    match command {
        0 => "nbd read",
        1 => "nbd write",
        DISCONNECT => "nbd disconnect",
        3 => "nbd flush",
        4 => "nbd trim",
        5 => "nbd cache",
        6 => "nbd write zeroes",
        7 => "nbd block status",
        8 => "nbd resize",
        _ => "nbd unknown",
    }
}

/// Returns the connection name, as the server computes it (`nbd-server/src/connection_name.rs`);
/// none for address families without one.
pub(crate) fn connection(record: &raw::NbdRequestRecord, boot: &str) -> Option<Box<str>> {
    let name = match record.family {
        AF_UNIX if record.remote[0] != 0 && !boot.is_empty() => {
            format!("unix:{boot}:{}>{}", record.local[0], record.remote[0])
        }
        AF_INET => {
            let ends = (inet(record.local), inet(record.remote));
            tcp(ends.0.into(), ends.1.into(), record)
        }
        AF_INET6 => {
            let ends = (inet6(record.local), inet6(record.remote));
            // A dual-stack socket has an IPv4 peer as `::ffff:10.0.0.1`; the peer does not.
            tcp(ends.0.to_canonical(), ends.1.to_canonical(), record)
        }
        _ => return None,
    };
    Some(name.into())
}

fn remote(record: &raw::NbdRequestRecord) -> Option<IpAddr> {
    match record.family {
        AF_INET => Some(inet(record.remote).into()),
        AF_INET6 => Some(inet6(record.remote).to_canonical()),
        _ => None,
    }
}

fn tcp(local: IpAddr, remote: IpAddr, record: &raw::NbdRequestRecord) -> String {
    let local = SocketAddr::new(local, record.local_port);
    format!("{local}>{}", SocketAddr::new(remote, u16::from_be(record.remote_port)))
}

/// Bytes are in network order, at the start of the words.
fn inet([word, _]: [u64; 2]) -> Ipv4Addr {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    Ipv4Addr::new(a, b, c, d)
}

fn inet6([first, second]: [u64; 2]) -> Ipv6Addr {
    let (first, second) = (u64::from_be(first), u64::from_be(second));
    Ipv6Addr::from_bits(u128::from(first) << 64 | u128::from(second))
}

/// Returns the errno with which the connection ended, or 0; none if the record is a reply.
pub(crate) fn connection_error(record: &raw::NbdReplyRecord) -> Option<u32> {
    (record.header.flags & raw::NBD_ENDED != 0).then_some(record.error)
}

pub(crate) fn reply_outcome(record: &raw::NbdReplyRecord) -> ReplyOutcome {
    let has = |flag| record.header.flags & flag != 0;
    if has(raw::NBD_WITHDRAWN) {
        ReplyOutcome::NotSent
    } else if has(raw::NBD_STRUCTURED) && record.kind & ERROR != 0 {
        ReplyOutcome::FailedUnknown { last: record.kind_flags & REPLY_DONE != 0 }
    } else if !has(raw::NBD_STRUCTURED) && record.error != 0 {
        ReplyOutcome::Failed(record.error)
    } else {
        ReplyOutcome::Done
    }
}
