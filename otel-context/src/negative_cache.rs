//! Cache of files known not to define the thread context variable, which scans skip.
//!
//! *In*: results of scans. *Out*: whether a file can be skipped. *Invariant*: a file in which a
//! scan has found the variable never enters the cache, whatever another scan reports. A process may
//! unload that file, load another library at the same address, and load the first one again; a scan
//! may then have read the other library's memory.
//!
//! *Weakness*: results come from some process's memory and hold for ten minutes. A process that
//! overwrites a library's headers in its own memory, before any other process with that library was
//! scanned, hides the library's variable in other processes.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use crate::maps::MappedFile;

/// Maximum number of files, more than a machine's programs have libraries; beyond it the cache is
/// cleared.
const FILES_MAX: usize = 65_536;
/// Maximum age of the cache: an inode number may be reused.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// A cache of negative scan results.
pub struct NegativeCache {
    files: HashSet<MappedFile>,
    /// Files in which the variable was found.
    publishers: HashSet<MappedFile>,
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
        NegativeCache { files: HashSet::new(), publishers: HashSet::new(), since: Instant::now() }
    }

    /// Returns whether a file is known not to define the variable.
    pub fn contains(&self, file: MappedFile) -> bool {
        self.files.contains(&file)
    }

    /// Adds a file without the variable.
    pub fn insert(&mut self, file: MappedFile) {
        if !self.publishers.contains(&file) {
            self.files.insert(file);
        }
    }

    /// Records that a file defines the variable.
    pub fn mark_publisher(&mut self, file: MappedFile) {
        self.publishers.insert(file);
        self.files.remove(&file);
    }

    /// Clears the cache if it is too old or too large.
    pub fn expire(&mut self) {
        let full = self.files.len().max(self.publishers.len()) > FILES_MAX;
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

    #[test]
    fn publisher_is_never_cached() {
        let [one, other] = [1, 2].map(|ino| MappedFile { major: 8, minor: 1, ino });
        let mut cache = NegativeCache::new();
        [one, other].into_iter().for_each(|file| cache.insert(file));
        cache.mark_publisher(one);
        cache.insert(one);
        assert_eq!((cache.contains(one), cache.contains(other)), (false, true));
        cache.expire();
        assert!(cache.contains(other));
        cache.since = cache.since.checked_sub(2 * KNOWN_FOR).unwrap();
        cache.expire();
        assert!(!cache.contains(other));
    }
}
