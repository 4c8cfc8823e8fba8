//! Table of dirty ranges: which operations wrote which bytes of a file that its page cache has not
//! written back yet.
//!
//! *In*: writes, write-backs and truncations, in the order of time. *Out*: the writers of a range
//! when it is written back. *Invariant*: a writer of a range is an operation that wrote into it and
//! ended after the range was last clean. Memory stays below the limit: what is evicted is counted,
//! and its file is remembered.
//!
//! A file is cut into segments of 64 KiB, and each has a list of its writes: 40 bytes a write of up
//! to one segment, 11 MiB for 1 GiB that was written in steps of 4 KiB.
//!
//! *A range that was just written back* keeps its writers for [`CARRIED_KEPT`], as a second choice.
//! The kernel marks a page clean before it queues the page's bio, and a write between the two makes
//! the page dirty again. That write ended before the bio was queued and is taken for one of its
//! writers. If the page is written back again and no later write covers it, it must be one of those.
//!
//! That holds only if each write is recorded. With head sampling there is no second choice.
//!
//! *A write that was under way at a bio's time* may be in that bio, in the next one, or in both. It is
//! a writer of the next one too, with evidence of its own if others cover the page.
//!
//! *Overwritten data*: a write that a later one covers completely stays a writer, as long as its
//! segment has fewer than [`OVERWRITTEN_KEPT`] writes.
//!
//! *Rejected*: one ordered map of ranges for each file. Splits and merges of ranges cost O(log n)
//! and 100 bytes a write; a segment has 16 writes of 4 KiB, which one scan of 640 bytes finds.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::TaskRef;
use blkkin_wire::ids::{FileId, SpanId, TaskId, TraceId};
use blkkin_wire::page_origin::{PageWriter, WriterEvidence};

use super::page_set::PageSet;

const SEGMENT_SHIFT: u32 = 16;
const SEGMENT: u64 = 1 << SEGMENT_SHIFT;

/// Time in ns for which the writers of a range stay after it was written back. The kernel builds a
/// bio within milliseconds of marking its first page clean.
const CARRIED_KEPT: u64 = 1_000_000_000;

/// Time in ns for which a write stays that was under way when its range was written back: its pages may
/// be dirty until the kernel writes them back for their age, 30 s and 5 s by default (dirty_expire_centisecs, dirty_writeback_centisecs).
const UNDER_WAY_KEPT: u64 = 60_000_000_000;

/// Number of writes of a segment from which overwritten ones are dropped.
const OVERWRITTEN_KEPT: usize = 64;
/// Maximum number of writes of a segment. The oldest is evicted. Appends of 16 bytes reach it.
const WRITES_PER_SEGMENT: usize = 4_096;
/// Maximum number of files of which is remembered that ranges were evicted. Beyond it, every file
/// counts as one of them.
const EVICTED_FILES: usize = 65_536;

/// An operation that wrote.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Writer {
    pub(crate) span: SpanId,
    /// Trace of the operation; none if its node derives it from the span.
    pub(crate) trace: Option<TraceId>,
    pub(crate) task: TaskRef,
    pub(crate) ended: MonotonicNs,
    pub(crate) evidence: WriterEvidence,
}

/// A write-back of a range that a write overlapped in time.
#[derive(Clone, Debug)]
pub(crate) struct WrittenRange {
    pub(crate) range: Range<u64>,
    pub(crate) queued: MonotonicNs,
}

/// Kind of the operation that wrote.
#[derive(Clone, Copy, Debug)]
#[repr(u8)]
enum Source {
    /// System call, or request of io_uring.
    Call,
    /// Store through a memory mapping.
    Mapping,
    /// Bio of a loop device.
    LoopDevice,
}

/// Part of a write within one segment.
#[derive(Clone, Copy, Debug)]
struct Entry {
    /// First byte and end, relative to the segment.
    start: u32,
    end: u32,
    span: u64,
    task: u64,
    ended: u64,
    version: u16,
    source: Source,
    /// The write was under way when its bytes were carried.
    under_way: bool,
    /// 0: dirty. Else 1 + the time at which a bio carried it, in ms since the table's start.
    carried: u32,
}

const _: () = assert!(size_of::<Entry>() == 40);

/// Segment of a file.
type Key = (FileId, u64);

/// The table.
#[derive(Debug)]
pub(crate) struct DirtyRanges {
    segments: HashMap<Key, Vec<Entry>>,
    /// Segments in the order of their first write. Some exist no more.
    order: VecDeque<Key>,
    /// Traces of operations that belong to an application's trace.
    traces: HashMap<u64, TraceId>,
    entries: usize,
    dirty_bytes: u64,
    entries_max: usize,
    start: MonotonicNs,
    /// Writers of a range stay for a time after it was written back.
    keeps_carried: bool,
    evicted_files: HashSet<FileId>,
    every_file_evicted: bool,
    /// Writes evicted for lack of room.
    pub(crate) evicted: u64,
}

