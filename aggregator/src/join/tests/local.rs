//! Calls, bios, requests: the layers of one trace.

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, LayerEvent, RequestEvent, SyscallEvent};
use blkkin_wire::ids::{SpanId, TraceId};

use crate::fixtures::{self, batch};
use crate::join::{JoinConfig, Joiner};
use crate::trace::{FragmentKind, Incomplete, Root, Trace};

/// Joins all events as one batch, to the end.
pub(super) fn join(events: Vec<LayerEvent>) -> Vec<Trace> {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, events, u64::MAX), &mut out);
    joiner.finish(&mut out);
    assert!(joiner.stats().balances(), "{:?}", joiner.stats());
    out
}

fn events(call: SyscallEvent, bio: BioEvent, request: RequestEvent) -> Vec<LayerEvent> {
    vec![LayerEvent::Request(request), LayerEvent::Bio(bio), LayerEvent::Syscall(call)]
}

#[test]
fn a_call_without_bios_is_complete_at_once() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(fixtures::call(1, 10, 20))], 21), &mut out);
    assert_eq!(out.len(), 1);
    assert_eq!(out[0].id, fixtures::SOURCE.trace_id(SpanId(1)));
    assert_eq!(joiner.stats().traces_complete, 1);
}

#[test]
fn a_direct_write_has_its_bio_and_its_request() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let out = join(events(fixtures::call_with(1, (10, 20), 1), bio, request));
    assert_eq!(out.len(), 1);
    assert_eq!((&out[0].bios[..], &out[0].requests[..]), (&[bio][..], &[request][..]));
    assert!(out[0].incomplete.is_empty());
}

#[test]
fn an_async_call_waits_for_bios_that_end_after_it() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 900));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1))], 21), &mut out);
    assert!(out.is_empty());
    assert_eq!(joiner.stats().calls.pending, 1);
    joiner.apply(batch(1, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], 901), &mut out);
    assert_eq!((out.len(), out[0].last_end().0, out[0].end().0), (1, 900, 20));
}

#[test]
fn a_merged_bio_stays_a_child_of_its_call_and_links_to_its_request() {
    let (first, request) = fixtures::bio_and_request(1, 2, 3, (11, 30));
    let request = RequestEvent { bios: 2, ..request };
    let (other, _) = fixtures::bio_and_request(4, 5, 3, (12, 30));
    let other = BioEvent { first: false, ..other };
    let out = join(vec![
        LayerEvent::Request(request),
        LayerEvent::Bio(first),
        LayerEvent::Bio(other),
        LayerEvent::Syscall(fixtures::call_with(1, (10, 31), 1)),
        LayerEvent::Syscall(fixtures::call_with(4, (10, 32), 1)),
    ]);
    assert_eq!(out.len(), 2);
    assert_eq!((out[0].requests.len(), out[0].merged_into.len()), (1, 0));
    assert_eq!((out[1].requests.len(), out[1].merged_into.len()), (0, 1));
    assert_eq!((out[1].merged_into[0].trace, out[1].merged_into[0].request), (Some(out[0].id), request));
    assert!(out.iter().all(|trace| trace.incomplete.is_empty()));
}

#[test]
fn a_call_with_a_thread_context_is_in_the_applications_trace_with_its_io() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 30));
    let of = |span, bios| SyscallEvent {
        context: fixtures::thread_context(77, 5),
        ..fixtures::call_with(span, (10, 31), bios)
    };
    let out = join(vec![
        LayerEvent::Request(request),
        LayerEvent::Bio(bio),
        LayerEvent::Syscall(of(1, 1)),
        LayerEvent::Syscall(of(4, 0)),
        LayerEvent::Syscall(fixtures::call(6, 10, 32)),
    ]);
    let ids: Vec<_> = out.iter().map(|trace| (trace.id, trace.root_span.0, trace.bios.len())).collect();
    let own = fixtures::SOURCE.trace_id(SpanId(6));
    assert_eq!(ids, [(TraceId(77), 1, 1), (TraceId(77), 4, 0), (own, 6, 0)]);
    assert!(out.iter().all(|trace| trace.incomplete.is_empty()));
}

