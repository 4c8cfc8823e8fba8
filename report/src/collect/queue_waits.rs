//! Requests that waited in a queue while the device worked for other processes.
//!
//! *In*: all traces. *Out*: waits by program, device and the other program: [`WaitKey`]s with the time of
//! each request.
//!
//! *Invariant*: a wait counts for another process for exactly as long as at least one of its requests was
//! at the same device meanwhile. So waits for several processes overlap, and their sum may exceed the
//! time in the queue. That the one was the reason for the other is inferred, not recorded.
//!
//! *A wait* is the time in the scheduler or the software queue, and that between a bio and its request
//! (for a tag); not the time in the task's own plug. Passing through a queue takes some µs: waits below
//! [`WAIT_MIN`] are not counted.
//!
//! *Memory*: traces come in the order of their ends, so requests that were in flight together come close
//! to each other. `HALF` requests of a device are compared with `HALF` before and after them; neighbours
//! that are farther away are not seen. A window takes 0.8 MB, of up to [`DEVICES_MAX`] devices.
//!
//! *Rejected*: a comparison of each wait with each request around it. With 256 requests in flight that is
//! a thousand steps a wait; the sum of busy times by process needs one pass.

use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{BioEvent, RequestEvent};
use blkkin_wire::ids::{DeviceId, SpanId};

use super::devices::DEVICES_MAX;
use super::waits::{WaitKey, WaitObject, Waits};
use super::written_by;

/// Shortest wait in ns that is counted.
pub const WAIT_MIN: u64 = 50_000;
/// Number of requests that are evaluated at a time.
const HALF: usize = 4_096;
/// Maximum number of processes of a window that are counted apart; the others are one.
const PROCESSES_MAX: usize = 64;
/// Process of write-back and other work of the kernel.
const KERNEL: u32 = 0;
/// Name of the processes beyond [`PROCESSES_MAX`].
const OTHERS: &str = "other programs";

/// Process: its id, and its name in the table. Threads of a process have several names.
type Process = (u32, Arc<str>);

/// A request on its way through the queue and the device; times in ns.
#[derive(Clone, Debug)]
struct Passage {
    /// Begin and end of its wait, if it waited for [`WAIT_MIN`] or more.
    waits: Option<(u64, u64)>,
    issue: u64,
    complete: u64,
    process: Process,
}

/// Requests of one device.
#[derive(Clone, Debug)]
struct Window {
    name: Arc<str>,
    /// Requests that have been evaluated, and may have been in flight together with the next ones.
    before: Vec<Passage>,
    next: Vec<Passage>,
}

/// Requests of all devices whose waits have not been evaluated.
#[derive(Clone, Debug, Default)]
pub(crate) struct QueueWaits {
    devices: BTreeMap<DeviceId, Window>,
}

impl QueueWaits {
    /// Adds the requests of a trace, and the waits of earlier requests to `waits`.
    pub(crate) fn add(&mut self, trace: &Trace, waits: &mut Waits) {
        if trace.requests.is_empty() {
            return;
        }
        let (process, bios) = (process(trace), Bios::of(trace));
        for request in &trace.requests {
            let Some(issue) = request.issue.map(|issue| issue.0) else { continue };
            let passage = Passage {
                waits: bios.wait(request, issue),
                issue,
                complete: request.complete.0.max(issue),
                process: process.clone(),
            };
            self.push(trace, request.device, passage, waits);
        }
    }

    /// Evaluates all requests that are left.
    pub(crate) fn finish(mut self, waits: &mut Waits) {
        for window in self.devices.values_mut() {
            let left = window.next.len();
            window.evaluate(left, waits);
        }
    }

    fn push(&mut self, trace: &Trace, device: DeviceId, passage: Passage, waits: &mut Waits) {
        if self.devices.len() >= DEVICES_MAX && !self.devices.contains_key(&device) {
            return;
        }
        let window = self.devices.entry(device).or_insert_with(|| {
            let name = trace.names.devices.names.get(&device).cloned();
            let name = name.unwrap_or_else(|| device.to_string().into());
            Window { name, before: Vec::new(), next: Vec::new() }
        });
        window.next.push(passage);
        if window.next.len() == 2 * HALF {
            window.evaluate(HALF, waits);
        }
    }
}

