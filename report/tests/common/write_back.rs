//! Traces with pages of a page cache: an fsync, and write-back by the kernel's worker.

use std::sync::Arc;

use blkkin_aggregator::trace::page_origins::WriterName;
use blkkin_wire::ids::{FileId, TaskId};
use blkkin_wire::page_origin::{
    PageKind, PageOriginEvent, PagePart, PageWriter, Unattributed, WriterEvidence,
};

use super::sample::{page_origin, page_writer};
use super::*;

/// Other tasks: `dd` and `postgres`.
const DD: TaskRef = TaskRef { id: TaskId(7), version: 0 };
const POSTGRES: TaskRef = TaskRef { id: TaskId(8), version: 2 };

/// Returns a writer that wrote `age_ms` before the start of tracing.
fn writer(task: TaskRef, span: u64, age_ms: u64, bytes: u32) -> PageWriter {
    PageWriter { task, ..page_writer(span, STARTED.0 - age_ms * 1_000_000, bytes) }
}

/// Adds the origin of the last bio, with names.
fn with_origin(trace: &mut Trace, change: impl FnOnce(&mut PageOriginEvent)) {
    let bio = *trace.bios.last().unwrap();
    let mut origin = PageOriginEvent {
        time: bio.queue,
        root: bio.root,
        bytes: bio.bytes,
        bytes_unattributed: 0,
        unattributed: None,
        ..page_origin(bio.span.0, Vec::new())
    };
    change(&mut origin);
    origin.file = origin.file.map(|file| FileId { ino: 900 + trace.root_span.0 / 1_000, ..file });
    if let Some(id) = origin.file {
        let path = if trace.call().is_some() { DATABASE } else { "/mnt/demo/archive/2026-11-25.tar" };
        let named = FileEvent { file: id, ..FileEvent::clone(&file(path, 0o100_644)) };
        trace.origin_names.files.insert(id, Arc::new(named.into()));
    }
    for (task, comm, pid) in [(TASK, "sqlite3", 4_242), (DD, "dd", 5_120), (POSTGRES, "postgres", 6_001)] {
        let task_event = super::task(comm, pid);
        trace.origin_names.writers.insert(task, WriterName { task: task_event, exe: None, process: None });
    }
    trace.page_origins.push(origin);
}

/// Returns write-back of 512 KiB with an origin.
fn worker(span: u64, from: u64, change: impl FnOnce(&mut PageOriginEvent)) -> Trace {
    let mut trace = kernel_root(span, from);
    with_origin(&mut trace, change);
    trace
}

/// Returns an fsync that submits a page which three programs wrote, and one with an unknown writer.
pub fn fsync_of_earlier_writes(span: u64, from: u64) -> Trace {
    let mut trace = on(call(span, "fdatasync", [3, 0, 0, 0, 0, 0], 0, from, 4_830_000), DATABASE);
    io(&mut trace, WRITE, 8_192, Times(from + 12, Some(from + 61), from + 1_420));
    with_origin(&mut trace, |origin| {
        origin.reason = None;
        origin.writers = vec![
            writer(DD, 1, 31_204, 4_096),
            writer(TASK, 2, 80, 1_024),
            writer(TASK, 3, 70, 1_024),
            PageWriter { evidence: WriterEvidence::UnderWay, ..writer(POSTGRES, 4, 0, 2_048) },
        ];
    });
    io(&mut trace, WRITE, 65_536, Times(from + 900, Some(from + 940), from + 1_400));
    with_origin(&mut trace, |origin| {
        (origin.reason, origin.offset) = (None, 1 << 30);
        let part = |offset, bytes| PagePart { offset, bytes };
        origin.parts = vec![part(1 << 30, 8_192), part(2 << 30, 4_096), part(3 << 30, 53_248)];
        (origin.bytes_unattributed, origin.unattributed) = (65_536, Some(Unattributed::NotRecorded));
    });
    io(&mut trace, 1 | PREFLUSH, 0, Times(from + 1_466, Some(from + 1_472), from + 4_790));
    trace
}

/// Returns reads through the page cache: one of pages in memory, and one that fetches 12 KiB more than its
/// own 4 KiB.
fn reads(span: u64, from: u64) -> [Trace; 2] {
    let read = |span, from, ns| {
        let mut trace = on(call(span, "pread64", [3, 0, 4_096, 8_192, 0, 0], 4_096, from, ns), DATABASE);
        sample::with_call(&mut trace, |call| call.reads_page_cache = true);
        trace
    };
    let hit = read(span, from, 2_000);
    let mut miss = read(span + 1_000, from + 100, 300_000);
    io(&mut miss, READ, 16_384, Times(from + 110, Some(from + 120), from + 390));
    with_origin(&mut miss, |origin| (origin.reason, origin.offset) = (None, 8_192));
    let file = miss.call().and_then(|call| call.file).map(|open| open.file);
    miss.page_origins[0].file = file;
    [hit, miss]
}

/// Returns write-back of the command's data, of other programs' data, and of metadata.
pub fn all_kinds() -> Vec<Trace> {
    let mut traces = vec![fsync_of_earlier_writes(300_000, 100)];
    for n in 0..20 {
        traces.push(worker(301_000 + n, 5_000 + 3_000 * n, |origin| {
            origin.offset = n << 19;
            origin.writers = vec![writer(DD, 10 + n, 30_000 + 400 * n, 524_288)];
        }));
    }
    traces.push(worker(302_000, 80_000, |origin| {
        origin.writers = vec![writer(TASK, 77, 12, 262_144)];
        (origin.bytes_unattributed, origin.unattributed) = (262_144, Some(Unattributed::Evicted));
    }));
    traces.push(worker(303_000, 90_000, |origin| {
        (origin.bytes_unattributed, origin.unattributed) = (524_288, Some(Unattributed::NotRecorded));
    }));
    let metadata = |kind| move |origin: &mut PageOriginEvent| (origin.kind, origin.file) = (kind, None);
    traces.push(worker(304_000, 100_000, metadata(PageKind::Device)));
    traces.push(worker(305_000, 110_000, metadata(PageKind::Log)));
    let mut lost = worker(306_000, 120_000, |_| {});
    lost.page_origins.clear();
    lost.incomplete.page_origins = 1;
    traces.push(lost);
    traces.extend(reads(310_000, 200_000));
    traces
}
