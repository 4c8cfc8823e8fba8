//! Tests of the rules.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use blkkin_aggregator::trace::Root;
use blkkin_aggregator::trace::page_origins::WriterName;
use blkkin_wire::clock::{ClockAnchor, MonotonicNs};
use blkkin_wire::event::{
    BioEvent, BlockStatus, ContextSource, FileEvent, OpenFile, PairEvent, SyscallEvent, TaskChange, TaskRef,
    TraceContext,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NameId, NodeId, Source, SpanId, StartEpoch, TaskId, TraceId, Uid,
};
use blkkin_wire::syscalls::SyscallId;

use super::*;

pub(crate) const DEVICE: DeviceId = DeviceId { major: 8, minor: 0 };
const FILE: FileId = FileId { device: DEVICE, ino: 12, generation: 1, name: NameId::NONE };
pub(crate) const TASK: TaskRef = TaskRef { id: TaskId(1), version: 1 };

/// A write of 1 ms to a file of that path.
pub(crate) fn write(path: Option<&str>) -> Trace {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let mut trace = Trace::new(source, ClockAnchor::NONE, SpanId(1));
    trace.root = Root::Call(SyscallEvent {
        outcome: SyscallOutcome::Returned(4096),
        file: Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None }),
        bios: 1,
        ..SyscallEvent::bare(
            SpanId(1),
            TASK,
            SyscallId::by_name("write").unwrap(),
            MonotonicNs(5_000_000),
            MonotonicNs(6_000_000),
        )
    });
    trace.names.file = path.map(|path| Arc::new(file(path, Captured::Full).into()));
    trace
}

fn file(path: &str, captured: Captured) -> FileEvent {
    FileEvent { captured, ..FileEvent::bare(FILE, MonotonicNs(0), path) }
}

/// A bio of that write.
pub(crate) fn bio(end: u64, status: BlockStatus) -> BioEvent {
    let times = [5_500_000, end].map(MonotonicNs);
    let bio = PairEvent::bare([1, 2, 3].map(SpanId), TASK, DEVICE, times).bio;
    BioEvent { request: None, first: false, status, ..bio }
}

fn paths(pattern: &str) -> PostFilter {
    PostFilter { paths: vec![PathPattern::parse(pattern).unwrap()], ..PostFilter::default() }
}

#[test]
fn no_rule_keeps_everything() {
    assert_eq!(PostFilter::default().evaluate(&write(None)), FilterVerdict::Keep);
}

#[test]
fn latency_includes_the_last_part() {
    let post_filter = PostFilter { slower_than: Some(DurationNs(2_000_000)), ..PostFilter::default() };
    let mut trace = write(None);
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Drop);
    trace.bios.push(bio(7_000_000, BlockStatus(0)));
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Drop, "exactly as long is not longer");
    trace.bios.push(bio(7_000_001, BlockStatus(0)));
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Keep);
}

#[test]
fn error_in_any_layer_counts() {
    let post_filter = PostFilter { errors_only: true, ..PostFilter::default() };
    let mut trace = write(None);
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Drop);
    trace.bios.push(bio(6_000_000, BlockStatus(10)));
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Keep);
    let mut trace = write(None);
    let Root::Call(call) = &mut trace.root else { unreachable!() };
    call.outcome = SyscallOutcome::Returned(-5);
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Keep);
    let Root::Call(call) = &mut trace.root else { unreachable!() };
    call.outcome = SyscallOutcome::Returned(-512);
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Drop, "cut short by a signal");
}

#[test]
fn sampled_traces_of_the_application_are_kept_on_request() {
    let sampled = |flags, from| {
        let mut trace = write(Some("/srv/db"));
        let Root::Call(call) = &mut trace.root else { unreachable!() };
        let (id, span) = (TraceId(7), SpanId(8));
        call.context = Some(Box::new(TraceContext { trace: id, span, flags, source: from }));
        trace
    };
    let rules = [
        PostFilter { slower_than: Some(DurationNs(u64::MAX)), ..PostFilter::default() },
        PostFilter { errors_only: true, ..PostFilter::default() },
    ];
    for post_filter in rules {
        let with = PostFilter { or_sampled: true, ..post_filter.clone() };
        assert_eq!(
            post_filter.evaluate(&sampled(1, ContextSource::ThreadContext)),
            FilterVerdict::Drop,
            "the option is off"
        );
        assert_eq!(with.evaluate(&sampled(1, ContextSource::ThreadContext)), FilterVerdict::Keep);
        assert_eq!(with.evaluate(&sampled(2, ContextSource::ThreadContext)), FilterVerdict::Drop);
        assert_eq!(with.evaluate(&sampled(1, ContextSource::DaemonSpan)), FilterVerdict::Drop);
        assert_eq!(with.evaluate(&write(None)), FilterVerdict::Drop);
        // Task and path rules still apply.
        let elsewhere = PostFilter { paths: paths("/home").paths, ..with };
        assert_eq!(elsewhere.evaluate(&sampled(1, ContextSource::ThreadContext)), FilterVerdict::Drop);
    }
}

