//! Process contexts of all processes, and the latest content of each.
//!
//! *In*: mappings found by a scan ([`blkkin_otel_context::scan`]). *Out*: a [`ProcessContextEvent`]
//! for each decoded process context, another one for each change, and an empty one when it is gone.
//! *Invariant*: an event is emitted only while the process still has the address space that was
//! read. A process that has executed another program meanwhile does not get the old attributes.
//!
//! *Pace*: a process context is checked each second (one read of 8 bytes, about 1 µs), and
//! read again if its timestamp has changed. One that is mapped and not written yet, or is being
//! written, is read again after 1 ms, then at doubling intervals up to a second.
//!
//! *Bounds*: 8,192 processes, and a queue of as many events to the reader thread.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::Pid;
use blkkin_wire::process_context::{Attribute, AttributeValue, ProcessContextEvent};

use super::scan_stats::ScanStats;
use crate::clock;
use blkkin_otel_context::ProcessMemory;
use blkkin_otel_context::process_context::{self, ReadError};
use blkkin_otel_context::resource::{self, Resource};
use blkkin_otel_context::{AddressSpace, address_space};

/// Maximum number of processes, up to 15 KiB each.
const PROCESSES_MAX: usize = 8_192;
/// Interval between checks of a process context.
const POLL_INTERVAL: Duration = Duration::from_secs(1);
/// First delay before a missing process context is read again; then doubled.
const RETRY_MIN: Duration = Duration::from_millis(1);

/// Maximum number of events per batch: the reader thread reads a file of /proc for each, about 20
/// µs.
const EVENTS_PER_BATCH: usize = 64;

/// An event to be published.
#[derive(Debug)]
struct QueuedEvent {
    /// Address space that was read; none if the process is gone.
    space: Option<AddressSpace>,
    event: ProcessContextEvent,
}

/// Queue of events to the reader thread.
#[derive(Clone, Debug, Default)]
pub(crate) struct OutgoingEvents(Arc<Mutex<VecDeque<QueuedEvent>>>);

/// A process with a process context.
struct TrackedProcess {
    at: u64,
    space: AddressSpace,
    /// Timestamp of the last read; 0 before the first.
    published_at: u64,
    /// Hash of the payload of the last read.
    payload_hash: u64,
    /// True if a non-empty event was emitted.
    published: bool,
    due: Instant,
    pause: Duration,
}

impl TrackedProcess {
    /// Returns whether the process has published nothing since the last read.
    fn is_unchanged(&self, pid: u32) -> bool {
        let published_at = || process_context::published_at(&ProcessMemory(pid), self.at);
        self.published_at != 0 && published_at() == Some(self.published_at)
    }

    /// Returns whether the last read is what the process has published now.
    fn is_current(&self, pid: u32) -> bool {
        let now = process_context::read(&ProcessMemory(pid), self.at);
        self.published
            && now.is_ok_and(|now| {
                (now.published_at, hash(&now.payload)) == (self.published_at, self.payload_hash)
            })
            && address_space(pid) == Some(self.space)
    }
}

/// Process contexts that the scanner has found.
pub(crate) struct ProcessContextTracker {
    tracked: HashMap<u32, TrackedProcess>,
    due: BTreeSet<(Instant, u32)>,
    outgoing: OutgoingEvents,
    stats: Arc<ScanStats>,
}

impl OutgoingEvents {
    fn push(&self, queued: QueuedEvent) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let room = waiting.len() < PROCESSES_MAX;
        if room {
            waiting.push_back(queued);
        }
        room
    }

    /// Takes the events known by `until`, up to the limit per batch, for a batch after one whose
    /// watermark was `from`. Events of a process that has executed another program meanwhile are
    /// dropped. It may have done so between the read and the time from which the event would apply.
    pub(crate) fn take(&self, from: MonotonicNs, until: MonotonicNs) -> Vec<ProcessContextEvent> {
        let mut waiting = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let ready = waiting.partition_point(|queued| queued.event.time <= until).min(EVENTS_PER_BATCH);
        let ready: Vec<QueuedEvent> = waiting.drain(..ready).collect();
        drop(waiting);
        let holds = |queued: &QueuedEvent| {
            queued.space.is_none() || queued.space == address_space(queued.event.pid.0)
        };
        let moved =
            |queued: QueuedEvent| ProcessContextEvent { time: queued.event.time.max(from), ..queued.event };
        ready.into_iter().filter(holds).map(moved).collect()
    }
}

