//! Reorder window: puts the events of a source into one canonical order.
//!
//! *In*: batches with watermarks. *Out*: the events before the watermark, ordered by (time, kind,
//! id). Events at or after the watermark wait, since an earlier one may still arrive.
//!
//! *Invariant*: the output is a function of the set of events. A tie, a race of two rings or
//! another cut into batches cannot change a trace. The order also simplifies the join: a name is
//! present when an event refers to it, a request arrives before the bios that it ended, and a
//! commit before the calls that waited for it.
//!
//! *Kinds at one time*: names, RPC endpoints, requests (also pairs of a bio and a request), bios,
//! asynchronous I/O and commits, calls, daemon spans, page faults. An event comes before those that may
//! refer to it.
//!
//! *A page origin* has the time at which its bio was queued, and may arrive after the watermark has
//! passed that time. It leaves with the batch in which it arrives, and the join accepts it then.
//!
//! *Rejected*: a join in order of arrival with look-ups from both sides. It would save the delay up
//! to the watermark (milliseconds), but each pair of kinds would have two orders to be correct in.

use std::cmp::Ordering;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::LayerEvent;
use serde::{Deserialize, Serialize};

use super::config::JoinConfig;

/// Events that wait for the watermark to pass them.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Window {
    /// Ordered by [`order`].
    waiting: Vec<LayerEvent>,
    #[serde(skip)]
    max: usize,
}

impl Window {
    pub(super) fn new(max: usize) -> Self {
        Window { waiting: Vec::new(), max }
    }

    /// Sets the limits. They are not part of a snapshot.
    pub(super) fn set_limits(&mut self, config: &JoinConfig) {
        self.max = config.window_max;
    }

    /// Adds `events` and returns, in order, the events before `watermark`.
    pub(super) fn admit(&mut self, events: Vec<LayerEvent>, watermark: MonotonicNs) -> Admitted {
        let mut all = std::mem::take(&mut self.waiting);
        if all.is_empty() {
            all = events;
        } else {
            all.extend(events);
        }
        sort_nearly_sorted(&mut all);
        let due = all.partition_point(|event| event.time() < watermark);
        let ready = due.max(all.len().saturating_sub(self.max));
        if ready < all.len() {
            self.waiting = all.split_off(ready);
        }
        Admitted { events: all, forced: ready - due }
    }

    /// Returns all waiting events.
    pub(super) fn drain(&mut self) -> Vec<LayerEvent> {
        std::mem::take(&mut self.waiting)
    }
}

/// Events that leave the window.
#[derive(Debug)]
pub(super) struct Admitted {
    /// Ordered by [`order`].
    pub(super) events: Vec<LayerEvent>,
    /// Number of events that leave before the watermark because the window is full.
    pub(super) forced: usize,
}

/// Steps per event above which a general sort is cheaper.
const STEPS_MAX: usize = 8;

