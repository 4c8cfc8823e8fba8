//! Where the time of an operation went, with all that was done for it: in the programs' own words and in the kernel's.
//!
//! *In*: the operation at the top, what hangs below it, and whether anybody who answered it was heard. *Out*: a [`Split`] whose sum is the
//! operation's duration, to the nanosecond. As in [`super`] the deepest wins at each moment:
//!
//! 1. **device**, **block**, **journal**: of any call below, as [`super`] says them of one.
//! 2. **calls**: none of these, and a system call below is under way. Several calls may be at once, of which one computes and another
//!    sleeps, so it is not told here whose file system it was: each call's own split says that.
//! 3. **cpu**: of that, as much as the calls' tasks were ready to run and no CPU ran them; only where no two calls were under way at
//!    once, since when in a call that was is not recorded.
//! 4. **programs**: none of these, and who answered has the request: its own code, its locks, its queues.
//! 5. **way**: none of these; the operation is open, and who answered has not taken it yet, or has said that it is done: sockets,
//!    the network, both wake-ups. Only where who answered was heard.
//! 6. **own**: the same where nobody was asked who was heard: it is the operation's own program.
//!
//! *Limit*: a call that is not traced (`--syscall`) is no call here. Its time is its program's.

use blkkin_wire::clock::DurationNs;

use super::{Covered, all_bios, all_requests, at_device};
use crate::trace::{Root, Trace};

/// An operation's duration by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Split {
    /// A request was with a device.
    pub device: DurationNs,
    /// A bio or a request was in the block layer above a device.
    pub block: DurationNs,
    /// A commit was running that had nothing in the block layer.
    pub journal: DurationNs,
    /// A call was under way that had nothing of these.
    pub calls: DurationNs,
    /// The same, and it waited for a CPU.
    pub cpu: DurationNs,
    /// An operation below was open that had nothing of these.
    pub programs: DurationNs,
    /// Between who asked and who answered.
    pub way: DurationNs,
    /// None of these: the operation's own program.
    pub own: DurationNs,
}

/// Where the time of `top` went; `answered` by somebody who is among those `below`.
pub fn split(top: &Trace, below: &[&Trace], answered: bool) -> Split {
    let mut covered = Covered::new(top.start(), top.end());
    for trace in below {
        all_requests(trace).for_each(|request| covered.add(at_device(request), request.complete));
    }
    let device = covered.grow();
    for trace in below {
        all_requests(trace).for_each(|request| covered.add(request.start, request.complete));
        all_bios(trace).for_each(|(queue, end)| covered.add(queue, end));
    }
    let block = covered.grow();
    for cause in below.iter().flat_map(|trace| &trace.causes) {
        covered.add(cause.trace.start(), cause.trace.end());
    }
    let journal = covered.grow();
    let mut cover = |operations: bool| {
        let alike = below.iter().filter(|trace| matches!(trace.root, Root::Operation(_)) == operations);
        alike.for_each(|trace| covered.add(trace.start(), trace.end()));
        covered.grow()
    };
    let (calls, programs) = (cover(false), cover(true));
    let cpu = waited(below).min(calls);
    let calls = DurationNs(calls.0 - cpu.0);
    let rest = covered.rest();
    let (way, own) = if answered { (rest, DurationNs(0)) } else { (DurationNs(0), rest) };
    Split { device, block, journal, calls, cpu, programs, way, own }
}

/// How long calls waited for a CPU beside nothing else of theirs, if they were one after another.
fn waited(below: &[&Trace]) -> DurationNs {
    let mut calls: Vec<&Trace> = below.iter().copied().filter(|trace| trace.call().is_some()).collect();
    calls.sort_by_key(|call| call.start());
    let at_once = calls.windows(2).any(|pair| pair[1].start() < pair[0].end());
    let waited = calls.iter().map(|call| super::breakdown(call).cpu.0);
    DurationNs(if at_once { 0 } else { waited.sum() })
}

#[cfg(test)]
mod tests {
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::daemon_span::DaemonSpanEvent;
    use blkkin_wire::ids::{SpanId, TraceId};
    use blkkin_wire::span::SpanKind;
    use proptest::prelude::*;

    use super::*;
    use crate::join::tests::make;

    fn operation(span: u64, begin: u64, end: u64) -> Trace {
        let mut trace = make::trace(span);
        trace.root = Root::Operation(Box::new(DaemonSpanEvent {
            kind: SpanKind::Client,
            name: "nbd read".into(),
            service: "one".into(),
            ..DaemonSpanEvent::bare(SpanId(span), TraceId(span.into()), MonotonicNs(begin), MonotonicNs(end))
        }));
        trace
    }

    fn call(span: u64, begin: u64, end: u64) -> Trace {
        let mut trace = make::trace(span);
        trace.root = Root::Call(make::call_with(span, (begin, end), 0));
        trace
    }

    #[test]
    fn each_moment_is_of_the_deepest_that_was_at_it() {
        let (asks, answers) = (operation(1, 100, 200), operation(2, 120, 180));
        let mut call = call(3, 130, 170);
        let found = split(&asks, &[&answers, &call], true);
        let ns = DurationNs;
        assert_eq!(found, Split { calls: ns(40), programs: ns(20), way: ns(40), ..Split::default() });
        if let Root::Call(call) = &mut call.root {
            call.cpu_wait = Some(ns(25));
        }
        let waits = split(&asks, &[&answers, &call], true);
        assert_eq!(waits, Split { calls: ns(15), cpu: ns(25), ..found });
        // Of two at once nobody knows what each waited beside.
        assert_eq!(split(&asks, &[&answers, &call, &call], true), found);
        // Who answered was not heard.
        let alone = split(&asks, &[], false);
        assert_eq!(alone, Split { own: ns(100), ..Split::default() });
    }

    #[test]
    fn what_goes_on_after_its_end_is_not_its_time() {
        let (asks, answers) = (operation(1, 100, 200), operation(2, 90, 300));
        let found = split(&asks, &[&answers], true);
        assert_eq!(found, Split { programs: DurationNs(100), ..Split::default() });
    }

    proptest! {
        #[test]
        fn all_of_it_is_somewhere_and_nothing_twice(
            begin in 0_u64..1_000, length in 0_u64..1_000, answered: bool,
            parts in proptest::collection::vec((0_u64..2_000, 0_u64..900, any::<bool>()), 0..6),
        ) {
            let top = operation(1, begin, begin + length);
            let make = |(begin, length, is_call): &(u64, u64, bool)| match is_call {
                true => call(2, *begin, begin + length),
                false => operation(3, *begin, begin + length),
            };
            let parts: Vec<Trace> = parts.iter().map(make).collect();
            let below: Vec<&Trace> = parts.iter().collect();
            let Split { device, block, journal, calls, cpu, programs, way, own } = split(&top, &below, answered);
            let all = [device, block, journal, calls, cpu, programs, way, own];
            prop_assert_eq!(all.iter().map(|part| part.0).sum::<u64>(), length);
        }
    }
}
