//! Origins of bios that carry pages: which operations of earlier wrote the content.
//!
//! *In*: the records of such bios at the time when they were queued
//! (`kprobe-ebpf/src/block/pages.rs`), and the system calls of this node, both in the order of time.
//! *Out*: a [`PageOriginEvent`] for each record. *Invariant*: a writer is an operation whose own
//! record states that it wrote bytes of the bio's range, between the range's last write-back and
//! this one. What no record explains is counted as unattributed; nothing is inferred.
//!
//! *Which calls are known when a bio is queued*: those that have returned, since their records come
//! first in the order of time. The kernel side counts the write calls that are open at that time and
//! may write pages of this file. If there are none, these writers are complete. Else the event waits
//! until as many such calls have returned, for up to [`WAIT_MAX`]: the kernel stops a writer for up
//! to 200 ms at a time while too many pages are dirty (balance_dirty_pages).
//!
//! *It also waits for [`END_WAIT`] behind the end of its bio.* A program may change a page while the
//! device reads it, and the bio then carries its bytes: the operation began before the bio's end, and
//! its record comes when the operation ends. One that takes longer than that counts for the next bio
//! alone.
//!
//! *Requests of io_uring* are writers as well, under the span of the call that submitted them. The
//! kernel side does not count open ones, since it learns the file of a request when the request
//! completes. They are found within the same wait.
//!
//! *Bios of a loop device* that goes through the page cache of its file are writers of the file, under
//! the root of their trace: of the device's write-back, the bio; else the call. So a page of the file leads
//! to the device's bio, and that one to the call that wrote. An event waits for those in flight, as for
//! open calls. Where some tasks are traced, the device's write-back counts only with data of theirs. A
//! discard of the device, which punches a hole, forgets the writes of its range.
//!
//! *Not here*: stores through a memory mapping, except the first one into a clean page; writes by
//! programs that are not traced; ranges that a call passes behind a pointer (copy_file_range with
//! offsets).
//!
//! *Rejected*: joining in the aggregator. A partition's saved state would have the ranges of each
//! node, 11 MiB for 1 GiB of dirty data; here they need no copy and no order between topics.

mod deferred;
mod dirty_ranges;
mod loop_bios;
mod page_set;
#[cfg(test)]
mod tests;
mod write_range;

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::Range;

use blkkin_probe_abi::record::BioPagesRecord;
use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::batch::SourceStats;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, DirtyEvent, FileEvent, LayerEvent, Submitter, SyscallEvent};
use blkkin_wire::ids::{DeviceId, FileId, SpanId, TraceId};
use blkkin_wire::page_origin::{PageOriginEvent, PagePart, PageWriter, Unattributed, WriterEvidence};

use crate::read::translate::pages;
use crate::stats::device_bytes::DeviceByteCounters;
use deferred::DeferredOrigins;
use dirty_ranges::{DirtyRanges, Writer, WrittenRange};
use loop_bios::{LoopBio, LoopBios};
use page_set::PageSet;
use write_range::Change;

/// Maximum wait in ns for the calls that were open when a bio was queued.
const WAIT_MAX: u64 = 2_000_000_000;
/// Time in ns for which an event waits behind its bio's end for the records of operations that began
/// before it.
const END_WAIT: u64 = 100_000_000;
/// Time in ns by which a write may come late and still be a writer, if its file was not written back since.
const LATE_MAX: u64 = 10_000_000_000;
/// Number of files with a write-back from which older ones are forgotten.
const CARRIED_FILES: usize = 4_096;
/// Maximum number of bios of a file in each of the two lists; the oldest then waits no longer.
const WAITING_PER_FILE: usize = 1_024;
/// Maximum number of writes in the table of dirty ranges: 4 GiB in steps of 4 KiB, 44 MiB of memory.
const WRITES_MAX: usize = 1 << 20;

/// File systems without a block device: their pages are never written to one.
const MEMORY_FILESYSTEMS: &[&str] =
    &["tmpfs", "devtmpfs", "ramfs", "hugetlbfs", "proc", "sysfs", "cgroup", "cgroup2", "debugfs", "tracefs"];

