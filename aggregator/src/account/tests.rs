//! Cases by hand, and the definition itself, nanosecond by nanosecond, as the oracle.

use std::sync::Arc;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, RequestEvent};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use super::*;
use crate::join::tests::make;
use crate::trace::{Carried, Cause, Missing};

fn call_trace(times: (u64, u64), sleeps: u32, bios: &[(BioEvent, RequestEvent)]) -> Trace {
    let mut trace = make::trace(1);
    let call = make::call_with(1, times, bios.len() as u32);
    trace.root = Root::Call(SyscallEvent { sleeps, ..call });
    (trace.bios, trace.requests) = bios.iter().copied().unzip();
    trace
}

fn parts(breakdown: Breakdown) -> [u64; 6] {
    let Breakdown { device, block, journal, cpu, file_system, unaccounted } = breakdown;
    [device, block, journal, cpu, file_system, unaccounted].map(|part| part.0)
}

#[test]
fn a_direct_write_goes_down_waits_at_the_device_and_comes_back() {
    // Queued at 20, issued at 50, complete at 80.
    let trace = call_trace((10, 100), 1, &[make::direct(1, 2, 3, (20, 80))]);
    assert_eq!(parts(breakdown(&trace)), [30, 30, 0, 0, 30, 0]);
}

#[test]
fn parallel_requests_count_once() {
    let (first, second) = (make::direct(1, 2, 3, (20, 80)), make::direct(1, 4, 5, (30, 90)));
    let trace = call_trace((10, 100), 1, &[first, second]);
    assert_eq!(parts(breakdown(&trace)), [40, 30, 0, 0, 20, 0]);
}

#[test]
fn who_never_slept_computed() {
    assert_eq!(parts(breakdown(&call_trace((10, 100), 0, &[]))), [0, 0, 0, 0, 90, 0]);
}

#[test]
fn what_is_no_storage_is_not_the_file_systems() {
    let mut trace = call_trace((10, 100), 0, &[]);
    let mmap = blkkin_wire::syscalls::SyscallId::by_name("mmap").unwrap();
    let args = [0, 4096, 3, 0x22, u64::MAX, 0];
    trace.root = Root::Call(SyscallEvent { call: mmap, args, ..make::call_with(1, (10, 100), 0) });
    assert_eq!(parts(breakdown(&trace)), [0, 0, 0, 0, 0, 90]);
}

#[test]
fn who_slept_without_io_waited_for_something_untraced() {
    assert_eq!(parts(breakdown(&call_trace((10, 100), 1, &[]))), [0, 0, 0, 0, 0, 90]);
}

#[test]
fn who_misses_io_may_have_slept_for_it() {
    let mut trace =
        call_trace((10, 100), 2, &[make::direct(1, 2, 3, (20, 80)), make::direct(1, 4, 5, (20, 80))]);
    trace.requests.pop();
    trace.missing = Missing { requests: 1, ..Missing::default() };
    assert_eq!(parts(breakdown(&trace)), [30, 30, 0, 0, 0, 30]);
}

#[test]
fn who_waited_for_a_cpu_neither_computed_nor_waited_for_anything_else() {
    let waited = |sleeps, cpu_wait, bios: &[_]| {
        let mut trace = call_trace((10, 100), sleeps, bios);
        if let Root::Call(call) = &mut trace.root {
            call.cpu_wait = Some(DurationNs(cpu_wait));
        }
        parts(breakdown(&trace))
    };
    assert_eq!(waited(0, 70, &[]), [0, 0, 0, 70, 20, 0]);
    assert_eq!(waited(1, 70, &[]), [0, 0, 0, 70, 0, 20]);
    // 60 of its 90 were in the block layer and at the device: no more than the rest is taken.
    assert_eq!(waited(1, 70, &[make::direct(1, 2, 3, (20, 80))]), [30, 30, 0, 30, 0, 0]);
}

#[test]
fn an_async_calls_bios_count_up_to_its_return() {
    let trace = call_trace((10, 40), 0, &[make::direct(1, 2, 3, (20, 80))]);
    assert_eq!(parts(breakdown(&trace)), [0, 20, 0, 0, 10, 0]);
}

#[test]
fn a_flush_is_the_devices_time_from_the_issue_of_the_flush_that_served_it() {
    let (bio, request) = make::direct(1, 2, 3, (20, 80));
    let served = RequestEvent { issue: Some(MonotonicNs(50)), flush_sequence: true, ..request };
    let trace = call_trace((10, 100), 1, &[(bio, served)]);
    assert_eq!(parts(breakdown(&trace)), [30, 30, 0, 0, 30, 0]);
    let never_issued = RequestEvent { issue: None, ..served };
    let trace = call_trace((10, 100), 1, &[(bio, never_issued)]);
    assert_eq!(parts(breakdown(&trace)), [0, 60, 0, 0, 30, 0]);
}