/// The trace id of a request is known when its call returns. A call whose bio was merged into it
/// may return before.
#[test]
fn a_merge_link_has_its_trace_once_it_is_known_and_never_a_wrong_one() {
    let (first, request) = fixtures::bio_and_request(1, 2, 3, (11, 30));
    let (other, _) = fixtures::bio_and_request(4, 5, 3, (12, 30));
    let before =
        SyscallEvent { context: fixtures::thread_context(9, 9), ..fixtures::call_with(8, (1, 9), 1) };
    let (earlier, its) = fixtures::bio_and_request(8, 6, 7, (2, 8));
    let merged_call =
        SyscallEvent { context: fixtures::thread_context(77, 5), ..fixtures::call_with(1, (10, 40), 1) };
    let merge_trace = |merged_call_first: bool| {
        let mut calls = [merged_call.clone(), fixtures::call_with(4, (10, 41), 1)];
        if !merged_call_first {
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
        out.iter().find(|trace| trace.root_span == SpanId(4)).unwrap().merged_into[0].trace
    };
    assert_eq!(merge_trace(true), Some(TraceId(77)));
    assert_eq!(merge_trace(false), None);
}

#[test]
fn bios_of_one_call_in_one_request_need_no_merge_link() {
    let (first, request) = fixtures::bio_and_request(1, 2, 3, (11, 30));
    let second = BioEvent { span: SpanId(4), first: false, ..first };
    let out = join(vec![
        LayerEvent::Request(RequestEvent { bios: 2, ..request }),
        LayerEvent::Bio(first),
        LayerEvent::Bio(second),
        LayerEvent::Syscall(fixtures::call_with(1, (10, 31), 2)),
    ]);
    assert_eq!((out.len(), out[0].bios.len(), out[0].merged_into.len()), (1, 2, 0));
}

#[test]
fn the_kernels_own_bio_is_a_trace() {
    let (bio, request) = fixtures::kernel_bio(2, 3, (11, 19));
    let out = join(vec![LayerEvent::Request(request), LayerEvent::Bio(bio)]);
    assert!(matches!(out[0].root, Root::Kernel), "{out:?}");
    assert_eq!((out.len(), out[0].root_span, out[0].incomplete.is_empty()), (1, SpanId(2), true));
}

#[test]
fn a_request_of_an_untraced_bio_is_a_trace_of_its_own() {
    let (_, request) = fixtures::kernel_bio(2, 3, (11, 19));
    let out = join(vec![LayerEvent::Request(RequestEvent { parent: None, root: SpanId(3), ..request })]);
    assert!(matches!(out[0].root, Root::Kernel));
    assert_eq!((out[0].root_span, out[0].incomplete.is_empty()), (SpanId(3), true));
}

#[test]
fn missing_parts_are_reported() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let call = LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1));
    let missing = |events| join(events)[0].incomplete;
    assert_eq!(missing(vec![call.clone()]), Incomplete { bios: 1, ..Incomplete::default() });
    assert_eq!(
        missing(vec![LayerEvent::Bio(bio), call]),
        Incomplete { requests: 1, ..Incomplete::default() }
    );
    let rootless = vec![LayerEvent::Bio(bio), LayerEvent::Request(request)];
    assert_eq!(missing(rootless), Incomplete { root: true, ..Incomplete::default() });
}

#[test]
fn parts_after_the_close_are_late_and_have_the_same_id() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 40_000_000_000));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(
        batch(0, vec![LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1))], 30_000_000_019),
        &mut out,
    );
    assert!(out.is_empty());
    joiner.apply(batch(1, vec![], 30_000_000_020), &mut out);
    assert_eq!((out.len(), out[0].incomplete.bios), (1, 1));
    joiner.apply(batch(2, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], u64::MAX), &mut out);
    assert_eq!((out.len(), out[1].kind, out[2].kind), (3, FragmentKind::Late, FragmentKind::Late));
    assert!(out.iter().all(|trace| trace.id == out[0].id));
    assert_eq!((joiner.stats().bios.late, joiner.stats().requests.late), (1, 1));
    assert!(joiner.stats().balances());
}

#[test]
fn a_late_root_does_not_miss_bios_that_were_emitted_before() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner
        .apply(batch(0, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], 31_000_000_000), &mut out);
    assert_eq!((out.len(), out[0].incomplete.root), (1, true));
    let call = fixtures::call_with(1, (10, 32_000_000_000), 1);
    joiner.apply(batch(1, vec![LayerEvent::Syscall(call)], u64::MAX), &mut out);
    assert_eq!((out.len(), out[1].kind, out[1].incomplete), (2, FragmentKind::Late, Incomplete::default()));
}

#[test]
fn names_are_as_of_the_event() {
    let mut call = fixtures::call(1, 10, 20);
    call.file = Some(fixtures::open_file(3, 12));
    let mut later = fixtures::call(2, 30, 40);
    later.file = call.file;
    let out = join(vec![
        LayerEvent::Syscall(later),
        LayerEvent::Syscall(call),
        LayerEvent::File(fixtures::file(fixtures::file_id(12), 20, "/a")),
        LayerEvent::File(fixtures::file(fixtures::file_id(12), 35, "/b")),
        LayerEvent::Task(fixtures::task(1, 0, 5, "sh")),
    ]);
    let paths: Vec<&str> = out.iter().map(|trace| &*trace.names.file.as_ref().unwrap().path).collect();
    assert_eq!(paths, ["/a", "/b"]);
    assert!(out.iter().all(|trace| &*trace.names.task.as_ref().unwrap().comm == "sh"));
}