/// The stage's state.
pub(crate) struct PageOrigins {
    /// Every task is traced.
    whole_machine: bool,
    ranges: DirtyRanges,
    waiting: HashMap<FileId, WaitingBios>,
    /// Files of the bios that wait for their end.
    files: HashMap<SpanId, FileId>,
    /// Devices of file systems in memory.
    memory: HashSet<DeviceId>,
    loop_bios: LoopBios,
    deferred: DeferredOrigins,
    /// Time up to which events were processed in their order.
    processed: MonotonicNs,
    /// Files with a write-back in the last [`LATE_MAX`], and when the last one was queued.
    carried: HashMap<FileId, MonotonicNs>,
    /// Writes that came before records of earlier times, which follow.
    early: Vec<LayerEvent>,
    /// Bytes of the bios of the kernel's own, by the origin of their pages.
    pub(crate) device_bytes: DeviceByteCounters,
    /// Records that were read and not processed.
    records: Vec<BioPagesRecord>,
    /// Records taken from the rings.
    recorded: u64,
    /// Consecutive parts of the bio whose record comes next.
    parts: Vec<PagePart>,
}

/// The events of a file that wait.
#[derive(Default)]
struct WaitingBios {
    /// Events without their bio's end, or with a call that was open when their bio was queued; in the order
    /// of these times.
    open: VecDeque<Waiting>,
    /// Other events, in the order of their bios' ends.
    ended: VecDeque<Waiting>,
}

/// An event that waits.
struct Waiting {
    event: PageOriginEvent,
    /// Device of the bio, and whether data without a recorded writer are of another program.
    submission: (DeviceId, bool),
    /// Consecutive parts of the bio's range.
    ranges: Vec<Range<u64>>,
    covered: PageSet,
    open_writes: u32,
    ended: Option<MonotonicNs>,
}

/// Operation that may have written, as the bios that wait see it.
struct Operation<'a> {
    file: FileId,
    /// Begin and end.
    times: [MonotonicNs; 2],
    /// The kernel side counted it while it was open.
    counted: bool,
    written: Range<u64>,
    writer: &'a Writer,
}

impl PageOrigins {
    /// Creates the state at the start of a trace.
    pub(crate) fn new(start: MonotonicNs) -> PageOrigins {
        PageOrigins {
            whole_machine: false,
            ranges: DirtyRanges::new(start, WRITES_MAX),
            waiting: HashMap::new(),
            files: HashMap::new(),
            memory: HashSet::new(),
            loop_bios: LoopBios::default(),
            deferred: DeferredOrigins::default(),
            processed: MonotonicNs(0),
            carried: HashMap::new(),
            early: Vec::new(),
            device_bytes: DeviceByteCounters::default(),
            records: Vec::new(),
            recorded: 0,
            parts: Vec::new(),
        }
    }

    /// Sets whether the kernel's own I/O is recorded for every task.
    pub(crate) fn set_whole_machine(&mut self, whole_machine: bool) {
        self.whole_machine = whole_machine;
    }

    /// States that not all writes are recorded.
    pub(crate) fn set_sampled(&mut self) {
        self.ranges.forget_carried();
    }

    /// Takes a record from a ring.
    pub(crate) fn on_record(&mut self, record: &BioPagesRecord) {
        self.recorded += 1;
        self.records.push(*record);
    }

