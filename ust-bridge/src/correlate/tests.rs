use blkkin_wire::event::{PidNsIds, TaskEvent, TaskRef};
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId, Uid};
use blkkin_wire::syscalls::SyscallId;
use proptest::prelude::*;

use super::*;
use crate::daemon_spans::DaemonSpans;
use crate::daemon_spans::tests::{at, begin};
use crate::span_event::SpanEvent;

fn task(tid: u32) -> TaskRef {
    TaskRef { id: TaskId(tid.into()), version: 0 }
}

fn discovered(tid: u32) -> LayerEvent {
    LayerEvent::Task(TaskEvent { tid: Tid(tid), ..TaskEvent::bare(task(tid), MonotonicNs(1), "daemon") })
}

fn call(span: u64, tid: u32, (enter, exit): (u64, u64)) -> LayerEvent {
    LayerEvent::Syscall(SyscallEvent::bare(
        SpanId(span),
        task(tid),
        SyscallId::by_name("pread64").unwrap(),
        MonotonicNs(enter),
        MonotonicNs(exit),
    ))
}

fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: u64) -> EventBatch {
    EventBatch { sequence, events, watermark: MonotonicNs(watermark), ..EventBatch::tick() }
}

fn active_update(at: u64, tid: u32, span: Option<u64>) -> Update {
    let active =
        span.map(|span| ActiveSpan { trace: TraceId(9), span: SpanId(span), since: MonotonicNs(at) });
    Update::ActiveSpan(MonotonicNs(at), Thread::initial(100, tid), active)
}

fn parents(batches: &[EventBatch]) -> Vec<(u64, Option<u64>)> {
    let calls = batches.iter().flat_map(|batch| &batch.events).filter_map(|event| match event {
        LayerEvent::Syscall(call) => Some((call.span.0, call.context.as_ref().map(|active| active.span.0))),
        _ => None,
    });
    calls.collect()
}

#[test]
fn batch_waits_for_updates_up_to_its_watermark() {
    let mut correlator = Correlator::default();
    correlator.add_batch(batch(0, vec![discovered(1), call(1, 1, (10, 20)), call(2, 1, (30, 40))], 45), 0);
    assert_eq!(correlator.next_batch(HOLD_MAX), None);
    correlator.add_updates([active_update(25, 1, Some(7))], MonotonicNs(44));
    assert_eq!(correlator.next_batch(HOLD_MAX), None);
    correlator.add_updates([], MonotonicNs(45));
    let batch = correlator.next_batch(1).unwrap();
    assert_eq!(parents(&[batch]), [(1, None), (2, Some(7))]);
    assert_eq!(correlator.stats(), &CorrelationStats { calls_correlated: 1, ..CorrelationStats::default() });
}

/// Events that repeat a published context are not enabled, so the begin is the only event of the
/// span.
#[test]
fn published_span_without_enter_event_is_correlated() {
    let mut correlator = Correlator::default();
    let (mut spans, mut updates) = (DaemonSpans::default(), Vec::new());
    let SpanEvent::Begin { trace_hi, trace_lo, span, .. } = begin(7, None, false) else { panic!() };
    spans.apply(&at(5, Thread::initial(100, 1)), &begin(7, None, false), &mut updates);
    correlator.add_updates(updates, MonotonicNs(60));
    let LayerEvent::Syscall(mut published) = call(1, 1, (10, 20)) else { panic!() };
    let (trace, from) =
        (TraceId(u128::from(trace_hi) << 64 | u128::from(trace_lo)), ContextSource::ThreadContext);
    published.context = Some(TraceContext { trace, span: SpanId(span), flags: 1, source: from }.into());
    correlator.add_batch(
        batch(0, vec![discovered(1), LayerEvent::Syscall(published), call(2, 1, (30, 40))], 45),
        0,
    );
    assert_eq!(parents(&[correlator.next_batch(1).unwrap()]), [(1, Some(7)), (2, None)]);
    assert_eq!((correlator.stats().calls_correlated, correlator.stats().calls_exact), (1, 1));
}

#[test]
fn incomplete_batch_has_no_parents_after_the_known_updates() {
    let mut correlator = Correlator::default();
    correlator.add_updates([active_update(5, 1, Some(7))], MonotonicNs(20));
    correlator.add_batch(batch(0, vec![discovered(1), call(1, 1, (10, 20)), call(2, 1, (30, 40))], 45), 0);
    let batch = correlator.next_batch(HOLD_MAX + 1).unwrap();
    assert_eq!(parents(&[batch]), [(1, Some(7)), (2, None)]);
    assert_eq!((correlator.stats().calls_uncorrelated, correlator.stats().batches_incomplete), (1, 1));
}