#[test]
fn rules_of_different_kinds_must_all_match() {
    let post_filter = PostFilter { errors_only: true, ..paths("/srv") };
    assert_eq!(post_filter.evaluate(&write(Some("/srv/db"))), FilterVerdict::Drop);
}

#[test]
fn path_rule_matches_files_and_arguments() {
    assert_eq!(paths("/srv").evaluate(&write(Some("/srv/db"))), FilterVerdict::Keep);
    assert_eq!(paths("/srv").evaluate(&write(Some("/home/x"))), FilterVerdict::Drop);
    let mut trace = write(Some("/home/x"));
    let Root::Call(call) = &mut trace.root else { unreachable!() };
    call.paths[1] = Some("/srv/new-name".into());
    assert_eq!(paths("/srv").evaluate(&trace), FilterVerdict::Keep);
}

#[test]
fn unknown_path_is_reported_and_no_match() {
    assert_eq!(paths("/srv").evaluate(&write(None)), FilterVerdict::UnknownName);
    let mut cut = write(None);
    cut.names.file = Some(Arc::new(file("deep/below/db", Captured::Truncated).into()));
    assert_eq!(paths("/srv").evaluate(&cut), FilterVerdict::UnknownName);
    assert_eq!(paths("below/db").evaluate(&cut), FilterVerdict::Keep);
    // A trace that is too fast needs no path.
    let post_filter = PostFilter { slower_than: Some(DurationNs(u64::MAX)), ..paths("/srv") };
    assert_eq!(post_filter.evaluate(&write(None)), FilterVerdict::Drop);
}

fn task(comm: &str, pid: u32) -> TaskEvent {
    let (change, tid, pid, uid) = (TaskChange::Execed, Tid(pid), Pid(pid), Uid(0));
    TaskEvent { change, tid, pid, uid, cgroup: CgroupId(7), ..TaskEvent::bare(TASK, MonotonicNs(0), comm) }
}

#[test]
fn task_rule_uses_the_name_at_that_time() {
    let comms = vec!["sqlite3".to_owned(), "psql".to_owned()];
    let post_filter = PostFilter {
        tasks: TaskFilter { comms, ..TaskFilter::default() }.non_empty(),
        ..PostFilter::default()
    };
    let mut trace = write(None);
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::UnknownName);
    trace.names.task = Some(Arc::new(task("sqlite3", 10)));
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Keep);
    trace.names.task = Some(Arc::new(task("sh", 10)));
    assert_eq!(post_filter.evaluate(&trace), FilterVerdict::Drop);
}

#[test]
fn each_kind_of_task_rule_must_match() {
    let rule = TaskFilter { pids: vec![Pid(10)], cgroups: vec![CgroupId(8)], ..TaskFilter::default() };
    assert!(!rule.matches(&task("x", 10)));
    let rule =
        TaskFilter { pids: vec![Pid(9), Pid(10)], cgroups: vec![CgroupId(7)], ..TaskFilter::default() };
    assert!(rule.matches(&task("x", 10)));
    assert_eq!(TaskFilter::default().non_empty(), None);
}

/// The kernel's worker writes back what the task `dd` wrote.
#[test]
fn write_back_is_filtered_by_its_writers_and_its_file() {
    let mut trace = write(None);
    trace.root = Root::Kernel;
    let written = FileId { ino: 13, ..FILE };
    let name = FileEvent { file: written, ..file("/srv/log", Captured::Full) };
    trace.origin_names.files.insert(written, Arc::new(name.into()));
    let task = Arc::new(TaskEvent::bare(TASK, MonotonicNs(0), "dd"));
    trace.origin_names.writers.insert(TASK, WriterName { task, exe: None, process: None });
    let by = |comm: &str| {
        let tasks = TaskFilter { comms: vec![comm.to_owned()], ..TaskFilter::default() };
        PostFilter { tasks: Some(tasks), ..PostFilter::default() }
    };
    assert_eq!(by("dd").evaluate(&trace), FilterVerdict::Keep);
    assert_eq!(by("cat").evaluate(&trace), FilterVerdict::Drop);
    assert_eq!(paths("/srv/**").evaluate(&trace), FilterVerdict::Keep);
    assert_eq!(paths("/var/**").evaluate(&trace), FilterVerdict::Drop);
}
