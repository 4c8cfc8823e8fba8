//! Spans of bios with pages of a page cache.

use std::sync::Arc;

use blkkin_wire::event::{BioEvent, RequestEvent, TaskEvent, TaskRef};
use blkkin_wire::ids::{Pid, SpanId, TaskId};
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, PageWriter, WriterEvidence};

use super::spans_of;
use super::tests::tag;
use crate::fixtures;
use crate::trace::page_origins::WriterName;
use crate::trace::{Root, Trace};

/// Times in ns; the write call ended 31.204 s before the write-back.
const QUEUE: u64 = 40_000_000_000;
const DIRTIED: u64 = QUEUE - 31_204_000_000;

fn kernel_bio() -> (BioEvent, RequestEvent) {
    let (bio, request) = fixtures::kernel_bio(2, 3, (QUEUE, QUEUE + 60));
    (BioEvent { has_page_origin: true, ..bio }, request)
}

fn write_back(origin: PageOriginEvent) -> Trace {
    let (bio, request) = kernel_bio();
    let mut trace = fixtures::trace(2);
    trace.root = Root::Kernel;
    trace.names.task =
        Some(Arc::new(TaskEvent { kernel_thread: true, ..fixtures::task(9, 0, 1, "kworker/u8:1") }));
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    let file = Arc::new(fixtures::file(fixtures::file_id(12), 1, "/srv/test.db").into());
    trace.origin_names.files.insert(fixtures::file_id(12), file);
    let task = Arc::new(fixtures::task(1, 0, 1, "dd"));
    trace.origin_names.writers.insert(fixtures::TASK, WriterName { task, exe: None, process: None });
    trace.page_origins.push(origin);
    trace
}

#[test]
fn write_back_names_its_file_and_links_to_its_writer() {
    let (bio, _) = kernel_bio();
    let writers = vec![fixtures::page_writer(7, DIRTIED, 4096)];
    let spans = spans_of(&write_back(fixtures::page_origin(&bio, writers)));
    let root = &spans[0];
    assert_eq!((&*root.service, &*root.name, root.parent), ("write-back", "write back file", None));
    assert_eq!(root.remote_service.as_deref(), Some("kernel"));
    let expected = [
        ("file.path", "/srv/test.db"),
        ("blkkin.page.kind", "file"),
        ("blkkin.file.offset", "8192"),
        ("blkkin.writeback.reason", "periodic"),
        ("blkkin.writers", "1"),
        ("blkkin.writer.programs", "dd (pid 100)"),
        ("blkkin.dirty.ns", "31204000000"),
    ];
    for (key, value) in expected {
        assert_eq!(tag(root, key).as_deref(), Some(value), "{key}");
    }
    assert_eq!(tag(root, "blkkin.unattributed.bytes"), None);
    let [link] = &root.links[..] else { panic!("{:?}", root.links) };
    assert_eq!((link.trace, link.span), (fixtures::SOURCE.trace_id(SpanId(7)), SpanId(7)));
    assert_eq!(link.relation, "written_by (rule: the call wrote these bytes of the file, 31204 ms before)");
}

#[test]
fn only_the_first_eight_writers_by_bytes_are_linked() {
    let (bio, _) = kernel_bio();
    let mut writers: Vec<_> =
        (0..12).map(|n| fixtures::page_writer(100 + n, DIRTIED + n, 1 + n as u32)).collect();
    // A mapping has no span, so no link leads to it.
    writers.push(PageWriter {
        span: SpanId(0),
        evidence: WriterEvidence::MappedStore,
        bytes: 4096,
        ..fixtures::page_writer(0, DIRTIED, 0)
    });
    let spans = spans_of(&write_back(fixtures::page_origin(&bio, writers)));
    let linked: Vec<u64> = spans[0].links.iter().map(|link| link.span.0).collect();
    assert_eq!(linked, [111, 110, 109, 108, 107, 106, 105, 104]);
    assert_eq!(tag(&spans[0], "blkkin.writers").as_deref(), Some("13"));
}

/// Two calls of one process are one, a loop device's bio has no program, and data that was written during
/// the transfer is not this bio's.
#[test]
fn processes_are_named_once_with_most_bytes_first() {
    let (bio, _) = kernel_bio();
    let of = |task: u64, bytes: u32, evidence: WriterEvidence| PageWriter {
        task: TaskRef { id: TaskId(task), version: 0 },
        evidence,
        ..fixtures::page_writer(100 + task, DIRTIED, bytes)
    };
    let ended = WriterEvidence::EndedBefore;
    let writers = vec![
        of(1, 3000, ended),
        of(2, 4000, ended),
        of(1, 3000, WriterEvidence::MappedStore),
        of(3, 9000, WriterEvidence::DuringTransfer),
        of(4, 9000, WriterEvidence::LoopDevice),
        of(5, 9000, ended),
    ];
    let mut trace = write_back(fixtures::page_origin(&bio, writers));
    // No name of the fifth task is known.
    for id in 1..5 {
        let task = TaskRef { id: TaskId(id), version: 0 };
        let name = TaskEvent { pid: Pid(10 + id as u32), ..fixtures::task(id, 0, 1, "cp") };
        trace
            .origin_names
            .writers
            .insert(task, WriterName { task: Arc::new(name), exe: None, process: None });
    }
    let spans = spans_of(&trace);
    assert_eq!(tag(&spans[0], "blkkin.writer.programs").as_deref(), Some("cp (pid 11), cp (pid 12)"));
}

#[test]
fn pages_without_a_writer_state_why() {
    let (bio, _) = kernel_bio();
    let spans = spans_of(&write_back(fixtures::page_origin(&bio, Vec::new())));
    assert_eq!(tag(&spans[0], "blkkin.unattributed.bytes").as_deref(), Some("4096"));
    let why = tag(&spans[0], "blkkin.unattributed.reason");
    assert_eq!(why.as_deref(), Some("no recorded operation wrote them"));
    assert!(spans[0].links.is_empty());
}

#[test]
fn metadata_has_no_offset_and_a_read_stays_a_bio_read() {
    let (bio, _) = kernel_bio();
    let origin = fixtures::page_origin(&bio, Vec::new());
    let metadata = PageOriginEvent { kind: PageKind::Metadata, file: None, ..origin.clone() };
    let spans = spans_of(&write_back(metadata));
    assert_eq!(spans[0].name, "write back metadata");
    assert_eq!((tag(&spans[0], "blkkin.file.offset"), tag(&spans[0], "file.path")), (None, None));
    let mut read = write_back(PageOriginEvent { bytes_unattributed: 0, unattributed: None, ..origin });
    read.bios[0].op = blkkin_wire::event::BlockOp(0);
    assert_eq!((&*spans_of(&read)[0].name, &*spans_of(&read)[0].service), ("bio read", "block"));
}

#[test]
fn a_bio_of_an_fsync_stays_its_child_and_links_to_the_writers() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (20, 80));
    let mut trace = fixtures::trace(1);
    trace.root = Root::Call(fixtures::call_with(1, (10, 100), 1));
    trace.page_origins.push(PageOriginEvent {
        reason: None,
        ..fixtures::page_origin(&bio, vec![fixtures::page_writer(7, 5, 4096)])
    });
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    let spans = spans_of(&trace);
    let bio = spans.iter().find(|span| span.id == SpanId(2)).unwrap();
    assert_eq!((bio.parent, &*bio.name, bio.links.len()), (Some(SpanId(1)), "bio write", 1));
    // The file has no known name.
    assert_eq!(tag(bio, "file.path").as_deref(), Some("7:0 12"));
}
