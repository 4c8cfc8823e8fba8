//! By file, named as a person knows it: a file that was removed and made again under its name (a journal, a
//! lock) is one row.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use blkkin_aggregator::account::subject::is_storage;
use blkkin_aggregator::named::NamedFile;
use blkkin_aggregator::trace::Trace;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::syscalls::SyscallClass;

use super::calls::moved_bytes;
use super::seen::Seen;
use super::totals::Moved;

/// Files with a row of their own: those met first. A row takes about 100 B and its path: 4 MiB with common
/// paths, 36 MiB if each were of the longest kept.
pub const FILES_MAX: usize = 16_384;

/// All calls on one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRow {
    /// How many.
    pub calls: u64,
    /// Bytes moved.
    pub moved: Moved,
    /// Their time.
    pub total: DurationNs,
    /// The longest.
    pub max: DurationNs,
}

/// All files.
#[derive(Clone, Debug, Default)]
pub struct Files {
    rows: Vec<FileRow>,
    by_path: HashMap<Box<str>, usize>,
    known: [Option<(Arc<NamedFile>, usize)>; KNOWN],
    others: FileRow,
}

/// Names whose row is known by where they lie in memory: nearly every call is on a file of the last few, and its path is
/// not hashed again. Those of the same place displace each other.
const KNOWN: usize = 16;

impl Files {
    pub(crate) fn add<'a>(&mut self, seen: impl Into<Seen<'a>>) {
        let seen = seen.into();
        let Some(call) = seen.storage_call() else { return };
        if call.call.spec().class == SyscallClass::Transfer {
            return self.add_transfer(seen, call);
        }
        if let Some(row) = self.known_row(seen.trace.names.file.as_ref()) {
            return self.rows[row].add(call, seen.time);
        }
        let Some(path) = path(seen.trace, call) else { return };
        match self.row(&path) {
            Some(row) => {
                self.rows[row].add(call, seen.time);
                if let Some(file) = &seen.trace.names.file {
                    self.known[place(file)] = Some((Arc::clone(file), row));
                }
            }
            None => self.others.add(call, seen.time),
        }
    }

    /// A transfer is a call on the file that it reads from, and bytes written to the other; where the first is a pipe or a
    /// socket it is a call on the second.
    fn add_transfer(&mut self, seen: Seen<'_>, call: &SyscallEvent) {
        let names = &seen.trace.names;
        let source =
            path(seen.trace, call).filter(|_| names.file.as_deref().is_none_or(|file| is_storage(file)));
        let mut on_target = FileRow::default();
        on_target.moved.written = moved_bytes(call);
        match source {
            Some(path) => self.row_or_others(&path).add(call, seen.time),
            None => (on_target.calls, on_target.total, on_target.max) = (1, seen.time, seen.time),
        }
        if let Some(target) = names.second_file.as_deref().filter(|file| is_storage(file)) {
            self.row_or_others(&target.path).merge(&on_target);
        }
    }

    /// The `most` files on which most time was spent.
    pub fn by_time(&self, most: usize) -> Vec<(&str, &FileRow)> {
        let mut rows: Vec<_> = self.by_path.iter().map(|(path, row)| (&**path, &self.rows[*row])).collect();
        rows.sort_by_key(|(path, row)| (Reverse(row.total), *path));
        rows.truncate(most);
        rows
    }

    /// How many files have a row.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Those met after [`FILES_MAX`] others, in one; none if there were no more.
    pub fn others(&self) -> Option<&FileRow> {
        (self.others.calls > 0).then_some(&self.others)
    }

    /// Everything but `shown`, in one.
    pub fn rest(&self, shown: &[(&str, &FileRow)]) -> FileRow {
        let mut rest = self.others;
        for (path, row) in &self.by_path {
            if !shown.iter().any(|(other, _)| *other == &**path) {
                rest.merge(&self.rows[*row]);
            }
        }
        rest
    }

    /// The row of `path`; none where it is one too many.
    fn row(&mut self, path: &str) -> Option<usize> {
        if let Some(row) = self.by_path.get(path) {
            return Some(*row);
        }
        let next = self.rows.len();
        if next >= FILES_MAX {
            return None;
        }
        self.rows.push(FileRow::default());
        self.by_path.insert(path.into(), next);
        Some(next)
    }

    fn row_or_others(&mut self, path: &str) -> &mut FileRow {
        match self.row(path) {
            Some(row) => &mut self.rows[row],
            None => &mut self.others,
        }
    }

    fn known_row(&self, file: Option<&Arc<NamedFile>>) -> Option<usize> {
        let file = file?;
        let (known, row) = self.known[place(file)].as_ref()?;
        Arc::ptr_eq(known, file).then_some(*row)
    }
}

