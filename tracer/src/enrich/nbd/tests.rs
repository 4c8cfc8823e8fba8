//! Tests with hand-written requests and replies.

use blkkin_probe_abi::record::{Header, NBD_ENDED, NBD_STRUCTURED, NBD_WITHDRAWN};
use blkkin_wire::ids::{BootId, NodeId, SpanId, StartEpoch};

use super::*;

const SOCKET: u64 = 77;

fn requests() -> NbdRequests {
    NbdRequests::new(Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) })
}

fn request(span: u64, cookie: u64, at: u64) -> NbdRequestRecord {
    let header = Header { time_ns: at, ..Header::default() };
    let (local, remote) = ([SOCKET, 0], [78, 0]);
    NbdRequestRecord {
        header,
        span,
        cookie,
        socket: SOCKET,
        family: 1,
        local,
        remote,
        ..NbdRequestRecord::default()
    }
}

fn reply(cookie: u64, at: u64) -> NbdReplyRecord {
    let header = Header { time_ns: at, ..Header::default() };
    NbdReplyRecord { header, socket: SOCKET, cookie, ..NbdReplyRecord::default() }
}

fn spans(events: &[LayerEvent]) -> Vec<&DaemonSpanEvent> {
    let spans = events.iter().filter_map(|event| match event {
        LayerEvent::DaemonSpan(one) => Some(&**one),
        _ => None,
    });
    spans.collect()
}

#[test]
fn reply_ends_the_request_with_its_cookie() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&request(1, 10, 100), &mut out);
    requests.on_request(&request(2, 11, 110), &mut out);
    requests.on_reply(&reply(11, 200), &mut out);
    let [LayerEvent::RpcEndpoint(endpoint), LayerEvent::DaemonSpan(span)] = &out[..] else {
        panic!("{out:?}")
    };
    assert_eq!((span.span, span.begin.0, span.end.0), (SpanId(2), 110, 200));
    assert_eq!(
        (endpoint.span, endpoint.side, endpoint.key.cookie, endpoint.unique),
        (SpanId(2), RpcSide::Client, 11, false)
    );
    assert!(endpoint.key.connection.ends_with(":77>78"), "{endpoint:?}");
    assert_eq!((requests.stats.requests, requests.stats.replies), (2, 1));
}

#[test]
fn reused_cookie_reveals_a_missed_reply() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&request(1, 10, 100), &mut out);
    requests.on_request(&request(2, 10, 150), &mut out);
    requests.on_reply(&reply(10, 200), &mut out);
    let ends: Vec<_> = spans(&out).iter().map(|one| (one.span.0, one.end.0, one.status)).collect();
    assert_eq!(ends, [(1, 150, SpanStatus::Unfinished), (2, 200, SpanStatus::Ok)]);
    assert_eq!((requests.stats.unanswered, requests.stats.replies), (1, 1));
}

#[test]
fn request_that_was_not_sent_yields_no_span() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&request(1, 10, 100), &mut out);
    let mut back = reply(10, 101);
    back.header.flags = NBD_WITHDRAWN;
    requests.on_reply(&back, &mut out);
    requests.on_reply(&reply(10, 200), &mut out);
    requests.finish(MonotonicNs(300), &mut out);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!((requests.stats.not_sent, requests.stats.unmatched_replies), (1, 1));
}

#[test]
fn error_chunk_waits_for_the_last_chunk() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&request(1, 10, 100), &mut out);
    let mut chunk = reply(10, 120);
    (chunk.header.flags, chunk.kind) = (NBD_STRUCTURED, 1 << 15 | 1);
    requests.on_reply(&chunk, &mut out);
    assert!(out.is_empty());
    (chunk.header.time_ns, chunk.kind, chunk.kind_flags) = (130, 0, 1);
    requests.on_reply(&chunk, &mut out);
    let [one] = spans(&out)[..] else { panic!("{out:?}") };
    assert_eq!((one.end.0, one.status), (130, SpanStatus::Error(5)));
}

#[test]
fn unanswered_request_ends_with_tracing_and_remains_an_endpoint() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&request(2, 11, 110), &mut out);
    requests.on_request(&request(1, 10, 100), &mut out);
    requests.finish(MonotonicNs(500), &mut out);
    let spans: Vec<_> = spans(&out).iter().map(|one| (one.span.0, one.status)).collect();
    assert_eq!(spans, [(1, SpanStatus::Unfinished), (2, SpanStatus::Unfinished)]);
    assert_eq!(out.iter().filter(|event| matches!(event, LayerEvent::RpcEndpoint(_))).count(), 2);
    assert_eq!(requests.stats.unanswered, 2);
}

#[test]
fn disconnect_request_expects_no_reply() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&NbdRequestRecord { command: 2, ..request(1, 10, 100) }, &mut out);
    let [LayerEvent::DaemonSpan(one)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((&*one.name, one.status), ("nbd disconnect", SpanStatus::Ok));
    assert_eq!(requests.stats.requests, 0);
}

#[test]
fn oldest_requests_are_evicted_and_counted_when_full() {
    let (mut requests, mut out) = (requests(), Vec::new());
    for cookie in 0..=PENDING_MAX as u64 {
        requests.on_request(&request(cookie + 1, cookie, cookie), &mut out);
    }
    assert_eq!(spans(&out).len(), PENDING_MAX / 8 + 1);
    assert_eq!(requests.stats.evicted, requests.stats.unanswered);
    assert_eq!(requests.stats.requests, (requests.pending.len() + spans(&out).len()) as u64);
    assert!(spans(&out).iter().all(|one| one.begin.0 <= (PENDING_MAX / 8) as u64));
}

