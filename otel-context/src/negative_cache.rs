//! Cache of files known not to define the thread context variable, which scans skip.
//!
//! *In*: results of scans, and mappings of files. *Out*: whether a file can be skipped.
//!
//! *Invariant*: a result is of the file itself. A process may unload a file, load another library at
//! the same address, and load the first one again; a scan may then have read the other library's
//! memory. So a file in which a scan has found the variable never enters the cache, and a file that
//! the scanned process mapped during the scan leaves it ([`NegativeCache::on_mapped`]).
//!
//! *Two numbers of a file*: scans have the device and inode of `/proc/PID/maps`, callers those of the system
//! call. On overlayfs they differ: since Linux 6.8 the list has overlayfs' own, and callers may have those of the
//! layer. [`NegativeCache::add_alias`] makes the second known. Until then a mapping of such a file ends all
//! results of the scans that it overlaps.
//!
//! *Weakness*: results come from some process's memory and hold for ten minutes. A process that
//! overwrites a library's headers in its own memory, before any other process with that library was
//! scanned, hides the library's variable in other processes. Nor is a mapping observed that another
//! process makes which shares the memory.

use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use crate::maps::MappedFile;

/// Maximum number of files, more than a machine's programs have libraries; beyond it the cache is
/// cleared.
const FILES_MAX: usize = 65_536;
/// Maximum age of the cache: an inode number may be reused.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// Scan of a process that gave a negative result. Times are of CLOCK_MONOTONIC, in ns.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScanTime {
    pub(crate) pid: u32,
    pub(crate) begin_ns: u64,
    pub(crate) end_ns: u64,
}

/// A cache of negative scan results.
pub struct NegativeCache {
    /// Files without the variable, each with the scan that reported it.
    files: HashMap<MappedFile, ScanTime>,
    /// Files in which the variable was found.
    publishers: HashSet<MappedFile>,
    /// Files as system calls have them, by which the lists of mappings have another number.
    aliases: HashMap<MappedFile, MappedFile>,
    since: Instant,
}

impl Default for NegativeCache {
    fn default() -> Self {
        NegativeCache::new()
    }
}

impl NegativeCache {
    /// Creates an empty cache.
    pub fn new() -> NegativeCache {
        NegativeCache {
            files: HashMap::new(),
            publishers: HashSet::new(),
            aliases: HashMap::new(),
            since: Instant::now(),
        }
    }

    /// Returns whether a file is known not to define the variable.
    pub fn contains(&self, file: MappedFile) -> bool {
        self.files.contains_key(&self.listed(file))
    }

    /// Returns the file as the lists of mappings have it.
    fn listed(&self, file: MappedFile) -> MappedFile {
        self.aliases.get(&file).copied().unwrap_or(file)
    }

    /// Makes known which file of the process' list is the one that it mapped by a system call: that of a file
    /// system without a device (major number 0) with the same inode number, as overlayfs has where its layers
    /// are on one file system. Without such a file, or with two, nothing is known.
    pub fn add_alias(&mut self, file: MappedFile, loaded: &[MappedFile]) {
        let is_listed = loaded.contains(&file);
        let mut others = loaded.iter().filter(|other| other.major == 0 && other.ino == file.ino);
        if let (false, Some(listed), None) = (is_listed, others.next(), others.next()) {
            self.aliases.insert(file, *listed);
        }
    }

    /// Adds a file in which this scan has found no variable.
    pub(crate) fn insert(&mut self, file: MappedFile, scan: ScanTime) {
        if !self.publishers.contains(&file) {
            self.files.insert(file, scan);
        }
    }

    /// Removes a file that the scanned process mapped during the scan: what was read may be another
    /// file's. `begin_ns` and `end_ns` are the times of the system call (CLOCK_MONOTONIC).
    pub fn on_mapped(&mut self, pid: u32, file: MappedFile, begin_ns: u64, end_ns: u64) {
        let overlaps =
            |scan: &ScanTime| scan.pid == pid && begin_ns <= scan.end_ns && end_ns >= scan.begin_ns;
        let listed = self.listed(file);
        if self.files.get(&listed).is_some_and(overlaps) {
            self.files.remove(&listed);
        } else if !self.files.contains_key(&listed) && !self.publishers.contains(&listed) {
            self.files.retain(|_, scan| !overlaps(scan));
        }
    }

    /// Records that a file defines the variable.
    pub fn mark_publisher(&mut self, file: MappedFile) {
        self.publishers.insert(file);
        self.files.remove(&file);
    }

    /// Clears the cache if it is too old or too large.
    pub fn expire(&mut self) {
        let full = self.files.len().max(self.publishers.len()).max(self.aliases.len()) > FILES_MAX;
        if full || self.since.elapsed() > KNOWN_FOR {
            *self = NegativeCache::new();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCAN: ScanTime = ScanTime { pid: 7, begin_ns: 100, end_ns: 200 };

    #[test]
    fn file_that_its_process_mapped_during_the_scan_leaves_the_cache() {
        let file = MappedFile { major: 8, minor: 1, ino: 1 };
        for (pid, begin_ns, end_ns, stays) in [
            (7, 50, 99, true),
            (7, 201, 300, true),
            (8, 150, 160, true),
            (7, 90, 100, false),
            (7, 150, 250, false),
        ] {
            let mut cache = NegativeCache::new();
            cache.insert(file, SCAN);
            cache.on_mapped(pid, file, begin_ns, end_ns);
            assert_eq!(cache.contains(file), stays, "{pid} {begin_ns} {end_ns}");
        }
    }

    /// The list of mappings has overlayfs' own number, the system call that of the layer.
    #[test]
    fn a_file_of_overlayfs_is_known_by_both_numbers() {
        let [call, listed, other] =
            [(8, 5), (0, 5), (8, 9)].map(|(major, ino)| MappedFile { major, minor: 1, ino });
        let mut cache = NegativeCache::new();
        cache.insert(listed, SCAN);
        cache.add_alias(call, &[other, MappedFile { ino: 6, ..listed }]);
        assert!(!cache.contains(call), "no file with this inode number");
        cache.add_alias(call, &[listed, MappedFile { minor: 2, ..listed }]);
        assert!(!cache.contains(call), "two files with this inode number");
        cache.add_alias(call, &[other, listed]);
        assert!(cache.contains(call) && cache.contains(listed) && !cache.contains(other));
        cache.on_mapped(7, call, 150, 160);
        assert!(!cache.contains(call) && !cache.contains(listed));
        // As long as the other number is not known, any result of the scan may be another file's.
        let mut cache = NegativeCache::new();
        [listed, other].into_iter().for_each(|file| cache.insert(file, SCAN));
        cache.on_mapped(7, call, 201, 300);
        assert!(cache.contains(listed) && cache.contains(other));
        cache.on_mapped(7, call, 150, 160);
        assert!(!cache.contains(listed) && !cache.contains(other));
    }

    #[test]
    fn publisher_is_never_cached() {
        let [one, other] = [1, 2].map(|ino| MappedFile { major: 8, minor: 1, ino });
        let mut cache = NegativeCache::new();
        [one, other].into_iter().for_each(|file| cache.insert(file, SCAN));
        cache.mark_publisher(one);
        cache.insert(one, SCAN);
        assert_eq!((cache.contains(one), cache.contains(other)), (false, true));
        cache.expire();
        assert!(cache.contains(other));
        cache.since = cache.since.checked_sub(2 * KNOWN_FOR).unwrap();
        cache.expire();
        assert!(!cache.contains(other));
    }
}
