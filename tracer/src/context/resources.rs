//! Which processes say who they are, and what each said last.
//!
//! *In*: where a look has found mappings of the name ([`process::look`]). *Out*: a [`ProcessEvent`] for each that is understood, one each time
//! that it is another, and one that says nothing when it is gone. *Invariant*: what is said of a number is said while that
//! process still has the address space that was read: one that has executed another program meanwhile is not called what it was.
//!
//! *Pace*: what is known is looked at each second (one read of 8 bytes, about 1 µs), and read again when its number is another.
//! What was mapped and is not written yet, or was being written, is looked at again after 1 ms, then twice as long after, up to a second.
//!
//! *Bounds*: 8,192 processes; what is said waits in a queue of as many for whoever drains.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::Pid;
use blkkin_wire::process::ProcessEvent;

use super::memory::ProcessMemory;
use super::process::{self, Space};
use super::published::{self, Unread};
use super::resource::{self, Resource};
use super::tally::Tally;
use crate::origin;

/// Processes that are known at once, at 15 KiB each at the most.
const RESOURCES_MAX: usize = 8_192;
/// Between two looks at one that is known.
const EVERY: Duration = Duration::from_secs(1);
/// Behind the first look at one that is not there yet; then twice as long.
const SOON: Duration = Duration::from_millis(1);

/// Told in one batch: whoever drains rings reads a file of /proc for each, about 20 µs.
const TAKEN_MAX: usize = 64;

/// What was read, and has to be told.
#[derive(Debug)]
struct Told {
    /// Of this address space; none where the process is gone.
    space: Option<Space>,
    event: ProcessEvent,
}

/// What waits for whoever drains.
#[derive(Clone, Debug, Default)]
pub(crate) struct Telling(Arc<Mutex<VecDeque<Told>>>);

struct Known {
    at: u64,
    space: Space,
    /// What was read last; 0: nothing yet.
    number: u64,
    /// Whether something was said of it that counts.
    said: bool,
    due: Instant,
    pause: Duration,
}

/// Those that are known.
pub(crate) struct Resources {
    known: HashMap<u32, Known>,
    due: BTreeSet<(Instant, u32)>,
    telling: Telling,
    tally: Arc<Tally>,
}

impl Telling {
    fn put(&self, told: Told) -> bool {
        let mut waiting = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let room = waiting.len() < RESOURCES_MAX;
        if room {
            waiting.push_back(told);
        }
        room
    }

    /// What is known by `until`, of not more than so many at once (each is looked at for it), for a batch behind one whose watermark was `from`. What is said of a process that has become another
    /// program meanwhile is none: it may have done so between the moment at which it was read and that from which it would hold.
    pub(crate) fn take(&self, from: MonotonicNs, until: MonotonicNs) -> Vec<ProcessEvent> {
        let mut waiting = self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let ripe = waiting.partition_point(|told| told.event.time <= until).min(TAKEN_MAX);
        let ripe: Vec<Told> = waiting.drain(..ripe).collect();
        drop(waiting);
        let holds = |told: &Told| told.space.is_none() || told.space == process::space(told.event.pid.0);
        let moved = |told: Told| ProcessEvent { time: told.event.time.max(from), ..told.event };
        ripe.into_iter().filter(holds).map(moved).collect()
    }
}

impl Resources {
    pub(crate) fn new(telling: Telling, tally: Arc<Tally>) -> Resources {
        Resources { known: HashMap::new(), due: BTreeSet::new(), telling, tally }
    }

    /// When somebody is to be looked at again.
    pub(crate) fn next(&self) -> Option<Instant> {
        self.due.first().map(|(due, _)| *due)
    }

