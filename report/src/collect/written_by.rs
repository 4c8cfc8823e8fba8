//! Table of the programs whose data the bios carried, by program and file.
//!
//! *In*: traces with origins of their bios' pages. *Out*: for each program and file the bytes that
//! were written back, the requests, and the time that the data had waited in memory.
//!
//! *Invariant*: a row counts what the origins name, nothing is divided or guessed. Bytes without a
//! known writer are in no row; the coverage counts them.
//!
//! *Data of a loop device* that is written back from its file has the programs that wrote to the device:
//! those of the device's own bios in the trace that the origin names, whose origins came before. If these
//! are not known, or differ from bio to bio, the program is that of the task that queued the device's bio.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::{HashMap, VecDeque};

use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::trace::page_origins::OriginIndex;
use blkkin_wire::event::BioEvent;
use blkkin_wire::ids::SpanId;
use blkkin_wire::page_origin::{PageOriginEvent, PageWriter, WriterEvidence};

use super::latency::Latency;

/// Maximum number of rows; the first pairs get one. A row takes some 30 KiB, nearly all of it the
/// histogram of ages: 15 MiB.
pub const WRITERS_MAX: usize = 512;

/// Maximum number of traces of loop devices whose programs are remembered; the oldest is forgotten. 4 MiB.
const LOOP_TRACES_MAX: usize = 16_384;
/// Maximum number of programs that are named for one bio of a loop device.
const LOOP_PROGRAMS_MAX: usize = 3;
/// Major number of loop devices (LOOP_MAJOR, include/uapi/linux/major.h).
const LOOP_MAJOR: u32 = 7;

/// Program without a known name.
pub const UNKNOWN_PROGRAM: &str = "unknown program";

/// Counters of one program and file.
#[derive(Clone, Debug, Default)]
pub struct WriterRow {
    /// Bytes of the program's data that bios carried.
    pub bytes: u64,
    /// Requests that were made for these bios. A bio that was merged into another one's request
    /// adds none.
    pub requests: u64,
    /// Time from the write to the bio, for each bio. A write that had not ended has none.
    pub age: Latency,
}

/// Rows of all programs and files.
#[derive(Clone, Debug, Default)]
pub struct WrittenBy {
    rows: HashMap<(Box<str>, Box<str>), WriterRow>,
    others: Option<Box<WriterRow>>,
    loops: LoopPrograms,
}

/// Programs whose data the bios of loop devices carried, by the root of the trace.
#[derive(Clone, Debug, Default)]
struct LoopPrograms {
    programs: HashMap<SpanId, Box<str>>,
    order: VecDeque<SpanId>,
}

/// A row with its program and file.
pub type NamedRow<'a> = (&'a str, &'a str, &'a WriterRow);

impl WrittenBy {
    /// Adds the writers of a trace's bios.
    pub(crate) fn add(&mut self, trace: &Trace) {
        if trace.page_origins.is_empty() {
            return;
        }
        let index = OriginIndex::of(trace);
        let mut requests: HashMap<_, u64> = HashMap::new();
        trace.requests.iter().filter_map(|request| request.parent).for_each(|bio| {
            *requests.entry(bio).or_default() += 1;
        });
        for bio in trace.bios.iter().filter(|bio| bio.op.is_write()) {
            if let Some(origin) = index.of_bio(bio).filter(|origin| !origin.writers.is_empty()) {
                self.add_bio(trace, bio, origin, requests.get(&bio.span).copied().unwrap_or(0));
            }
        }
        self.loops.add(trace, &index);
    }

    fn add_bio(&mut self, trace: &Trace, bio: &BioEvent, origin: &PageOriginEvent, requests: u64) {
        let file = file(trace, bio, origin);
        let carried = || origin.writers.iter().filter(|writer| writer.evidence.is_carried());
        // A program that wrote in many calls counts the bio once.
        for name in self.loops.programs(trace, origin) {
            let own: Vec<&PageWriter> =
                carried().filter(|writer| self.loops.program(trace, writer) == name).collect();
            let own = || own.iter();
            let row = self.row(&name, &file);
            row.bytes += own().map(|writer| u64::from(writer.bytes)).sum::<u64>();
            row.requests += requests;
            let ended = own().filter(|writer| writer.evidence.has_age());
            if let Some(dirtied) = ended.map(|writer| writer.dirtied).min() {
                row.age.record(origin.time.since(dirtied));
            }
        }
    }

    fn row(&mut self, program: &str, file: &str) -> &mut WriterRow {
        let key = (Box::from(program), Box::from(file));
        if self.rows.len() >= WRITERS_MAX && !self.rows.contains_key(&key) {
            return self.others.get_or_insert_default();
        }
        self.rows.entry(key).or_default()
    }