impl Window {
    /// Evaluates the `first` of the next requests, in the order of their completions.
    fn evaluate(&mut self, first: usize, waits: &mut Waits) {
        let mut all = self.before.iter().chain(&self.next).map(|passage| &passage.process);
        let one = all.next().map(identity);
        let is_shared = all.any(|process| Some(identity(process)) != one);
        self.next.sort_by_key(|passage| passage.complete);
        if is_shared {
            self.add_waits(first, waits);
        }
        let rest = self.next.split_off(first);
        self.before = std::mem::replace(&mut self.next, rest);
    }

    fn add_waits(&self, first: usize, waits: &mut Waits) {
        let passages: Vec<&Passage> = self.next.iter().chain(&self.before).collect();
        let (numbers, names) = numbered(&passages);
        let mut steps: Vec<(u64, Step, usize)> = Vec::with_capacity(4 * passages.len());
        for (at, passage) in passages.iter().enumerate() {
            if let Some((from, until)) = passage.waits.filter(|_| at < first) {
                steps.extend([(from, Step::Wait, at), (until, Step::WaitEnd, at)]);
            }
            // A request that completes at once is at the device for no time.
            if passage.complete > passage.issue {
                steps.extend([(passage.issue, Step::Issue, at), (passage.complete, Step::Complete, at)]);
            }
        }
        steps.sort_unstable();
        let mut busy = vec![Busy::default(); names.len()];
        let mut begun: BTreeMap<usize, Vec<u64>> = BTreeMap::new();
        for (time, step, at) in steps {
            let own = numbers[at];
            match step {
                Step::Issue => busy[own].issue(time),
                Step::Complete => busy[own].complete(time),
                Step::Wait => {
                    begun.insert(at, busy.iter().map(|busy| busy.until(time)).collect());
                }
                Step::WaitEnd => {
                    for (other, before) in begun.remove(&at).into_iter().flatten().enumerate() {
                        let time = busy[other].until(time) - before;
                        if other != own && time >= WAIT_MIN {
                            let key = WaitKey {
                                program: names[own].clone(),
                                object: WaitObject::Queue(self.name.clone()),
                                holder: Some(names[other].clone()),
                            };
                            waits.record(key, DurationNs(time));
                        }
                    }
                }
            }
        }
    }
}

/// Returns the key of a process: the id, and the name of those of the kernel.
fn identity(process: &Process) -> (u32, &str) {
    (process.0, if process.0 == KERNEL { &process.1 } else { "" })
}

/// Change of a request, in the order of evaluation at one time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    Complete,
    Wait,
    WaitEnd,
    Issue,
}

/// Time for which a process has had requests at the device.
#[derive(Clone, Debug, Default)]
struct Busy {
    total: u64,
    since: u64,
    requests: u32,
}

impl Busy {
    fn issue(&mut self, time: u64) {
        if self.requests == 0 {
            self.since = time;
        }
        self.requests += 1;
    }

    fn complete(&mut self, time: u64) {
        self.requests -= 1;
        if self.requests == 0 {
            self.total += time - self.since;
        }
    }

    fn until(&self, time: u64) -> u64 {
        self.total + if self.requests > 0 { time - self.since } else { 0 }
    }
}

/// Numbers the processes of the requests. Returns the number of each request's process, and their names.
fn numbered(passages: &[&Passage]) -> (Vec<usize>, Vec<Arc<str>>) {
    let mut known: BTreeMap<(u32, &str), usize> = BTreeMap::new();
    let mut names: Vec<Arc<str>> = vec![OTHERS.into()];
    let mut numbers = Vec::with_capacity(passages.len());
    for passage in passages {
        let number = match known.get(&identity(&passage.process)) {
            Some(number) => *number,
            None if names.len() > PROCESSES_MAX => 0,
            None => {
                names.push(passage.process.1.clone());
                known.insert(identity(&passage.process), names.len() - 1);
                names.len() - 1
            }
        };
        numbers.push(number);
    }
    (numbers, names)
}