    /// Processes the records with the events of the same time, and appends the events that are
    /// complete. `watermark`: no earlier event follows.
    pub(crate) fn process(&mut self, events: &mut Vec<LayerEvent>, watermark: MonotonicNs) {
        let mut records = std::mem::take(&mut self.records);
        records.sort_by_key(|record| record.header.time_ns);
        let mut out = Vec::new();
        let mut next = records.iter().peekable();
        let early = std::mem::take(&mut self.early);
        let mut ordered: Vec<&LayerEvent> = early.iter().chain(events.iter()).collect();
        if !early.is_empty() {
            ordered.sort_by_key(|event| event.time());
        }
        for event in ordered {
            while let Some(record) = next.next_if(|record| record.header.time_ns <= event.time().0) {
                self.apply_record(record, &mut out);
            }
            match event {
                LayerEvent::Syscall(_) | LayerEvent::AsyncIo(_) | LayerEvent::Dirty(_)
                    if event.time() >= watermark && is_write(event) =>
                {
                    self.early.push(event.clone());
                }
                LayerEvent::Syscall(_) | LayerEvent::AsyncIo(_)
                    if event.time() < self.processed && self.may_be_clean_again(event) => {}
                LayerEvent::Syscall(call) if call.writes_page_cache => self.apply_call(call, &mut out),
                LayerEvent::AsyncIo(io) => self.apply_request(io, &mut out),
                LayerEvent::Bio(bio) => self.end_bio(bio, event.time(), &mut out),
                LayerEvent::Pair(pair) => self.end_bio(&pair.bio, event.time(), &mut out),
                LayerEvent::Dirty(dirty) => self.apply_store(dirty),
                LayerEvent::File(file) => self.note_file_system(file),
                _ => {}
            }
        }
        for record in next {
            self.apply_record(record, &mut out);
        }
        records.clear();
        self.records = records;
        self.expire(watermark, &mut out);
        self.processed = self.processed.max(watermark);
        if self.carried.len() > CARRIED_FILES {
            let processed = self.processed.0;
            self.carried.retain(|_, carried| carried.0 + LATE_MAX >= processed);
        }
        let out = out.into_iter().filter_map(|event| self.deferred.take(event));
        events.extend(out.map(|event| LayerEvent::PageOrigin(Box::new(event))));
        self.deferred.expire(watermark);
    }

    /// Adds the counters of this stage.
    pub(crate) fn fill(&self, stats: &mut SourceStats) {
        stats.page_origins.recorded += self.recorded;
        stats.dirty_writes_evicted = self.ranges.evicted;
        stats.dirty_bytes = self.ranges.dirty_bytes();
    }

    /// Returns whether what a write that comes late wrote may have been written back since it began. A write comes late if
    /// it was deferred until its operation ended, or if its CPU stopped between the clock and the ring.
    fn may_be_clean_again(&self, event: &LayerEvent) -> bool {
        let (file, begin) = match event {
            LayerEvent::Syscall(call) => {
                (write_range::destination(call).map(|open| open.file.unnamed()), call.enter)
            }
            LayerEvent::AsyncIo(io) => (io.file.map(FileId::unnamed), io.start),
            _ => return true,
        };
        let forgotten = begin.0 + LATE_MAX < self.processed.0;
        forgotten || file.is_none_or(|file| self.carried.get(&file).is_some_and(|carried| *carried >= begin))
    }

    fn apply_record(&mut self, record: &BioPagesRecord, out: &mut Vec<PageOriginEvent>) {
        if pages::is_of_loop(record) {
            let bio = LoopBio {
                root: SpanId(record.root),
                file: pages::file(record),
                range: record.offset..record.offset.saturating_add(record.bytes.into()),
                queued: MonotonicNs(record.header.time_ns),
                writes: pages::is_write(record),
            };
            return self.loop_bios.begin(SpanId(record.span), bio);
        }
        if pages::is_part(record) {
            self.parts.push(PagePart { offset: record.offset, bytes: record.bytes });
            return;
        }
        let mut event = pages::event(record);
        let parts = std::mem::take(&mut self.parts);
        if pages::is_deferred(record) && !self.deferred.begin(event.bio, event.time) {
            event.bio = SpanId(0);
        }
        let is_complete =
            parts.iter().map(|part| u64::from(part.bytes)).sum::<u64>() == u64::from(event.bytes);
        if !pages::is_consecutive(record) && is_complete {
            event.parts = parts;
        }
        // Most data without a recorded writer are then of tasks or calls that are not traced.
        let of_other = pages::is_of_other_program(record) || !self.whole_machine;
        let submission = (DeviceId::from_kernel(record.dev), of_other);
        let (Some(file), true) = (event.file, pages::is_write(record)) else {
            if pages::is_write(record) {
                self.device_bytes.on_origin(submission, &event);
            } else if !pages::is_consecutive(record) && !is_complete {
                event.unattributed = Some(Unattributed::NotConsecutive);
            }
            return out.push(event);
        };
        let ranges: Vec<Range<u64>> = event.ranges().collect();
        if !pages::is_consecutive(record) && !is_complete {
            (event.bytes_unattributed, event.unattributed) =
                (event.bytes, Some(Unattributed::NotConsecutive));
            self.device_bytes.on_origin(submission, &event);
            return out.push(event);
        }
        let mut covered = PageSet::new(&ranges);
        event.writers = self.ranges.carry(file, &ranges, event.time, &mut covered);
        self.carried.insert(file, event.time);
        self.files.insert(event.bio, file);
        // A deferred bio's end is known late, and that of one that is dropped never: whatever began later counts for
        // the next bio alone.
        let ended = (pages::is_deferred(record) || pages::is_unsampled(record)).then_some(event.time);
        let waiting = Waiting { event, submission, ranges, covered, open_writes: record.open_writes, ended };
        let list = &mut self.waiting.entry(file).or_default().open;
        list.push_back(waiting);
        let surplus = if list.len() > WAITING_PER_FILE {
            list.pop_front()
        } else {
            let at = list.len() - 1;
            ended.and_then(|_| self.waiting.get_mut(&file)?.move_ended(at))
        };
        out.extend(surplus.map(|waiting| self.complete(waiting)));
    }

