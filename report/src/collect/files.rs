//! Table of files by path: a file that was removed and created again under the same path (a
//! journal, a lock) is one row.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::sync::Arc;

use blkkin_aggregator::latency::io_kind::is_storage;
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::trace::async_io::AsyncIo;
use blkkin_aggregator::trace::interned_file::InternedFile;
use blkkin_aggregator::trace::page_cache::{CachedRead, PageCacheRead};
use blkkin_wire::async_io::AsyncDirection;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::syscalls::SyscallClass;

use super::calls::moved_bytes;
use super::classified::ClassifiedTrace;
use super::totals::ByteCounts;

/// Maximum number of files with their own rows; the first files get one. A row takes about 100 B
/// plus its path: 5 MiB with common paths, 37 MiB if every path has the maximum length.
pub const FILES_MAX: usize = 16_384;

/// Counters of all calls on one file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileRow {
    /// Number of calls and submissions of asynchronous I/O.
    pub calls: u64,
    /// Submissions among them, whose time overlaps with that of calls.
    pub submissions: u64,
    /// Bytes transferred.
    pub bytes: ByteCounts,
    /// Total duration.
    pub total: DurationNs,
    /// Longest duration.
    pub max: DurationNs,
    /// Reads through the page cache of which is known what they fetched.
    pub cached: CachedReads,
}

/// Reads through the page cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CachedReads {
    /// Number of reads.
    pub reads: u64,
    /// Reads whose data was in memory, or was being fetched already.
    pub hits: u64,
    /// Further reads, of which it is not known: no share of the file's reads is.
    pub unknown: u64,
    /// Bytes of these reads, those of them that they fetched, and those that they fetched beyond.
    pub bytes: CachedRead,
}

/// Rows of all files.
#[derive(Clone, Debug, Default)]
pub struct Files {
    rows: Vec<FileRow>,
    by_path: HashMap<Box<str>, usize>,
    cache: [Option<(Arc<InternedFile>, usize)>; CACHE_SLOTS],
    others: FileRow,
}

/// Size of the cache from a name's address to its row. Nearly every call is on one of the last few
/// files, and the cache avoids hashing its path. Names with the same slot evict each other.
const CACHE_SLOTS: usize = 16;

impl Files {
    /// Adds the root call of a trace, if it is a storage call on a file.
    pub(crate) fn add<'a>(&mut self, classified: impl Into<ClassifiedTrace<'a>>) {
        let classified = classified.into();
        classified.trace.async_ios.iter().for_each(|io| self.add_async_io(io));
        let Some(call) = classified.storage_call() else { return };
        if call.call.spec().class == SyscallClass::Transfer {
            return self.add_transfer(classified, call);
        }
        if let Some(row) = self.cached_row(classified.trace.names.file.as_ref()) {
            return self.rows[row].add(classified.trace, call, classified.time);
        }
        let Some(path) = path(classified.trace, call) else { return };
        match self.row(&path) {
            Some(row) => {
                self.rows[row].add(classified.trace, call, classified.time);
                if let Some(file) = &classified.trace.names.file {
                    self.cache[cache_slot(file)] = Some((Arc::clone(file), row));
                }
            }
            None => self.others.add(classified.trace, call, classified.time),
        }
    }

    /// Adds a transfer: a call on the source file, and bytes written to the target file. If the
    /// source is a pipe or a socket, the call counts for the target.
    fn add_transfer(&mut self, classified: ClassifiedTrace<'_>, call: &SyscallEvent) {
        let names = &classified.trace.names;
        let source = path(classified.trace, call)
            .filter(|_| names.file.as_deref().is_none_or(|file| is_storage(file)));
        let mut on_target = FileRow::default();
        on_target.bytes.written = moved_bytes(call);
        match source {
            Some(path) => self.row_or_others(&path).add(classified.trace, call, classified.time),
            None => (on_target.calls, on_target.total, on_target.max) = (1, classified.time, classified.time),
        }
        if let Some(target) = names.second_file.as_deref().filter(|file| is_storage(file)) {
            self.row_or_others(target.shown_path()).merge(&on_target);
        }
    }

    /// Adds a submission of asynchronous I/O like a call on its file.
    fn add_async_io(&mut self, io: &AsyncIo) {
        let Some(file) = io.file.as_deref().filter(|file| is_storage(file)) else { return };
        let (event, mut row) = (&io.event, FileRow { calls: 1, submissions: 1, ..FileRow::default() });
        let bytes = u64::from(event.bytes().unwrap_or(0));
        match event.operation().direction {
            Some(AsyncDirection::Write) => row.bytes.written = bytes,
            _ => row.bytes.read = bytes,
        }
        row.total = event.end.since(event.start);
        row.max = row.total;
        self.row_or_others(file.shown_path()).merge(&row);
    }

    /// Returns up to `limit` files, ordered by total time.
    pub fn by_time(&self, limit: usize) -> Vec<(&str, &FileRow)> {
        let mut rows: Vec<_> = self.by_path.iter().map(|(path, row)| (&**path, &self.rows[*row])).collect();
        rows.sort_by_key(|(path, row)| (Reverse(row.total), *path));
        rows.truncate(limit);
        rows
    }

    /// Returns the number of files with a row.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the sum of all files beyond [`FILES_MAX`]; `None` if there are no such files.
    pub fn others(&self) -> Option<&FileRow> {
        (self.others.calls > 0).then_some(&self.others)
    }

    /// Returns the sum of all files except `shown`.
    pub fn rest(&self, shown: &[(&str, &FileRow)]) -> FileRow {
        let mut rest = self.others;
        for (path, row) in &self.by_path {
            if !shown.iter().any(|(other, _)| *other == &**path) {
                rest.merge(&self.rows[*row]);
            }
        }
        rest
    }

    /// Returns the row of `path`, created if needed; `None` if the table is full.
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

    fn cached_row(&self, file: Option<&Arc<InternedFile>>) -> Option<usize> {
        let file = file?;
        let (cached, row) = self.cache[cache_slot(file)].as_ref()?;
        Arc::ptr_eq(cached, file).then_some(*row)
    }
}

