//! By file, named as a person knows it: a file that was removed and made again under its name (a journal, a
//! lock) is one row.

use std::cmp::Reverse;
use std::collections::HashMap;

use blkkin_aggregator::trace::Trace;
use blkkin_wire::calls::CallClass;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{CallEvent, Kept};

use super::calls::{Subject, moved_bytes};
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
    rows: HashMap<Box<str>, FileRow>,
    others: FileRow,
}

impl Files {
    pub(crate) fn add(&mut self, trace: &Trace) {
        let Some(call) = trace.call() else { return };
        let Some(path) = path(trace, call) else { return };
        if Subject::of(trace) == Subject::NotStorage {
            return;
        }
        self.row(&path).add(call, trace.duration());
    }

    /// The `most` files on which most time was spent.
    pub fn by_time(&self, most: usize) -> Vec<(&str, &FileRow)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(path, row)| (&**path, row)).collect();
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
        for (path, row) in &self.rows {
            if !shown.iter().any(|(other, _)| *other == &**path) {
                rest.merge(row);
            }
        }
        rest
    }

    fn row(&mut self, path: &str) -> &mut FileRow {
        if !self.rows.contains_key(path) {
            if self.rows.len() >= FILES_MAX {
                return &mut self.others;
            }
            self.rows.insert(path.into(), FileRow::default());
        }
        self.rows.get_mut(path).expect("invariant: inserted just now")
    }
}

impl FileRow {
    fn add(&mut self, call: &CallEvent, time: DurationNs) {
        self.calls += 1;
        let bytes = moved_bytes(call);
        match call.call.spec().class {
            CallClass::Write => self.moved.add(Moved { read: 0, written: bytes }),
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
pub fn path<'a>(trace: &'a Trace, call: &'a CallEvent) -> Option<std::borrow::Cow<'a, str>> {
    match (&trace.names.file, &call.paths[0]) {
        (Some(file), _) if file.kept == Kept::Truncated => Some(format!("…/{}", file.path).into()),
        (Some(file), _) => Some((&*file.path).into()),
        (None, Some(path)) if path.starts_with('/') && call.file.is_none() => Some((&**path).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
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
