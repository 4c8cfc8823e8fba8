use std::collections::HashMap;

use proptest::prelude::*;

use blkkin_wire::daemon_span::SAMPLE_RATE_ALL;

use super::*;

const T: Thread = Thread::initial(100, 101);
const U: Thread = Thread::initial(100, 102);

/// What was told, and what each thread works for by now.
#[derive(Debug, Default)]
struct Heard {
    events: Vec<LayerEvent>,
    works: HashMap<Thread, Above>,
}

impl Told for Heard {
    fn event(&mut self, _: Process, event: LayerEvent) {
        self.events.push(event);
    }
    fn began(&mut self, _: MonotonicNs, _: TraceId, _: SpanId) {}
    fn works(&mut self, _: MonotonicNs, thread: Thread, above: Option<Above>) {
        match above {
            Some(above) => drop(self.works.insert(thread, above)),
            None => drop(self.works.remove(&thread)),
        }
    }
    fn nobody(&mut self, _: MonotonicNs) {
        self.works.clear();
    }
}

impl Heard {
    fn span(&self, thread: Thread) -> Option<u64> {
        self.works.get(&thread).map(|above| above.span.0)
    }

    fn operations(&self) -> Vec<&DaemonSpanEvent> {
        let of = |event: &'_ LayerEvent| matches!(event, LayerEvent::DaemonSpan(_));
        let all = self.events.iter().filter(|event| of(event));
        all.map(
            |event| if let LayerEvent::DaemonSpan(operation) = event { &**operation } else { unreachable!() },
        )
        .collect()
    }
}

pub(crate) fn begin(span: u64, parent: Option<u64>, on: bool) -> Fact<'static> {
    Fact::Begin {
        trace_hi: 7,
        trace_lo: 9,
        span,
        parent: parent.unwrap_or(0),
        kind: Kind::Server,
        on,
        kept_per_million: SAMPLE_RATE_ALL,
        name: "nbd read".into(),
        service: "blkkin-nbd".into(),
    }
}

pub(crate) fn at(time_ns: u64, thread: Thread) -> Where<'static> {
    Where { time_ns, vpid: thread.pid, vtid: thread.tid, pid_ns: thread.pid_ns, procname: "daemon".into() }
}

fn end(span: u64) -> Fact<'static> {
    Fact::End { span, status: 0 }
}

