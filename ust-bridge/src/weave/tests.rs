use blkkin_wire::batch::SourceStats;
use blkkin_wire::clock::ClockAnchor;
use blkkin_wire::event::{PidNsIds, TaskEvent, TaskRef};
use blkkin_wire::ids::{CgroupId, Pid, Source, SpanId, Tid, TraceId, Uid};
use blkkin_wire::syscalls::SyscallId;
use proptest::prelude::*;

use super::*;
use crate::facts::Fact;
use crate::operations::Operations;
use crate::operations::tests::{at, begin};

fn task(tid: u32) -> TaskRef {
    TaskRef { id: TaskId(tid.into()), version: 0 }
}

fn seen(tid: u32) -> LayerEvent {
    LayerEvent::Task(TaskEvent {
        time: MonotonicNs(1),
        task: task(tid),
        parent: None,
        change: TaskChange::Discovered,
        tid: Tid(tid),
        pid: Pid(100),
        ppid: Pid(1),
        uid: Uid(0),
        cgroup: CgroupId(1),
        comm: "daemon".into(),
        exe: None,
        kernel_thread: false,
        ns_ids: None,
    })
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
    EventBatch {
        source: Source::NONE,
        sequence,
        anchor: ClockAnchor::NONE,
        events,
        watermark: MonotonicNs(watermark),
        stats: SourceStats::default(),
        crashed_runs: Vec::new(),
    }
}

fn works(at: u64, tid: u32, span: Option<u64>) -> Word {
    let above = span.map(|span| Above { trace: TraceId(9), span: SpanId(span), since: MonotonicNs(at) });
    Word::Works(MonotonicNs(at), Thread::initial(100, tid), above)
}

fn links(batches: &[EventBatch]) -> Vec<(u64, Option<u64>)> {
    let calls = batches.iter().flat_map(|batch| &batch.events).filter_map(|event| match event {
        LayerEvent::Syscall(call) => Some((call.span.0, call.context.as_ref().map(|above| above.span.0))),
        _ => None,
    });
    calls.collect()
}

#[test]
fn a_batch_waits_for_what_was_said_before_its_end() {
    let mut weave = Weave::default();
    weave.take(batch(0, vec![seen(1), call(1, 1, (10, 20)), call(2, 1, (30, 40))], 45), 0);
    assert_eq!(weave.next(HOLD_MAX), None);
    weave.hear([works(25, 1, Some(7))], MonotonicNs(44));
    assert_eq!(weave.next(HOLD_MAX), None);
    weave.hear([], MonotonicNs(45));
    let one = weave.next(1).unwrap();
    assert_eq!(links(&[one]), [(1, None), (2, Some(7))]);
    assert_eq!(weave.books(), &WeaveBooks { calls_linked: 1, ..WeaveBooks::default() });
}

/// What its threads publish is not said besides, where that is read: that it began is all that is known of the operation.
#[test]
fn an_operation_that_nobody_was_said_to_work_for_is_one_of_this_node() {
    let mut weave = Weave::default();
    let (mut operations, mut words) = (Operations::default(), Vec::new());
    let Fact::Begin { trace_hi, trace_lo, span, .. } = begin(7, None, false) else { panic!() };
    operations.take(&at(5, Thread::initial(100, 1)), &begin(7, None, false), &mut words);
    weave.hear(words, MonotonicNs(60));
    let LayerEvent::Syscall(mut published) = call(1, 1, (10, 20)) else { panic!() };
    let (trace, from) =
        (TraceId(u128::from(trace_hi) << 64 | u128::from(trace_lo)), ContextSource::ThreadContext);
    published.context = Some(TraceContext { trace, span: SpanId(span), flags: 1, source: from }.into());
    weave.take(batch(0, vec![seen(1), LayerEvent::Syscall(published), call(2, 1, (30, 40))], 45), 0);
    assert_eq!(links(&[weave.next(1).unwrap()]), [(1, Some(7)), (2, None)]);
    assert_eq!((weave.books().calls_linked, weave.books().calls_exact), (1, 1));
}