/// Where in [`Files::known`] a name belongs. It is kept there, so nothing else lies at its address.
fn place(file: &Arc<NamedFile>) -> usize {
    // Allocations of its size lie 128 B apart or more.
    (Arc::as_ptr(file).addr() >> 7) % KNOWN
}

impl FileRow {
    fn add(&mut self, call: &SyscallEvent, time: DurationNs) {
        self.calls += 1;
        let bytes = moved_bytes(call);
        match call.call.spec().class {
            SyscallClass::Write => self.moved.add(Moved { read: 0, written: bytes }),
            // The primary file of a transfer is the one that is read.
            _ => self.moved.add(Moved { read: bytes, written: 0 }),
        }
        self.total = DurationNs(self.total.0.saturating_add(time.0));
        self.max = self.max.max(time);
    }

    fn merge(&mut self, other: &FileRow) {
        self.calls += other.calls;
        self.moved.add(other.moved);
        self.total = DurationNs(self.total.0.saturating_add(other.total.0));
        self.max = self.max.max(other.max);
    }
}

/// The file's path from the host's root where that is known; else the call's own argument if it says as much.
pub fn path<'a>(trace: &'a Trace, call: &'a SyscallEvent) -> Option<std::borrow::Cow<'a, str>> {
    match (&trace.names.file, &call.paths[0]) {
        (Some(file), _) => Some((&*file.path).into()),
        (None, Some(path)) if path.starts_with('/') && call.file.is_none() => Some((&**path).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use blkkin_aggregator::trace::Root;
    use blkkin_wire::event::{Captured, FileEvent, SyscallOutcome};

    use super::*;
    use crate::collect::sample::{call, on_file};

    #[test]
    fn what_is_beyond_the_maximum_is_summed_and_not_dropped() {
        let mut files = Files::default();
        let number = FILES_MAX as u64 + 5;
        for file in 0..number {
            files.add(&on_file(call(file, "fsync", 10), &format!("/f{file}"), 0o100_644));
        }
        assert_eq!(files.count(), FILES_MAX);
        assert_eq!(files.others().unwrap().calls, 5);
        let shown = files.by_time(10);
        assert_eq!(shown.iter().map(|(_, row)| row.calls).sum::<u64>() + files.rest(&shown).calls, number);
        assert_eq!(
            shown.iter().map(|(_, row)| row.total.0).sum::<u64>() + files.rest(&shown).total.0,
            number * 10
        );
    }

    #[test]
    fn a_transfer_is_read_from_one_file_and_written_to_the_other() {
        let copy = |from: &str, mode, to: &str| {
            let mut trace = on_file(call(1, "splice", 10), from, mode);
            trace.names.second_file = on_file(call(1, "splice", 10), to, 0o100_644).names.file;
            if let Root::Call(call) = &mut trace.root {
                call.outcome = SyscallOutcome::Returned(4096);
            }
            trace
        };
        let mut files = Files::default();
        files.add(&copy("/from", 0o100_644, "/to"));
        files.add(&copy("pipe:[1]", 0o010_600, "/piped"));
        let row = |calls, read, written, time| FileRow {
            calls,
            moved: Moved { read, written },
            total: DurationNs(time),
            max: DurationNs(time),
        };
        let expected =
            [("/from", &row(1, 4096, 0, 10)), ("/piped", &row(1, 0, 4096, 10)), ("/to", &row(0, 0, 4096, 0))];
        assert_eq!(files.by_time(10), expected);
    }

    #[test]
    fn a_path_without_its_upper_part_is_marked_once() {
        let mut trace = on_file(call(1, "fsync", 10), "…/deep/file", 0o100_644);
        if let Some(file) = &mut trace.names.file {
            *file = Arc::new(FileEvent { captured: Captured::Truncated, ..FileEvent::clone(file) }.into());
        }
        assert_eq!(path(&trace, trace.call().unwrap()).as_deref(), Some("…/deep/file"));
    }

    #[test]
    fn a_file_made_again_under_its_name_is_one_row() {
        let mut files = Files::default();
        files.add(&on_file(call(1, "fsync", 10), "/db-journal", 0o100_644));
        files.add(&on_file(call(2, "fsync", 30), "/db-journal", 0o100_644));
        files.add(&on_file(call(3, "read", 99), "pipe:[1]", 0o010_600));
        let rows = files.by_time(10);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].0, rows[0].1.calls, rows[0].1.max), ("/db-journal", 2, DurationNs(30)));
    }
}
