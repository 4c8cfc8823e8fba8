//! All kinds of probes say the same of the same, call by call and request by request: each against tp_btf, inside one kernel.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::{AttachKind, Tracer, TracerConfig};
use blkkin_wire::event::{LayerEvent, SyscallEvent, SyscallOutcome, TaskChange};

use support::actor::Actor;
use support::disk::Disk;
use support::fio::Fio;
use support::recording::{Recording, offered, record, until_whole};
use support::{needs, or_skip};

/// The probes that are put at functions where a kernel has each function, as Debian's 6.1 and 6.12 have; the end of a call by
/// fentry only.
const AT_FUNCTIONS: [&str; 8] = [
    "request_issue",
    "bio_queue",
    "sync_enter",
    "task_exit",
    "task_exec",
    "task_fork",
    "call_exit",
    "call_enter",
];

/// The kinds that this machine offers, the one first with which the others are compared. Which are left out, and why, is what
/// `each_kind_is_put_where_it_says` is skipped for.
fn kinds() -> impl Iterator<Item = AttachKind> {
    AttachKind::ALL.into_iter().filter(|kind| match offered(*kind) {
        Ok(()) => true,
        Err(why) => {
            println!("not by {kind}: {why}");
            false
        }
    })
}

/// Each kind's is the first's, which is returned.
#[track_caller]
fn the_same<T: PartialEq + std::fmt::Debug>(mut by_kind: impl FnMut(AttachKind) -> T) -> T {
    let mut first = None;
    for kind in kinds() {
        let this = by_kind(kind);
        match &first {
            Some(first) => assert_eq!(*first, this, "by {kind}"),
            None => first = Some(this),
        }
    }
    first.unwrap()
}

#[test]
fn a_script_is_the_same_call_by_call() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let at = folder.path().display();
    // Forks, redirections, renames, what fails, and a loop: no two of its tasks at once.
    let script = format!(
        "cd {at}; i=0; while [ $i -lt 20 ]; do echo $i >> log; cat log | wc -c > size; mv size old; i=$((i+1)); done; \
         cat none 2>/dev/null; ln -s log link; readlink link; rm -f log link old"
    );
    let (_, _, lines) = the_same(|kind| {
        let recording = until_whole(|| {
            let mut actor = Actor::program(&["sh", "-c", &script], &folder.path().join("out"));
            record(&by(kind), &mut [&mut actor])
        });
        let mut lines: Vec<_> = recording.calls().map(line).collect();
        lines.sort();
        (recording.counts(), changes(&recording), lines)
    });
    assert!(lines.len() > 1000, "{}", lines.len());
}

#[test]
fn requests_are_the_same_one_by_one() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(32 << 20));
    let account = disk.beside("fio.json");
    let fio = Fio {
        target: disk.node(),
        pattern: "randwrite",
        jobs: 2,
        requests: 1000,
        bytes: 8192,
        account: &account,
    };
    let (requests, _) = the_same(|kind| {
        let recording = until_whole(|| {
            let mut actor = Actor::program(&fio.words(), &disk.beside("fio.out"));
            record(&by(kind), &mut [&mut actor])
        });
        let mut requests: Vec<_> = recording
            .requests()
            .filter(|request| request.device == disk.device())
            .map(|request| (request.sector, request.bytes, request.op, request.status, request.bios))
            .collect();
        requests.sort_unstable_by_key(|request| (request.0, request.1));
        // Not those of another disk: a page of fio's own program may have to be read again.
        let here = |trace: &&Trace| trace.requests.iter().any(|request| request.device == disk.device());
        let owned = recording.traces.iter().filter(|trace| trace.call().is_some()).filter(here);
        let issued = recording.requests().filter(|request| request.issue.is_some()).count();
        assert_eq!(issued, recording.requests().count(), "each went to the device");
        (requests, owned.count())
    });
    assert_eq!(requests.len(), 2000);
}

