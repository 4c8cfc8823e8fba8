//! Calls, bios, requests: the layers of one trace.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, LayerEvent, RequestEvent, SyscallEvent};
use blkkin_wire::ids::{SpanId, TraceId};

use super::make::{self, batch};
use crate::join::{JoinConfig, Joiner};
use crate::trace::{FragmentKind, Missing, Root, Trace};

/// Everything in one batch, and the end.
pub(super) fn join(events: Vec<LayerEvent>) -> Vec<Trace> {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, events, u64::MAX), &mut out);
    joiner.finish(&mut out);
    assert!(joiner.accounts().balances(), "{:?}", joiner.accounts());
    out
}

fn events(call: SyscallEvent, bio: BioEvent, request: RequestEvent) -> Vec<LayerEvent> {
    vec![LayerEvent::Request(request), LayerEvent::Bio(bio), LayerEvent::Syscall(call)]
}

#[test]
fn a_call_without_bios_is_complete_at_once() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(make::call(1, 10, 20))], 21), &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].id, make::SOURCE.trace_id(SpanId(1)));
    assert_eq!(joiner.accounts().traces_complete, 1);
}

#[test]
fn a_direct_write_has_its_bio_and_its_request() {
    let (bio, request) = make::direct(1, 2, 3, (11, 19));
    let out = join(events(make::call_with(1, (10, 20), 1), bio, request));
    assert_eq!(out.len(), 1);
    assert_eq!((&out[0].bios[..], &out[0].requests[..]), (&[bio][..], &[request][..]));
    assert!(out[0].missing.nothing());
}

#[test]
fn an_async_call_waits_for_bios_that_end_after_it() {
    let (bio, request) = make::direct(1, 2, 3, (11, 900));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(make::call_with(1, (10, 20), 1))], 21), &mut out);
    assert!(out.is_empty());
    assert_eq!(joiner.accounts().calls.pending, 1);
    joiner.apply(batch(1, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], 901), &mut out);
    assert_eq!((out.len(), out[0].last_end().0, out[0].end().0), (1, 900, 20));
}

#[test]
fn a_merged_bio_stays_below_its_call_and_knows_who_carried_it() {
    let (first, request) = make::direct(1, 2, 3, (11, 30));
    let request = RequestEvent { bios: 2, ..request };
    let (other, _) = make::direct(4, 5, 3, (12, 30));
    let other = BioEvent { first: false, ..other };
    let out = join(vec![
        LayerEvent::Request(request),
        LayerEvent::Bio(first),
        LayerEvent::Bio(other),
        LayerEvent::Syscall(make::call_with(1, (10, 31), 1)),
        LayerEvent::Syscall(make::call_with(4, (10, 32), 1)),
    ]);
    assert_eq!(out.len(), 2);
    assert_eq!((out[0].requests.len(), out[0].carried.len()), (1, 0));
    assert_eq!((out[1].requests.len(), out[1].carried.len()), (0, 1));
    assert_eq!((out[1].carried[0].trace, out[1].carried[0].request), (Some(out[0].id), request));
    assert!(out.iter().all(|trace| trace.missing.nothing()));
}

#[test]
fn a_call_for_a_span_of_an_applications_is_in_its_trace_and_so_is_what_is_below() {
    let (bio, request) = make::direct(1, 2, 3, (11, 30));
    let of =
        |span, bios| SyscallEvent { context: make::context(77, 5), ..make::call_with(span, (10, 31), bios) };
    let out = join(vec![
        LayerEvent::Request(request),
        LayerEvent::Bio(bio),
        LayerEvent::Syscall(of(1, 1)),
        LayerEvent::Syscall(of(4, 0)),
        LayerEvent::Syscall(make::call(6, 10, 32)),
    ]);
    let ids: Vec<_> = out.iter().map(|trace| (trace.id, trace.root_span.0, trace.bios.len())).collect();
    let own = make::SOURCE.trace_id(SpanId(6));
    assert_eq!(ids, [(TraceId(77), 1, 1), (TraceId(77), 4, 0), (own, 6, 0)]);
    assert!(out.iter().all(|trace| trace.missing.nothing()));
}

/// Whose trace a request is in is known with its call's return, and whoever it carried may have returned before.
#[test]
fn who_carried_a_bio_is_named_once_it_is_known_and_never_wrongly() {
    let (first, request) = make::direct(1, 2, 3, (11, 30));
    let (other, _) = make::direct(4, 5, 3, (12, 30));
    let before = SyscallEvent { context: make::context(9, 9), ..make::call_with(8, (1, 9), 1) };
    let (earlier, its) = make::direct(8, 6, 7, (2, 8));
    let carrier = SyscallEvent { context: make::context(77, 5), ..make::call_with(1, (10, 40), 1) };
    let carried_in = |carrier_first: bool| {
        let mut calls = [carrier.clone(), make::call_with(4, (10, 41), 1)];
        if !carrier_first {
            calls[0].exit = MonotonicNs(42);
            calls.reverse();
        }
        let events = vec![
            LayerEvent::Request(its),
            LayerEvent::Bio(earlier),
            LayerEvent::Syscall(before.clone()),
            LayerEvent::Request(RequestEvent { bios: 2, ..request }),
            LayerEvent::Bio(first),
            LayerEvent::Bio(BioEvent { first: false, ..other }),
        ];
        let out = join(events.into_iter().chain(calls.map(LayerEvent::Syscall)).collect());
        out.iter().find(|trace| trace.root_span == SpanId(4)).unwrap().carried[0].trace
    };
    assert_eq!(carried_in(true), Some(TraceId(77)));
    assert_eq!(carried_in(false), None);
}

