//! Cases by hand, and the definition as an oracle, nanosecond by nanosecond.

use std::sync::Arc;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, RequestEvent};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use blkkin_wire::call_waits::{LongestWait, WaitKind, WaitSum};

use super::*;
use crate::fixtures;
use crate::trace::{Incomplete, MergeLink, WaitLink};

fn call_trace(times: (u64, u64), sleeps: u32, bios: &[(BioEvent, RequestEvent)]) -> Trace {
    let mut trace = fixtures::trace(1);
    let call = fixtures::call_with(1, times, bios.len() as u32);
    trace.root = Root::Call(SyscallEvent { sleeps, ..call });
    (trace.bios, trace.requests) = bios.iter().copied().unzip();
    trace
}

fn parts(breakdown: Breakdown) -> [u64; 6] {
    let Breakdown { device, block, journal, locks: _, throttled: _, cpu, file_system, unaccounted } =
        breakdown;
    [device, block, journal, cpu, file_system, unaccounted].map(|part| part.0)
}

#[test]
fn a_direct_write_has_device_block_and_file_system_time() {
    // Queued at 20, issued at 50, complete at 80.
    let trace = call_trace((10, 100), 1, &[fixtures::bio_and_request(1, 2, 3, (20, 80))]);
    assert_eq!(parts(breakdown(&trace)), [30, 30, 0, 0, 30, 0]);
}

#[test]
fn parallel_requests_count_once() {
    let (first, second) =
        (fixtures::bio_and_request(1, 2, 3, (20, 80)), fixtures::bio_and_request(1, 4, 5, (30, 90)));
    let trace = call_trace((10, 100), 1, &[first, second]);
    assert_eq!(parts(breakdown(&trace)), [40, 30, 0, 0, 20, 0]);
}

#[test]
fn a_call_that_never_slept_computed() {
    assert_eq!(parts(breakdown(&call_trace((10, 100), 0, &[]))), [0, 0, 0, 0, 90, 0]);
}

#[test]
fn a_call_without_storage_has_no_file_system_time() {
    let mut trace = call_trace((10, 100), 0, &[]);
    let mmap = blkkin_wire::syscalls::SyscallId::by_name("mmap").unwrap();
    let args = [0, 4096, 3, 0x22, u64::MAX, 0];
    trace.root = Root::Call(SyscallEvent { call: mmap, args, ..fixtures::call_with(1, (10, 100), 0) });
    assert_eq!(parts(breakdown(&trace)), [0, 0, 0, 0, 0, 90]);
}

#[test]
fn sleep_without_io_is_unaccounted() {
    assert_eq!(parts(breakdown(&call_trace((10, 100), 1, &[]))), [0, 0, 0, 0, 0, 90]);
}

#[test]
fn sleep_with_io_missing_is_unaccounted() {
    let mut trace = call_trace(
        (10, 100),
        2,
        &[fixtures::bio_and_request(1, 2, 3, (20, 80)), fixtures::bio_and_request(1, 4, 5, (20, 80))],
    );
    trace.requests.pop();
    trace.incomplete = Incomplete { requests: 1, ..Incomplete::default() };
    assert_eq!(parts(breakdown(&trace)), [30, 30, 0, 0, 0, 30]);
}

#[test]
fn cpu_wait_is_a_class_of_its_own() {
    let waited = |sleeps, cpu_wait, bios: &[_]| {
        let mut trace = call_trace((10, 100), sleeps, bios);
        if let Root::Call(call) = &mut trace.root {
            call.cpu_wait = DurationNs(cpu_wait).into();
        }
        parts(breakdown(&trace))
    };
    assert_eq!(waited(0, 70, &[]), [0, 0, 0, 70, 20, 0]);
    assert_eq!(waited(1, 70, &[]), [0, 0, 0, 70, 0, 20]);
    // 60 of its 90 ns were in the block layer and at the device: no more than the rest is taken.
    assert_eq!(waited(1, 70, &[fixtures::bio_and_request(1, 2, 3, (20, 80))]), [30, 30, 0, 30, 0, 0]);
}