/// The published context is used; the events only show whether its span is a daemon span of this
/// node.
#[test]
fn published_context_takes_precedence_over_events() {
    let published = |event: LayerEvent, trace, span| {
        let LayerEvent::Syscall(mut call) = event else { panic!() };
        let (trace, span, from) = (TraceId(trace), SpanId(span), ContextSource::ThreadContext);
        call.context = Some(TraceContext { trace, span, flags: 1, source: from }.into());
        LayerEvent::Syscall(call)
    };
    let mut correlator = Correlator::default();
    correlator.add_updates([active_update(5, 1, Some(7)), active_update(25, 1, Some(8))], MonotonicNs(60));
    let calls = vec![
        discovered(1),
        published(call(1, 1, (10, 20)), 9, 7),
        // The events report span 8; span 7 is a daemon span as well.
        published(call(2, 1, (30, 35)), 9, 7),
        // A span of an application, and one with a daemon span's id in another trace.
        published(call(3, 1, (36, 40)), 77, 5),
        published(call(4, 1, (41, 45)), 77, 7),
        call(5, 1, (50, 55)),
        // After the complete updates.
        published(call(6, 1, (60, 65)), 9, 8),
    ];
    correlator.add_batch(batch(0, calls, 70), 0);
    let emitted = correlator.next_batch(HOLD_MAX + 1).unwrap();
    let from: Vec<_> = emitted
        .events
        .iter()
        .filter_map(|event| match event {
            LayerEvent::Syscall(call) => {
                call.context.as_ref().map(|active| (active.span.0, active.source, active.flags))
            }
            _ => None,
        })
        .collect();
    use ContextSource::{Both, DaemonSpan, ThreadContext};
    assert_eq!(
        from,
        [
            (7, Both, 1),
            (7, Both, 1),
            (5, ThreadContext, 1),
            (7, ThreadContext, 1),
            (8, DaemonSpan, 0),
            (8, Both, 1)
        ]
    );
    let stats = CorrelationStats {
        calls_correlated: 4,
        calls_exact: 3,
        calls_contradicted: 3,
        batches_incomplete: 1,
        ..CorrelationStats::default()
    };
    assert_eq!(correlator.stats(), &stats);
}

/// Another process has a thread with the same thread id.
#[test]
fn equal_thread_id_in_another_process_is_another_thread() {
    let mut correlator = Correlator::default();
    correlator.add_updates(
        [Update::ActiveSpan(
            MonotonicNs(5),
            Thread::initial(999, 1),
            Some(ActiveSpan { trace: TraceId(9), span: SpanId(7), since: MonotonicNs(5) }),
        )],
        MonotonicNs(90),
    );
    correlator.add_batch(batch(0, vec![discovered(1), call(1, 1, (10, 20))], 45), 0);
    assert_eq!(parents(&[correlator.next_batch(1).unwrap()]), [(1, None)]);
}

/// Two containers and the host have a thread 100/1 each.
#[test]
fn equal_ids_in_three_pid_namespaces_are_three_threads() {
    let inner = |id: u32, pid_ns: u32| {
        let LayerEvent::Task(discovered) = discovered(id) else { panic!() };
        let inner = (pid_ns != 0).then_some(PidNsIds { pid_ns, pid: Pid(100), tid: Tid(1) });
        let (tid, pid) = if pid_ns == 0 { (Tid(1), Pid(100)) } else { (Tid(1_000 + id), Pid(1_000 + id)) };
        LayerEvent::Task(TaskEvent { ns_ids: inner, tid, pid, ..discovered })
    };
    let mut correlator = Correlator::for_traced_processes();
    let (mut spans, mut updates) = (DaemonSpans::default(), Vec::new());
    let threads = [(5, 0), (6, 77), (7, 88), (8, 99)];
    let thread = |pid_ns| Thread { pid_ns, ..Thread::initial(100, 1) };
    for (span, pid_ns) in threads {
        spans.apply(&at(10, thread(pid_ns)), &begin(span, None, true), &mut updates);
    }
    for (span, pid_ns) in threads {
        spans.apply(&at(50, thread(pid_ns)), &SpanEvent::End { span, status: 0 }, &mut updates);
    }
    correlator.add_updates(updates, MonotonicNs(90));
    let calls = (1..=3).map(|n| call(n, n as u32, (20, 30)));
    let events = [inner(1, 0), inner(2, 77), inner(3, 88)].into_iter().chain(calls).collect();
    correlator.add_batch(batch(0, events, 80), 0);
    let emitted = correlator.next_batch(1).unwrap();
    let of = |event: &LayerEvent| match event {
        LayerEvent::DaemonSpan(span) => Some((span.span.0, span.pid.0, span.tid.0)),
        _ => None,
    };
    // With host ids. The untraced thread in a fourth namespace is unknown.
    let reported: Vec<_> = emitted.events.iter().filter_map(of).collect();
    assert_eq!(reported, [(5, 100, 1), (6, 1_002, 1_002), (7, 1_003, 1_003)]);
    assert_eq!(correlator.stats().spans_filtered, 1);
    assert_eq!(parents(&[emitted]), [(1, Some(5)), (2, Some(6)), (3, Some(7))]);
}

