//! The thread that looks at processes and writes what it finds where the kernel side reads it.
//!
//! *In*: [`Sight`]s. *Out*: the table of [`Places`], kept as the processes say.
//!
//! *Cost*: a process is looked at when it is first seen or executes a program, and when it maps a file to execute that is not known
//! to have nothing for us: on a machine on which every library was looked at once, an execve costs a look into a set.
//!
//! *A library that is being loaded* is no word on what it will be: loaders map it part by part, and one may be kept waiting in between. Until
//! all that is looked at is there and relocated, it is looked at again: 1 ms later, then after twice as long, up to each 8 s, for 74 s.
//!
//! *Where mappings are not seen* (a filter leaves mmap out), a process is looked at again: 1 ms after it was seen or has executed a
//! program, then twice as long after, up to each 8 s. So what it loads is found by the time it has run twice as long, or 8 s later. A look
//! that finds nothing new reads the list of mappings: 30 to 100 µs.
//!
//! *Who a process is* in its own words is looked for with it, and when it maps a file of that name. Where it has none and its threads say
//! what they work for, it is looked at again for 2 s.
//!
//! *Who unloads its library* loses its place by the kernel side, at the munmap. That is noticed here within a second, and then it is counted
//! no more; a second later it is looked at again, for what else it may have.
//!
//! *What is unloaded while it is looked at* is gone, or something else is in its place: nothing is believed of it. That a file has nothing is
//! believed if all of it could be read that was asked for, and it was still mapped there behind that; a place, if its library was still
//! there when the kernel side had it, as from then on the kernel side sees to it. A child is forked with its parent's, by the kernel side.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use blkkin_probe_abi::context::{PLACES_MAX, Place};

use super::barren::Barren;
use super::believed::Believed;
use super::maps::MappedFile;
use super::places::Places;
use super::process::{self, Publishes, Seen, Space, Unseen};
use super::resources::Resources;
use super::tally::Tally;
use super::watch::Asked;

/// How long what is not relocated yet is left alone, at first; then twice as long, and so on.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// So often who has a place and has not said who it is: 2 s in all.
const AGAIN_MAX: u32 = 11;
/// So often what is being loaded: 74 s in all. A descriptor of old loaders that is not used until then is not found.
const LOADING_MAX: u32 = 21;
/// The longest pause is so many times twice as long: 8 s.
const PAUSE_MAX: u32 = 13;

/// How often it is asked whether the kernel side has taken a place out, where somebody has one: a read of 8 bytes.
const TAKEN_EVERY: Duration = Duration::from_secs(1);
/// Who has lost its place is looked at again 1 s later: what it unmaps was there when that was said.
const TIMES_TAKEN: u32 = 10;

/// What was seen of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// A thread of it is there: the one that leads it, which makes it a new one, or another.
    Seen { pid: u32, parent: u32, leads: bool },
    /// It executes another program, from this file.
    Execed { pid: u32, program: Option<MappedFile> },
    /// It has mapped this file, to execute it.
    Mapped { pid: u32, file: MappedFile },
    /// It has mapped memory of the name in which processes say who they are.
    Said { pid: u32 },
    /// Its threads have said something under a number that it has given no name yet.
    Nameless { pid: u32 },
    /// It has another user, another cgroup or another name.
    Changed { pid: u32 },
    /// It has ended.
    Ended { pid: u32 },
    /// More happened than could be said: any process may be another.
    Everything,
}

/// What is known.
pub(crate) struct Finder {
    places: Places,
    resources: Resources,
    believed: Believed,
    /// Processes that were looked at, and where those that publish do so.
    known: HashMap<u32, (Space, Option<Place>)>,
    barren: Barren,
    /// Processes that may not be looked at, and were counted.
    denied: HashSet<u32>,
    tally: Arc<Tally>,
    /// When to look again, at whom, and how often that was done.
    again: BTreeMap<(Instant, u32), u32>,
    due: HashMap<u32, Instant>,
    /// What is mapped is not said.
    always_again: bool,
    changed: bool,
    /// Of places that the kernel side took out, those that are known; and when to ask again.
    taken: u64,
    taken_due: Instant,
}

impl Finder {
    /// One that knows nothing.
    pub(crate) fn new(
        places: Places,
        resources: Resources,
        Asked { believed, again, .. }: Asked,
        tally: Arc<Tally>,
    ) -> Finder {
        Finder {
            places,
            resources,
            believed,
            known: HashMap::new(),
            barren: Barren::new(),
            denied: HashSet::new(),
            tally,
            again: BTreeMap::new(),
            due: HashMap::new(),
            always_again: again,
            changed: false,
            taken: 0,
            taken_due: Instant::now(),
        }
    }