    /// Returns up to `limit` rows, ordered by bytes.
    pub fn by_bytes(&self, limit: usize) -> Vec<NamedRow<'_>> {
        let mut rows: Vec<NamedRow<'_>> =
            self.rows.iter().map(|((program, file), row)| (&**program, &**file, row)).collect();
        rows.sort_by_key(|(program, file, row)| (Reverse(row.bytes), *program, *file));
        rows.truncate(limit);
        rows
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether there are pairs beyond [`WRITERS_MAX`].
    pub fn has_others(&self) -> bool {
        self.others.is_some()
    }

    /// Returns bytes and requests of all rows except `shown`.
    pub fn rest(&self, shown: &[NamedRow<'_>]) -> (u64, u64) {
        let all = self.rows.values().chain(self.others.as_deref());
        let sum =
            |(bytes, requests): (u64, u64), row: &WriterRow| (bytes + row.bytes, requests + row.requests);
        let (bytes, requests) = all.fold((0, 0), sum);
        let (shown_bytes, shown_requests) = shown.iter().map(|(.., row)| *row).fold((0, 0), sum);
        (bytes - shown_bytes, requests - shown_requests)
    }
}

impl LoopPrograms {
    /// Notes the programs of a trace with writes to a loop device.
    fn add(&mut self, trace: &Trace, index: &OriginIndex<'_>) {
        let of_loop = |bio: &&BioEvent| is_loop(trace, bio) && bio.op.is_write();
        let programs =
            |bio| index.of_data(bio).map(|origin| self.programs(trace, origin)).unwrap_or_default();
        let mut sets = trace.bios.iter().filter(of_loop).map(programs);
        let Some(mut programs) = sets.next().filter(|first| !first.is_empty()) else { return };
        if sets.any(|set| set != programs) {
            return;
        }
        let more = programs.len().saturating_sub(LOOP_PROGRAMS_MAX);
        programs.truncate(LOOP_PROGRAMS_MAX);
        let mut names = programs.join(", ");
        if more > 0 {
            names.push_str(&format!(" and {more} others"));
        }
        let names = names.into();
        if self.programs.insert(trace.root_span, names).is_none() {
            self.order.push_back(trace.root_span);
        }
        if self.order.len() > LOOP_TRACES_MAX {
            self.order.pop_front().and_then(|oldest| self.programs.remove(&oldest));
        }
    }

    /// Returns the programs whose data a bio with this origin carries, in the order of their names.
    fn programs<'a>(&self, trace: &'a Trace, origin: &PageOriginEvent) -> Vec<Cow<'a, str>> {
        let carried = origin.writers.iter().filter(|writer| writer.evidence.is_carried());
        let mut programs: Vec<Cow<'a, str>> = carried.map(|writer| self.program(trace, writer)).collect();
        programs.sort_unstable();
        programs.dedup();
        programs
    }

    /// Returns the program of a writer or, if it is a bio of a loop device, those whose data it carried.
    fn program<'a>(&self, trace: &'a Trace, writer: &PageWriter) -> Cow<'a, str> {
        let known = || self.programs.get(&writer.span).map(|names| names.to_string());
        match (writer.evidence == WriterEvidence::LoopDevice).then(known).flatten() {
            Some(names) => names.into(),
            None => program(trace, writer),
        }
    }
}

/// Returns whether the bio is one of a loop device or of its partition.
fn is_loop(trace: &Trace, bio: &BioEvent) -> bool {
    let name = || trace.names.devices.names.get(&bio.device);
    bio.device.major == LOOP_MAJOR || name().is_some_and(|name| name.starts_with("loop"))
}

/// Returns the program of a writer.
pub fn program<'a>(trace: &'a Trace, writer: &PageWriter) -> Cow<'a, str> {
    trace.origin_names.writers.get(&writer.task).map_or(UNKNOWN_PROGRAM.into(), |name| name.program())
}

