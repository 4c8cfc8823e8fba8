//! Requests and answers by hand.

use blkkin_probe_abi::record::{Header, NBD_ENDED, NBD_STRUCTURED, NBD_WITHDRAWN};
use blkkin_wire::ids::{BootId, NodeId, SpanId, StartEpoch};

use super::*;

const SOCKET: u64 = 77;

fn requests() -> Requests {
    Requests::new(Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) })
}

fn request(span: u64, cookie: u64, at: u64) -> NbdAsked {
    let header = Header { time_ns: at, ..Header::default() };
    let (local, remote) = ([SOCKET, 0], [78, 0]);
    NbdAsked { header, span, cookie, socket: SOCKET, family: 1, local, remote, ..NbdAsked::default() }
}

fn reply(cookie: u64, at: u64) -> NbdAnswered {
    let header = Header { time_ns: at, ..Header::default() };
    NbdAnswered { header, socket: SOCKET, cookie, ..NbdAnswered::default() }
}

fn operations(events: &[LayerEvent]) -> Vec<&OperationEvent> {
    let operations = events.iter().filter_map(|event| match event {
        LayerEvent::Operation(one) => Some(&**one),
        _ => None,
    });
    operations.collect()
}

#[test]
fn an_answer_ends_the_request_of_its_cookie_and_says_where_it_met() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&request(1, 10, 100), &mut out);
    requests.asked(&request(2, 11, 110), &mut out);
    requests.answered(&reply(11, 200), &mut out);
    let [LayerEvent::Meeting(met), LayerEvent::Operation(operation)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((operation.span, operation.begin.0, operation.end.0), (SpanId(2), 110, 200));
    assert_eq!((met.span, met.side, met.meeting.cookie, met.unique), (SpanId(2), Side::Asked, 11, false));
    assert!(met.meeting.connection.ends_with(":77>78"), "{met:?}");
    assert_eq!((requests.books.asked, requests.books.answered), (2, 1));
}

#[test]
fn a_cookie_that_comes_again_tells_that_an_answer_was_missed() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&request(1, 10, 100), &mut out);
    requests.asked(&request(2, 10, 150), &mut out);
    requests.answered(&reply(10, 200), &mut out);
    let ends: Vec<_> = operations(&out).iter().map(|one| (one.span.0, one.end.0, one.outcome)).collect();
    assert_eq!(ends, [(1, 150, Outcome::Unfinished), (2, 200, Outcome::Done)]);
    assert_eq!((requests.books.unanswered, requests.books.answered), (1, 1));
}

#[test]
fn a_request_that_was_not_sent_is_none() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&request(1, 10, 100), &mut out);
    let mut back = reply(10, 101);
    back.header.flags = NBD_WITHDRAWN;
    requests.answered(&back, &mut out);
    requests.answered(&reply(10, 200), &mut out);
    requests.finish(MonotonicNs(300), &mut out);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!((requests.books.withdrawn, requests.books.strangers), (1, 1));
}

#[test]
fn an_error_in_a_chunk_waits_for_the_last() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&request(1, 10, 100), &mut out);
    let mut chunk = reply(10, 120);
    (chunk.header.flags, chunk.kind) = (NBD_STRUCTURED, 1 << 15 | 1);
    requests.answered(&chunk, &mut out);
    assert!(out.is_empty());
    (chunk.header.time_ns, chunk.kind, chunk.kind_flags) = (130, 0, 1);
    requests.answered(&chunk, &mut out);
    let [one] = operations(&out)[..] else { panic!("{out:?}") };
    assert_eq!((one.end.0, one.outcome), (130, Outcome::Failed(5)));
}

#[test]
fn what_has_no_answer_says_so_at_the_end_and_may_meet_all_the_same() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&request(2, 11, 110), &mut out);
    requests.asked(&request(1, 10, 100), &mut out);
    requests.finish(MonotonicNs(500), &mut out);
    let spans: Vec<_> = operations(&out).iter().map(|one| (one.span.0, one.outcome)).collect();
    assert_eq!(spans, [(1, Outcome::Unfinished), (2, Outcome::Unfinished)]);
    assert_eq!(out.iter().filter(|event| matches!(event, LayerEvent::Meeting(_))).count(), 2);
    assert_eq!(requests.books.unanswered, 2);
}

#[test]
fn a_farewell_has_no_answer_and_awaits_none() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&NbdAsked { command: 2, ..request(1, 10, 100) }, &mut out);
    let [LayerEvent::Operation(one)] = &out[..] else { panic!("{out:?}") };
    assert_eq!((&*one.name, one.outcome), ("nbd disconnect", Outcome::Done));
    assert_eq!(requests.books.asked, 0);
}