fn run(facts: &[(u64, Thread, Fact<'_>)]) -> (Operations, Heard) {
    let (mut operations, mut heard) = (Operations::default(), Heard::default());
    for (time, thread, fact) in facts {
        operations.take(&at(*time, *thread), fact, &mut heard);
    }
    (operations, heard)
}

#[test]
fn a_thread_works_for_the_innermost_that_it_has_entered() {
    let mut facts = vec![(1, T, begin(1, None, true)), (2, T, begin(2, Some(1), true))];
    assert_eq!(run(&facts).1.span(T), Some(2));
    facts.push((3, T, end(2)));
    assert_eq!(run(&facts).1.span(T), Some(1));
    facts.extend([(4, U, Fact::Enter { span: 1 }), (5, T, Fact::Leave { span: 1 })]);
    let heard = run(&facts).1;
    assert_eq!((heard.span(T), heard.span(U)), (None, Some(1)));
    facts.push((6, U, end(1)));
    let (operations, heard) = run(&facts);
    assert_eq!((heard.span(U), operations.pending()), (None, 0));
    let [part, whole] = heard.operations()[..] else { panic!("{heard:?}") };
    assert_eq!((part.span, part.parent, part.parent_is_remote), (SpanId(2), Some(SpanId(1)), false));
    assert_eq!((whole.begin.0, whole.end.0, whole.tid, whole.status), (1, 6, Tid(101), SpanStatus::Ok));
}

#[test]
fn after_a_loss_nobody_works_for_what_was_said_before_it() {
    let (mut operations, mut heard) = run(&[(1, T, begin(1, None, true)), (2, U, begin(2, None, true))]);
    operations.lost(3, 10, 5, &mut heard);
    assert_eq!((heard.span(T), heard.span(U), operations.books().lost), (None, None, 5));
    // Said while it is not known what else was.
    operations.take(&at(9, T), &Fact::Enter { span: 1 }, &mut heard);
    assert_eq!(heard.span(T), None);
    operations.take(&at(10, T), &Fact::Enter { span: 1 }, &mut heard);
    assert_eq!(heard.span(T), Some(1));
    // What is left was entered before: nobody knows what lies below.
    operations.take(&at(11, U), &Fact::Leave { span: 2 }, &mut heard);
    assert_eq!(heard.span(U), None);
}

#[test]
fn what_a_killed_daemon_had_in_hand_is_given_out_unfinished() {
    let other = Thread::initial(200, 200);
    let (mut operations, mut heard) = run(&[
        (1, T, begin(1, None, true)),
        (2, U, begin(2, Some(1), true)),
        (3, other, begin(1, None, true)),
    ]);
    operations.gone(Process { pid_ns: 0, pid: 100 }, 50, &mut heard);
    let all: Vec<_> = heard.operations().iter().map(|one| (one.span.0, one.end.0, one.status)).collect();
    assert_eq!(all, [(2, 50, SpanStatus::Unfinished), (1, 50, SpanStatus::Unfinished)]);
    assert_eq!((heard.span(T), heard.span(other), operations.pending()), (None, Some(1), 1));
}

#[test]
fn an_end_of_a_request_is_said_with_its_operation() {
    let met = Fact::Meeting {
        span: 2,
        side: facts::Side::Answered,
        unique: false,
        rule: "nbd".into(),
        connection: "a>b".into(),
        cookie: 77,
    };
    let status = Fact::End { span: 2, status: 5 };
    let (_, heard) =
        run(&[(1, T, begin(1, None, false)), (2, T, begin(2, Some(1), false)), (3, T, met), (9, U, status)]);
    let [LayerEvent::RpcEndpoint(met), LayerEvent::DaemonSpan(operation)] = &heard.events[..] else {
        panic!("{heard:?}")
    };
    assert_eq!((met.span, met.root, met.begin.0, met.end.0), (SpanId(2), SpanId(1), 2, 9));
    assert_eq!(operation.status, SpanStatus::Error(5));
}

/// It has left the answer to the kernel, and waits for its CPU before it says that it is done.
#[test]
fn who_answers_is_over_for_who_asked_when_it_is_about_to_answer() {
    let met = |side| Fact::Meeting {
        span: 1,
        side,
        unique: true,
        rule: "nbd-stream".into(),
        connection: "a>b".into(),
        cookie: 77,
    };
    let answers = || Fact::Event { span: 1, name: ANSWERS.into() };
    let (_, heard) = run(&[
        (1, T, begin(1, None, false)),
        (1, T, met(facts::Side::Answered)),
        (1, T, met(facts::Side::Asked)),
        (5, T, answers()),
        // The rest of it, as the first write did not take all.
        (6, T, answers()),
        (9, U, end(1)),
    ]);
    let [
        LayerEvent::RpcEndpoint(answered),
        LayerEvent::RpcEndpoint(asked),
        LayerEvent::DaemonSpan(operation),
    ] = &heard.events[..]
    else {
        panic!("{heard:?}")
    };
    assert_eq!((answered.side, answered.begin.0, answered.end.0), (RpcSide::Server, 1, 5));
    assert_eq!((asked.side, asked.end.0, operation.end.0), (RpcSide::Client, 9, 9));
    assert_eq!(operation.annotations.len(), 2, "both are shown");
}

/// blkin's words for what a span is; and who says no trace is in that of what it is part of.
#[test]
fn a_span_of_blkins_is_a_server_where_it_answers() {
    let said = |name: &'static str| Fact::Event { span: 1, name: name.into() };
    let part = Fact::Begin {
        trace_hi: 0,
        trace_lo: 0,
        span: 2,
        parent: 1,
        kind: Kind::Internal,
        on: false,
        kept_per_million: SAMPLE_RATE_ALL,
        name: "journal".into(),
        service: "".into(),
    };
    let mut whole = begin(1, None, false);
    if let Fact::Begin { kind, .. } = &mut whole {
        *kind = Kind::Internal;
    }
    let (_, heard) = run(&[
        (1, T, whole),
        (2, T, said("sr")),
        (3, T, part),
        (4, T, end(2)),
        (5, T, said("ss")),
        (5, T, end(1)),
    ]);
    let [part, whole] = heard.operations()[..] else { panic!("{heard:?}") };
    assert_eq!((part.kind, part.trace, &*part.service), (SpanKind::Local, whole.trace, "daemon"));
    assert_eq!(whole.kind, SpanKind::Server);
    assert_eq!(whole.annotations.iter().map(|note| &*note.key).collect::<Vec<_>>(), ["sr", "ss"]);
}

/// Its numbers are others' here.
#[test]
fn a_thread_of_another_name_space_of_processes_is_another_thread() {
    let (mut operations, mut heard) = (Operations::default(), Heard::default());
    let there = Thread { pid_ns: 4_026_532_000, ..T };
    operations.take(&at(1, T), &begin(1, None, true), &mut heard);
    operations.take(&at(2, there), &begin(2, None, true), &mut heard);
    // Of the same number, and not the same operation.
    operations.take(&at(3, there), &begin(1, None, true), &mut heard);
    assert_eq!((heard.span(T), heard.span(there), operations.pending()), (Some(1), Some(1), 3));
    operations.gone(there.process(), 4, &mut heard);
    assert_eq!((heard.span(T), heard.span(there), operations.pending()), (Some(1), None, 1));
}

/// A daemon that never says an end.
#[test]
fn when_too_many_are_open_those_that_began_first_go() {
    let (mut operations, mut heard) = (Operations::default(), Heard::default());
    for span in 1..=OPEN_MAX as u64 + 1 {
        operations.take(&at(span, T), &begin(span, None, false), &mut heard);
    }
    assert_eq!(operations.books().no_room, OPEN_MAX as u64 / 8);
    assert_eq!(operations.pending(), OPEN_MAX - OPEN_MAX / 8 + 1);
    assert!(heard.operations().iter().all(|one| one.span.0 <= OPEN_MAX as u64 / 8));
}

/// What a daemon of a few threads does; each step says something or nothing of it is heard.
#[derive(Clone, Copy, Debug)]
enum Step {
    Begin,
    Enter(usize),
    Leave,
    End,
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is lost, as long as losses are told, a thread is never said to work for what it does not work for; and without
    /// losses always for what it does.
    #[test]
    fn nobody_is_said_to_work_for_another_operation_than_the_true_one(
        steps in prop::collection::vec((0..3_u32, prop_oneof![
            Just(Step::Begin), (0..8_usize).prop_map(Step::Enter), Just(Step::Leave), Just(Step::End),
        ], prop::bool::weighted(0.1)), 1..120),
    ) {
        let (mut operations, mut heard) = (Operations::default(), Heard::default());
        let mut truth: HashMap<u32, Vec<u64>> = HashMap::new();
        let (mut spans, mut next, mut losing, mut any) = (Vec::new(), 1, None, false);
        for (n, &(tid, step, lost)) in steps.iter().enumerate() {
            let (time, thread) = (10 + n as u64 * 10, Thread::initial(1, tid));
            let stack = truth.entry(tid).or_default();
            let fact = match step {
                Step::Begin => {
                    next += 1;
                    spans.push(next);
                    stack.push(next);
                    begin(next, None, true)
                }
                Step::Enter(which) => {
                    let Some(&span) = spans.get(which % spans.len().max(1)) else { continue };
                    stack.push(span);
                    Fact::Enter { span }
                }
                Step::Leave => {
                    let Some(span) = stack.pop() else { continue };
                    Fact::Leave { span }
                }
                Step::End => {
                    // Who ends it has it innermost; others that are in it stay.
                    let Some(span) = stack.pop() else { continue };
                    spans.retain(|one| *one != span);
                    end(span)
                }
            };
            if lost {
                losing.get_or_insert(time - 1);
                any = true;
                continue;
            }
            // A loss is known before what comes after it.
            if let Some(from) = losing.take() {
                operations.lost(from, time, 1, &mut heard);
            }
            operations.take(&at(time, thread), &fact, &mut heard);
            for (tid, stack) in &truth {
                let said = heard.span(Thread::initial(1, *tid));
                let true_one = stack.last().copied();
                prop_assert!(said.is_none() || said == true_one, "{tid}: {said:?}, not {true_one:?}");
                prop_assert!(any || said == true_one, "{tid}: {said:?}, not {true_one:?}, and nothing was lost");
            }
        }
        let books = *operations.books();
        prop_assert_eq!(books.begun, books.ended + books.unfinished + operations.pending() as u64);
        operations.finish(u64::MAX, &mut heard);
        prop_assert_eq!(operations.pending(), 0);
        prop_assert_eq!(heard.operations().len() as u64, operations.books().ended + operations.books().unfinished);
    }
}
