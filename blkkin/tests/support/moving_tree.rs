//! A directory tree that changes at random, and the path of each open descriptor in it.
//!
//! *In*: a seed. *Out*: steps, each a change of the tree and a write. [`MovingTree`] is the record
//! of the script: it knows the tree without looking at it. [`Performer`] makes the same steps by
//! system calls. Two processes with equal seeds take equal steps.
//!
//! *A descriptor's path* is that of the name by which it was opened (its dentry), wherever that name
//! was moved since. A removed name keeps its place, with the kernel's mark.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::ffi::CString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Open descriptors at a time.
const OPEN_MAX: usize = 12;
/// Names that exist at a time.
const NAMES_MAX: usize = 60;

/// A name in a directory: what the kernel calls a dentry.
#[derive(Clone, Debug)]
struct Name {
    parent: usize,
    text: String,
    /// Number of the file or directory.
    inode: usize,
    directory: bool,
    removed: bool,
}

/// A change of the tree, of names and descriptors by their numbers here.
#[derive(Clone, Debug)]
pub(crate) enum Change {
    Open { fd: usize, name: usize },
    Create { fd: usize, name: usize },
    Temporary { fd: usize, name: usize, directory: usize },
    Close { fd: usize },
    MakeDirectory { name: usize },
    Rename { from: PathBuf, to: PathBuf },
    Exchange { one: PathBuf, other: PathBuf },
    Link { from: PathBuf, to: PathBuf },
    LinkDescriptor { fd: usize, to: PathBuf },
    Unlink { path: PathBuf },
    RemoveDirectory { path: PathBuf },
}

impl Change {
    /// Returns whether only the process of the descriptors can make it.
    pub(crate) fn is_of_a_descriptor(&self) -> bool {
        use Change::{Close, Create, LinkDescriptor, Open, Temporary};
        matches!(self, Open { .. } | Create { .. } | Temporary { .. } | Close { .. } | LinkDescriptor { .. })
    }
}

/// The tree as the script knows it.
#[derive(Clone, Debug)]
pub(crate) struct MovingTree {
    names: Vec<Name>,
    /// Name of each descriptor; none for a closed one.
    open: [Option<usize>; OPEN_MAX],
    inodes: usize,
    texts: usize,
    random: u64,
}

impl MovingTree {
    /// Creates a tree of one empty directory.
    pub(crate) fn new(root: &Path, seed: u64) -> MovingTree {
        let text = root.to_str().unwrap().to_owned();
        let root = Name { parent: 0, text, inode: 0, directory: true, removed: false };
        MovingTree { names: vec![root], open: [None; OPEN_MAX], inodes: 1, texts: 0, random: seed | 1 }
    }

    /// Changes the tree at random.
    pub(crate) fn change(&mut self) -> Change {
        loop {
            let change = match self.below(32) {
                0..=6 => self.open_or_create(),
                7 => self.temporary(),
                8..=12 => self.close(),
                13..=15 => self.make_directory(),
                16..=22 => self.rename(),
                23..=25 => self.exchange(),
                26 | 27 => self.link(),
                28 => self.link_descriptor(),
                29 | 30 => self.unlink(),
                _ => self.remove_directory(),
            };
            if let Some(change) = change {
                return change;
            }
        }
    }

    /// Selects a descriptor to write to, if one is open.
    pub(crate) fn writer(&mut self) -> Option<usize> {
        let open: Vec<usize> = (0..OPEN_MAX).filter(|fd| self.open[*fd].is_some()).collect();
        self.one_of(&open)
    }

    /// Returns the path of a descriptor as it should be shown.
    pub(crate) fn path_of(&self, fd: usize) -> String {
        let name = self.open[fd].unwrap();
        let mark = if self.names[name].removed { " (deleted)" } else { "" };
        format!("{}{mark}", self.path(name).display())
    }

    /// Sets the text of the name of a temporary file, which the kernel chose.
    pub(crate) fn set_text(&mut self, name: usize, text: String) {
        self.names[name].text = text;
    }

    fn open_or_create(&mut self) -> Option<Change> {
        let fd = self.free_descriptor()?;
        let files = self.live(|name| !name.directory);
        if self.below(3) > 0 && !files.is_empty() {
            let name = self.one_of(&files)?;
            self.open[fd] = Some(name);
            return Some(Change::Open { fd, name });
        }
        let name = self.add(false, None)?;
        self.open[fd] = Some(name);
        Some(Change::Create { fd, name })
    }

    fn temporary(&mut self) -> Option<Change> {
        let fd = self.free_descriptor()?;
        let directories = self.live(|name| name.directory);
        let directory = self.one_of(&directories)?;
        let inode = self.new_inode();
        self.names.push(Name {
            parent: directory,
            text: String::new(),
            inode,
            directory: false,
            removed: true,
        });
        let name = self.names.len() - 1;
        self.open[fd] = Some(name);
        Some(Change::Temporary { fd, name, directory })
    }