fn claimed(span: u64, user: u32, updates: &mut Vec<Update>) {
    let thread = Thread::initial(100, 1).claimed_by(user);
    let mut spans = DaemonSpans::default();
    spans.apply(&at(10, thread), &begin(span, None, true), updates);
    spans.apply(&at(50, thread), &SpanEvent::End { span, status: 0 }, updates);
}

/// The kernel side reports user 1000 for each task.
fn correlated(claims: &[(u64, u32)], events: Vec<LayerEvent>) -> (Correlator, EventBatch) {
    let mut correlator = Correlator::default();
    let mut updates = Vec::new();
    claims.iter().for_each(|(span, user)| claimed(*span, *user, &mut updates));
    updates.sort_by_key(Update::at);
    correlator.add_updates(updates, MonotonicNs(90));
    correlator.add_batch(batch(0, events, 80), 0);
    let emitted = correlator.next_batch(1).unwrap();
    (correlator, emitted)
}

fn emitted_spans(batch: &EventBatch) -> Vec<(u64, u32)> {
    let spans = batch.events.iter().filter_map(|event| match event {
        LayerEvent::DaemonSpan(span) => Some((span.span.0, span.pid.0)),
        _ => None,
    });
    spans.collect()
}

#[test]
fn only_a_threads_own_user_and_root_can_name_it() {
    for (user, parent) in [(1000, Some(7)), (0, Some(7)), (1001, None), (u32::MAX, None)] {
        let (mut correlator, emitted) = correlated(&[(7, user)], vec![discovered(1), call(1, 1, (20, 30))]);
        assert_eq!(parents(std::slice::from_ref(&emitted)), [(1, parent)], "{user}");
        let is_foreign = parent.is_none();
        assert_eq!(emitted_spans(&emitted).is_empty(), is_foreign, "{user}");
        // The change of the thread's span, and the span.
        assert_eq!(correlator.stats().updates_foreign_user, u64::from(is_foreign) * 2, "{user}");
        assert_eq!(correlator.take_foreign_users(), if is_foreign { vec![user] } else { vec![] });
        assert_eq!(correlator.take_foreign_users(), [] as [u32; 0], "each user is reported once");
    }
}

#[test]
fn claims_of_another_user_change_nothing_for_the_thread() {
    for claims in [[(7, 1000), (8, 1001)], [(8, 1001), (7, 1000)]] {
        let (_, emitted) = correlated(&claims, vec![discovered(1), call(1, 1, (20, 30))]);
        assert_eq!(
            (parents(std::slice::from_ref(&emitted)), emitted_spans(&emitted)),
            (vec![(1, Some(7))], vec![(7, 100)])
        );
    }
}

/// The claim comes before the kernel side reports the thread.
#[test]
fn claim_of_an_unknown_thread_is_kept_apart() {
    let LayerEvent::Task(task) = discovered(1) else { panic!() };
    let late = LayerEvent::Task(TaskEvent { time: MonotonicNs(15), ..task });
    let events = || vec![late.clone(), call(1, 1, (20, 30))];
    let (_, emitted) = correlated(&[(7, 1001)], events());
    assert_eq!((parents(std::slice::from_ref(&emitted)), emitted_spans(&emitted)), (vec![(1, None)], vec![]));
    let (_, emitted) = correlated(&[(7, 1000)], events());
    assert_eq!(parents(&[emitted]), [(1, Some(7))]);
}

/// No task was reported, so the owner of the process is unknown.
#[test]
fn span_of_an_unknown_process_has_a_process_id_only_from_root() {
    let (correlator, emitted) = correlated(&[(7, 1000), (8, 0)], vec![]);
    assert_eq!(emitted_spans(&emitted), [(7, 0), (8, 100)]);
    let stats = correlator.stats();
    assert_eq!((stats.spans_foreign_pidns, stats.updates_foreign_user), (1, 0));
}