impl DirtyRanges {
    /// Creates an empty table for up to `entries_max` writes of one segment each.
    pub(crate) fn new(start: MonotonicNs, entries_max: usize) -> DirtyRanges {
        DirtyRanges {
            segments: HashMap::new(),
            order: VecDeque::new(),
            traces: HashMap::new(),
            entries: 0,
            dirty_bytes: 0,
            entries_max,
            start,
            keeps_carried: true,
            evicted_files: HashSet::new(),
            every_file_evicted: false,
            evicted: 0,
        }
    }

    /// Forgets the writers of a range as soon as it is written back: not all writes are recorded.
    pub(crate) fn forget_carried(&mut self) {
        self.keeps_carried = false;
    }

    /// Records a write. `carried` lists the write-backs that were queued while it was under way.
    pub(crate) fn write(
        &mut self,
        file: FileId,
        range: Range<u64>,
        writer: &Writer,
        carried: &[WrittenRange],
    ) {
        if let Some(trace) = writer.trace {
            self.traces.insert(writer.span.0, trace);
        }
        for (key, part) in segments(file, &range) {
            let entry = Entry {
                start: part.start,
                end: part.end,
                span: writer.span.0,
                task: writer.task.id.0,
                ended: writer.ended.0,
                version: writer.task.version,
                source: Source::of(writer.evidence),
                under_way: false,
                carried: 0,
            };
            let mut parts = vec![entry];
            for WrittenRange { range, queued } in carried {
                let stamp = self.stamp(*queued);
                let split = |entry| split(entry, key.1, range, stamp, true);
                parts = parts.into_iter().flat_map(split).collect();
            }
            self.insert(key, &parts);
        }
        self.make_room();
    }

    fn insert(&mut self, key: Key, parts: &[Entry]) {
        let list = match self.segments.entry(key) {
            std::collections::hash_map::Entry::Occupied(list) => list.into_mut(),
            std::collections::hash_map::Entry::Vacant(list) => {
                self.order.push_back(key);
                list.insert(Vec::new())
            }
        };
        let before = list.len();
        if before >= OVERWRITTEN_KEPT {
            let covered = |old: &Entry| parts.iter().any(|new| new.start <= old.start && old.end <= new.end);
            let mut surplus = before + parts.len() - OVERWRITTEN_KEPT;
            list.retain(|old| {
                let drop = surplus > 0 && covered(old);
                surplus -= usize::from(drop);
                self.dirty_bytes -= if drop { old.dirty_bytes() } else { 0 };
                !drop
            });
        }
        list.extend_from_slice(parts);
        self.dirty_bytes += dirty_bytes(parts);
        let mut evicted = false;
        if list.len() > WRITES_PER_SEGMENT {
            let surplus = list.len() - WRITES_PER_SEGMENT;
            self.dirty_bytes -= list.drain(..surplus).map(|entry| entry.dirty_bytes()).sum::<u64>();
            self.evicted += surplus as u64;
            evicted = true;
        }
        self.entries = self.entries + list.len() - before;
        if evicted {
            self.mark_evicted(key.0);
        }
    }

    /// Returns the writers of the ranges that a bio carries, which was queued at `queued`, and adds
    /// the pages that they cover to `covered`. The ranges are clean afterwards.
    pub(crate) fn carry(
        &mut self,
        file: FileId,
        ranges: &[Range<u64>],
        queued: MonotonicNs,
        covered: &mut PageSet,
    ) -> Vec<PageWriter> {
        let stamp = self.stamp(queued);
        let mut writers = Writers::default();
        let (mut second_choice, keeps_carried) = (Vec::new(), self.keeps_carried);
        let parts = ranges.iter().flat_map(|range| segments(file, range).map(move |(key, _)| (key, range)));
        for (key, range) in parts {
            self.edit_segment(key, |list| {
                let mut kept = Vec::with_capacity(list.len());
                for entry in list.drain(..) {
                    let part = intersection(&entry, key.1, range);
                    match (part, entry.carried) {
                        (None, 0) => kept.push(entry),
                        (Some(part), 0) => {
                            covered.insert(&part);
                            writers.add(&entry, &part, entry.evidence());
                            kept.extend(split(entry, key.1, range, stamp, false));
                        }
                        (part, at) if keeps_carried && stamp.saturating_sub(at) <= entry.kept_ms() => {
                            second_choice.extend(part.map(|part| (entry, part)));
                            kept.extend(split(entry, key.1, range, at, false));
                        }
                        _ => {}
                    }
                }
                kept.shrink_to_fit();
                *list = kept;
            });
        }
        // The newest first: an older one is one of these only where no newer one is.
        second_choice.sort_by_key(|(entry, _)| std::cmp::Reverse(entry.ended));
        for (entry, part) in second_choice {
            if covered.insert(&part) {
                writers.add(&entry, &part, entry.evidence());
            } else if entry.under_way {
                writers.add(&entry, &part, WriterEvidence::UnderWayEarlier);
            }
        }
        self.forget_order();
        writers.list(&self.traces)
    }

