//! Latency breakdown of a daemon span, over the daemon and the kernel.
//!
//! *In*: the daemon span at the top, its descendants, and whether a server's span is among them.
//! *Out*: a [`DaemonSpanBreakdown`].
//!
//! *Invariant*: the sum of the classes is the span's duration, to the nanosecond. As in [`super`],
//! the deepest class wins at each moment:
//!
//! 1. **device**, **block**, **journal**: of any descendant call, as [`super`] defines them for one
//!    call.
//! 2. **calls**: none of these, and a descendant system call is in progress. Several calls may run
//!    at a time, of which one computes and another sleeps. So this class does not name a file
//!    system; each call's own breakdown does.
//! 3. **cpu**: the part of that for which the calls' tasks were runnable and no CPU ran them. It is
//!    computed only if no two calls overlap, since the time within a call is not recorded.
//! 4. **programs**: none of these, and the server has the request: its own code, its locks, its
//!    queues.
//! 5. **in transit**: none of these. The span is open, and the server has not started it yet or has
//!    already finished: sockets, network, both wake-ups. Only if a server's span is known.
//! 6. **own**: the same without a known server. It is the time of the span's own program.
//!
//! *Limit*: a call that is not traced (`--syscall`) does not appear. Its time counts for its
//! program.
//!
//! *Rejected*: exclusive times of the spans. Concurrent children would sum up to more than their
//! parent.

use blkkin_wire::clock::DurationNs;

use super::{IntervalSet, all_bios, all_requests, at_device};
use crate::trace::{Root, Trace};

/// Duration of a daemon span by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DaemonSpanBreakdown {
    /// A request was with a device.
    pub device: DurationNs,
    /// A bio or request was in the block layer above a device.
    pub block: DurationNs,
    /// A commit was running that had nothing in the block layer.
    pub journal: DurationNs,
    /// A call was in progress with none of these.
    pub calls: DurationNs,
    /// A call was in progress with none of these, and waited for a CPU.
    pub cpu: DurationNs,
    /// A child daemon span was open with none of these.
    pub programs: DurationNs,
    /// Transit between client and server.
    pub in_transit: DurationNs,
    /// Remaining time: the span's own program.
    pub own: DurationNs,
}

/// Returns the breakdown of `top`. `has_server` states whether a server's span is among the
/// `children`.
pub fn daemon_span_breakdown(top: &Trace, children: &[&Trace], has_server: bool) -> DaemonSpanBreakdown {
    let mut intervals = IntervalSet::new(top.start(), top.end());
    for trace in children {
        all_requests(trace).for_each(|request| intervals.add(at_device(request), request.complete));
    }
    let device = intervals.take_growth();
    for trace in children {
        all_requests(trace).for_each(|request| intervals.add(request.start, request.complete));
        all_bios(trace).for_each(|(queue, end)| intervals.add(queue, end));
    }
    let block = intervals.take_growth();
    for wait in children.iter().flat_map(|trace| &trace.waited_for) {
        intervals.add(wait.trace.start(), wait.trace.end());
    }
    let journal = intervals.take_growth();
    let mut cover = |daemon_spans: bool| {
        let of_kind =
            children.iter().filter(|trace| matches!(trace.root, Root::DaemonSpan(_)) == daemon_spans);
        of_kind.for_each(|trace| intervals.add(trace.start(), trace.end()));
        intervals.take_growth()
    };
    let (calls, programs) = (cover(false), cover(true));
    let cpu = cpu_wait(children).min(calls);
    let calls = DurationNs(calls.0 - cpu.0);
    let rest = intervals.uncovered();
    let (in_transit, own) = if has_server { (rest, DurationNs(0)) } else { (DurationNs(0), rest) };
    DaemonSpanBreakdown { device, block, journal, calls, cpu, programs, in_transit, own }
}

/// Returns the time for which calls waited for a CPU with no I/O of their own, if the calls did not
/// overlap.
fn cpu_wait(children: &[&Trace]) -> DurationNs {
    let mut calls: Vec<&Trace> = children.iter().copied().filter(|trace| trace.call().is_some()).collect();
    calls.sort_by_key(|call| call.start());
    let at_once = calls.windows(2).any(|pair| pair[1].start() < pair[0].end());
    let waits = calls.iter().map(|call| super::breakdown(call).cpu.0);
    DurationNs(if at_once { 0 } else { waits.sum() })
}

#[cfg(test)]
mod tests {
    use blkkin_wire::span::SpanKind;
    use proptest::prelude::*;

    use super::*;
    use crate::fixtures;

    fn daemon_span(span: u64, begin: u64, end: u64) -> Trace {
        fixtures::daemon_span_trace(span, SpanKind::Client, (begin, end))
    }

    fn call(span: u64, begin: u64, end: u64) -> Trace {
        fixtures::call_trace(span, (begin, end))
    }

    #[test]
    fn the_deepest_layer_wins_at_each_moment() {
        let (client, server) = (daemon_span(1, 100, 200), daemon_span(2, 120, 180));
        let mut call = call(3, 130, 170);
        let found = daemon_span_breakdown(&client, &[&server, &call], true);
        let ns = DurationNs;
        assert_eq!(
            found,
            DaemonSpanBreakdown {
                calls: ns(40),
                programs: ns(20),
                in_transit: ns(40),
                ..DaemonSpanBreakdown::default()
            }
        );
        if let Root::Call(call) = &mut call.root {
            call.cpu_wait = ns(25).into();
        }
        let waits = daemon_span_breakdown(&client, &[&server, &call], true);
        assert_eq!(waits, DaemonSpanBreakdown { calls: ns(15), cpu: ns(25), ..found });
        // Of two overlapping calls the record does not show which one waited when.
        assert_eq!(daemon_span_breakdown(&client, &[&server, &call, &call], true), found);
        // No server's span is known.
        let alone = daemon_span_breakdown(&client, &[], false);
        assert_eq!(alone, DaemonSpanBreakdown { own: ns(100), ..DaemonSpanBreakdown::default() });
    }

    #[test]
    fn time_after_the_end_does_not_count() {
        let (client, server) = (daemon_span(1, 100, 200), daemon_span(2, 90, 300));
        let found = daemon_span_breakdown(&client, &[&server], true);
        assert_eq!(
            found,
            DaemonSpanBreakdown { programs: DurationNs(100), ..DaemonSpanBreakdown::default() }
        );
    }

    proptest! {
        #[test]
        fn every_nanosecond_has_one_class(
            begin in 0_u64..1_000, length in 0_u64..1_000, has_server: bool,
            parts in proptest::collection::vec((0_u64..2_000, 0_u64..900, any::<bool>()), 0..6),
        ) {
            let top = daemon_span(1, begin, begin + length);
            let make = |(begin, length, is_call): &(u64, u64, bool)| match is_call {
                true => call(2, *begin, begin + length),
                false => daemon_span(3, *begin, begin + length),
            };
            let parts: Vec<Trace> = parts.iter().map(make).collect();
            let children: Vec<&Trace> = parts.iter().collect();
            let DaemonSpanBreakdown { device, block, journal, calls, cpu, programs, in_transit, own } = daemon_span_breakdown(&top, &children, has_server);
            let all = [device, block, journal, calls, cpu, programs, in_transit, own];
            prop_assert_eq!(all.iter().map(|part| part.0).sum::<u64>(), length);
        }
    }
}