/// Returns a name's slot in [`Files::cache`]. The cache owns a reference to the name, so no other
/// name can have its address.
fn cache_slot(file: &Arc<InternedFile>) -> usize {
    // Allocations of this size are at least 128 B apart.
    (Arc::as_ptr(file).addr() >> 7) % CACHE_SLOTS
}

impl FileRow {
    fn add(&mut self, trace: &Trace, call: &SyscallEvent, time: DurationNs) {
        if call.reads_page_cache {
            self.cached.add_read(trace);
        }
        self.calls += 1;
        let bytes = moved_bytes(call);
        match call.call.spec().class {
            SyscallClass::Write => self.bytes.add(ByteCounts { read: 0, written: bytes }),
            // The primary file of a transfer is the source.
            _ => self.bytes.add(ByteCounts { read: bytes, written: 0 }),
        }
        self.total = DurationNs(self.total.0.saturating_add(time.0));
        self.max = self.max.max(time);
    }

    fn merge(&mut self, other: &FileRow) {
        self.calls += other.calls;
        self.submissions += other.submissions;
        self.bytes.add(other.bytes);
        self.total = DurationNs(self.total.0.saturating_add(other.total.0));
        self.max = self.max.max(other.max);
        self.cached.add(&other.cached);
    }
}

impl CachedReads {
    // Not inlined: most calls are no such reads.
    #[inline(never)]
    fn add_read(&mut self, trace: &Trace) {
        match PageCacheRead::of(trace) {
            Some(PageCacheRead::Known(bytes)) => {
                let hits = u64::from(bytes.fetched == 0);
                self.add(&CachedReads { reads: 1, hits, unknown: 0, bytes });
            }
            Some(PageCacheRead::Unknown) => self.unknown += 1,
            None => {}
        }
    }

    fn add(&mut self, other: &CachedReads) {
        self.reads += other.reads;
        self.hits += other.hits;
        self.unknown += other.unknown;
        self.bytes.bytes += other.bytes.bytes;
        self.bytes.fetched += other.bytes.fetched;
        self.bytes.read_ahead += other.bytes.read_ahead;
    }
}

/// Returns the file's path from the host's root if it is known, else the call's path argument if
/// that is absolute.
pub fn path<'a>(trace: &'a Trace, call: &'a SyscallEvent) -> Option<std::borrow::Cow<'a, str>> {
    match (&trace.names.file, &call.paths[0]) {
        (Some(file), _) => Some((&**file.shown_path()).into()),
        (None, Some(path)) if path.starts_with('/') && call.file.is_none() => Some((&**path).into()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use blkkin_wire::event::{Captured, FileEvent, SyscallOutcome};

    use super::*;
    use crate::sample::{call, on_file, with_call};

    #[test]
    fn files_beyond_the_maximum_are_summed() {
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
    fn a_transfer_reads_one_file_and_writes_another() {
        let copy = |from: &str, mode, to: &str| {
            let mut trace = on_file(call(1, "splice", 10), from, mode);
            trace.names.second_file = on_file(call(1, "splice", 10), to, 0o100_644).names.file;
            with_call(&mut trace, |call| call.outcome = SyscallOutcome::Returned(4096));
            trace
        };
        let mut files = Files::default();
        files.add(&copy("/from", 0o100_644, "/to"));
        files.add(&copy("pipe:[1]", 0o010_600, "/piped"));
        let row = |calls, read, written, time| FileRow {
            calls,
            submissions: 0,
            bytes: ByteCounts { read, written },
            total: DurationNs(time),
            max: DurationNs(time),
            cached: CachedReads::default(),
        };
        let expected =
            [("/from", &row(1, 4096, 0, 10)), ("/piped", &row(1, 0, 4096, 10)), ("/to", &row(0, 0, 4096, 0))];
        assert_eq!(files.by_time(10), expected);
    }

    #[test]
    fn a_truncated_path_has_one_ellipsis() {
        let mut trace = on_file(call(1, "fsync", 10), "…/deep/file", 0o100_644);
        if let Some(file) = &mut trace.names.file {
            *file = Arc::new(FileEvent { captured: Captured::Truncated, ..FileEvent::clone(file) }.into());
        }
        assert_eq!(path(&trace, trace.call().unwrap()).as_deref(), Some("…/deep/file"));
    }

    #[test]
    fn a_recreated_file_is_one_row() {
        let mut files = Files::default();
        files.add(&on_file(call(1, "fsync", 10), "/db-journal", 0o100_644));
        files.add(&on_file(call(2, "fsync", 30), "/db-journal", 0o100_644));
        files.add(&on_file(call(3, "read", 99), "pipe:[1]", 0o010_600));
        let rows = files.by_time(10);
        assert_eq!(rows.len(), 1);
        assert_eq!((rows[0].0, rows[0].1.calls, rows[0].1.max), ("/db-journal", 2, DurationNs(30)));
    }
}