#[test]
fn what_is_let_go_unwaited_names_nothing_behind_what_is_known() {
    let mut weave = Weave::default();
    weave.hear([works(5, 1, Some(7))], MonotonicNs(20));
    weave.take(batch(0, vec![seen(1), call(1, 1, (10, 20)), call(2, 1, (30, 40))], 45), 0);
    let one = weave.next(HOLD_MAX + 1).unwrap();
    assert_eq!(links(&[one]), [(1, Some(7)), (2, None)]);
    assert_eq!((weave.books().calls_unjudged, weave.books().batches_unwaited), (1, 1));
}

/// What a thread published is believed; what it said besides is whether that is an operation of this node.
#[test]
fn what_was_published_counts_before_what_was_said() {
    let published = |event: LayerEvent, trace, span| {
        let LayerEvent::Syscall(mut call) = event else { panic!() };
        let (trace, span, from) = (TraceId(trace), SpanId(span), ContextSource::ThreadContext);
        call.context = Some(TraceContext { trace, span, flags: 1, source: from }.into());
        LayerEvent::Syscall(call)
    };
    let mut weave = Weave::default();
    weave.hear([works(5, 1, Some(7)), works(25, 1, Some(8))], MonotonicNs(60));
    let calls = vec![
        seen(1),
        published(call(1, 1, (10, 20)), 9, 7),
        // It says that it works for 8; 7 is an operation all the same.
        published(call(2, 1, (30, 35)), 9, 7),
        // An application's, and one of another trace than the operation of this number.
        published(call(3, 1, (36, 40)), 77, 5),
        published(call(4, 1, (41, 45)), 77, 7),
        call(5, 1, (50, 55)),
        // Beyond what is known.
        published(call(6, 1, (60, 65)), 9, 8),
    ];
    weave.take(batch(0, calls, 70), 0);
    let given = weave.next(HOLD_MAX + 1).unwrap();
    let from: Vec<_> = given
        .events
        .iter()
        .filter_map(|event| match event {
            LayerEvent::Syscall(call) => {
                call.context.as_ref().map(|above| (above.span.0, above.source, above.flags))
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
    let books = WeaveBooks {
        calls_linked: 4,
        calls_exact: 3,
        calls_contradicted: 3,
        batches_unwaited: 1,
        ..WeaveBooks::default()
    };
    assert_eq!(weave.books(), &books);
}

/// Another process has the thread's number: pid and tid name it, and the task is another.
#[test]
fn a_thread_is_one_of_its_process() {
    let mut weave = Weave::default();
    weave.hear(
        [Word::Works(
            MonotonicNs(5),
            Thread::initial(999, 1),
            Some(Above { trace: TraceId(9), span: SpanId(7), since: MonotonicNs(5) }),
        )],
        MonotonicNs(90),
    );
    weave.take(batch(0, vec![seen(1), call(1, 1, (10, 20))], 45), 0);
    assert_eq!(links(&[weave.next(1).unwrap()]), [(1, None)]);
}

/// Two containers and the machine have a thread 100/1 each.
#[test]
fn threads_of_one_number_in_three_name_spaces_are_three() {
    let inner = |id: u32, pid_ns: u32| {
        let LayerEvent::Task(seen) = seen(id) else { panic!() };
        let inner = (pid_ns != 0).then_some(PidNsIds { pid_ns, pid: Pid(100), tid: Tid(1) });
        let (tid, pid) = if pid_ns == 0 { (Tid(1), Pid(100)) } else { (Tid(1_000 + id), Pid(1_000 + id)) };
        LayerEvent::Task(TaskEvent { ns_ids: inner, tid, pid, ..seen })
    };
    let mut weave = Weave::of_followed();
    let (mut operations, mut words) = (Operations::default(), Vec::new());
    let threads = [(5, 0), (6, 77), (7, 88), (8, 99)];
    let thread = |pid_ns| Thread { pid_ns, ..Thread::initial(100, 1) };
    for (span, pid_ns) in threads {
        operations.take(&at(10, thread(pid_ns)), &begin(span, None, true), &mut words);
    }
    for (span, pid_ns) in threads {
        operations.take(&at(50, thread(pid_ns)), &Fact::End { span, status: 0 }, &mut words);
    }
    weave.hear(words, MonotonicNs(90));
    let calls = (1..=3).map(|n| call(n, n as u32, (20, 30)));
    let events = [inner(1, 0), inner(2, 77), inner(3, 88)].into_iter().chain(calls).collect();
    weave.take(batch(0, events, 80), 0);
    let given = weave.next(1).unwrap();
    let of = |event: &LayerEvent| match event {
        LayerEvent::DaemonSpan(one) => Some((one.span.0, one.pid.0, one.tid.0)),
        _ => None,
    };
    // By the machine's numbers; and who is not followed, in a fourth, is nobody that is known.
    let said: Vec<_> = given.events.iter().filter_map(of).collect();
    assert_eq!(said, [(5, 100, 1), (6, 1_002, 1_002), (7, 1_003, 1_003)]);
    assert_eq!(weave.books().operations_of_others, 1);
    assert_eq!(links(&[given]), [(1, Some(5)), (2, Some(6)), (3, Some(7))]);
}

/// One thing that a thread does.
#[derive(Clone, Copy, Debug)]
enum Act {
    Begin,
    End,
    Call,
    Idle,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// However batches are cut and however late facts come, a call is below the operation of its thread or below none; and below
    /// none only where it worked for none, or where facts were late.
    #[test]
    fn every_call_is_below_the_operation_that_it_was_made_for(
        acts in prop::collection::vec((0..4_u32, prop_oneof![
            2 => Just(Act::Begin), 2 => Just(Act::End), 4 => Just(Act::Call), 1 => Just(Act::Idle),
        ]), 1..150),
        cuts in prop::collection::vec(1..1_600_u64, 0..8),
        early in any::<u16>(), delays in prop::collection::vec(0..400_u64, 1..6), patient in any::<bool>(),
    ) {
        // What happens: each act takes 10 ns, and a call may have begun some acts before, in another thread's.
        let (mut stacks, mut facts, mut kernel) = (vec![Vec::new(); 4], Vec::new(), Vec::new());
        let mut truth = HashMap::new();
        for (n, &(tid, act)) in acts.iter().enumerate() {
            let time = 100 + n as u64 * 10;
            let stack = &mut stacks[tid as usize];
            let thread = Thread::initial(100, tid);
            match act {
                Act::Begin => {
                    let span = 1_000 + n as u64;
                    stack.push(span);
                    facts.push((time, thread, begin(span, None, true)));
                }
                Act::End => {
                    let Some(span) = stack.pop() else { continue };
                    facts.push((time, thread, Fact::End { span, status: 0 }));
                }
                Act::Call => {
                    truth.insert(n as u64, stack.last().copied());
                    kernel.push(call(n as u64, tid, (time + 1, time + 9)));
                }
                Act::Idle => {}
            }
        }
        let mut marks = cuts;
        marks.sort_unstable();
        marks.push(10_000);
        let mut batches = vec![batch(0, (0..4).map(seen).collect(), 0)];
        let mut from = 0;
        for mark in marks {
            let to = kernel.partition_point(|event| event.time().0 <= mark);
            // Some events come before others that are earlier.
            let ahead = if early & 1 == 1 { (to + 2).min(kernel.len()) } else { to };
            let events = kernel[from.min(ahead)..ahead].to_vec();
            from = ahead.max(from);
            batches.push(batch(batches.len() as u64, events, mark));
        }
        let (mut weave, mut operations, mut out) = (Weave::default(), Operations::default(), Vec::new());
        let (mut told, mut now) = (0, 0);
        for (n, batch) in batches.into_iter().enumerate() {
            let mark = batch.watermark.0;
            weave.take(batch, now);
            // Facts are known up to some time before the batch's end, or after it.
            let until = (mark + 50).saturating_sub(delays[n % delays.len()]);
            let mut words = Vec::new();
            while told < facts.len() && facts[told].0 <= until {
                let (time, thread, fact) = &facts[told];
                operations.take(&at(*time, *thread), fact, &mut words);
                told += 1;
            }
            weave.hear(words, MonotonicNs(until));
            now += if patient { 1 } else { HOLD_MAX };
            while let Some(batch) = weave.next(now) {
                out.push(batch);
            }
        }
        let mut words = Vec::new();
        facts[told..]
            .iter()
            .for_each(|(time, thread, fact)| operations.take(&at(*time, *thread), fact, &mut words));
        operations.finish(20_000, &mut words);
        weave.hear(words, MonotonicNs(u64::MAX));
        out.extend(weave.finish());
        let books = *weave.books();
        let links = links(&out);
        prop_assert_eq!(links.len(), truth.len(), "each call once");
        let mut untold = 0;
        for (span, link) in links {
            prop_assert!(link.is_none() || link == truth[&span], "{span}: {link:?}, not {:?}", truth[&span]);
            untold += u64::from(link != truth[&span]);
        }
        prop_assert!(untold <= books.calls_unjudged, "{untold} without a link, {books:?}");
        prop_assert!(!patient || untold == 0);
        let sequences: Vec<u64> = out.iter().map(|batch| batch.sequence).collect();
        prop_assert_eq!(&sequences, &(0..out.len() as u64).collect::<Vec<_>>());
        let ended = out.iter().flat_map(|batch| &batch.events).filter(|event| matches!(event, LayerEvent::DaemonSpan(_)));
        prop_assert_eq!(ended.count() as u64, operations.books().begun);
        let (mut watermark, mut late) = (0, 0);
        for batch in &out {
            late += batch.events.iter().filter(|event| event.time().0 < watermark).map(|event| {
                assert!(!matches!(event, LayerEvent::Syscall(_) | LayerEvent::Task(_)), "the kernel's are never behind one");
            }).count() as u64;
            watermark = batch.watermark.0;
        }
        prop_assert_eq!(late, books.operations_late);
        prop_assert!(late == 0 || !patient);
    }
}

/// Sessions are of a user: another's daemon speaks in ours.
#[test]
fn operations_of_who_is_not_followed_are_left_out() {
    let mut weave = Weave::of_followed();
    let (mut operations, mut words) = (Operations::default(), Vec::new());
    for (pid, span) in [(100, 5), (999, 6)] {
        let thread = Thread::initial(pid, 1);
        operations.take(&at(10, thread), &begin(span, None, true), &mut words);
        operations.take(&at(20, thread), &Fact::End { span, status: 0 }, &mut words);
    }
    weave.hear(words, MonotonicNs(90));
    weave.take(batch(0, vec![seen(1)], 45), 0);
    let given = weave.next(1).unwrap();
    let spans: Vec<u64> = given
        .events
        .iter()
        .filter_map(|event| if let LayerEvent::DaemonSpan(one) = event { Some(one.span.0) } else { None })
        .collect();
    assert_eq!(spans, [5]);
    assert_eq!((weave.books().operations, weave.books().operations_of_others), (1, 1));
}

/// A thread ends inside an operation, and its number goes to another, of which both streams say something before it is heard that
/// the first has ended.
#[test]
fn what_was_entered_under_a_threads_number_before_it_was_forked_is_not_its_own() {
    let mut weave = Weave::default();
    let forked = |id, time, change| {
        let LayerEvent::Task(task) = seen(1) else { panic!() };
        LayerEvent::Task(TaskEvent { time: MonotonicNs(time), task: self::task(id), change, ..task })
    };
    // In and out of one of its own: what lies below is the other's.
    let above = |span, since| Above { trace: TraceId(9), span: SpanId(span), since: MonotonicNs(since) };
    let thread = Thread::initial(100, 1);
    let works = |at, span, since| Word::Works(MonotonicNs(at), thread, Some(above(span, since)));
    weave.hear([works(10, 7, 10), works(40, 8, 40), works(60, 7, 10)], MonotonicNs(90));
    let mut elder = call(1, 1, (11, 12));
    let (mut inside, mut behind) = (call(2, 2, (45, 50)), call(3, 2, (70, 75)));
    for (event, id) in [(&mut elder, 1), (&mut inside, 2), (&mut behind, 2)] {
        let LayerEvent::Syscall(call) = event else { panic!() };
        call.task = task(id);
    }
    let events = vec![
        forked(1, 1, TaskChange::Discovered),
        elder,
        forked(1, 20, TaskChange::Exited),
        forked(2, 30, TaskChange::Forked),
        inside,
        behind,
    ];
    weave.take(batch(0, events, 80), 0);
    assert_eq!(links(&[weave.next(1).unwrap()]), [(1, Some(7)), (2, Some(8)), (3, None)]);
    let exits: Vec<_> = weave.take_exits().collect();
    assert_eq!(exits, [Exit { thread, at: 20, last: true }]);
}
