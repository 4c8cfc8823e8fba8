//! Files of which it is known that nothing in them publishes: they are not looked into again.
//!
//! *In*: what looks at processes found. *Out*: whether a file needs no look. *Invariant*: a file that was once seen to have something is
//! not here, whatever another look makes of it: one whose process unloads it and loads another library in its place, and then it
//! again, has read the other's memory for its own.
//!
//! *Weakness*: all of it is some process's word, for ten minutes. One that overwrites the headers of a library in its own memory,
//! before anybody has seen it with them, keeps us from finding it in others.

use std::collections::HashSet;
use std::time::{Duration, Instant};

use super::maps::MappedFile;

/// More than a machine's programs have libraries. When there are more it begins anew.
const FILES_MAX: usize = 65_536;
/// And so long after: an inode's number may be given to another file.
const KNOWN_FOR: Duration = Duration::from_secs(600);

/// Those.
pub(crate) struct Barren {
    files: HashSet<MappedFile>,
    /// Files that have something.
    telling: HashSet<MappedFile>,
    since: Instant,
}

impl Barren {
    /// None so far.
    pub(crate) fn new() -> Barren {
        Barren { files: HashSet::new(), telling: HashSet::new(), since: Instant::now() }
    }

    /// Whether a file has nothing.
    pub(crate) fn has(&self, file: MappedFile) -> bool {
        self.files.contains(&file)
    }

    /// Nothing was seen in it.
    pub(crate) fn add(&mut self, file: MappedFile) {
        if !self.telling.contains(&file) {
            self.files.insert(file);
        }
    }

    /// Something was.
    pub(crate) fn tells(&mut self, file: MappedFile) {
        self.telling.insert(file);
        self.files.remove(&file);
    }

    /// Forgets all, once that is known for too long.
    pub(crate) fn renew(&mut self) {
        let full = self.files.len().max(self.telling.len()) > FILES_MAX;
        if full || self.since.elapsed() > KNOWN_FOR {
            *self = Barren::new();
        }
    }

    #[cfg(test)]
    pub(super) fn len(&self) -> usize {
        self.files.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::ids::DeviceId;

    #[test]
    fn what_has_told_is_never_barren() {
        let [one, other] = [1, 2].map(|ino| MappedFile { device: DeviceId { major: 8, minor: 1 }, ino });
        let mut barren = Barren::new();
        [one, other].into_iter().for_each(|file| barren.add(file));
        barren.tells(one);
        barren.add(one);
        assert_eq!((barren.has(one), barren.has(other)), (false, true));
        barren.renew();
        assert!(barren.has(other));
        barren.since = barren.since.checked_sub(2 * KNOWN_FOR).unwrap();
        barren.renew();
        assert!(!barren.has(other));
    }
}