#[test]
fn when_there_is_no_room_the_oldest_go_and_are_counted() {
    let (mut requests, mut out) = (requests(), Vec::new());
    for cookie in 0..=OPEN_MAX as u64 {
        requests.asked(&request(cookie + 1, cookie, cookie), &mut out);
    }
    assert_eq!(operations(&out).len(), OPEN_MAX / 8 + 1);
    assert_eq!(requests.books.no_room, requests.books.unanswered);
    assert_eq!(requests.books.asked, (requests.open.len() + operations(&out).len()) as u64);
    assert!(operations(&out).iter().all(|one| one.begin.0 <= (OPEN_MAX / 8) as u64));
}

#[test]
fn what_is_sent_once_more_is_noted_on_the_requests_whose_bytes_it_carries() {
    let (mut requests, mut out) = (requests(), Vec::new());
    // Three writes of 100 bytes, one behind the other, and one on another connection.
    for (cookie, place) in [(10, 1_000), (11, 1_128), (12, 1_256), (13, 1_000)] {
        let socket = if cookie == 13 { SOCKET + 1 } else { SOCKET };
        let asked = NbdAsked { place, length: 100, command: 1, socket, ..request(cookie, cookie, cookie) };
        requests.asked(&asked, &mut out);
    }
    let header = Header { time_ns: 50, ..Header::default() };
    // The first's last byte, all of the second, and up to the third's first, which is not in it.
    requests.resent(&NbdResent { header, socket: SOCKET, from: 1_127, to: 1_256 });
    requests.resent(&NbdResent { header, socket: SOCKET, from: 2_000, to: 2_100 });
    for cookie in [10, 11, 12] {
        requests.answered(&reply(cookie, 60), &mut out);
    }
    requests.finish(MonotonicNs(70), &mut out);
    let resent = |one: &OperationEvent| -> Vec<NoteValue> {
        let notes = one.notes.iter().filter(|note| &*note.key == "nbd.resent");
        notes.map(|note| note.value.clone()).collect()
    };
    let noted: Vec<_> = operations(&out).into_iter().map(resent).collect();
    let once = vec![NoteValue::Moment, NoteValue::Number(1)];
    assert_eq!(noted, [once.clone(), once, vec![], vec![]]);
    assert_eq!((requests.books.resent, requests.books.resent_others), (1, 1));
}

#[test]
fn what_was_asked_on_a_connection_that_ended_says_so() {
    let (mut requests, mut out) = (requests(), Vec::new());
    requests.asked(&request(1, 10, 100), &mut out);
    requests.asked(&NbdAsked { socket: SOCKET + 1, ..request(2, 10, 110) }, &mut out);
    let mut end = reply(0, 200);
    (end.header.flags, end.error) = (NBD_ENDED, 110);
    requests.answered(&end, &mut out);
    let [one] = operations(&out)[..] else { panic!("{out:?}") };
    assert_eq!((one.span, one.end.0, one.outcome), (SpanId(1), 200, Outcome::Failed(110)));
    assert!(matches!(&out[0], LayerEvent::Meeting(met) if met.unanswered), "{out:?}");
    (end.socket, end.error) = (SOCKET + 1, 0);
    requests.answered(&end, &mut out);
    assert_eq!(operations(&out)[1].outcome, Outcome::Unfinished);
    let books = &requests.books;
    assert_eq!((books.asked, books.unanswered, books.cut_off, books.strangers), (2, 2, 2, 0));
}

#[test]
fn a_request_to_another_machine_is_named_by_its_place_which_no_other_has() {
    let name = |remote: [u8; 4], place| {
        let remote = [u64::from(u32::from_ne_bytes(remote)), 0];
        let record = NbdAsked { family: 2, local: remote, remote, place, ..request(1, 0x12_3456, 100) };
        let (meeting, unique) = translate::meeting(&record, "b-o-o-t").unwrap();
        (meeting.rule.to_string(), meeting.cookie, unique)
    };
    assert_eq!(name([10, 0, 0, 2], 500), ("nbd-stream".to_owned(), 500 << 16 | 0x3456, true));
    assert_eq!(name([10, 0, 0, 2], 0), ("nbd".to_owned(), 0x12_3456, false), "its place is not known");
    assert_eq!(name([127, 0, 0, 1], 500), ("nbd".to_owned(), 0x12_3456, false), "one machine");
}

#[test]
fn connections_are_named_as_the_server_names_them() {
    let named = |family, local, remote| {
        let record = NbdAsked {
            family,
            local,
            remote,
            local_port: 41_234,
            remote_port: 10_809u16.to_be(),
            ..NbdAsked::default()
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