/// The user's process has exited, and the claim is about the next owner of its id.
#[test]
fn reused_id_is_not_taken_for_the_previous_process() {
    let LayerEvent::Task(task) = discovered(1) else { panic!() };
    let exited = TaskEvent { time: MonotonicNs(5), change: TaskChange::Exited, ..task.clone() };
    let next = TaskEvent {
        time: MonotonicNs(8),
        change: TaskChange::Forked,
        task: TaskRef { id: TaskId(2), version: 0 },
        uid: Uid(1001),
        ..task.clone()
    };
    let events = [task, exited, next].map(LayerEvent::Task).into_iter().chain([call(1, 2, (20, 30))]);
    let (correlator, emitted) = correlated(&[(7, 1000)], events.collect());
    assert_eq!((parents(std::slice::from_ref(&emitted)), emitted_spans(&emitted)), (vec![(1, None)], vec![]));
    assert_eq!(correlator.stats().updates_foreign_user, 2);
}

/// Action of a thread.
#[derive(Clone, Copy, Debug)]
enum Action {
    Begin,
    End,
    Call,
    Idle,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// For any batch boundaries and delays, a call's parent is its thread's span or unknown. It is
    /// unknown only if the thread had no span or updates were late.
    #[test]
    fn parent_of_a_call_is_the_active_span_or_unknown(
        actions in prop::collection::vec((0..4_u32, prop_oneof![
            2 => Just(Action::Begin), 2 => Just(Action::End), 4 => Just(Action::Call), 1 => Just(Action::Idle),
        ]), 1..150),
        cuts in prop::collection::vec(1..1_600_u64, 0..8),
        early in any::<u16>(), delays in prop::collection::vec(0..400_u64, 1..6), patient in any::<bool>(),
    ) {
        // The events: each action takes 10 ns.
        let (mut stacks, mut span_events, mut kernel) = (vec![Vec::new(); 4], Vec::new(), Vec::new());
        let mut expected = HashMap::new();
        for (n, &(tid, action)) in actions.iter().enumerate() {
            let time = 100 + n as u64 * 10;
            let stack = &mut stacks[tid as usize];
            let thread = Thread::initial(100, tid);
            match action {
                Action::Begin => {
                    let span = 1_000 + n as u64;
                    stack.push(span);
                    span_events.push((time, thread, begin(span, None, true)));
                }
                Action::End => {
                    let Some(span) = stack.pop() else { continue };
                    span_events.push((time, thread, SpanEvent::End { span, status: 0 }));
                }
                Action::Call => {
                    expected.insert(n as u64, stack.last().copied());
                    kernel.push(call(n as u64, tid, (time + 1, time + 9)));
                }
                Action::Idle => {}
            }
        }
        let mut watermarks = cuts;
        watermarks.sort_unstable();
        watermarks.push(10_000);
        let mut batches = vec![batch(0, (0..4).map(discovered).collect(), 0)];
        let mut from = 0;
        for watermark in watermarks {
            let to = kernel.partition_point(|event| event.time().0 <= watermark);
            // Some events are delivered before earlier ones.
            let ahead = if early & 1 == 1 { (to + 2).min(kernel.len()) } else { to };
            let events = kernel[from.min(ahead)..ahead].to_vec();
            from = ahead.max(from);
            batches.push(batch(batches.len() as u64, events, watermark));
        }
        let (mut correlator, mut spans, mut out) = (Correlator::default(), DaemonSpans::default(), Vec::new());
        let (mut applied, mut now) = (0, 0);
        for (n, batch) in batches.into_iter().enumerate() {
            let watermark = batch.watermark.0;
            correlator.add_batch(batch, now);
            // Updates are complete up to a time before or after the batch's end.
            let until = (watermark + 50).saturating_sub(delays[n % delays.len()]);
            let mut updates = Vec::new();
            while applied < span_events.len() && span_events[applied].0 <= until {
                let (time, thread, event) = &span_events[applied];
                spans.apply(&at(*time, *thread), event, &mut updates);
                applied += 1;
            }
            correlator.add_updates(updates, MonotonicNs(until));
            now += if patient { 1 } else { HOLD_MAX };
            while let Some(batch) = correlator.next_batch(now) {
                out.push(batch);
            }
        }
        let mut updates = Vec::new();
        span_events[applied..]
            .iter()
            .for_each(|(time, thread, event)| spans.apply(&at(*time, *thread), event, &mut updates));
        spans.finish(20_000, &mut updates);
        correlator.add_updates(updates, MonotonicNs(u64::MAX));
        out.extend(correlator.finish());
        let stats = *correlator.stats();
        let parents = parents(&out);
        prop_assert_eq!(parents.len(), expected.len(), "each call once");
        let mut without_parent = 0;
        for (span, parent) in parents {
            prop_assert!(parent.is_none() || parent == expected[&span], "{span}: {parent:?}, not {:?}", expected[&span]);
            without_parent += u64::from(parent != expected[&span]);
        }
        prop_assert!(without_parent <= stats.calls_uncorrelated, "{without_parent} without a parent, {stats:?}");
        prop_assert!(!patient || without_parent == 0);
        let sequences: Vec<u64> = out.iter().map(|batch| batch.sequence).collect();
        prop_assert_eq!(&sequences, &(0..out.len() as u64).collect::<Vec<_>>());
        let ended = out.iter().flat_map(|batch| &batch.events).filter(|event| matches!(event, LayerEvent::DaemonSpan(_)));
        prop_assert_eq!(ended.count() as u64, spans.stats().begun);
        let (mut watermark, mut late) = (0, 0);
        for batch in &out {
            late += batch.events.iter().filter(|event| event.time().0 < watermark).map(|event| {
                assert!(!matches!(event, LayerEvent::Syscall(_) | LayerEvent::Task(_)), "kernel events are never behind a watermark");
            }).count() as u64;
            watermark = batch.watermark.0;
        }
        prop_assert_eq!(late, stats.spans_late);
        prop_assert!(late == 0 || !patient);
    }
}

