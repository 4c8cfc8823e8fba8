//! Both ways of attaching say the same of the same: the typed one, and the untyped one where types are missing.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::{AttachKind, TracerConfig};
use blkkin_wire::event::{CallEvent, Ending, LayerEvent, TaskChange};

use support::actor::Actor;
use support::disk::Disk;
use support::fio::Fio;
use support::recording::{Recording, record, until_whole};
use support::{needs, or_skip};

const KINDS: [AttachKind; 2] = [AttachKind::TpBtf, AttachKind::RawTp];

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
    let [typed, untyped] = KINDS.map(|kind| {
        let mut actor = Actor::program(&["sh", "-c", &script], &folder.path().join("out"));
        let recording = record(&by(kind), &mut [&mut actor]);
        recording.assert_whole();
        recording
    });
    assert_eq!(typed.counts(), untyped.counts());
    assert_eq!(changes(&typed), changes(&untyped));
    let [typed, untyped] = [&typed, &untyped].map(|recording| {
        let mut lines: Vec<_> = recording.calls().map(line).collect();
        lines.sort();
        lines
    });
    assert_eq!(typed, untyped);
    assert!(typed.len() > 1000, "{}", typed.len());
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
    let [typed, untyped] = KINDS.map(|kind| {
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
        (requests, owned.count())
    });
    assert_eq!(typed, untyped);
    assert_eq!(typed.0.len(), 2000);
}

/// Syncs, commits, and the flush machinery.
#[test]
fn a_sync_is_the_same_in_each_layer() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(16 << 20));
    // The first is for the file system, which then has its bitmaps in memory.
    let [_, typed, untyped] = [KINDS[0], KINDS[0], KINDS[1]].map(|kind| {
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
    });
    assert_eq!(typed, untyped);
    assert_eq!(typed.1.len(), 1, "the fsync waited for one commit: {typed:?}");
}

fn by(kind: AttachKind) -> TracerConfig {
    TracerConfig { attach: Some(kind), ..TracerConfig::default() }
}

/// What a call was, without what differs from run to run (addresses, numbers of processes).
fn line(call: &CallEvent) -> String {
    let succeeded = match call.ending {
        Ending::Returned(value) if value < 0 => value,
        Ending::Returned(_) => 0,
        Ending::NoExit => 1,
    };
    let position = call.file.map(|open| (open.fd, open.position_before, open.position_after));
    format!("{} {succeeded} {:?} {:?} {position:?}", call.call.name(), call.paths, call.paths_kept)
}

fn changes(recording: &Recording) -> [usize; 3] {
    let count = |change| {
        let is = |event: &&LayerEvent| matches!(event, LayerEvent::Task(task) if task.change == change);
        recording.events.iter().filter(is).count()
    };
    [TaskChange::Forked, TaskChange::Execed, TaskChange::Exited].map(count)
}
