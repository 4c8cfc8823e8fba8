//! Path filter: decides by a file's path whether its system calls are recorded.
//!
//! *In*: the events of each batch, in the order of time; a file's event comes before the first call
//! that uses it. *Out*: the numbers of paths that match no pattern, in the kernel side's table
//! (`kprobe-ebpf/src/file/excluded.rs`), and the batch without the calls that the filter excludes.
//!
//! *The kernel side excludes* a call at its entry if the paths of all its files are excluded, and if it
//! has no path argument, opens no file and submits no asynchronous I/O. *The reader excludes* a call
//! if no bio or submission belongs to it, and if all its paths are known and match no pattern. So
//! what remains are calls that match; calls on other files that queued block I/O before the reader
//! knew the file's path (one poll, 2 to 20 ms, and up to 5 ms), by a path argument or by
//! asynchronous I/O; and calls with unknown paths. `run` and `trace` leave these out when
//! their trace is whole; an agent sends them.
//!
//! *Invariant*: a call with a path that matches, or with one that is not known whole, is never
//! excluded. Not known are a path that is cut or could not be read, a relative path argument without
//! a file, the file of a mapping (msync), and those of `sync` and io_getevents.
//!
//! *Rejected*: to record no call on a file before its path is known. It would lose the first calls
//! on each file that matches.

pub mod pattern;

use aya::Ebpf;
use aya::maps::{Array, MapData};
use blkkin_probe_abi::excluded_paths::{EXCLUDED_SETS, ExcludedSet, WAYS, set_of};
use blkkin_wire::event::{Captured, FileEvent, LayerEvent, SyscallEvent};
use blkkin_wire::ids::NameId;

use crate::aya_error::{error_chain, missing_map};
use crate::error::TracerError;
use pattern::PathPattern;

/// Name of the kernel side's table.
pub(crate) const MAP: &str = "EXCLUDED_PATHS";

/// File system type of sockets.
const SOCKETS: &str = "sockfs";

/// State of the filter.
pub(crate) struct PathFilter {
    patterns: Vec<PathPattern>,
    excluded: ExcludedPaths,
    /// True if calls on sockets are needed, as parents of NBD requests.
    keeps_sockets: bool,
}

impl PathFilter {
    /// Creates the filter with the kernel side's table.
    pub(crate) fn take(
        ebpf: &mut Ebpf,
        patterns: Vec<PathPattern>,
        keeps_sockets: bool,
    ) -> Result<PathFilter, TracerError> {
        let map = ebpf.take_map(MAP).ok_or_else(|| missing_map(MAP))?;
        let map = Array::try_from(map)
            .map_err(|error| TracerError::Map { map: MAP, reason: error_chain(&error) })?;
        Ok(PathFilter { patterns, excluded: ExcludedPaths::new(Some(map)), keeps_sockets })
    }

    /// Excludes the paths of the batch that match no pattern, and drops its calls that match none.
    /// Returns the number of these.
    pub(crate) fn apply(&mut self, events: &mut Vec<LayerEvent>) -> u64 {
        let before = events.len();
        events.retain(|event| match event {
            LayerEvent::File(file) => {
                self.observe(file);
                true
            }
            LayerEvent::Syscall(call) => self.keeps(call),
            _ => true,
        });
        (before - events.len()) as u64
    }

    fn observe(&mut self, file: &FileEvent) {
        let kept = self.keeps_sockets && *file.filesystem == *SOCKETS;
        if file.captured == Captured::Full && !kept && !self.matches(&file.path) {
            self.excluded.insert(file.file.name);
        }
    }

    fn matches(&self, path: &str) -> bool {
        self.patterns.iter().any(|pattern| pattern.matches(path))
    }

    fn keeps(&self, call: &SyscallEvent) -> bool {
        if call.bios > 0 || call.paths_captured != Captured::Full {
            return true;
        }
        let mut files = call.file.iter().chain(call.second_file.as_deref());
        let mut paths = call.paths.iter().flatten();
        // A relative path argument of a call with a file led to that file.
        let is_known = match &call.file {
            Some(_) => files.all(|open| self.excluded.contains(open.file.name)),
            None => call.paths[0].is_some() && paths.clone().all(|path| path.starts_with('/')),
        };
        !is_known || paths.any(|path| self.matches(path))
    }
}

/// The kernel side's table, and a copy of it.
struct ExcludedPaths {
    /// Map of the kernel side; absent in tests.
    map: Option<Array<MapData, ExcludedSet>>,
    sets: Vec<ExcludedSet>,
    /// Way of a full set that is displaced next.
    next_way: usize,
}

impl ExcludedPaths {
    fn new(map: Option<Array<MapData, ExcludedSet>>) -> ExcludedPaths {
        ExcludedPaths { map, sets: vec![[0; WAYS]; EXCLUDED_SETS], next_way: 0 }
    }

    fn contains(&self, name: NameId) -> bool {
        name != NameId::NONE && self.sets[set_of(name.0) as usize].contains(&name.0)
    }

    /// Adds a number, in place of another one if its set is full. That one's calls are recorded
    /// again.
    fn insert(&mut self, name: NameId) {
        if name == NameId::NONE || self.contains(name) {
            return;
        }
        let index = set_of(name.0);
        let set = &mut self.sets[index as usize];
        let way = set.iter().position(|number| *number == 0).unwrap_or_else(|| {
            self.next_way = (self.next_way + 1) % WAYS;
            self.next_way
        });
        set[way] = name.0;
        if let Some(map) = &mut self.map {
            // Without the entry the kernel side records the path's calls as before.
            let _ = map.set(index, *set, 0);
        }
    }
}

#[cfg(test)]
mod tests;