/// Syncs, commits, and the flush machinery.
#[test]
fn a_sync_is_the_same_in_each_layer() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(16 << 20));
    let of_a_sync = |kind| {
        let path = disk.mount_point().join("data");
        let name = support::one::text(&path);
        let recording = until_whole(|| {
            let _ = fs::remove_file(&path);
            fs::File::open(disk.mount_point()).unwrap().sync_all().unwrap();
            let name = name.clone();
            let mut actor = Actor::new(move || {
                // SAFETY: constants and strings that outlive the calls.
                unsafe {
                    let fd = libc::open(name.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
                    libc::write(fd, [1u8; 4096].as_ptr().cast(), 4096);
                    libc::fsync(fd);
                }
                0
            });
            record(&by(kind), &mut [&mut actor])
        });
        let sync = recording
            .traces
            .iter()
            .find(|trace| trace.call().is_some_and(|call| call.call.name() == "fsync"));
        let sync = sync.unwrap();
        let shape = |trace: &blkkin_aggregator::trace::Trace| (trace.bios.len(), trace.requests.len());
        (shape(sync), sync.causes.iter().map(|cause| shape(&cause.trace)).collect::<Vec<_>>())
    };
    // The first is for the file system, which then has its bitmaps in memory.
    of_a_sync(AttachKind::TpBtf);
    let sync = the_same(of_a_sync);
    assert_eq!(sync.1.len(), 1, "the fsync waited for one commit: {sync:?}");
}

/// What is called fentry is fentry: no probe keeps its tracepoint that has a function here.
#[test]
fn each_kind_is_put_where_it_says() {
    needs!();
    for kind in AttachKind::ALL {
        or_skip!(offered(kind));
        let tracer = Tracer::load(&by(kind)).unwrap();
        let other = if kind.is_typed() { AttachKind::TpBtf } else { AttachKind::RawTp };
        for probe in tracer.probes() {
            let (name, at, found) = (probe.probe.name, probe.at, probe.kind.unwrap());
            let skipped = kind == AttachKind::Kprobe && name == "call_exit";
            let function = kind.uses_functions() && AT_FUNCTIONS.contains(&name) && !skipped;
            assert_eq!(found, if function { kind } else { other }, "{name} at {at}");
            assert_eq!(at == probe.hook.tracepoint, !function, "{name} at {at}");
        }
    }
}

#[test]
fn a_kind_that_the_kernel_refuses_is_one_error_with_its_remedy() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("ran");
    let refused: Vec<_> =
        [AttachKind::Fentry, AttachKind::Kprobe].into_iter().filter(|kind| offered(*kind).is_err()).collect();
    if refused.is_empty() {
        support::skip!("this kernel refuses no kind");
    }
    for kind in refused {
        let words = ["run", "--attach", kind.name(), "--", "touch", mark.to_str().unwrap()];
        let run = common::run(&words);
        run.assert_refused(125, "cannot trace", "leave out --attach");
        assert!(run.stderr.contains(&format!("does not support {kind} for the probe")), "{run:?}");
        assert!(!mark.exists(), "the command ran untraced");
    }
}

fn by(kind: AttachKind) -> TracerConfig {
    TracerConfig { attach: Some(kind), ..TracerConfig::default() }
}

/// What a call was, without what differs from run to run (addresses, numbers of processes).
fn line(call: &SyscallEvent) -> String {
    let succeeded = match call.outcome {
        SyscallOutcome::Returned(value) if value < 0 => value,
        SyscallOutcome::Returned(_) => 0,
        SyscallOutcome::NoExit => 1,
    };
    let position = call.file.map(|open| (open.fd, open.position_before, open.position_after));
    format!("{} {succeeded} {:?} {:?} {position:?}", call.call.name(), call.paths, call.paths_captured)
}

fn changes(recording: &Recording) -> [usize; 3] {
    let count = |change| {
        let is = |event: &&LayerEvent| matches!(event, LayerEvent::Task(task) if task.change == change);
        recording.events.iter().filter(is).count()
    };
    [TaskChange::Forked, TaskChange::Execed, TaskChange::Exited].map(count)
}
