//! NBD's records in events' words. Numbers are those of doc/proto.md of NBD.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::ops::Range;

use blkkin_probe_abi::record as raw;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};
use blkkin_wire::meeting::Meeting;
use blkkin_wire::operation::{Note, NoteValue, OperationEvent, Outcome, WHOLE};
use blkkin_wire::span::SpanKind;

/// Of a request's header.
const HEADER: u64 = 28;
/// NBD_CMD_WRITE: its data follow the header.
const WRITE: u16 = 1;
/// NBD_CMD_DISC.
const DISCONNECT: u16 = 2;
/// NBD_REPLY_FLAG_DONE.
const LAST: u16 = 1;
/// Bit 15 of a chunk's type: "error".
const ERROR: u16 = 1 << 15;
/// include/linux/socket.h
const AF_UNIX: u16 = 1;
const AF_INET: u16 = 2;
const AF_INET6: u16 = 10;

/// What a request was told.
pub(crate) enum Answer {
    /// It was not sent.
    Withdrawn,
    /// All went well.
    Done,
    /// This went wrong.
    Failed(u32),
    /// Something did; whether this is all that is said of it.
    FailedSomehow { last: bool },
}

pub(crate) fn is_farewell(record: &raw::NbdAsked) -> bool {
    record.command == DISCONNECT
}

/// The request as an operation that has no end yet.
pub(crate) fn operation(record: &raw::NbdAsked, trace: TraceId, service: Box<str>) -> OperationEvent {
    let begin = MonotonicNs(record.header.time_ns);
    let number = |key: &str, value: i64| Note { at: begin, key: key.into(), value: NoteValue::Number(value) };
    // Signed by 64 bits: no file is longer; and a cookie is any 64 bits.
    let mut notes = vec![
        number("nbd.offset", record.offset as i64),
        number("nbd.length", record.length.into()),
        number("nbd.cookie", record.cookie as i64),
    ];
    if record.command_flags != 0 {
        notes.push(number("nbd.flags", record.command_flags.into()));
    }
    OperationEvent {
        span: SpanId(record.span),
        parent: None,
        continued: false,
        trace,
        kind: SpanKind::Client,
        name: name(record.command).into(),
        service,
        begin,
        end: begin,
        pid: Pid(record.pid),
        tid: Tid(record.tid),
        outcome: Outcome::Done,
        kept: WHOLE,
        notes,
    }
}

/// Its bytes in the stream of its connection.
pub(crate) fn bytes(record: &raw::NbdAsked) -> Range<u64> {
    let data = if record.command == WRITE { record.length.into() } else { 0 };
    let end = if record.place == 0 { 0 } else { record.place.saturating_add(HEADER + data) };
    record.place..end
}

/// The request's name, and whether no other bears it.
///
/// Between two machines by its place in the stream (`nbd-server/src/op.rs` finds the same), with the last 16 bits of its cookie: no other
/// request of the connection has that. Where one machine is both ends the cookie does, as one clock tells requests of one cookie
/// apart, and it needs nothing of whoever answers but the protocol's own number.
pub(crate) fn meeting(record: &raw::NbdAsked, boot: &str) -> Option<(Meeting, bool)> {
    let connection = connection(record, boot)?;
    let far = record.place != 0 && remote(record).is_some_and(|address| !address.is_loopback());
    let (rule, cookie) = match far {
        true => ("nbd-stream", record.place << 16 | record.cookie & 0xffff),
        false => ("nbd", record.cookie),
    };
    Some((Meeting { rule: rule.into(), connection, cookie }, far))
}

/// As the server names its own end (`nbd-server/src/op.rs`).
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

/// The connection's name, as whoever answers finds it too (`nbd-server/src/peer.rs`); none of a family that has none.
pub(crate) fn connection(record: &raw::NbdAsked, boot: &str) -> Option<Box<str>> {
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
            // A socket for both families has an IPv4 peer as `::ffff:10.0.0.1`; the peer does not.
            tcp(ends.0.to_canonical(), ends.1.to_canonical(), record)
        }
        _ => return None,
    };
    Some(name.into())
}

fn remote(record: &raw::NbdAsked) -> Option<IpAddr> {
    match record.family {
        AF_INET => Some(inet(record.remote).into()),
        AF_INET6 => Some(inet6(record.remote).to_canonical()),
        _ => None,
    }
}

fn tcp(local: IpAddr, remote: IpAddr, record: &raw::NbdAsked) -> String {
    let local = SocketAddr::new(local, record.local_port);
    format!("{local}>{}", SocketAddr::new(remote, u16::from_be(record.remote_port)))
}

/// The bytes lie as in the packet, at the front of the words.
fn inet([word, _]: [u64; 2]) -> Ipv4Addr {
    let [a, b, c, d, ..] = word.to_ne_bytes();
    Ipv4Addr::new(a, b, c, d)
}

fn inet6([first, second]: [u64; 2]) -> Ipv6Addr {
    let (first, second) = (u64::from_be(first), u64::from_be(second));
    Ipv6Addr::from_bits(u128::from(first) << 64 | u128::from(second))
}

/// The connection has ended: by this errno, or 0.
pub(crate) fn end(record: &raw::NbdAnswered) -> Option<u32> {
    (record.header.flags & raw::NBD_ENDED != 0).then_some(record.error)
}

pub(crate) fn answer(record: &raw::NbdAnswered) -> Answer {
    let has = |flag| record.header.flags & flag != 0;
    if has(raw::NBD_WITHDRAWN) {
        Answer::Withdrawn
    } else if has(raw::NBD_STRUCTURED) && record.kind & ERROR != 0 {
        Answer::FailedSomehow { last: record.kind_flags & LAST != 0 }
    } else if !has(raw::NBD_STRUCTURED) && record.error != 0 {
        Answer::Failed(record.error)
    } else {
        Answer::Done
    }
}
