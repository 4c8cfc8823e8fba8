//! Puts events into one order, whatever order they came in.
//!
//! *In*: batches with watermarks. *Out*: events by (time, kind, id), those before the watermark. What lies at or
//! after it waits, since something earlier may still come.
//!
//! *Why*: everything behind this sees one sequence that is a function of the events, so the join's result
//! is too: a tie, a race of two rings, or another cut into batches cannot change a trace. It also makes the
//! joins simple: an event's names, which were said no later than the event, are there when it comes; a
//! request comes before the bios that it ended, and a commit before the calls that it let go.
//!
//! *Kinds at one time*: names, meetings, requests (a pair of bio and request among them), bios, commits, calls: a thing before what may refer to it.
//!
//! *Rejected*: joining in order of arrival, with every table looked up from both sides. Shorter delays by the
//! distance to the watermark (milliseconds), but each pair of kinds then has two orders to be right in.

use std::cmp::Ordering;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;
use serde::{Deserialize, Serialize};

use super::config::JoinConfig;

/// Events that wait for the watermark to pass them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Window {
    /// By [`order`].
    held: Vec<LayerEvent>,
    #[serde(skip)]
    max: usize,
}

impl Window {
    pub(super) fn new(max: usize) -> Self {
        Window { held: Vec::new(), max }
    }

    /// Has these bounds from now on.
    pub(super) fn set_bounds(&mut self, config: &JoinConfig) {
        self.max = config.window_max;
    }

    /// Takes `events` in and gives back, in order, those before `watermark`.
    pub(super) fn admit(&mut self, events: Vec<LayerEvent>, watermark: MonotonicNs) -> Admitted {
        let mut all = std::mem::take(&mut self.held);
        if all.is_empty() {
            all = events;
        } else {
            all.extend(events);
        }
        settle(&mut all);
        let due = all.partition_point(|event| event.time() < watermark);
        let ready = due.max(all.len().saturating_sub(self.max));
        if ready < all.len() {
            self.held = all.split_off(ready);
        }
        Admitted { events: all, ahead: ready - due }
    }

    /// Gives back all.
    pub(super) fn drain(&mut self) -> Vec<LayerEvent> {
        std::mem::take(&mut self.held)
    }
}

/// What may go on.
#[derive(Debug)]
pub(super) struct Admitted {
    /// By [`order`].
    pub(super) events: Vec<LayerEvent>,
    /// So many of them had to, for want of room.
    pub(super) ahead: usize,
}

/// Steps for each event after which a plain sort is cheaper.
const STEPS_MAX: usize = 8;

/// Sorts what is sorted but for neighbours: a request is written just after the bios that it ended, at the same time, and
/// belongs before them. An event is large, and a sort that is made for any order moves each of them several times.
fn settle(events: &mut [LayerEvent]) {
    let mut steps = events.len().saturating_mul(STEPS_MAX);
    for next in 1..events.len() {
        let mut at = next;
        while at > 0 && order(&events[at - 1], &events[at]).is_gt() {
            events.swap(at - 1, at);
            at -= 1;
            steps -= 1;
            if steps == 0 {
                events.sort_by(order);
                return;
            }
        }
    }
}

/// By time, then kind, then id.
fn order(a: &LayerEvent, b: &LayerEvent) -> Ordering {
    a.time().cmp(&b.time()).then_with(|| rank(a).cmp(&rank(b))).then_with(|| among_names(a, b))
}

fn rank(event: &LayerEvent) -> (u8, u64) {
    match event {
        LayerEvent::Device(e) => (0, e.device.to_kernel().into()),
        LayerEvent::File(e) => (1, e.file.ino),
        LayerEvent::Task(e) => (2, e.task.id.0),
        // Behind the task that has become another program.
        LayerEvent::ProcessContext(e) => (3, e.pid.0.into()),
        LayerEvent::RpcEndpoint(e) => (4, e.span.0),
        LayerEvent::Request(e) => (5, e.span.0),
        LayerEvent::Pair(e) => (5, e.request.span.0),
        LayerEvent::Bio(e) => (6, e.span.0),
        LayerEvent::Commit(e) => (7, e.span.0),
        LayerEvent::Syscall(e) => (8, e.span.0),
        LayerEvent::DaemonSpan(e) => (9, e.span.0),
    }
}

/// Spans are unique; of two names for one thing at one moment the later in this order holds.
fn among_names(a: &LayerEvent, b: &LayerEvent) -> Ordering {
    match (a, b) {
        (LayerEvent::Device(a), LayerEvent::Device(b)) => a.name.cmp(&b.name),
        (LayerEvent::File(a), LayerEvent::File(b)) => (a.file, &a.path).cmp(&(b.file, &b.path)),
        (LayerEvent::Task(a), LayerEvent::Task(b)) => (a.task, &a.comm).cmp(&(b.task, &b.comm)),
        (LayerEvent::ProcessContext(a), LayerEvent::ProcessContext(b)) => (
            &a.attributes,
            a.dropped_attributes_count,
            &a.thread_keys,
        )
            .cmp(&(&b.attributes, b.dropped_attributes_count, &b.thread_keys)),
        (LayerEvent::RpcEndpoint(a), LayerEvent::RpcEndpoint(b)) => {
            (&a.key, a.side, a.begin).cmp(&(&b.key, b.side, b.begin))
        }
        _ => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::tests::make;

    fn times(events: &[LayerEvent]) -> Vec<u64> {
        events.iter().map(|event| event.time().0).collect()
    }

    fn calls(times: &[u64]) -> Vec<LayerEvent> {
        times.iter().map(|&time| LayerEvent::Syscall(make::call(time, time, time))).collect()
    }

    #[test]
    fn what_the_watermark_has_not_passed_waits_for_what_is_earlier() {
        let mut window = Window::new(100);
        assert_eq!(times(&window.admit(calls(&[10, 30, 20]), MonotonicNs(20)).events), [10]);
        assert_eq!(times(&window.admit(calls(&[25, 20]), MonotonicNs(31)).events), [20, 20, 25, 30]);
        assert!(window.drain().is_empty());
    }

    #[test]
    fn a_full_window_lets_the_earliest_go_and_says_how_many() {
        let mut window = Window::new(2);
        let admitted = window.admit(calls(&[1, 2, 3, 4, 5]), MonotonicNs(2));
        assert_eq!((times(&admitted.events), admitted.ahead), (vec![1, 2, 3], 2));
        assert_eq!(times(&window.drain()), [4, 5]);
    }

    #[test]
    fn at_one_time_names_come_first_and_calls_last() {
        let (bio, request) = make::direct(7, 8, 9, (1, 5));
        let all = vec![
            LayerEvent::Syscall(make::call(7, 0, 5)),
            LayerEvent::Bio(bio),
            LayerEvent::Request(request),
            LayerEvent::ProcessContext(make::process(5, "shop").into()),
            LayerEvent::Task(make::task(1, 0, 5, "a")),
        ];
        let events = Window::new(100).admit(all, MonotonicNs(6)).events;
        let kinds: Vec<u8> = events.iter().map(|event| rank(event).0).collect();
        assert_eq!(kinds, [2, 3, 5, 6, 8]);
    }
}