    fn close(&mut self) -> Option<Change> {
        let fd = self.writer()?;
        self.open[fd] = None;
        Some(Change::Close { fd })
    }

    fn make_directory(&mut self) -> Option<Change> {
        let name = self.add(true, None)?;
        Some(Change::MakeDirectory { name })
    }

    /// Renames a file or directory, to a new name or over another of its kind.
    fn rename(&mut self) -> Option<Change> {
        let all = self.live(|_| true);
        let from = self.one_of(&all)?;
        let replaced = self.below(3) == 0;
        let (parent, text) = if replaced {
            let target = self.one_of(&all)?;
            let fits = target != from
                && self.names[target].directory == self.names[from].directory
                && self.names[target].inode != self.names[from].inode
                && self.is_empty(target)
                && !self.is_within(target, from);
            if !fits {
                return None;
            }
            self.names[target].removed = true;
            (self.names[target].parent, self.names[target].text.clone())
        } else {
            let directories = self.live(|name| name.directory);
            let directory = self.one_of(&directories)?;
            if self.is_within(directory, from) {
                return None;
            }
            (directory, self.new_text())
        };
        let before = self.path(from);
        (self.names[from].parent, self.names[from].text) = (parent, text);
        Some(Change::Rename { from: before, to: self.path(from) })
    }

    fn exchange(&mut self) -> Option<Change> {
        let all = self.live(|_| true);
        let (one, other) = (self.one_of(&all)?, self.one_of(&all)?);
        if self.is_within(one, other)
            || self.is_within(other, one)
            || self.names[one].inode == self.names[other].inode
        {
            return None;
        }
        let paths = [self.path(one), self.path(other)];
        let place = (self.names[one].parent, self.names[one].text.clone());
        self.names[one].parent = self.names[other].parent;
        self.names[one].text = self.names[other].text.clone();
        (self.names[other].parent, self.names[other].text) = place;
        let [one, other] = paths;
        Some(Change::Exchange { one, other })
    }

    fn link(&mut self) -> Option<Change> {
        let files = self.live(|name| !name.directory);
        let from = self.one_of(&files)?;
        let name = self.add(false, Some(self.names[from].inode))?;
        Some(Change::Link { from: self.path(from), to: self.path(name) })
    }

    /// Gives a temporary file a name.
    fn link_descriptor(&mut self) -> Option<Change> {
        let fd = self.writer()?;
        let name = &self.names[self.open[fd]?];
        let (inode, temporary) = (name.inode, name.text.starts_with('#'));
        if !temporary || self.names.iter().any(|name| name.inode == inode && !name.text.starts_with('#')) {
            return None;
        }
        let name = self.add(false, Some(inode))?;
        Some(Change::LinkDescriptor { fd, to: self.path(name) })
    }

    fn unlink(&mut self) -> Option<Change> {
        let files = self.live(|name| !name.directory);
        let name = self.one_of(&files)?;
        self.names[name].removed = true;
        Some(Change::Unlink { path: self.path(name) })
    }

    fn remove_directory(&mut self) -> Option<Change> {
        let directories = self.live(|name| name.directory);
        let name = self.one_of(&directories)?;
        if name == 0 || !self.is_empty(name) {
            return None;
        }
        self.names[name].removed = true;
        Some(Change::RemoveDirectory { path: self.path(name) })
    }

    /// Adds a name for a new or existing inode in some directory. In one of four cases it is the
    /// text of a name that was removed there.
    fn add(&mut self, directory: bool, inode: Option<usize>) -> Option<usize> {
        if self.live(|_| true).len() >= NAMES_MAX {
            return None;
        }
        let directories = self.live(|name| name.directory);
        let parent = self.one_of(&directories)?;
        let again = self.below(4) == 0;
        let used_before = |name: &&Name| name.parent == parent && name.removed && !name.text.starts_with('#');
        let old: Vec<String> = self.names.iter().filter(used_before).map(|name| name.text.clone()).collect();
        let free = |text: &&String| {
            !self.names.iter().any(|name| name.parent == parent && !name.removed && name.text == **text)
        };
        let free: Vec<String> = old.iter().filter(free).cloned().collect();
        let text = if again && !free.is_empty() {
            let index = self.below(free.len());
            free[index].clone()
        } else {
            self.new_text()
        };
        let inode = inode.unwrap_or_else(|| self.new_inode());
        self.names.push(Name { parent, text, inode, directory, removed: false });
        Some(self.names.len() - 1)
    }

    fn live(&self, wanted: impl Fn(&Name) -> bool) -> Vec<usize> {
        (0..self.names.len()).filter(|&name| !self.names[name].removed && wanted(&self.names[name])).collect()
    }

    fn is_empty(&self, directory: usize) -> bool {
        !self.names.iter().enumerate().any(|(at, name)| at > 0 && name.parent == directory && !name.removed)
    }

    /// Returns whether `name` is `directory` or below it.
    fn is_within(&self, mut name: usize, directory: usize) -> bool {
        while name != directory {
            if name == 0 {
                return false;
            }
            name = self.names[name].parent;
        }
        true
    }