    /// Forgets the writes behind the new end of a file, of those that had ended when its truncation
    /// began. The others may have come after it.
    pub(crate) fn truncate(&mut self, file: FileId, length: u64, began: MonotonicNs) {
        let first = length >> SEGMENT_SHIFT;
        let cut: Vec<Key> =
            self.segments.keys().filter(|key| key.0 == file && key.1 >= first).copied().collect();
        for key in cut {
            let end = length.saturating_sub(key.1 << SEGMENT_SHIFT).min(SEGMENT) as u32;
            self.edit_segment(key, |list| {
                let earlier = list.iter_mut().filter(|entry| entry.ended <= began.0);
                earlier.for_each(|entry| entry.end = entry.end.min(end));
                list.retain(|entry| entry.start < entry.end);
            });
        }
    }

    /// Forgets the writes of a range that was discarded, of those that had ended when the discard began.
    pub(crate) fn discard(&mut self, file: FileId, range: &Range<u64>, began: MonotonicNs) {
        for (key, _) in segments(file, range) {
            self.edit_segment(key, |list| {
                let (earlier, mut kept): (Vec<Entry>, Vec<Entry>) =
                    list.drain(..).partition(|entry| entry.ended <= began.0);
                kept.extend(earlier.into_iter().flat_map(|entry| outside(entry, key.1, range)));
                *list = kept;
            });
        }
    }

    /// Edits the entries of a segment, if it has any, and updates the counts.
    fn edit_segment(&mut self, key: Key, edit: impl FnOnce(&mut Vec<Entry>)) {
        let Some(list) = self.segments.get_mut(&key) else { return };
        let before = list.len();
        self.dirty_bytes -= dirty_bytes(list);
        edit(list);
        self.entries = self.entries + list.len() - before;
        self.dirty_bytes += dirty_bytes(list);
        if list.is_empty() {
            self.segments.remove(&key);
        }
    }

    /// Returns whether ranges of this file were evicted.
    pub(crate) fn was_evicted(&self, file: FileId) -> bool {
        self.every_file_evicted || self.evicted_files.contains(&file)
    }

    /// Returns the number of bytes that are dirty, as far as known. Overwritten bytes count once for
    /// each write.
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Returns the memory of the table in bytes, without the allocator's own.
    #[cfg(test)]
    pub(crate) fn memory_bytes(&self) -> usize {
        let lists: usize = self.segments.values().map(|list| list.capacity() * size_of::<Entry>()).sum();
        let slots = self.segments.capacity() * 8 / 7 * (size_of::<(Key, Vec<Entry>)>() + 1);
        lists + slots + self.order.capacity() * size_of::<Key>()
    }

    fn make_room(&mut self) {
        while self.entries > self.entries_max {
            let Some(key) = self.order.pop_front() else { return };
            if let Some(list) = self.segments.remove(&key) {
                self.entries -= list.len();
                self.dirty_bytes -= dirty_bytes(&list);
                let dirty = list.iter().filter(|entry| entry.carried == 0).count();
                if dirty > 0 {
                    self.evicted += dirty as u64;
                    self.mark_evicted(key.0);
                }
            }
        }
        if self.traces.len() > 2 * self.entries + 1_024 {
            let spans: HashSet<u64> = self.segments.values().flatten().map(|entry| entry.span).collect();
            self.traces.retain(|span, _| spans.contains(span));
        }
    }

    fn mark_evicted(&mut self, file: FileId) {
        if self.evicted_files.len() < EVICTED_FILES {
            self.evicted_files.insert(file);
        } else {
            self.every_file_evicted = true;
        }
    }

    /// Drops keys of segments that exist no more, once they are the larger part.
    fn forget_order(&mut self) {
        if self.order.len() > 2 * self.segments.len() + 1_024 {
            let mut seen = HashSet::with_capacity(self.segments.len());
            self.order.retain(|key| self.segments.contains_key(key) && seen.insert(*key));
        }
    }

    fn stamp(&self, time: MonotonicNs) -> u32 {
        1 + (time.0.saturating_sub(self.start.0) / 1_000_000) as u32
    }
}

impl Source {
    fn of(evidence: WriterEvidence) -> Source {
        match evidence {
            WriterEvidence::MappedStore => Source::Mapping,
            WriterEvidence::LoopDevice => Source::LoopDevice,
            _ => Source::Call,
        }
    }
}