    fn end_bio(&mut self, bio: &BioEvent, end: MonotonicNs, out: &mut Vec<PageOriginEvent>) {
        let change = self.loop_bios.end(bio.span).filter(|_| bio.status.0 == 0);
        // Of the kernel's own bios, those with data of traced programs, unless each task is traced.
        let counts = self.whole_machine || bio.submitter != Submitter::Kernel || self.has_writers(bio.span);
        if bio.has_page_origin {
            out.extend(self.deferred.end(bio.span));
            self.end_wait_for_bio(bio.span, end, out);
        }
        match change {
            Some(written) if written.writes && counts => self.apply_loop_bio(&written, bio, end, out),
            Some(LoopBio { writes: false, file, range, queued, .. }) => {
                self.ranges.discard(file, &range, queued);
            }
            _ => {}
        }
    }

    /// Returns whether the bio waits and has a known writer.
    fn has_writers(&self, bio: SpanId) -> bool {
        let waiting = self.files.get(&bio).and_then(|file| self.waiting.get(file));
        let of_bio = |bios: &WaitingBios| {
            let waiting = bios.open.iter().find(|waiting| waiting.event.bio == bio);
            waiting.is_some_and(|waiting| !waiting.event.writers.is_empty())
        };
        waiting.is_some_and(of_bio)
    }

    /// Ends the wait for a bio's end, which was at that time.
    fn end_wait_for_bio(&mut self, bio: SpanId, end: MonotonicNs, out: &mut Vec<PageOriginEvent>) {
        let Some(file) = self.files.remove(&bio) else { return };
        let Some(bios) = self.waiting.get_mut(&file) else { return };
        let Some(at) = bios.open.iter().position(|waiting| waiting.event.bio == bio) else { return };
        bios.open[at].ended.get_or_insert(end);
        let surplus = bios.move_ended(at);
        out.extend(surplus.map(|waiting| self.complete(waiting)));
    }

    fn apply_call(&mut self, call: &SyscallEvent, out: &mut Vec<PageOriginEvent>) {
        let Some(open) = write_range::destination(call) else { return };
        // A file may be written under several names.
        let file = open.file.unnamed();
        if self.memory.contains(&file.device) {
            return;
        }
        let writer = Writer {
            span: call.span,
            trace: call.context.as_ref().map(|context| context.trace),
            task: call.task,
            ended: call.exit,
            evidence: WriterEvidence::EndedBefore,
        };
        // A call that failed was open as well.
        let change = write_range::change(call, open);
        let written = match &change {
            Some(Change::Write(range)) => range.clone(),
            _ => 0..0,
        };
        let times = [call.enter, call.exit];
        let operation = Operation { file, times, counted: true, written, writer: &writer };
        let carried = self.end_operation(&operation, out);
        match change {
            Some(Change::Write(range)) => self.ranges.write(file, range, &writer, &carried),
            Some(Change::Truncate(length)) => self.truncate(file, length, call.enter, &writer),
            None => {}
        }
    }