#[test]
fn an_async_calls_bios_count_up_to_its_return() {
    let trace = call_trace((10, 40), 0, &[fixtures::bio_and_request(1, 2, 3, (20, 80))]);
    assert_eq!(parts(breakdown(&trace)), [0, 20, 0, 0, 10, 0]);
}

#[test]
fn a_flush_is_the_devices_time_from_the_issue_of_the_flush_that_served_it() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (20, 80));
    let served = RequestEvent { issue: Some(MonotonicNs(50)), flush_sequence: true, ..request };
    let trace = call_trace((10, 100), 1, &[(bio, served)]);
    assert_eq!(parts(breakdown(&trace)), [30, 30, 0, 0, 30, 0]);
    let never_issued = RequestEvent { issue: None, ..served };
    let trace = call_trace((10, 100), 1, &[(bio, never_issued)]);
    assert_eq!(parts(breakdown(&trace)), [0, 60, 0, 0, 30, 0]);
}

fn commit_trace(times: (u64, u64), bios: &[(BioEvent, RequestEvent)]) -> Trace {
    let mut trace = fixtures::trace(50);
    trace.root = Root::Commit(fixtures::commit(50, times, 7, bios.len() as u32));
    (trace.bios, trace.requests) = bios.iter().copied().unzip();
    trace
}

#[test]
fn a_waiters_time_includes_the_commits_requests() {
    let commit = commit_trace((20, 90), &[fixtures::bio_and_request(50, 51, 52, (40, 80))]);
    assert_eq!(parts(breakdown(&commit)), [20, 20, 30, 0, 0, 0]);
    let mut trace = call_trace((10, 100), 1, &[]);
    trace.waited_for.push(WaitLink { trace: Arc::new(commit), primary: false });
    assert_eq!(parts(breakdown(&trace)), [20, 20, 30, 0, 20, 0]);
}

#[test]
fn a_merged_bio_has_the_time_of_its_request() {
    let (bio, _) = fixtures::bio_and_request(1, 2, 3, (20, 80));
    let (_, request) = fixtures::bio_and_request(9, 8, 3, (0, 80));
    let mut trace = call_trace((10, 100), 1, &[]);
    trace.root = Root::Call(fixtures::call_with(1, (10, 100), 1));
    trace.merged_into.push(MergeLink { bio: SpanId(2), trace: Some(fixtures::trace(9).id), request });
    trace.bios.push(BioEvent { first: false, ..bio });
    // The merged request was issued at 40, the bio queued at 20.
    assert_eq!(parts(breakdown(&trace)), [40, 30, 0, 0, 20, 0]);
}

fn with_waits(trace: &mut Trace, locks: u64, paused: u64, sleeps: u32) {
    let sum = |kind, time| WaitSum { kind, time: DurationNs(time), count: 1 };
    let sums = vec![sum(WaitKind::FileLock, locks), sum(WaitKind::DirtyPages, paused)];
    let (kind, begin) = (WaitKind::FileLock, trace.start());
    let longest = LongestWait { kind, begin, time: DurationNs(locks), holder: None };
    if let Root::Call(call) = &mut trace.root {
        call.waits = Some(Box::new(CallWaits { sums, longest, sleeps, log_write: None }));
    }
}

#[test]
fn waits_are_classes_of_their_own() {
    let waited = |sleeps, waits: (u64, u64, u32), bios: &[_]| {
        let mut trace = call_trace((10, 100), sleeps, bios);
        with_waits(&mut trace, waits.0, waits.1, waits.2);
        let all = breakdown(&trace);
        assert_eq!(all.total(), trace.duration());
        (all.locks.0, all.throttled.0, parts(all))
    };
    // All of its sleeps were in the waits, so the rest was computing.
    assert_eq!(waited(2, (40, 30, 2), &[]), (40, 30, [0, 0, 0, 0, 20, 0]));
    // One sleep was elsewhere.
    assert_eq!(waited(3, (40, 30, 2), &[]), (40, 30, [0, 0, 0, 0, 0, 20]));
    // 60 of its 90 ns were in the block layer and at the device: no more than the rest is taken.
    let io = [fixtures::bio_and_request(1, 2, 3, (20, 80))];
    assert_eq!(waited(2, (25, 30, 1), &io), (25, 5, [30, 30, 0, 0, 0, 0]));
}

