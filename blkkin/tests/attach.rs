//! Attach kinds give the same events, call by call and request by request.
//!
//! *Input*: a shell script, fio on a loop device, and an fsync on ext4, each traced once per kind
//! on one kernel. *Independent count*: the recording by `tp_btf`, with which each other kind is
//! compared.

use std::fs;

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::{AttachKind, Tracer, TracerConfig};
use blkkin_wire::event::{LayerEvent, SyscallEvent, SyscallOutcome, TaskChange};

use crate::common;
use crate::support;
use crate::support::disk::Disk;
use crate::support::fio::Fio;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::recording::{Recording, check_attach_kind, is_in_module, record};
use crate::support::{needs, or_skip};

/// Probes that are attached to functions if the kernel has each function, as Debian's 6.1 and 6.12
/// have. The exit of a call uses fentry only.
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

/// Returns the kinds that this machine allows, beginning with the one to compare with.
/// `each_kind_attaches_as_it_is_named` is skipped with the reason for a kind that is not allowed.
fn kinds() -> impl Iterator<Item = AttachKind> {
    AttachKind::ALL.into_iter().filter(|kind| match check_attach_kind(*kind) {
        Ok(()) => true,
        Err(reason) => {
            println!("not with {kind}: {reason}");
            false
        }
    })
}

/// Asserts that each kind gives the same value as the first, and returns it.
#[track_caller]
fn assert_same_by_kind<T: PartialEq + std::fmt::Debug>(mut by_kind: impl FnMut(AttachKind) -> T) -> T {
    let mut first = None;
    for kind in kinds() {
        let value = by_kind(kind);
        match &first {
            Some(first) => assert_eq!(*first, value, "by {kind}"),
            None => first = Some(value),
        }
    }
    first.unwrap()
}

#[test]
fn each_kind_records_the_same_calls_of_a_script() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let folder_path = folder.path().display();
    // Forks, redirections, renames, failing calls and a loop, without two tasks at one time.
    let script = format!(
        "cd {folder_path}; i=0; while [ $i -lt 20 ]; do echo $i >> log; cat log | wc -c > size; mv size old; i=$((i+1)); done; \
         cat none 2>/dev/null; ln -s log link; readlink link; rm -f log link old"
    );
    let (_, _, lines) = assert_same_by_kind(|kind| {
        let recording = until_complete(|| {
            let mut process = GatedProcess::program(&["sh", "-c", &script], &folder.path().join("out"));
            record(&config(kind), &mut [&mut process])
        });
        let mut lines: Vec<_> = recording.calls().map(line).collect();
        lines.sort();
        (recording.counts(), changes(&recording), lines)
    });
    assert!(lines.len() > 1000, "{}", lines.len());
}

#[test]
fn each_kind_records_the_same_requests() {
    needs!("fio", "losetup");
    let disk = or_skip!(Disk::raw(32 << 20));
    let report = disk.file("fio.json");
    let fio = Fio {
        target: disk.node(),
        pattern: "randwrite",
        jobs: 2,
        requests: 1000,
        bytes: 8192,
        report: &report,
    };
    let (requests, _) = assert_same_by_kind(|kind| {
        let recording = until_complete(|| {
            let mut process = GatedProcess::program(&fio.args(), &disk.file("fio.out"));
            record(&config(kind), &mut [&mut process])
        });
        let mut requests: Vec<_> = recording
            .requests()
            .filter(|request| request.device == disk.device())
            .map(|request| (request.sector, request.bytes, request.op, request.status, request.bios))
            .collect();
        requests.sort_unstable_by_key(|request| (request.0, request.1));
        // Not requests of another disk: a page of fio's program may have to be read again.
        let on_disk = |trace: &&Trace| trace.requests.iter().any(|request| request.device == disk.device());
        let owned = recording.traces.iter().filter(|trace| trace.call().is_some()).filter(on_disk);
        let issued = recording.requests().filter(|request| request.issue.is_some()).count();
        assert_eq!(issued, recording.requests().count(), "each went to the device");
        (requests, owned.count())
    });
    assert_eq!(requests.len(), 2000);
}