    fn apply_request(&mut self, io: &AsyncIoEvent, out: &mut Vec<PageOriginEvent>) {
        let (Some(file), Some(range)) = (io.file.map(FileId::unnamed), write_range::of_request(io)) else {
            return;
        };
        if self.memory.contains(&file.device) {
            return;
        }
        let evidence = WriterEvidence::EndedBefore;
        let writer = Writer { span: io.root(), trace: None, task: io.task, ended: io.end, evidence };
        let times = [io.start, io.end];
        let operation = Operation { file, times, counted: false, written: range.clone(), writer: &writer };
        let carried = self.end_operation(&operation, out);
        self.ranges.write(file, range, &writer, &carried);
    }

    /// A loop device's driver has written the range of its file.
    fn apply_loop_bio(
        &mut self,
        written: &LoopBio,
        bio: &BioEvent,
        end: MonotonicNs,
        out: &mut Vec<PageOriginEvent>,
    ) {
        let evidence = WriterEvidence::LoopDevice;
        let writer = Writer { span: written.root, trace: None, task: bio.task, ended: end, evidence };
        let LoopBio { file, range, queued, .. } = written;
        let times = [*queued, end];
        let operation =
            Operation { file: *file, times, counted: false, written: range.clone(), writer: &writer };
        let carried = self.end_operation(&operation, out);
        self.ranges.write(*file, range.clone(), &writer, &carried);
    }

    /// A store through a memory mapping made pages dirty.
    fn apply_store(&mut self, dirty: &DirtyEvent) {
        let writer = Writer {
            span: dirty.span.unwrap_or(SpanId(0)),
            trace: None,
            task: dirty.task,
            ended: dirty.time,
            evidence: WriterEvidence::MappedStore,
        };
        let range = dirty.offset..dirty.offset.saturating_add(dirty.bytes.into());
        self.ranges.write(dirty.file, range, &writer, &[]);
    }

    /// A truncation drops dirty pages, and zeroes the rest of the last one.
    fn truncate(&mut self, file: FileId, length: u64, began: MonotonicNs, writer: &Writer) {
        self.ranges.truncate(file, length, began);
        let page_end = length.next_multiple_of(4_096);
        self.ranges.write(file, length..page_end, writer, &[]);
    }

    /// Passes an operation that has ended to the bios that were queued while it was under way. Returns
    /// these.
    fn end_operation(
        &mut self,
        operation: &Operation<'_>,
        out: &mut Vec<PageOriginEvent>,
    ) -> Vec<WrittenRange> {
        let Some(bios) = self.waiting.get_mut(&operation.file) else { return Vec::new() };
        let mut carried = Vec::new();
        for waiting in &mut bios.open {
            waiting.end_operation(operation, &mut carried);
        }
        let begin = operation.times[0];
        let overlapping = |waiting: &&mut Waiting| waiting.ended.is_some_and(|ended| begin < ended);
        for waiting in bios.ended.iter_mut().rev().take_while(overlapping) {
            waiting.end_operation(operation, &mut carried);
        }
        let mut surplus = Vec::new();
        for at in (0..bios.open.len()).rev() {
            surplus.extend(bios.move_ended(at));
        }
        out.extend(surplus.into_iter().map(|waiting| self.complete(waiting)));
        carried
    }

    fn expire(&mut self, watermark: MonotonicNs, out: &mut Vec<PageOriginEvent>) {
        let mut expired = Vec::new();
        let loop_bios = &self.loop_bios;
        let is_over = |from: MonotonicNs, wait: u64| from.0.saturating_add(wait) <= watermark.0;
        self.waiting.retain(|_, WaitingBios { open, ended }| {
            while let Some(waiting) = open.pop_front_if(|waiting| is_over(waiting.event.time, WAIT_MAX)) {
                expired.push(waiting);
            }
            let under_way = |waiting: &Waiting, ended| {
                !is_over(waiting.event.time, WAIT_MAX)
                    && waiting
                        .event
                        .file
                        .is_some_and(|file| loop_bios.may_write(file, &waiting.ranges, ended))
            };
            let waited = |waiting: &mut Waiting| {
                let ended = waiting.ended.filter(|ended| is_over(*ended, END_WAIT));
                ended.is_some_and(|ended| !under_way(waiting, ended))
            };
            while let Some(waiting) = ended.pop_front_if(waited) {
                expired.push(waiting);
            }
            !open.is_empty() || !ended.is_empty()
        });
        expired.sort_by_key(|waiting| (waiting.event.time, waiting.event.bio));
        out.extend(expired.into_iter().map(|waiting| self.complete(waiting)));
    }