/// The definition in the module's documentation. Returns the lock wait and the pauses apart.
fn oracle(trace: &Trace) -> ([u64; 2], [u64; 6]) {
    let mut parts = [0; 6];
    let within = |from: MonotonicNs, to: MonotonicNs, now: u64| (from.0..to.0).contains(&now);
    for now in trace.start().0..trace.end().0 {
        let device = all_requests(trace).any(|r| within(at_device(r), r.complete, now));
        let block = all_requests(trace).any(|r| within(r.start, r.complete, now))
            || all_bios(trace).any(|(queue, end)| within(queue, end, now));
        let journal = trace.waited_for.iter().any(|wait| within(wait.trace.start(), wait.trace.end(), now));
        let class = match (device, block, journal, root_time(trace, IoKind::of(trace))) {
            (true, ..) => 0,
            (_, true, ..) => 1,
            (_, _, true, _) | (.., RootTime::Journal) => 2,
            (.., RootTime::FileSystem) => 4,
            (.., RootTime::Unknown) => 5,
        };
        parts[class] += 1;
    }
    // The record does not show at which moments of the call.
    let waited = trace.call().and_then(|call| call.cpu_wait.get()).unwrap_or_default().0;
    let root_time = if parts[4] > 0 { 4 } else { 5 };
    let waits = trace.call().and_then(|call| call.waits.as_deref());
    let of = |kind| {
        let sum = |waits: &CallWaits| waits.sums.iter().find(|sum| sum.kind == kind).map(|sum| sum.time.0);
        waits.and_then(sum).unwrap_or_default()
    };
    let wanted = [of(WaitKind::FileLock), of(WaitKind::DirtyPages), waited];
    let [locks, throttled, cpu] = wanted.map(|wanted| {
        let taken = wanted.min(parts[root_time]);
        parts[root_time] -= taken;
        taken
    });
    parts[3] = cpu;
    ([locks, throttled], parts)
}

fn bios(root: u64) -> impl Strategy<Value = Vec<(BioEvent, RequestEvent)>> {
    let one = (0_u64..120, 0_u64..60, any::<bool>(), any::<bool>());
    prop::collection::vec(one, 0..5).prop_map(move |all| {
        let make = |(n, (queue, length, flush, lag)): (usize, (u64, u64, bool, bool))| {
            let span = root * 100 + n as u64 * 2;
            let (mut bio, mut request) =
                fixtures::bio_and_request(root, span, span + 1, (queue, queue + length));
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
        root_time in bios(1),
        others in bios(50),
        (start, span) in (0_u64..100, 0_u64..80),
        waits in any::<bool>(),
        cpu_wait in proptest::option::of(0_u64..150),
        own_waits in proptest::option::of((0_u64..60, 0_u64..60, 0_u32..2)),
        kind in 0_u8..3,
    ) {
        let mut trace = call_trace((enter, enter + length), sleeps, &root_time);
        if let Root::Call(call) = &mut trace.root {
            call.cpu_wait = cpu_wait.map(DurationNs).into();
        }
        if let Some((locks, paused, sleeps)) = own_waits {
            with_waits(&mut trace, locks, paused, sleeps);
        }
        let commit = commit_trace((start, start + span), &others);
        match kind {
            0 if waits => trace.waited_for.push(WaitLink { trace: Arc::new(commit), primary: true }),
            0 => {}
            1 => trace.root = Root::Kernel,
            _ => trace = commit,
        }
        let breakdown = breakdown(&trace);
        prop_assert_eq!(breakdown.total(), trace.duration());
        let waits = [breakdown.locks.0, breakdown.throttled.0];
        prop_assert_eq!((waits, parts(breakdown)), oracle(&trace));
    }
}
