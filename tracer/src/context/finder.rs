//! The thread that looks at processes and writes what it finds where the kernel side reads it.
//!
//! *In*: [`Sight`]s. *Out*: the table of [`Places`], kept as the processes say.
//!
//! *Cost*: a process is looked at when it is first seen or executes a program, and when it maps a file to execute that is not known
//! to have nothing for us: on a machine on which every library was looked at once, an execve costs a look into a set.
//!
//! *Where mappings are not seen* (a filter leaves mmap out), a process is looked at again: 1 ms after it was seen or has executed a
//! program, then twice as long after, up to each 8 s. So what it loads is found by the time it has run twice as long, or 8 s later. A look
//! that finds nothing new reads the list of mappings: 30 to 100 µs.
//!
//! *Weakness*: that a file has nothing is some process's word. One that overwrites the headers of a library in its own memory keeps
//! us from finding that library in others for ten minutes.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use blkkin_probe_abi::context::{PLACES_MAX, Place};

use super::maps::MappedFile;
use super::places::Places;
use super::process::{self, Publishes, Space};

/// Files known to have nothing: more than a machine's programs have libraries. When there are more it begins anew.
const BARREN_MAX: usize = 65_536;
/// And for so long: an inode's number may be given to another file.
const BARREN_FOR: Duration = Duration::from_secs(600);
/// How long what is not relocated yet is left alone, at first; then twice as long, and so on.
const AGAIN_AFTER: Duration = Duration::from_millis(1);
/// So often: 2 s in all. A loader that takes longer maps more meanwhile, which is seen.
const AGAIN_MAX: u32 = 11;
/// Where mappings are not seen, the longest pause is so many times twice as long: 8 s.
const PAUSE_MAX: u32 = 13;

/// What was seen of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// A thread of it is there: the one that leads it, which makes it a new one, or another.
    Seen { pid: u32, parent: u32, leads: bool },
    /// It executes another program, from this file.
    Execed { pid: u32, program: Option<MappedFile> },
    /// It has mapped this file, to execute it.
    Mapped { pid: u32, file: MappedFile },
    /// It has ended.
    Ended { pid: u32 },
    /// More happened than could be said: any process may be another.
    Everything,
}

/// What is known.
pub(crate) struct Finder {
    places: Places,
    /// Processes that were looked at, and where those that publish do so.
    known: HashMap<u32, (Space, Option<Place>)>,
    barren: HashSet<MappedFile>,
    barren_since: Instant,
    /// When to look again, at whom, and how often that was done.
    again: BTreeMap<(Instant, u32), u32>,
    due: HashMap<u32, Instant>,
    /// What is mapped is not said.
    always_again: bool,
    changed: bool,
}

impl Finder {
    /// One that knows nothing.
    pub(crate) fn new(places: Places, always_again: bool) -> Finder {
        Finder {
            places,
            known: HashMap::new(),
            barren: HashSet::new(),
            barren_since: Instant::now(),
            again: BTreeMap::new(),
            due: HashMap::new(),
            always_again,
            changed: false,
        }
    }

    /// Works until nobody says anything any more.
    pub(crate) fn run(mut self, sights: &Receiver<Sight>) {
        loop {
            let wait = self.again.keys().next().map(|(due, _)| due.saturating_duration_since(Instant::now()));
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
            if std::mem::take(&mut self.changed) {
                self.places.publish();
            }
        }
    }

    fn take(&mut self, sight: Sight) {
        if self.barren.len() > BARREN_MAX || self.barren_since.elapsed() > BARREN_FOR {
            self.barren.clear();
            self.barren_since = Instant::now();
        }
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
                self.forget(pid);
                // Of one whose file has nothing the libraries will be said as they are mapped, where that is seen.
                if self.always_again || !program.is_some_and(|program| self.barren.contains(&program)) {
                    self.look(pid, 0);
                }
            }
            Sight::Mapped { pid, file } if !self.barren.contains(&file) => self.look(pid, 0),
            Sight::Mapped { .. } => {}
            Sight::Ended { pid } => self.forget(pid),
            Sight::Everything => {
                self.known.retain(|_, (_, place)| place.is_some());
                for pid in processes() {
                    self.look(pid, 0);
                }
            }
        }
    }

    /// A process that was forked has its parent's memory, and by that its place.
    fn inherits(&mut self, pid: u32, parent: u32) -> bool {
        let Some((space, Some(place))) = self.known.get(&parent).copied() else { return false };
        if process::space(pid) != Some(space) {
            return false;
        }
        self.set(pid, space, Some(place));
        true
    }

    fn look(&mut self, pid: u32, times: u32) {
        if pid == std::process::id() {
            return;
        }
        match process::look(pid, &mut self.barren) {
            Some((space, publishes)) => {
                let place = if let Publishes::At(place) = publishes { Some(place) } else { None };
                self.set(pid, space, place);
                if self.always_again || (publishes == Publishes::Unsettled && times < AGAIN_MAX) {
                    self.come_again(pid, times);
                }
            }
            None => self.forget(pid),
        }
    }

    fn come_again(&mut self, pid: u32, times: u32) {
        let due = Instant::now() + AGAIN_AFTER * 2u32.pow(times.min(PAUSE_MAX));
        if let Some(before) = self.due.insert(pid, due) {
            self.again.remove(&(before, pid));
        }
        self.again.insert((due, pid), times + 1);
    }

    fn look_again(&mut self, now: Instant) {
        while let Some(entry) = self.again.first_entry().filter(|entry| entry.key().0 <= now) {
            let ((_, pid), times) = entry.remove_entry();
            self.due.remove(&pid);
            self.look(pid, times);
        }
    }

    fn set(&mut self, pid: u32, space: Space, place: Option<Place>) {
        if self.known.len() >= PLACES_MAX as usize {
            self.known.retain(|_, (_, place)| place.is_some());
        }
        let found = |(space, place): (Space, Option<Place>)| place.map(|place| space.has(place));
        let before = self.known.insert(pid, (space, place)).and_then(found);
        let now = found((space, place));
        // One that is said again may have been taken out meanwhile, as its library was.
        if before.is_some() || now.is_some() {
            self.changed |= self.places.set(pid, now);
        }
    }

    fn forget(&mut self, pid: u32) {
        if let Some(due) = self.due.remove(&pid) {
            self.again.remove(&(due, pid));
        }
        if let Some((_, Some(_))) = self.known.remove(&pid) {
            // Not said to the tasks: who has seen it is gone, or another program, and knows.
            self.places.set(pid, None);
        }
    }
}

/// All that there are.
fn processes() -> Vec<u32> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}