/// Returns the path of the pages' file. Raw writes to a device have the device's name.
fn file(trace: &Trace, bio: &BioEvent, origin: &PageOriginEvent) -> String {
    match &origin.file {
        Some(file) => trace.origin_names.path(file).to_string(),
        None => {
            let name = trace.names.devices.names.get(&bio.device);
            name.map_or_else(|| bio.device.to_string(), |name| format!("/dev/{name}"))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use blkkin_aggregator::trace::Root;
    use blkkin_aggregator::trace::page_origins::WriterName;
    use blkkin_wire::clock::{DurationNs, MonotonicNs};
    use blkkin_wire::event::{TaskEvent, TaskRef};
    use blkkin_wire::ids::{FileId, SpanId, TaskId};

    use super::*;
    use crate::sample::{TASK, bio, empty, file, page_origin, page_writer, request};

    /// Returns write-back at time 1,000,001 ns of a file that `dd` wrote.
    fn write_back(span: u64, writers: Vec<PageWriter>) -> Trace {
        let mut trace = empty(span);
        trace.root = Root::Kernel;
        trace.bios.push(bio(span, 1_000_001, 2_000_000));
        let request = request(span + 100, 1, Some(2), 9);
        trace.requests.push(blkkin_wire::event::RequestEvent { parent: Some(SpanId(span)), ..request });
        let time = MonotonicNs(1_000_001);
        trace.page_origins.push(PageOriginEvent { time, ..page_origin(span, writers) });
        let named = file("/srv/log", 0o100_644);
        let id: FileId = named.file;
        trace.origin_names.files.insert(id, named);
        let task = Arc::new(TaskEvent::bare(TASK, MonotonicNs(0), "dd"));
        trace.origin_names.writers.insert(TASK, WriterName { task, exe: None, process: None });
        trace
    }

    #[test]
    fn rows_have_program_file_bytes_requests_and_age() {
        let mut table = WrittenBy::default();
        // Two calls of dd, and one of a task without a name.
        let unknown = TaskRef { id: TaskId(77), version: 0 };
        let other = PageWriter { task: unknown, ..page_writer(9, 500_001, 96) };
        table.add(&write_back(5, vec![page_writer(7, 1, 1000), page_writer(8, 2, 3000), other]));
        table.add(&write_back(6, vec![page_writer(7, 800_001, 4096)]));
        table.add(&write_back(7, Vec::new()));
        let rows = table.by_bytes(10);
        let names: Vec<_> = rows.iter().map(|(program, file, _)| (*program, *file)).collect();
        assert_eq!(names, [("dd", "/srv/log"), (UNKNOWN_PROGRAM, "/srv/log")]);
        assert_eq!((rows[0].2.bytes, rows[0].2.requests, rows[0].2.age.count()), (8096, 2, 2));
        assert_eq!(rows[0].2.age.max(), Some(DurationNs(1_000_000)));
        assert_eq!(table.rest(&rows[..1]), (96, 1));
    }

    #[test]
    fn data_of_a_loop_device_is_of_the_programs_that_wrote_to_it() {
        let mut table = WrittenBy::default();
        let mut to_the_device = write_back(5, vec![page_writer(7, 1, 4096)]);
        to_the_device.bios[0].device.major = LOOP_MAJOR;
        table.add(&to_the_device);
        let worker = TaskRef { id: TaskId(78), version: 0 };
        let device = |span| {
            let evidence = WriterEvidence::LoopDevice;
            PageWriter { task: worker, evidence, ..page_writer(span, 2, 1024) }
        };
        let mut to_the_disk = write_back(6, vec![device(5), device(9)]);
        let task = Arc::new(TaskEvent::bare(worker, MonotonicNs(0), "kworker"));
        to_the_disk.origin_names.writers.insert(worker, WriterName { task, exe: None, process: None });
        table.add(&to_the_disk);
        let rows = table.by_bytes(10);
        let bytes: Vec<_> = rows.iter().map(|(program, _, row)| (*program, row.bytes)).collect();
        assert_eq!(bytes, [("dd", 4096 + 1024), ("kworker", 1024)]);
    }

    #[test]
    fn a_write_under_way_has_no_age_and_a_read_no_writer() {
        let mut table = WrittenBy::default();
        let under_way = PageWriter { evidence: WriterEvidence::UnderWay, ..page_writer(7, 2_000_000, 10) };
        let later = PageWriter { evidence: WriterEvidence::DuringTransfer, ..under_way };
        let earlier = PageWriter { evidence: WriterEvidence::UnderWayEarlier, ..under_way };
        table.add(&write_back(5, vec![under_way, later, earlier]));
        let mut read = write_back(6, vec![page_writer(7, 1, 4096)]);
        read.bios[0].op = blkkin_wire::event::BlockOp(0);
        table.add(&read);
        let rows = table.by_bytes(10);
        assert_eq!((rows.len(), rows[0].2.bytes, rows[0].2.age.count()), (1, 10, 0));
    }

    #[test]
    fn pairs_beyond_the_maximum_are_summed() {
        let mut table = WrittenBy::default();
        for n in 0..WRITERS_MAX as u64 + 3 {
            let mut trace = write_back(5, vec![page_writer(7, 1, 4096)]);
            let id = FileId { ino: 1_000 + n, ..trace.page_origins[0].file.unwrap() };
            trace.page_origins[0].file = Some(id);
            table.add(&trace);
        }
        let shown = table.by_bytes(2);
        assert_eq!((table.count(), table.has_others()), (WRITERS_MAX, true));
        assert_eq!(table.rest(&shown), ((WRITERS_MAX as u64 + 1) * 4096, WRITERS_MAX as u64 + 1));
    }
}