/// Bios of a trace, for their queue times.
struct Bios<'a> {
    bios: &'a [BioEvent],
    /// Positions in the order of the spans, where there are more than [`FEW`].
    by_span: Vec<usize>,
}

/// Number of bios up to which they are searched one by one.
const FEW: usize = 8;

impl Bios<'_> {
    fn of(trace: &Trace) -> Bios<'_> {
        let bios = &trace.bios;
        let mut by_span: Vec<usize> = if bios.len() > FEW { (0..bios.len()).collect() } else { Vec::new() };
        by_span.sort_unstable_by_key(|at| bios[*at].span);
        Bios { bios, by_span }
    }

    fn find(&self, span: SpanId) -> Option<&BioEvent> {
        if self.bios.len() <= FEW {
            return self.bios.iter().find(|bio| bio.span == span);
        }
        let at = self.by_span.binary_search_by_key(&span, |at| self.bios[*at].span).ok()?;
        Some(&self.bios[self.by_span[at]])
    }

    /// Returns begin and end of a request's wait for a tag, from its bio on, or else of that in a queue.
    fn wait(&self, request: &RequestEvent, issue: u64) -> Option<(u64, u64)> {
        let bio = request.parent.and_then(|parent| self.find(parent));
        let bio = bio.filter(|bio| bio.first && !bio.split);
        let start = request.start.0;
        let tag = bio.map(|bio| bio.queue.0).filter(|queue| start.saturating_sub(*queue) >= WAIT_MIN);
        match (tag, request.insert) {
            // What follows is the task's own plug, unless the request was inserted at once.
            (Some(queue), _) => Some((queue, if request.plugged { start } else { issue })),
            (None, insert) => insert
                .map(|insert| (insert.0, issue))
                .filter(|(from, _)| issue.saturating_sub(*from) >= WAIT_MIN),
        }
    }
}

/// Returns the process for which a trace's requests were made.
fn process(trace: &Trace) -> Process {
    if let (Root::Kernel, Some(writer)) =
        (&trace.root, trace.page_origins.iter().flat_map(|origin| &origin.writers).next())
    {
        return (KERNEL, format!("write-back of {}", written_by::program(trace, writer)).into());
    }
    match (&trace.names.task, trace.names.comm()) {
        (Some(task), Some(comm)) if !task.kernel_thread => (task.pid.0, comm),
        _ => (KERNEL, "kernel".into()),
    }
}

#[cfg(test)]
mod tests {
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::TaskEvent;
    use blkkin_wire::ids::Pid;
    use proptest::prelude::*;

    use super::*;
    use crate::sample::{DEVICE, TASK, bio, call, request};

    /// Times of a request in units of [`WAIT_MIN`]: insertion, wait, time at the device.
    type Times = (u64, u64, u64);

    fn of_process(pid: u32, n: usize, (insert, wait, device): Times) -> Trace {
        let span = 10 + n as u64;
        let mut trace = call(span, "pread64", 1_000);
        let task = TaskEvent { pid: Pid(pid), ..TaskEvent::bare(TASK, MonotonicNs(0), &format!("p{pid}")) };
        trace.names.task = Some(Arc::new(task));
        let at = |time: u64| time * WAIT_MIN;
        let (issue, complete) = (at(insert + wait), at(insert + wait + device));
        let made = request(span + 1_000_000, at(insert), Some(issue), complete);
        trace.requests.push(RequestEvent { insert: Some(MonotonicNs(at(insert))), plugged: true, ..made });
        trace
    }

    fn rows(traces: &[Trace]) -> Vec<(String, String, u64, u64)> {
        let (mut queue_waits, mut waits) = (QueueWaits::default(), Waits::default());
        traces.iter().for_each(|trace| queue_waits.add(trace, &mut waits));
        queue_waits.finish(&mut waits);
        let rows = waits.by_time(100);
        let row = |(key, times): &(&WaitKey, &super::super::latency::Latency)| {
            assert_eq!(key.object, WaitObject::Queue(DEVICE.to_string().into()));
            let holder = key.holder.as_ref().unwrap();
            (key.program.to_string(), holder.to_string(), times.count(), times.total().0 / WAIT_MIN)
        };
        let mut rows: Vec<_> = rows.iter().map(row).collect();
        rows.sort();
        rows
    }