impl ProcessContextTracker {
    pub(crate) fn new(outgoing: OutgoingEvents, stats: Arc<ScanStats>) -> ProcessContextTracker {
        ProcessContextTracker { tracked: HashMap::new(), due: BTreeSet::new(), outgoing, stats }
    }

    /// Returns the time of the next check.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// Handles the mappings found by a scan. The standard allows one.
    pub(crate) fn on_scan(&mut self, pid: u32, space: AddressSpace, mappings: &[u64]) {
        let Some(&at) = mappings.first() else {
            // A list that is read while the process maps other memory may lack one: the memory itself decides.
            return match self.tracked.get(&pid) {
                Some(tracked) if tracked.space == space => self.reread(pid),
                _ => self.remove(pid),
            };
        };
        match self.tracked.get(&pid) {
            Some(tracked) if (tracked.at, tracked.space) == (at, space) => {}
            Some(_) => self.remove(pid),
            None if self.tracked.len() >= PROCESSES_MAX => {
                self.stats.resources_no_room.fetch_add(1, Relaxed);
                return;
            }
            None => {}
        }
        let due = Instant::now();
        let fresh = TrackedProcess {
            at,
            space,
            published_at: 0,
            payload_hash: 0,
            published: false,
            due,
            pause: RETRY_MIN,
        };
        let tracked = self.tracked.entry(pid).or_insert(fresh);
        self.due.remove(&(tracked.due, pid));
        self.check(pid);
    }

    /// Checks the process contexts that are due.
    pub(crate) fn poll(&mut self, now: Instant) {
        while let Some(next) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&next);
            self.check(next.1);
        }
    }

    /// Checks a process context at once, because it may have changed.
    pub(crate) fn reread(&mut self, pid: u32) {
        if let Some(tracked) = self.tracked.get(&pid) {
            self.due.remove(&(tracked.due, pid));
            self.check(pid);
        }
    }

    /// Forgets the process context of a process that has executed another program, unless a scan that began before the
    /// execve has read the new program's: the same can be read there now, and the old program's memory is gone.
    pub(crate) fn on_exec(&mut self, pid: u32) {
        if !self.tracked.get(&pid).is_some_and(|tracked| tracked.is_current(pid)) {
            self.remove(pid);
        }
    }

    /// Forgets a process that has exited, or is not accepted by the policy.
    pub(crate) fn remove(&mut self, pid: u32) {
        if let Some(tracked) = self.tracked.remove(&pid) {
            self.due.remove(&(tracked.due, pid));
            if tracked.published {
                self.stats.resources_publishing.fetch_sub(1, Relaxed);
                self.emit(pid, None, Resource::default(), clock::now());
            }
        }
    }

    fn check(&mut self, pid: u32) {
        let Some(tracked) = self.tracked.get_mut(&pid) else { return };
        let settled = tracked.is_unchanged(pid);
        tracked.pause = if settled { POLL_INTERVAL } else { (tracked.pause * 2).min(POLL_INTERVAL) };
        let (at, space) = (tracked.at, tracked.space);
        if !settled && !self.read(pid, at, space) {
            return self.remove(pid);
        }
        if let Some(tracked) = self.tracked.get_mut(&pid) {
            tracked.due = Instant::now() + tracked.pause;
            self.due.insert((tracked.due, pid));
        }
    }

    /// Reads a process context. Returns false if it is gone.
    fn read(&mut self, pid: u32, at: u64, space: AddressSpace) -> bool {
        // Before the read: a later execve is detected when the event is published.
        let now = clock::now();
        let memory = ProcessMemory(pid);
        let (number, payload, resource) = match process_context::read(&memory, at) {
            Ok(context) => (context.published_at, hash(&context.payload), resource::decode(&context.payload)),
            Err(ReadError::Invalid) => {
                (process_context::published_at(&memory, at).unwrap_or_default(), 0, None)
            }
            Err(ReadError::NotPublished) => return true,
            Err(ReadError::Unmapped) => return false,
            Err(ReadError::BeingWritten) => {
                self.stats.resources_unread.fetch_add(1, Relaxed);
                return true;
            }
        };
        if address_space(pid) != Some(space) {
            return false;
        }
        self.stats.resources_malformed.fetch_add(u64::from(resource.is_none()), Relaxed);
        let resource = resource.unwrap_or_default();
        let publishes = resource != Resource::default();
        let Some(tracked) = self.tracked.get_mut(&pid) else { return false };
        let published_before = tracked.published;
        if (published_before || publishes)
            && !self.outgoing.push(QueuedEvent { space: Some(space), event: event(pid, resource, now) })
        {
            self.stats.resources_no_room.fetch_add(1, Relaxed);
            // It will be read again.
            return true;
        }
        (tracked.published_at, tracked.payload_hash) = (number, payload);
        (tracked.published, tracked.pause) = (publishes, POLL_INTERVAL);
        match (published_before, publishes) {
            (false, true) => self.stats.resources_publishing.fetch_add(1, Relaxed),
            (true, false) => self.stats.resources_publishing.fetch_sub(1, Relaxed),
            _ => 0,
        };
        true
    }

    fn emit(&self, pid: u32, space: Option<AddressSpace>, resource: Resource, time: MonotonicNs) {
        let room = self.outgoing.push(QueuedEvent { space, event: event(pid, resource, time) });
        self.stats.resources_no_room.fetch_add(u64::from(!room), Relaxed);
    }
}