    /// Works until nobody says anything any more.
    pub(crate) fn run(mut self, sights: &Receiver<Sight>) {
        loop {
            let taken = (self.tally.publishing.load(Relaxed) > 0).then_some(self.taken_due);
            let again = self.again.keys().next().map(|(due, _)| *due);
            let due = [again, self.resources.next(), taken].into_iter().flatten().min();
            let wait = due.map(|due| due.saturating_duration_since(Instant::now()));
            let first = match wait {
                None => sights.recv().map_err(|_| RecvTimeoutError::Disconnected),
                Some(wait) => sights.recv_timeout(wait),
            };
            match first {
                Ok(sight) => {
                    self.take(sight);
                    sights.try_iter().for_each(|sight| self.take(sight));
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
            self.look_again(Instant::now());
            self.resources.look_again(Instant::now());
            self.look_for_taken(Instant::now());
            if std::mem::take(&mut self.changed) {
                self.places.publish();
            }
        }
    }

    fn take(&mut self, sight: Sight) {
        self.barren.renew();
        match sight {
            Sight::Seen { pid, parent, leads } => {
                // A number may be another process's by now.
                let space = || process::space(pid);
                let same = |(known, _): &(Space, _)| !leads || space().as_ref() == Some(known);
                if !self.known.get(&pid).is_some_and(same) && !self.inherits(pid, parent) {
                    self.look(pid, 0);
                }
            }
            Sight::Execed { pid, program } => {
                self.ended(pid);
                // Of one whose file has nothing the libraries will be said as they are mapped, where that is seen.
                if self.always_again || !program.is_some_and(|program| self.barren.has(program)) {
                    self.look(pid, 0);
                }
            }
            Sight::Mapped { pid, file } if !self.barren.has(file) => self.look(pid, 0),
            Sight::Mapped { .. } => {}
            Sight::Said { pid } => self.look(pid, 0),
            Sight::Nameless { pid } => self.resources.look_now(pid),
            Sight::Changed { pid } => {
                let publishes = self.known.get(&pid).is_some_and(|(_, place)| place.is_some());
                if !(publishes && self.believed.believes(pid)) {
                    self.look(pid, 0);
                }
            }
            Sight::Ended { pid } => {
                self.denied.remove(&pid);
                self.ended(pid);
            }
            Sight::Everything => {
                let there = processes();
                let known = self.known.keys().copied().chain(self.places.processes());
                let gone: Vec<u32> = known.filter(|pid| !there.contains(pid)).collect();
                gone.into_iter().for_each(|pid| self.forget(pid));
                self.known.retain(|_, (_, place)| place.is_some());
                there.into_iter().for_each(|pid| self.look(pid, 0));
            }
        }
    }

    /// A process that was forked has its parent's memory, and by that its place: in the program itself, which is not unmapped.
    fn inherits(&mut self, pid: u32, parent: u32) -> bool {
        let Some((space, Some(place))) = self.known.get(&parent).copied() else { return false };
        // By itself: it may have become another user.
        if place.anchor != 0 || process::space(pid) != Some(space) || !self.believed.believes(pid) {
            return false;
        }
        // What the parent says of itself is not the child's: the standard has it left out of what is forked.
        self.resources.forget(pid);
        self.keep(pid, space, place)
    }

    fn look(&mut self, pid: u32, times: u32) {
        if pid == std::process::id() {
            return;
        }
        if !self.believed.believes(pid) {
            return self.disbelieve(pid);
        }
        match process::look(pid, &mut self.barren) {
            Ok(Seen { space, publishes, said }) => {
                let kept = matches!(publishes, Publishes::At(place) if self.keep(pid, space, place));
                if !kept {
                    self.set(pid, space, None);
                    if matches!(publishes, Publishes::At(_)) {
                        return self.come_again(pid, times);
                    }
                }
                self.resources.found(pid, space, &said);
                let times_max = match publishes {
                    Publishes::Unsettled => LOADING_MAX,
                    // Memory that it gives a name to later, and that is no file, is not seen.
                    Publishes::At(_) if said.is_empty() => AGAIN_MAX,
                    _ => 0,
                };
                if self.always_again || times < times_max {
                    self.come_again(pid, times);
                }
            }
            Err(Unseen::Denied) => self.deny(pid),
            Err(Unseen::Gone) => self.ended(pid),
        }
    }

    /// Puts in a place. One that lies in a library is claimed first, and looked at again: from the claim on the kernel side takes it out when the
    /// library is unmapped, and one that was unmapped before is no longer seen there, or another in its place. False where it is gone; where
    /// there is no room that is counted.
    fn keep(&mut self, pid: u32, space: Space, place: Place) -> bool {
        let place = space.has(place);
        // Its own, or with which it was forked: it has been seen to since.
        if self.places.of(pid) == Some(place) {
            self.note(pid, space, Some(place));
            return true;
        }
        if place.anchor == 0 {
            self.set(pid, space, Some(place));
            return true;
        }
        if !self.places.claim(pid, place) {
            self.tally.no_room.fetch_add(1, Relaxed);
            self.note(pid, space, None);
            return true;
        }
        let again = process::look(pid, &mut self.barren);
        let is_same = |again: Seen| {
            again.space == space && matches!(again.publishes, Publishes::At(same) if space.has(same) == place)
        };
        let stays = again.is_ok_and(is_same) && self.places.keep(pid, place);
        if stays {
            self.changed = true;
            self.note(pid, space, Some(place));
        }
        stays
    }

    fn come_again(&mut self, pid: u32, times: u32) {
        let due = Instant::now() + AGAIN_AFTER * 2u32.pow(times.min(PAUSE_MAX));
        if let Some(before) = self.due.insert(pid, due) {
            self.again.remove(&(before, pid));
        }
        self.again.insert((due, pid), times + 1);
    }

    /// Nothing is known of it, and that is told, once for each.
    fn deny(&mut self, pid: u32) {
        self.forget(pid);
        if self.denied.len() >= PLACES_MAX as usize {
            self.denied.clear();
        }
        if self.denied.insert(pid) {
            self.tally.denied.fetch_add(1, Relaxed);
        }
    }

    /// It has no place, or no longer one.
    fn disbelieve(&mut self, pid: u32) {
        let Some(space) = process::space(pid) else { return self.forget(pid) };
        self.resources.forget(pid);
        self.set(pid, space, None);
    }

    fn look_again(&mut self, now: Instant) {
        while let Some(entry) = self.again.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, pid), times) = entry.remove_entry();
            self.due.remove(&pid);
            self.look(pid, times);
        }
    }

    /// Those whose place the kernel side has taken out publish no more.
    fn look_for_taken(&mut self, now: Instant) {
        if now < self.taken_due {
            return;
        }
        self.taken_due = now + TAKEN_EVERY;
        let taken = self.places.taken();
        if std::mem::replace(&mut self.taken, taken) == taken {
            return;
        }
        let lost =
            self.known.iter_mut().filter(|(pid, (_, place))| place.is_some() && !self.places.has(**pid));
        let lost: Vec<u32> = lost.filter_map(|(pid, (_, place))| place.take().map(|_| *pid)).collect();
        for pid in lost {
            self.count(true, false);
            self.come_again(pid, TIMES_TAKEN);
        }
    }

    /// Puts in a place, or none: it may have been forked with one.
    fn set(&mut self, pid: u32, space: Space, place: Option<Place>) {
        let Some(place) = place else {
            // Who has seen it looks again: what is unmapped from here on is nobody's place.
            self.changed |= self.places.remove(pid);
            self.note(pid, space, None);
            return;
        };
        let room = self.places.put(pid, place);
        self.changed |= room;
        self.tally.no_room.fetch_add(u64::from(!room), Relaxed);
        self.note(pid, space, room.then_some(place));
    }

    /// Notes that a process has a place, or none.
    fn note(&mut self, pid: u32, space: Space, place: Option<Place>) {
        if self.known.len() >= PLACES_MAX as usize {
            self.known.retain(|_, (_, place)| place.is_some());
        }
        let had = self.known.insert(pid, (space, place)).is_some_and(|(_, place)| place.is_some());
        self.count(had, place.is_some());
    }

    /// One that had a place, or none, has one now, or none.
    fn count(&self, had: bool, has: bool) {
        match (had, has) {
            (false, true) => self.tally.publishing.fetch_add(1, Relaxed),
            (true, false) => self.tally.publishing.fetch_sub(1, Relaxed),
            _ => 0,
        };
    }

    /// It is gone, or another program.
    fn forget(&mut self, pid: u32) {
        self.ended(pid);
        self.changed |= self.places.remove(pid);
    }

    /// It is another program; or the thread that leads it has ended. The kernel side takes its place out: at execve, with the last thread.
    fn ended(&mut self, pid: u32) {
        if let Some(due) = self.due.remove(&pid) {
            self.again.remove(&(due, pid));
        }
        self.resources.forget(pid);
        let known = self.known.remove(&pid);
        self.count(known.is_some_and(|(_, place)| place.is_some()), false);
    }
}

/// All that there are.
fn processes() -> BTreeSet<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return BTreeSet::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