    /// A look has found these mappings, the standard allows one.
    pub(crate) fn found(&mut self, pid: u32, space: Space, mappings: &[u64]) {
        let Some(&at) = mappings.first() else { return self.forget(pid) };
        match self.known.get(&pid) {
            Some(known) if (known.at, known.space) == (at, space) => {}
            Some(_) => self.forget(pid),
            None if self.known.len() >= RESOURCES_MAX => {
                self.tally.resources_no_room.fetch_add(1, Relaxed);
                return;
            }
            None => {}
        }
        let due = Instant::now();
        let fresh = Known { at, space, number: 0, said: false, due, pause: SOON };
        let known = self.known.entry(pid).or_insert(fresh);
        self.due.remove(&(known.due, pid));
        self.look(pid);
    }

    /// Looks at those whose time has come.
    pub(crate) fn look_again(&mut self, now: Instant) {
        while let Some(next) = self.due.first().copied().filter(|(due, _)| *due <= now) {
            self.due.remove(&next);
            self.look(next.1);
        }
    }

    /// It may say something else than a moment ago.
    pub(crate) fn look_now(&mut self, pid: u32) {
        if let Some(known) = self.known.get(&pid) {
            self.due.remove(&(known.due, pid));
            self.look(pid);
        }
    }

    /// It has ended, executes another program, or is nobody's whose word is taken.
    pub(crate) fn forget(&mut self, pid: u32) {
        if let Some(known) = self.known.remove(&pid) {
            self.due.remove(&(known.due, pid));
            if known.said {
                self.tally.resources_publishing.fetch_sub(1, Relaxed);
                self.tell(pid, None, Resource::default(), origin::now());
            }
        }
    }

    fn look(&mut self, pid: u32) {
        let Some(known) = self.known.get_mut(&pid) else { return };
        let memory = ProcessMemory(pid);
        let settled = known.number != 0 && published::number(&memory, known.at) == Some(known.number);
        known.pause = if settled { EVERY } else { (known.pause * 2).min(EVERY) };
        let (at, space) = (known.at, known.space);
        if !settled && !self.read(pid, at, space) {
            return self.forget(pid);
        }
        if let Some(known) = self.known.get_mut(&pid) {
            known.due = Instant::now() + known.pause;
            self.due.insert((known.due, pid));
        }
    }

    /// False where there is nothing any more.
    fn read(&mut self, pid: u32, at: u64, space: Space) -> bool {
        // The moment before: what it executes from now on is found out by whoever tells it.
        let now = origin::now();
        let memory = ProcessMemory(pid);
        let (number, resource) = match published::read(&memory, at) {
            Ok(said) => (said.number, resource::decode(&said.payload)),
            Err(Unread::Refused) => (published::number(&memory, at).unwrap_or_default(), None),
            Err(Unread::None) => return true,
            Err(Unread::Absent) => return false,
            Err(Unread::Changing) => {
                self.tally.resources_unread.fetch_add(1, Relaxed);
                return true;
            }
        };
        if process::space(pid) != Some(space) {
            return false;
        }
        self.tally.resources_malformed.fetch_add(u64::from(resource.is_none()), Relaxed);
        let resource = resource.unwrap_or_default();
        let says = resource != Resource::default();
        let Some(known) = self.known.get_mut(&pid) else { return false };
        let before = known.said;
        if (before || says)
            && !self.telling.put(Told { space: Some(space), event: event(pid, resource, now) })
        {
            self.tally.resources_no_room.fetch_add(1, Relaxed);
            // It is read again.
            return true;
        }
        (known.number, known.said, known.pause) = (number, says, EVERY);
        match (before, says) {
            (false, true) => self.tally.resources_publishing.fetch_add(1, Relaxed),
            (true, false) => self.tally.resources_publishing.fetch_sub(1, Relaxed),
            _ => 0,
        };
        true
    }

    fn tell(&self, pid: u32, space: Option<Space>, resource: Resource, time: MonotonicNs) {
        let room = self.telling.put(Told { space, event: event(pid, resource, time) });
        self.tally.resources_no_room.fetch_add(u64::from(!room), Relaxed);
    }
}

fn event(pid: u32, resource: Resource, time: MonotonicNs) -> ProcessEvent {
    let Resource { attributes, left_out, thread_keys } = resource;
    ProcessEvent { time, pid: Pid(pid), attributes, left_out, thread_keys }
}