    fn path(&self, mut name: usize) -> PathBuf {
        let mut texts = Vec::new();
        while name != 0 {
            texts.push(&self.names[name].text);
            name = self.names[name].parent;
        }
        let mut path = PathBuf::from(&self.names[0].text);
        path.extend(texts.into_iter().rev());
        path
    }

    fn free_descriptor(&mut self) -> Option<usize> {
        let free: Vec<usize> = (0..OPEN_MAX).filter(|fd| self.open[*fd].is_none()).collect();
        self.one_of(&free)
    }

    fn new_inode(&mut self) -> usize {
        self.inodes += 1;
        self.inodes
    }

    /// Returns a text that was not used before: short ones, and ones that the kernel keeps outside
    /// of the dentry.
    fn new_text(&mut self) -> String {
        self.texts += 1;
        let long = if self.below(4) == 0 { "-longer-than-forty-bytes-which-a-dentry-has" } else { "" };
        format!("n{}{long}", self.texts)
    }

    fn one_of(&mut self, of: &[usize]) -> Option<usize> {
        if of.is_empty() {
            return None;
        }
        let index = self.below(of.len());
        Some(of[index])
    }

    /// Returns a number below `limit` (xorshift64).
    fn below(&mut self, limit: usize) -> usize {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        ((self.random >> 11) % limit as u64) as usize
    }
}

/// Makes the changes by system calls.
pub(crate) struct Performer {
    descriptors: [i32; OPEN_MAX],
}

impl Performer {
    pub(crate) fn new() -> Performer {
        Performer { descriptors: [-1; OPEN_MAX] }
    }

    /// Makes a change of this tree; returns the inode of a new temporary file.
    pub(crate) fn perform(&mut self, tree: &MovingTree, change: &Change) -> Option<u64> {
        // SAFETY: strings that outlive the calls, and numbers.
        unsafe {
            match change {
                Change::Open { fd, name } => {
                    self.descriptors[*fd] = libc::open(c(&tree.path(*name)).as_ptr(), libc::O_WRONLY);
                    assert!(self.descriptors[*fd] >= 0, "{change:?}");
                }
                Change::Create { fd, name } => {
                    let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
                    self.descriptors[*fd] = libc::open(c(&tree.path(*name)).as_ptr(), flags, 0o600);
                    assert!(self.descriptors[*fd] >= 0, "{change:?}");
                }
                Change::Temporary { fd, directory, .. } => {
                    let (path, flags) = (c(&tree.path(*directory)), libc::O_WRONLY | libc::O_TMPFILE);
                    self.descriptors[*fd] = libc::open(path.as_ptr(), flags, 0o600);
                    let mut found: libc::stat = std::mem::zeroed();
                    check(libc::fstat(self.descriptors[*fd], &mut found), change);
                    return Some(found.st_ino);
                }
                Change::Close { fd } => check(libc::close(self.descriptors[*fd]), change),
                Change::MakeDirectory { name } => {
                    check(libc::mkdir(c(&tree.path(*name)).as_ptr(), 0o700), change)
                }
                Change::Rename { from, to } => check(libc::rename(c(from).as_ptr(), c(to).as_ptr()), change),
                Change::Exchange { one, other } => {
                    let (one, other) = (c(one), c(other));
                    let here = libc::AT_FDCWD;
                    let exchange = libc::RENAME_EXCHANGE;
                    check(libc::renameat2(here, one.as_ptr(), here, other.as_ptr(), exchange), change);
                }
                Change::Link { from, to } => check(libc::link(c(from).as_ptr(), c(to).as_ptr()), change),
                Change::LinkDescriptor { fd, to } => {
                    let (from, to) = (self.descriptors[*fd], c(to));
                    let flag = libc::AT_EMPTY_PATH;
                    check(libc::linkat(from, c"".as_ptr(), libc::AT_FDCWD, to.as_ptr(), flag), change);
                }
                Change::Unlink { path } => check(libc::unlink(c(path).as_ptr()), change),
                Change::RemoveDirectory { path } => check(libc::rmdir(c(path).as_ptr()), change),
            }
        }
        None
    }

    /// Writes a byte at this offset.
    pub(crate) fn write_at(&self, fd: usize, offset: u64) {
        // SAFETY: one byte of a constant.
        let written =
            unsafe { libc::pwrite(self.descriptors[fd], c"x".as_ptr().cast(), 1, offset as libc::off_t) };
        assert_eq!(written, 1);
    }

    /// Returns the kernel's own text of the descriptor's path.
    pub(crate) fn kernel_path(&self, fd: usize) -> String {
        let link = format!("/proc/self/fd/{}", self.descriptors[fd]);
        std::fs::read_link(link).unwrap().to_str().unwrap().to_owned()
    }
}

fn check(result: i32, change: &Change) {
    assert_eq!(result, 0, "{change:?}: {}", std::io::Error::last_os_error());
}

fn c(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).unwrap()
}
