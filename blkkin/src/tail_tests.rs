//! What the rules keep and leave out.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::Arc;

use blkkin_aggregator::trace::Root;
use blkkin_wire::calls::CallId;
use blkkin_wire::clock::{ClockAnchor, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, CallEvent, ContextFrom, FileEvent, OpenFile, Submitter, TaskChange,
    TaskRef, TraceContext,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId, TraceId, Uid,
};

use super::*;

const DEVICE: DeviceId = DeviceId { major: 8, minor: 0 };
const FILE: FileId = FileId { device: DEVICE, ino: 12, generation: 1 };
const TASK: TaskRef = TaskRef { id: TaskId(1), version: 1 };

/// A write of 1 ms on a file of that path.
pub(crate) fn write(path: Option<&str>) -> Trace {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let anchor = ClockAnchor {
        monotonic: MonotonicNs(0),
        wallclock: WallclockNs(0),
        uncertainty: DurationNs(0),
        ..ClockAnchor::NONE
    };
    let mut trace = Trace::new(source, anchor, SpanId(1));
    trace.root = Root::Call(CallEvent {
        ending: Ending::Returned(4096),
        file: Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None }),
        bios: 1,
        ..CallEvent::bare(
            SpanId(1),
            TASK,
            CallId::by_name("write").unwrap(),
            MonotonicNs(5_000_000),
            MonotonicNs(6_000_000),
        )
    });
    trace.names.file = path.map(|path| Arc::new(file(path, Kept::Whole).into()));
    trace
}

fn file(path: &str, kept: Kept) -> FileEvent {
    FileEvent {
        time: MonotonicNs(0),
        file: FILE,
        path: path.into(),
        kept,
        filesystem: "ext4".into(),
        device_file: None,
        mode: 0,
    }
}

/// A bio of it that ended then.
pub(crate) fn bio(end: u64, status: BlockStatus) -> BioEvent {
    BioEvent {
        span: SpanId(2),
        submitter: Submitter::Span(SpanId(1)),
        root: SpanId(1),
        task: TASK,
        request: None,
        first: false,
        split: false,
        queue: MonotonicNs(5_500_000),
        end: MonotonicNs(end),
        device: DEVICE,
        sector: Sector(0),
        bytes: 4096,
        op: BlockOp(1),
        status,
    }
}

fn paths(pattern: &str) -> Tail {
    Tail { paths: vec![PathPattern::parse(pattern).unwrap()], ..Tail::default() }
}

#[test]
fn without_rules_everything_is_kept() {
    assert_eq!(Tail::default().judge(&write(None)), Verdict::Kept);
}

#[test]
fn slow_is_measured_to_the_end_of_the_last_part() {
    let tail = Tail { slower_than: Some(DurationNs(2_000_000)), ..Tail::default() };
    let mut trace = write(None);
    assert_eq!(tail.judge(&trace), Verdict::LeftOut);
    trace.bios.push(bio(7_000_000, BlockStatus(0)));
    assert_eq!(tail.judge(&trace), Verdict::LeftOut, "exactly as long is not longer");
    trace.bios.push(bio(7_000_001, BlockStatus(0)));
    assert_eq!(tail.judge(&trace), Verdict::Kept);
}

#[test]
fn an_error_in_any_layer_is_an_error() {
    let tail = Tail { errors_only: true, ..Tail::default() };
    let mut trace = write(None);
    assert_eq!(tail.judge(&trace), Verdict::LeftOut);
    trace.bios.push(bio(6_000_000, BlockStatus(10)));
    assert_eq!(tail.judge(&trace), Verdict::Kept);
    let mut trace = write(None);
    let Root::Call(call) = &mut trace.root else { unreachable!() };
    call.ending = Ending::Returned(-5);
    assert_eq!(tail.judge(&trace), Verdict::Kept);
    let Root::Call(call) = &mut trace.root else { unreachable!() };
    call.ending = Ending::Returned(-512);
    assert_eq!(tail.judge(&trace), Verdict::LeftOut, "cut short by a signal");
}