/// Sorts events of which only neighbours are out of order. A request is written just after the bios
/// that it ended, at the same time, and belongs before them. An event is large, and a general sort
/// moves each of them several times.
fn sort_nearly_sorted(events: &mut [LayerEvent]) {
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

/// Orders by time, then kind, then id.
fn order(a: &LayerEvent, b: &LayerEvent) -> Ordering {
    a.time().cmp(&b.time()).then_with(|| rank(a).cmp(&rank(b))).then_with(|| among_names(a, b))
}

fn rank(event: &LayerEvent) -> (u8, u64) {
    match event {
        LayerEvent::Device(e) => (0, e.device.to_kernel().into()),
        LayerEvent::File(e) => (1, e.file.ino),
        LayerEvent::Task(e) => (2, e.task.id.0),
        // Both after the task event that reports another program.
        LayerEvent::ProcessContext(e) => (3, e.pid.0.into()),
        LayerEvent::VirtualMachine(e) => (4, e.pid.0.into()),
        LayerEvent::RpcEndpoint(e) => (5, e.span.0),
        LayerEvent::Request(e) => (6, e.span.0),
        LayerEvent::Pair(e) => (6, e.request.span.0),
        LayerEvent::Bio(e) => (7, e.span.0),
        LayerEvent::AsyncIo(e) => (8, e.span.0),
        LayerEvent::Commit(e) => (8, e.span.0),
        LayerEvent::Syscall(e) => (9, e.span.0),
        LayerEvent::DaemonSpan(e) => (10, e.span.0),
        LayerEvent::Fault(e) => (11, e.span.0),
        LayerEvent::Dirty(e) => (12, e.offset),
        LayerEvent::PageOrigin(e) => (13, e.bio.0),
    }
}

/// Orders events of equal time and id. Span ids are unique. Of two names for one id at one time,
/// the last in this order applies.
fn among_names(a: &LayerEvent, b: &LayerEvent) -> Ordering {
    match (a, b) {
        (LayerEvent::Device(a), LayerEvent::Device(b)) => a.name.cmp(&b.name),
        (LayerEvent::File(a), LayerEvent::File(b)) => {
            (a.file, &a.path, a.removed).cmp(&(b.file, &b.path, b.removed))
        }
        (LayerEvent::Task(a), LayerEvent::Task(b)) => (a.task, &a.comm).cmp(&(b.task, &b.comm)),
        (LayerEvent::ProcessContext(a), LayerEvent::ProcessContext(b)) => (
            &a.attributes,
            a.dropped_attributes_count,
            &a.thread_keys,
        )
            .cmp(&(&b.attributes, b.dropped_attributes_count, &b.thread_keys)),
        (LayerEvent::VirtualMachine(a), LayerEvent::VirtualMachine(b)) => {
            (&a.name, &a.uuid).cmp(&(&b.name, &b.uuid))
        }
        (LayerEvent::RpcEndpoint(a), LayerEvent::RpcEndpoint(b)) => {
            (&a.key, a.side, a.begin).cmp(&(&b.key, b.side, b.begin))
        }
        _ => Ordering::Equal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;

    fn times(events: &[LayerEvent]) -> Vec<u64> {
        events.iter().map(|event| event.time().0).collect()
    }

    fn calls(times: &[u64]) -> Vec<LayerEvent> {
        times.iter().map(|&time| LayerEvent::Syscall(fixtures::call(time, time, time))).collect()
    }

    #[test]
    fn events_after_the_watermark_wait_for_earlier_ones() {
        let mut window = Window::new(100);
        assert_eq!(times(&window.admit(calls(&[10, 30, 20]), MonotonicNs(20)).events), [10]);
        assert_eq!(times(&window.admit(calls(&[25, 20]), MonotonicNs(31)).events), [20, 20, 25, 30]);
        assert!(window.drain().is_empty());
    }

    #[test]
    fn a_full_window_releases_the_earliest_and_counts_them() {
        let mut window = Window::new(2);
        let admitted = window.admit(calls(&[1, 2, 3, 4, 5]), MonotonicNs(2));
        assert_eq!((times(&admitted.events), admitted.forced), (vec![1, 2, 3], 2));
        assert_eq!(times(&window.drain()), [4, 5]);
    }

    #[test]
    fn at_one_time_names_come_first_and_calls_last() {
        let (bio, request) = fixtures::bio_and_request(7, 8, 9, (1, 5));
        let all = vec![
            LayerEvent::Syscall(fixtures::call(7, 0, 5)),
            LayerEvent::Bio(bio),
            LayerEvent::Request(request),
            LayerEvent::ProcessContext(fixtures::process_context(5, "shop").into()),
            LayerEvent::Task(fixtures::task(1, 0, 5, "a")),
        ];
        let events = Window::new(100).admit(all, MonotonicNs(6)).events;
        let kinds: Vec<u8> = events.iter().map(|event| rank(event).0).collect();
        assert_eq!(kinds, [2, 3, 6, 7, 9]);
    }
}