    #[test]
    fn a_wait_is_for_those_at_the_device_meanwhile() {
        let flood = of_process(1, 0, (0, 0, 10));
        let own = of_process(2, 1, (0, 0, 8));
        // In the queue from 4 to 12: 6 of them while the first is at the device.
        let waits = of_process(2, 2, (4, 8, 1));
        // Issued after the wait ended.
        let later = of_process(3, 3, (12, 0, 5));
        let expected = [("p2".to_owned(), "p1".to_owned(), 1, 6)];
        assert_eq!(rows(&[own, flood, later, waits]), expected);
    }

    #[test]
    fn a_process_does_not_wait_for_itself() {
        let traces = [of_process(1, 0, (0, 0, 10)), of_process(1, 1, (1, 8, 2))];
        assert_eq!(rows(&traces), []);
    }

    #[test]
    fn a_bio_that_waits_for_a_tag_waits_and_a_plug_does_not() {
        let flood = of_process(1, 0, (0, 0, 100));
        let mut tag = of_process(2, 1, (90, 1, 5));
        let span = tag.requests[0].span.0 - 1;
        tag.bios.push(bio(span, 10 * WAIT_MIN, 96 * WAIT_MIN));
        tag.bios[0].first = true;
        (tag.requests[0].parent, tag.requests[0].plugged) = (Some(SpanId(span)), false);
        let mut plugged = tag.clone();
        (plugged.requests[0].plugged, plugged.requests[0].insert) = (true, None);
        let mut at_once = plugged.clone();
        at_once.bios[0].queue = at_once.requests[0].start;
        let row = |time| [("p2".to_owned(), "p1".to_owned(), 1, time)];
        assert_eq!(rows(&[flood.clone(), tag]), row(81));
        assert_eq!(rows(&[flood.clone(), plugged]), row(80));
        assert_eq!(rows(&[flood, at_once]), []);
    }

    #[test]
    fn requests_that_are_evaluated_apart_see_each_other() {
        // One long request, and many short waits for it: more than a window has.
        let many = 3 * HALF as u64;
        let mut traces: Vec<Trace> = (0..many).map(|n| of_process(2, n as usize, (n * 2, 1, 1))).collect();
        for n in (0..many).step_by(1_000) {
            traces.push(of_process(1, many as usize + n as usize, (n * 2, 0, 2_000)));
        }
        traces.sort_by_key(|trace| trace.requests[0].complete);
        let rows = rows(&traces);
        assert_eq!(rows, [("p2".to_owned(), "p1".to_owned(), many, many)]);
    }

    /// The definition, step by step.
    fn oracle(traces: &[(u32, Times)]) -> Vec<(String, String, u64, u64)> {
        let mut rows: BTreeMap<(String, String), (u64, u64)> = BTreeMap::new();
        for (process, (insert, wait, _)) in traces {
            for other in 1..4_u32 {
                let busy = |time: &u64| {
                    traces.iter().any(|(of, (insert, wait, device))| {
                        *of == other && (insert + wait..insert + wait + device).contains(time)
                    })
                };
                let time = (*insert..insert + wait).filter(busy).count() as u64;
                if other != *process && time > 0 {
                    let row = rows.entry((format!("p{process}"), format!("p{other}"))).or_default();
                    *row = (row.0 + 1, row.1 + time);
                }
            }
        }
        rows.into_iter().map(|((own, other), (count, time))| (own, other, count, time)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn waits_are_those_of_the_definition(
            requests in prop::collection::vec((1_u32..4, (0_u64..60, 0_u64..20, 0_u64..20)), 0..30),
        ) {
            let traces: Vec<Trace> =
                requests.iter().enumerate().map(|(n, (pid, times))| of_process(*pid, n, *times)).collect();
            prop_assert_eq!(rows(&traces), oracle(&requests));
        }
    }
}