#[test]
fn what_its_program_samples_is_kept_if_that_is_asked_for() {
    let sampled = |flags, from| {
        let mut trace = write(Some("/srv/db"));
        let Root::Call(call) = &mut trace.root else { unreachable!() };
        let (id, span) = (TraceId(7), SpanId(8));
        call.context = Some(Box::new(TraceContext { trace: id, span, flags, from }));
        trace
    };
    let rules = [
        Tail { slower_than: Some(DurationNs(u64::MAX)), ..Tail::default() },
        Tail { errors_only: true, ..Tail::default() },
    ];
    for tail in rules {
        let with = Tail { or_sampled: true, ..tail.clone() };
        assert_eq!(tail.judge(&sampled(1, ContextFrom::Thread)), Verdict::LeftOut, "nobody asked");
        assert_eq!(with.judge(&sampled(1, ContextFrom::Thread)), Verdict::Kept);
        assert_eq!(with.judge(&sampled(2, ContextFrom::Thread)), Verdict::LeftOut);
        assert_eq!(with.judge(&sampled(1, ContextFrom::Events)), Verdict::LeftOut);
        assert_eq!(with.judge(&write(None)), Verdict::LeftOut);
        // Whom and what was asked for stays what was asked for.
        let elsewhere = Tail { paths: paths("/home").paths, ..with };
        assert_eq!(elsewhere.judge(&sampled(1, ContextFrom::Thread)), Verdict::LeftOut);
    }
}

#[test]
fn rules_of_different_kinds_must_all_hold() {
    let tail = Tail { errors_only: true, ..paths("/srv") };
    assert_eq!(tail.judge(&write(Some("/srv/db"))), Verdict::LeftOut);
}

#[test]
fn paths_match_files_and_arguments() {
    assert_eq!(paths("/srv").judge(&write(Some("/srv/db"))), Verdict::Kept);
    assert_eq!(paths("/srv").judge(&write(Some("/home/x"))), Verdict::LeftOut);
    let mut trace = write(Some("/home/x"));
    let Root::Call(call) = &mut trace.root else { unreachable!() };
    call.paths[1] = Some("/srv/new-name".into());
    assert_eq!(paths("/srv").judge(&trace), Verdict::Kept);
}

#[test]
fn a_path_that_is_not_known_is_no_match_and_is_told_apart() {
    assert_eq!(paths("/srv").judge(&write(None)), Verdict::NameUnknown);
    let mut cut = write(None);
    cut.names.file = Some(Arc::new(file("deep/below/db", Kept::Truncated).into()));
    assert_eq!(paths("/srv").judge(&cut), Verdict::NameUnknown);
    assert_eq!(paths("below/db").judge(&cut), Verdict::Kept);
    // What ended too soon to be slow needs no path.
    let tail = Tail { slower_than: Some(DurationNs(u64::MAX)), ..paths("/srv") };
    assert_eq!(tail.judge(&write(None)), Verdict::LeftOut);
}

fn task(comm: &str, pid: u32) -> TaskEvent {
    TaskEvent {
        time: MonotonicNs(0),
        task: TASK,
        parent: None,
        change: TaskChange::Execed,
        tid: Tid(pid),
        pid: Pid(pid),
        ppid: Pid(1),
        uid: Uid(0),
        cgroup: CgroupId(7),
        comm: comm.into(),
        exe: None,
        kernel_thread: false,
        inner: None,
    }
}

#[test]
fn tasks_are_told_by_what_they_were_called_at_that_moment() {
    let comms = vec!["sqlite3".to_owned(), "psql".to_owned()];
    let tail = Tail { tasks: TaskRule { comms, ..TaskRule::default() }.some(), ..Tail::default() };
    let mut trace = write(None);
    assert_eq!(tail.judge(&trace), Verdict::NameUnknown);
    trace.names.task = Some(Arc::new(task("sqlite3", 10)));
    assert_eq!(tail.judge(&trace), Verdict::Kept);
    trace.names.task = Some(Arc::new(task("sh", 10)));
    assert_eq!(tail.judge(&trace), Verdict::LeftOut);
}

#[test]
fn each_kind_of_task_rule_must_hold() {
    let rule = TaskRule { pids: vec![Pid(10)], cgroups: vec![CgroupId(8)], ..TaskRule::default() };
    assert!(!rule.admits(&task("x", 10)));
    let rule = TaskRule { pids: vec![Pid(9), Pid(10)], cgroups: vec![CgroupId(7)], ..TaskRule::default() };
    assert!(rule.admits(&task("x", 10)));
    assert_eq!(TaskRule::default().some(), None);
}