impl Entry {
    /// Returns the time in ms for which it stays after a bio carried it.
    fn kept_ms(&self) -> u32 {
        let kept = if self.under_way { UNDER_WAY_KEPT } else { CARRIED_KEPT };
        (kept / 1_000_000) as u32
    }

    /// Returns the evidence for a bio that was queued after the write.
    fn evidence(&self) -> WriterEvidence {
        match self.source {
            Source::Call => WriterEvidence::EndedBefore,
            Source::Mapping => WriterEvidence::MappedStore,
            Source::LoopDevice => WriterEvidence::LoopDevice,
        }
    }

    /// Returns its bytes, if they are dirty.
    fn dirty_bytes(&self) -> u64 {
        if self.carried == 0 { u64::from(self.end - self.start) } else { 0 }
    }
}

fn dirty_bytes(entries: &[Entry]) -> u64 {
    entries.iter().map(Entry::dirty_bytes).sum()
}

/// Parts of a range by segment, relative to it.
fn segments(file: FileId, range: &Range<u64>) -> impl Iterator<Item = (Key, Range<u32>)> + use<> {
    let (start, end) = (range.start, range.end.max(range.start));
    let last = if end > start { (end - 1) >> SEGMENT_SHIFT } else { start >> SEGMENT_SHIFT };
    ((start >> SEGMENT_SHIFT)..=last).filter(move |_| end > start).map(move |index| {
        let base = index << SEGMENT_SHIFT;
        let part = start.saturating_sub(base).min(SEGMENT) as u32..(end - base).min(SEGMENT) as u32;
        ((file, index), part)
    })
}

/// Returns the part of a range, in the file, that the entry of this segment has written.
fn intersection(entry: &Entry, segment: u64, range: &Range<u64>) -> Option<Range<u64>> {
    let base = segment << SEGMENT_SHIFT;
    let (start, end) = (base + u64::from(entry.start), base + u64::from(entry.end));
    let part = start.max(range.start)..end.min(range.end);
    (part.start < part.end).then_some(part)
}

/// Marks the part of an entry inside `range` as carried, whether or not the write was under way then,
/// and leaves the rest as it is.
fn split(
    entry: Entry,
    segment: u64,
    range: &Range<u64>,
    stamp: u32,
    under_way: bool,
) -> impl Iterator<Item = Entry> + use<> {
    let [before, inside, after] = cut(entry, segment, range);
    let carried = if entry.carried == 0 { stamp } else { entry.carried };
    not_empty([before, Entry { carried, under_way, ..inside }, after])
}

/// Returns the parts of an entry outside `range`.
fn outside(entry: Entry, segment: u64, range: &Range<u64>) -> impl Iterator<Item = Entry> + use<> {
    let [before, _, after] = cut(entry, segment, range);
    not_empty([before, after])
}

/// Cuts an entry into the parts before, inside and behind `range`, each of which may be empty.
fn cut(entry: Entry, segment: u64, range: &Range<u64>) -> [Entry; 3] {
    let base = segment << SEGMENT_SHIFT;
    let within = |at: u64| (at.saturating_sub(base).min(SEGMENT) as u32).clamp(entry.start, entry.end);
    let (from, to) = (within(range.start), within(range.end));
    [Entry { end: from, ..entry }, Entry { start: from, end: to, ..entry }, Entry { start: to, ..entry }]
}

fn not_empty<const N: usize>(parts: [Entry; N]) -> impl Iterator<Item = Entry> {
    parts.into_iter().filter(|part| part.start < part.end)
}

/// Writers of a range, one for each span, task and evidence.
#[derive(Default)]
struct Writers(Vec<PageWriter>);

impl Writers {
    fn add(&mut self, entry: &Entry, part: &Range<u64>, evidence: WriterEvidence) {
        let bytes = (part.end - part.start) as u32;
        let (span, id) = (SpanId(entry.span), TaskId(entry.task));
        let is_same =
            |writer: &&mut PageWriter| (writer.span, writer.task.id, writer.evidence) == (span, id, evidence);
        if let Some(writer) = self.0.iter_mut().rev().find(is_same) {
            writer.bytes = writer.bytes.saturating_add(bytes);
            writer.dirtied = writer.dirtied.max(MonotonicNs(entry.ended));
            return;
        }
        self.0.push(PageWriter {
            trace: TraceId(0),
            span,
            task: TaskRef { id, version: entry.version },
            dirtied: MonotonicNs(entry.ended),
            bytes,
            evidence,
        });
    }

    fn list(mut self, traces: &HashMap<u64, TraceId>) -> Vec<PageWriter> {
        for writer in &mut self.0 {
            writer.trace = traces.get(&writer.span.0).copied().unwrap_or(TraceId(0));
        }
        self.0.sort_by_key(|writer| (writer.dirtied, writer.span));
        self.0
    }
}