    fn complete(&mut self, waiting: Waiting) -> PageOriginEvent {
        let Waiting { mut event, submission, covered, .. } = waiting;
        self.files.remove(&event.bio);
        event.bytes_unattributed = covered.bytes_outside() as u32;
        let evicted = event.file.is_some_and(|file| self.ranges.was_evicted(file));
        let reason = if evicted { Unattributed::Evicted } else { Unattributed::NotRecorded };
        event.unattributed = (event.bytes_unattributed > 0).then_some(reason);
        self.device_bytes.on_origin(submission, &event);
        event
    }

    fn note_file_system(&mut self, file: &FileEvent) {
        if MEMORY_FILESYSTEMS.contains(&file.filesystem.as_ref()) {
            self.memory.insert(file.file.device);
        }
    }
}

/// Returns whether the event may be a writer of pages.
fn is_write(event: &LayerEvent) -> bool {
    match event {
        LayerEvent::Syscall(call) => call.writes_page_cache,
        LayerEvent::AsyncIo(io) => io.file.is_some() && write_range::of_request(io).is_some(),
        _ => true,
    }
}

impl WaitingBios {
    /// Moves an event into the second list if it waits neither for its bio's end nor for an open call.
    /// Returns the one that the full list has no room for.
    fn move_ended(&mut self, at: usize) -> Option<Waiting> {
        let waiting = self.open.get(at)?;
        let end = waiting.ended.filter(|_| waiting.open_writes == 0)?;
        let waiting = self.open.remove(at)?;
        let behind = |other: &&Waiting| other.ended > Some(end);
        let later = self.ended.iter().rev().take_while(behind).count();
        self.ended.insert(self.ended.len() - later, waiting);
        if self.ended.len() > WAITING_PER_FILE { self.ended.pop_front() } else { None }
    }
}

impl Waiting {
    /// Takes an operation that has ended for a writer if it was under way while the bio was queued or
    /// transferred. Appends the bio's range if the operation was under way when the bio was queued.
    fn end_operation(&mut self, operation: &Operation<'_>, carried: &mut Vec<WrittenRange>) {
        let Operation { times: [begin, end], counted, written, writer, .. } = operation;
        let queued = self.event.time;
        if *begin <= queued && queued < *end {
            carried.extend(self.ranges.iter().cloned().map(|range| WrittenRange { range, queued }));
            self.add(written, writer, WriterEvidence::UnderWay);
            self.open_writes = self.open_writes.saturating_sub(u32::from(*counted));
        } else if *begin > queued && self.ended.is_none_or(|ended| *begin < ended) {
            self.add(written, writer, WriterEvidence::DuringTransfer);
        }
    }

    fn add(&mut self, written: &Range<u64>, writer: &Writer, evidence: WriterEvidence) {
        let part = |range: &Range<u64>| written.start.max(range.start)..written.end.min(range.end);
        let parts: Vec<_> = self.ranges.iter().map(part).filter(|part| part.start < part.end).collect();
        if parts.is_empty() {
            return;
        }
        if evidence == WriterEvidence::UnderWay {
            parts.iter().for_each(|part| {
                self.covered.insert(part);
            });
        }
        self.event.writers.push(PageWriter {
            trace: writer.trace.unwrap_or(TraceId(0)),
            span: writer.span,
            task: writer.task,
            dirtied: writer.ended,
            bytes: parts.iter().map(|part| part.end - part.start).sum::<u64>() as u32,
            evidence,
        });
    }
}