fn hash(payload: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    payload.hash(&mut hasher);
    hasher.finish()
}

fn event(pid: u32, resource: Resource, time: MonotonicNs) -> ProcessContextEvent {
    let Resource { attributes, dropped_attributes, thread_keys } = resource;
    let attributes = attributes.into_iter().map(|resource::Attribute { key, value }| {
        let value = match value {
            resource::AttributeValue::Text(text) => AttributeValue::Text(text),
            resource::AttributeValue::Number(number) => AttributeValue::Number(number),
        };
        Attribute { key, value }
    });
    ProcessContextEvent {
        time,
        pid: Pid(pid),
        attributes: attributes.collect(),
        dropped_attributes_count: dropped_attributes,
        thread_keys,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Encoded process context with the attribute `k` of the value `v`.
    const PAYLOAD: [u8; 12] = *b"\n\n\n\x08\n\x01k\x12\x03\n\x01v";
    const OTHER_PAYLOAD: [u8; 12] = *b"\n\n\n\x08\n\x01k\x12\x03\n\x01w";

    /// Process context of this process, at its own address.
    #[repr(C)]
    struct Published {
        signature: [u8; 8],
        version: u32,
        payload_size: u32,
        published_at: u64,
        payload: *const u8,
    }

    /// Returns how many attributes each event has: a withdrawal has none.
    fn events(outgoing: &OutgoingEvents) -> Vec<usize> {
        let events = outgoing.take(MonotonicNs(0), MonotonicNs(u64::MAX));
        events.iter().map(|event| event.attributes.len()).collect()
    }

    #[test]
    fn a_process_context_that_the_new_program_has_published_stays_at_a_late_execve() {
        let pid = std::process::id();
        let mut memory = Box::new(Published {
            signature: *b"OTEL_CTX",
            version: 2,
            payload_size: PAYLOAD.len() as u32,
            published_at: 7,
            payload: PAYLOAD.as_ptr(),
        });
        let at = &raw mut *memory;
        let outgoing = OutgoingEvents::default();
        let mut tracker = ProcessContextTracker::new(outgoing.clone(), Arc::default());
        let space = address_space(pid).unwrap();
        tracker.on_scan(pid, space, &[at as u64]);
        assert_eq!(events(&outgoing), [1]);
        tracker.on_exec(pid);
        assert!(events(&outgoing).is_empty());
        // Another program, to which the kernel gave the same addresses.
        // SAFETY: the box is alive, and nothing else refers to it.
        unsafe { (*at).published_at = 8 };
        tracker.on_exec(pid);
        assert_eq!(events(&outgoing), [0]);
        tracker.on_scan(pid, space, &[at as u64]);
        assert_eq!(events(&outgoing), [1]);
        // One with the same addresses and timestamp, and another payload.
        // SAFETY: as above.
        unsafe { (*at).payload = OTHER_PAYLOAD.as_ptr() };
        tracker.on_exec(pid);
        assert_eq!(events(&outgoing), [0]);
        tracker.on_scan(pid, space, &[at as u64]);
        assert_eq!(events(&outgoing), [1]);
        // It has published nothing yet.
        // SAFETY: as above.
        unsafe { (*at).published_at = 0 };
        tracker.on_exec(pid);
        assert_eq!(events(&outgoing), [0]);
        // A program at other addresses.
        // SAFETY: as above.
        unsafe { (*at).published_at = 9 };
        tracker.on_scan(pid, space, &[at as u64]);
        assert_eq!(events(&outgoing), [1]);
        let other = AddressSpace { start_stack: space.start_stack + 4096, ..space };
        tracker.tracked.get_mut(&pid).unwrap().space = other;
        tracker.on_exec(pid);
        assert_eq!(events(&outgoing), [0]);
        assert!(tracker.tracked.is_empty() && tracker.due.is_empty());
    }
}