/// Syncs, commits, and the flush machinery.
#[test]
fn each_kind_records_a_sync_equally_in_each_layer() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(16 << 20));
    let record_sync = |kind| {
        let path = disk.mount_point().join("data");
        let name = support::single_process::c_path(&path);
        let recording = until_complete(|| {
            let _ = fs::remove_file(&path);
            fs::File::open(disk.mount_point()).unwrap().sync_all().unwrap();
            let name = name.clone();
            let mut process = GatedProcess::new(move || {
                // SAFETY: passes constants and strings that outlive the calls.
                unsafe {
                    let fd = libc::open(name.as_ptr(), libc::O_WRONLY | libc::O_CREAT, 0o600);
                    libc::write(fd, [1u8; 4096].as_ptr().cast(), 4096);
                    libc::fsync(fd);
                }
                0
            });
            record(&config(kind), &mut [&mut process])
        });
        let sync = recording
            .traces
            .iter()
            .find(|trace| trace.call().is_some_and(|call| call.call.name() == "fsync"));
        let sync = sync.unwrap();
        let shape = |trace: &blkkin_aggregator::trace::Trace| (trace.bios.len(), trace.requests.len());
        (shape(sync), sync.waited_for.iter().map(|cause| shape(&cause.trace)).collect::<Vec<_>>())
    };
    // The first run loads the file system's bitmaps into memory.
    record_sync(AttachKind::TpBtf);
    let sync = assert_same_by_kind(record_sync);
    assert_eq!(sync.1.len(), 1, "the fsync waited for one commit: {sync:?}");
}

/// A kind named fentry attaches by fentry: no probe keeps its tracepoint if there is a function for
/// it.
#[test]
fn each_kind_attaches_as_it_is_named() {
    needs!();
    for kind in AttachKind::ALL {
        or_skip!(check_attach_kind(kind));
        let tracer = Tracer::load(&config(kind)).unwrap();
        let other = if kind.is_typed() { AttachKind::TpBtf } else { AttachKind::RawTp };
        for probe in tracer.probes() {
            let (name, hook, found) = (probe.probe.name, probe.at, probe.kind.unwrap());
            let skipped = kind == AttachKind::Kprobe && name == "call_exit";
            let function = kind.uses_functions() && AT_FUNCTIONS.contains(&name) && !skipped;
            let other = if is_in_module(name) { AttachKind::RawTp } else { other };
            assert_eq!(found, if function { kind } else { other }, "{name} at {hook}");
            assert_eq!(hook == probe.hook.tracepoint, !function, "{name} at {hook}");
        }
    }
}

#[test]
fn a_refused_kind_is_reported_as_one_error_with_its_remedy() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let marker = folder.path().join("ran");
    let refused: Vec<_> = [AttachKind::Fentry, AttachKind::Kprobe]
        .into_iter()
        .filter(|kind| check_attach_kind(*kind).is_err())
        .collect();
    if refused.is_empty() {
        support::skip!("this kernel refuses no kind");
    }
    for kind in refused {
        let args = ["run", "--attach", kind.name(), "--", "touch", marker.to_str().unwrap()];
        let run = common::run(&args);
        run.assert_refused(125, "cannot trace", "omit --attach");
        assert!(run.stderr.contains(&format!("does not support {kind} for the probe")), "{run:?}");
        assert!(!marker.exists(), "the command ran untraced");
    }
}

fn config(kind: AttachKind) -> TracerConfig {
    TracerConfig { attach: Some(kind), ..TracerConfig::default() }
}

/// Formats a call without values that differ between runs (addresses, process ids).
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
        let has_change =
            |event: &&LayerEvent| matches!(event, LayerEvent::Task(task) if task.change == change);
        recording.events.iter().filter(has_change).count()
    };
    [TaskChange::Forked, TaskChange::Execed, TaskChange::Exited].map(count)
}