/// A session contains the events of all of the user's daemons.
#[test]
fn spans_of_untraced_processes_are_filtered() {
    let mut correlator = Correlator::for_traced_processes();
    let (mut spans, mut updates) = (DaemonSpans::default(), Vec::new());
    for (pid, span) in [(100, 5), (999, 6)] {
        let thread = Thread::initial(pid, 1);
        spans.apply(&at(10, thread), &begin(span, None, true), &mut updates);
        spans.apply(&at(20, thread), &SpanEvent::End { span, status: 0 }, &mut updates);
    }
    correlator.add_updates(updates, MonotonicNs(90));
    correlator.add_batch(batch(0, vec![discovered(1)], 45), 0);
    let emitted = correlator.next_batch(1).unwrap();
    let spans: Vec<u64> = emitted
        .events
        .iter()
        .filter_map(|event| if let LayerEvent::DaemonSpan(span) = event { Some(span.span.0) } else { None })
        .collect();
    assert_eq!(spans, [5]);
    assert_eq!((correlator.stats().spans, correlator.stats().spans_filtered), (1, 1));
}

/// A thread exits within a span, and its id is reused. Both streams report events of the new thread
/// before the exit is known.
#[test]
fn span_entered_before_the_fork_belongs_to_the_previous_thread() {
    let mut correlator = Correlator::default();
    let forked = |id, time, change| {
        let LayerEvent::Task(task) = discovered(1) else { panic!() };
        LayerEvent::Task(TaskEvent { time: MonotonicNs(time), task: self::task(id), change, ..task })
    };
    // The new thread enters and leaves its own span; the outer span is the old thread's.
    let active =
        |span, since| ActiveSpan { trace: TraceId(9), span: SpanId(span), since: MonotonicNs(since) };
    let thread = Thread::initial(100, 1);
    let active_update =
        |at, span, since| Update::ActiveSpan(MonotonicNs(at), thread, Some(active(span, since)));
    correlator.add_updates(
        [active_update(10, 7, 10), active_update(40, 8, 40), active_update(60, 7, 10)],
        MonotonicNs(90),
    );
    let mut earlier = call(1, 1, (11, 12));
    let (mut inside, mut after) = (call(2, 2, (45, 50)), call(3, 2, (70, 75)));
    for (event, id) in [(&mut earlier, 1), (&mut inside, 2), (&mut after, 2)] {
        let LayerEvent::Syscall(call) = event else { panic!() };
        call.task = task(id);
    }
    let events = vec![
        forked(1, 1, TaskChange::Discovered),
        earlier,
        forked(1, 20, TaskChange::Exited),
        forked(2, 30, TaskChange::Forked),
        inside,
        after,
    ];
    correlator.add_batch(batch(0, events, 80), 0);
    assert_eq!(parents(&[correlator.next_batch(1).unwrap()]), [(1, Some(7)), (2, Some(8)), (3, None)]);
    let exits: Vec<_> = correlator.take_exits().collect();
    assert_eq!(exits, [ThreadExit { thread: thread.claimed_by(1000), at: 20, last: true }]);
}