fn commit_trace(times: (u64, u64), bios: &[(BioEvent, RequestEvent)]) -> Trace {
    let mut trace = make::trace(50);
    trace.root = Root::Commit(make::commit(50, times, 7, bios.len() as u32));
    (trace.bios, trace.requests) = bios.iter().copied().unzip();
    trace
}

#[test]
fn a_waiters_time_goes_through_the_commit_to_its_requests() {
    let commit = commit_trace((20, 90), &[make::direct(50, 51, 52, (40, 80))]);
    assert_eq!(parts(breakdown(&commit)), [20, 20, 30, 0, 0, 0]);
    let mut trace = call_trace((10, 100), 1, &[]);
    trace.causes.push(Cause { trace: Arc::new(commit), primary: false });
    assert_eq!(parts(breakdown(&trace)), [20, 20, 30, 0, 20, 0]);
}

#[test]
fn a_merged_bios_time_is_that_of_the_request_that_carried_it() {
    let (bio, _) = make::direct(1, 2, 3, (20, 80));
    let (_, request) = make::direct(9, 8, 3, (0, 80));
    let mut trace = call_trace((10, 100), 1, &[]);
    trace.root = Root::Call(make::call_with(1, (10, 100), 1));
    trace.carried.push(Carried { bio: SpanId(2), trace: Some(make::trace(9).id), request });
    trace.bios.push(BioEvent { first: false, ..bio });
    // The carrier was issued at 40, the bio queued at 20.
    assert_eq!(parts(breakdown(&trace)), [40, 30, 0, 0, 20, 0]);
}

/// The module's definition, word by word.
fn oracle(trace: &Trace) -> [u64; 6] {
    let mut parts = [0; 6];
    let within = |from: MonotonicNs, to: MonotonicNs, now: u64| (from.0..to.0).contains(&now);
    for now in trace.start().0..trace.end().0 {
        let device = all_requests(trace).any(|r| within(at_device(r), r.complete, now));
        let block = all_requests(trace).any(|r| within(r.start, r.complete, now))
            || all_bios(trace).any(|(queue, end)| within(queue, end, now));
        let journal = trace.causes.iter().any(|cause| within(cause.trace.start(), cause.trace.end(), now));
        let class = match (device, block, journal, own(trace, Subject::of(trace))) {
            (true, ..) => 0,
            (_, true, ..) => 1,
            (_, _, true, _) | (.., Own::Journal) => 2,
            (.., Own::FileSystem) => 4,
            (.., Own::Unknown) => 5,
        };
        parts[class] += 1;
    }
    // Which of the call's own moments they were nobody knows.
    let waited = trace.call().and_then(|call| call.cpu_wait).unwrap_or_default().0;
    let own = if parts[4] > 0 { 4 } else { 5 };
    parts[3] = waited.min(parts[own]);
    parts[own] -= parts[3];
    parts
}

fn bios(root: u64) -> impl Strategy<Value = Vec<(BioEvent, RequestEvent)>> {
    let one = (0_u64..120, 0_u64..60, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 0..5).prop_map(move |all| {
        let make = |(n, (queue, length, flush, lag)): (usize, (u64, u64, bool, bool))| {
            let span = root * 100 + n as u64 * 2;
            let (mut bio, mut request) = make::direct(root, span, span + 1, (queue, queue + length));
            request.flush_sequence = flush;
            bio.end.0 += u64::from(lag) * 7;
            (bio, request)
        };
        all.into_iter().enumerate().map(make).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_nanosecond_belongs_to_one_class(
        (enter, length) in (0_u64..100, 0_u64..100),
        sleeps in 0_u32..2,
        own in bios(1),
        others in bios(50),
        (start, span) in (0_u64..100, 0_u64..80),
        waits in any::<bool>(),
        cpu_wait in proptest::option::of(0_u64..150),
        kind in 0_u8..3,
    ) {
        let mut trace = call_trace((enter, enter + length), sleeps, &own);
        if let Root::Call(call) = &mut trace.root {
            call.cpu_wait = cpu_wait.map(DurationNs);
        }
        let commit = commit_trace((start, start + span), &others);
        match kind {
            0 if waits => trace.causes.push(Cause { trace: Arc::new(commit), primary: true }),
            0 => {}
            1 => trace.root = Root::Kernel,
            _ => trace = commit,
        }
        let breakdown = breakdown(&trace);
        prop_assert_eq!(breakdown.total(), trace.duration());
        prop_assert_eq!(parts(breakdown), oracle(&trace));
    }
}