#[test]
fn retransmission_is_recorded_on_the_requests_with_its_bytes() {
    let (mut requests, mut out) = (requests(), Vec::new());
    // Three adjacent writes of 100 bytes, and one on another connection.
    for (cookie, stream_offset) in [(10, 1_000), (11, 1_128), (12, 1_256), (13, 1_000)] {
        let socket = if cookie == 13 { SOCKET + 1 } else { SOCKET };
        let record = NbdRequestRecord {
            stream_offset,
            length: 100,
            command: 1,
            socket,
            ..request(cookie, cookie, cookie)
        };
        requests.on_request(&record, &mut out);
    }
    let header = Header { time_ns: 50, ..Header::default() };
    // The first one's last byte, all of the second, and up to the third one's start, which is
    // excluded.
    requests.on_retransmit(&NbdRetransmitRecord { header, socket: SOCKET, from: 1_127, to: 1_256 });
    requests.on_retransmit(&NbdRetransmitRecord { header, socket: SOCKET, from: 2_000, to: 2_100 });
    for cookie in [10, 11, 12] {
        requests.on_reply(&reply(cookie, 60), &mut out);
    }
    requests.finish(MonotonicNs(70), &mut out);
    let retransmits = |one: &DaemonSpanEvent| -> Vec<AnnotationValue> {
        let notes = one.annotations.iter().filter(|note| &*note.key == "nbd.retransmitted");
        notes.map(|note| note.value.clone()).collect()
    };
    let noted: Vec<_> = spans(&out).into_iter().map(retransmits).collect();
    let once = vec![AnnotationValue::Event, AnnotationValue::Number(1)];
    assert_eq!(noted, [once.clone(), once, vec![], vec![]]);
    assert_eq!((requests.stats.retransmits, requests.stats.retransmits_other), (1, 1));
}

#[test]
fn requests_of_a_closed_connection_end_with_it() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.on_request(&request(1, 10, 100), &mut out);
    requests.on_request(&NbdRequestRecord { socket: SOCKET + 1, ..request(2, 10, 110) }, &mut out);
    let mut end = reply(0, 200);
    (end.header.flags, end.error) = (NBD_ENDED, 110);
    requests.on_reply(&end, &mut out);
    let [one] = spans(&out)[..] else { panic!("{out:?}") };
    assert_eq!((one.span, one.end.0, one.status), (SpanId(1), 200, SpanStatus::Error(110)));
    assert!(matches!(&out[0], LayerEvent::RpcEndpoint(endpoint) if endpoint.no_reply), "{out:?}");
    (end.socket, end.error) = (SOCKET + 1, 0);
    requests.on_reply(&end, &mut out);
    assert_eq!(spans(&out)[1].status, SpanStatus::Unfinished);
    let stats = &requests.stats;
    assert_eq!((stats.requests, stats.unanswered, stats.disconnected, stats.unmatched_replies), (2, 2, 2, 0));
}

#[test]
fn request_to_another_machine_has_a_unique_key() {
    let name = |remote: [u8; 4], stream_offset| {
        let remote = [u64::from(u32::from_ne_bytes(remote)), 0];
        let record = NbdRequestRecord {
            family: 2,
            local: remote,
            remote,
            stream_offset,
            ..request(1, 0x12_3456, 100)
        };
        let (key, unique) = translate::rpc_key(&record, "b-o-o-t").unwrap();
        (key.protocol.to_string(), key.cookie, unique)
    };
    assert_eq!(name([10, 0, 0, 2], 500), ("nbd-stream".to_owned(), 500 << 16 | 0x3456, true));
    assert_eq!(
        name([10, 0, 0, 2], 0),
        ("nbd".to_owned(), 0x12_3456, false),
        "its stream position is unknown"
    );
    assert_eq!(name([127, 0, 0, 1], 500), ("nbd".to_owned(), 0x12_3456, false), "one machine");
}

#[test]
fn connection_names_match_those_of_the_server() {
    let named = |family, local, remote| {
        let record = NbdRequestRecord {
            family,
            local,
            remote,
            local_port: 41_234,
            remote_port: 10_809u16.to_be(),
            ..NbdRequestRecord::default()
        };
        translate::connection(&record, "b-o-o-t").map(String::from)
    };
    let four = |bytes: [u8; 4]| [u64::from(u32::from_ne_bytes(bytes)), 0];
    let six = |text: &str| {
        let octets = text.parse::<std::net::Ipv6Addr>().unwrap().octets();
        let (first, second) = octets.split_at(8);
        [first, second].map(|half| u64::from_ne_bytes(half.try_into().unwrap()))
    };
    let expected = "10.0.0.1:41234>10.0.0.2:10809";
    assert_eq!(named(2, four([10, 0, 0, 1]), four([10, 0, 0, 2])).as_deref(), Some(expected));
    assert_eq!(named(10, six("::ffff:10.0.0.1"), six("::ffff:10.0.0.2")).as_deref(), Some(expected));
    assert_eq!(named(10, six("::1"), six("::1")).as_deref(), Some("[::1]:41234>[::1]:10809"));
    assert_eq!(named(1, [77, 0], [78, 0]).as_deref(), Some("unix:b-o-o-t:77>78"));
    assert_eq!(named(1, [77, 0], [0, 0]), None, "a peer that is gone");
    assert_eq!(named(40, [1, 0], [2, 0]), None, "vsock");
}