#[test]
fn bios_of_one_call_merged_into_one_request_need_no_carrier() {
    let (first, request) = make::direct(1, 2, 3, (11, 30));
    let second = BioEvent { span: SpanId(4), first: false, ..first };
    let out = join(vec![
        LayerEvent::Request(RequestEvent { bios: 2, ..request }),
        LayerEvent::Bio(first),
        LayerEvent::Bio(second),
        LayerEvent::Syscall(make::call_with(1, (10, 31), 2)),
    ]);
    assert_eq!((out.len(), out[0].bios.len(), out[0].carried.len()), (1, 2, 0));
}

#[test]
fn the_kernels_own_bio_is_a_trace() {
    let (bio, request) = make::kernel(2, 3, (11, 19));
    let out = join(vec![LayerEvent::Request(request), LayerEvent::Bio(bio)]);
    assert!(matches!(out[0].root, Root::Kernel), "{out:?}");
    assert_eq!((out.len(), out[0].root_span, out[0].missing.nothing()), (1, SpanId(2), true));
}

#[test]
fn a_request_whose_bio_was_not_followed_is_a_trace_by_itself() {
    let (_, request) = make::kernel(2, 3, (11, 19));
    let out = join(vec![LayerEvent::Request(RequestEvent { parent: None, root: SpanId(3), ..request })]);
    assert!(matches!(out[0].root, Root::Kernel));
    assert_eq!((out[0].root_span, out[0].missing.nothing()), (SpanId(3), true));
}

#[test]
fn what_was_lost_is_said() {
    let (bio, request) = make::direct(1, 2, 3, (11, 19));
    let call = LayerEvent::Syscall(make::call_with(1, (10, 20), 1));
    let missing = |events| join(events)[0].missing;
    assert_eq!(missing(vec![call.clone()]), Missing { bios: 1, ..Missing::default() });
    assert_eq!(missing(vec![LayerEvent::Bio(bio), call]), Missing { requests: 1, ..Missing::default() });
    let rootless = vec![LayerEvent::Bio(bio), LayerEvent::Request(request)];
    assert_eq!(missing(rootless), Missing { root: true, ..Missing::default() });
}

#[test]
fn what_comes_after_the_end_of_its_trace_is_late_and_has_its_id() {
    let (bio, request) = make::direct(1, 2, 3, (11, 40_000_000_000));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(
        batch(0, vec![LayerEvent::Syscall(make::call_with(1, (10, 20), 1))], 30_000_000_019),
        &mut out,
    );
    assert!(out.is_empty());
    joiner.apply(batch(1, vec![], 30_000_000_020), &mut out);
    assert_eq!((out.len(), out[0].missing.bios), (1, 1));
    joiner.apply(batch(2, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], u64::MAX), &mut out);
    assert_eq!((out.len(), out[1].part, out[2].part), (3, FragmentKind::Late, FragmentKind::Late));
    assert!(out.iter().all(|trace| trace.id == out[0].id));
    assert_eq!((joiner.accounts().bios.late, joiner.accounts().requests.late), (1, 1));
    assert!(joiner.accounts().balances());
}

#[test]
fn a_root_that_comes_after_its_bios_were_closed_does_not_miss_them() {
    let (bio, request) = make::direct(1, 2, 3, (11, 19));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner
        .apply(batch(0, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], 31_000_000_000), &mut out);
    assert_eq!((out.len(), out[0].missing.root), (1, true));
    let call = make::call_with(1, (10, 32_000_000_000), 1);
    joiner.apply(batch(1, vec![LayerEvent::Syscall(call)], u64::MAX), &mut out);
    assert_eq!((out.len(), out[1].part, out[1].missing), (2, FragmentKind::Late, Missing::default()));
}

#[test]
fn names_hold_for_their_moment() {
    let mut call = make::call(1, 10, 20);
    call.file = Some(make::open_file(3, 12));
    let mut later = make::call(2, 30, 40);
    later.file = call.file;
    let out = join(vec![
        LayerEvent::Syscall(later),
        LayerEvent::Syscall(call),
        LayerEvent::File(make::file(make::file_id(12), 20, "/a")),
        LayerEvent::File(make::file(make::file_id(12), 35, "/b")),
        LayerEvent::Task(make::task(1, 0, 5, "sh")),
    ]);
    let paths: Vec<&str> = out.iter().map(|trace| &*trace.names.file.as_ref().unwrap().path).collect();
    assert_eq!(paths, ["/a", "/b"]);
    assert!(out.iter().all(|trace| &*trace.names.task.as_ref().unwrap().comm == "sh"));
}
