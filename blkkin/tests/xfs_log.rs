//! Waits of fsyncs for the log of xfs.
//!
//! *Judge*: ftrace's events of the same run, `xfs:xfs_log_force` and `xfs:xlog_iclog_wait_on`, by process
//! and time, and the bios of the log, which must be in flight while the call waits for them.

use std::collections::HashMap;
use std::fs::OpenOptions;
use std::os::fd::AsRawFd;

use blkkin_aggregator::latency;
use blkkin_aggregator::spans::spans_of;
use blkkin_tracer::TracerConfig;
use blkkin_wire::call_waits::WaitKind;
use blkkin_wire::event::BioEvent;
use blkkin_wire::ids::SpanId;
use blkkin_wire::page_origin::PageKind;

use crate::support::disk::Disk;
use crate::support::ftrace::{Ftrace, time_ns};
use crate::support::gated_process::GatedProcess;
use crate::support::recording::{Recorder, Recording};
use crate::support::{needs, or_skip};

const PROCESSES: usize = 4;
const SYNCS: usize = 60;

#[test]
fn an_fsync_on_xfs_waits_for_a_write_of_its_log() {
    needs!("losetup", "mkfs.xfs");
    let disk = or_skip!(Disk::with_file_system(320 << 20, "xfs"));
    let ftrace = or_skip!(Ftrace::create(&disk.file("trace"), "16384"));
    let mut processes: Vec<GatedProcess> = (0..PROCESSES).map(|number| appender(&disk, number)).collect();
    let pids: Vec<_> = processes.iter().map(GatedProcess::pid).collect();
    let listed: Vec<String> = pids.iter().map(|pid| pid.0.to_string()).collect();
    ftrace.set("trace_clock", "mono").unwrap();
    ftrace.set("set_event_pid", &listed.join(" ")).unwrap();
    for event in ["xfs/xfs_log_force", "xfs/xlog_iclog_wait_on"] {
        ftrace.set(&format!("events/{event}/enable"), "1").unwrap();
    }
    let recorder = Recorder::start(&TracerConfig::default(), &pids);
    processes.iter_mut().for_each(GatedProcess::release);
    processes.iter_mut().for_each(|process| assert_eq!(process.run_to_exit(), 0));
    let recording = recorder.finish();
    recording.assert_calls_complete();
    check(&recording, &events(&ftrace.finish()));
}

/// Forks a process that appends to a file of its own and makes each block durable.
fn appender(disk: &Disk, number: usize) -> GatedProcess {
    let path = disk.mount_point().join(format!("file{number}"));
    let file = OpenOptions::new().create_new(true).write(true).open(path).unwrap();
    GatedProcess::new(move || {
        let block = [number as u8; 4_096];
        for at in 0..SYNCS {
            // SAFETY: the block outlives the call.
            let ok = unsafe {
                libc::pwrite(file.as_raw_fd(), block.as_ptr().cast(), block.len(), (at * block.len()) as i64)
                    == block.len() as isize
                    && libc::fsync(file.as_raw_fd()) == 0
            };
            if !ok {
                return 1;
            }
        }
        0
    })
}

fn check(recording: &Recording, events: &HashMap<u32, Vec<(u64, bool)>>) {
    let bios: HashMap<SpanId, &BioEvent> = recording.bios().map(|bio| (bio.span, bio)).collect();
    let log: HashMap<SpanId, PageKind> =
        recording.page_origins().map(|origin| (origin.bio, origin.kind)).collect();
    let (mut waited, mut linked, mut own, mut journal, mut farthest) = (0, 0, 0, 0, 0);
    for trace in &recording.traces {
        let Some(call) = trace.call().filter(|call| call.call.name() == "fsync") else { continue };
        let pid = recording.task_of(call).pid.0;
        // ftrace's times are in whole us.
        let inside = |(time, _): &&(u64, bool)| (call.enter.0 - 1_000..=call.exit.0).contains(time);
        let seen: Vec<_> = events[&pid].iter().filter(inside).collect();
        let slept = seen.iter().any(|(_, is_wait)| *is_wait);
        let sum = call.waits.iter().flat_map(|waits| &waits.sums).find(|sum| sum.kind == WaitKind::Log);
        assert_eq!(sum.map(|sum| sum.count), slept.then_some(1), "{call:#?} {seen:?}");
        let (Some(sum), Some((force, _))) = (sum, seen.first()) else { continue };
        waited += 1;
        // From ftrace's first event to the return, less the wait for a CPU.
        let longest = call.exit.0 - force;
        let delay = call.cpu_wait.get().map_or(0, |wait| wait.0);
        farthest = farthest.max(longest.saturating_sub(sum.time.0 + delay));
        assert!(sum.time.0 <= longest + 5_000, "{call:#?} {seen:?}");
        journal += u64::from(latency::breakdown(trace).journal.0 > 0);
        let Some(write) = call.waits.as_ref().and_then(|waits| waits.log_write) else { continue };
        let bio = bios[&write.span];
        assert_eq!(log[&write.span], PageKind::Log, "{bio:?}");
        assert!(bio.op.is_write() && bio.root == write.root, "{bio:?}");
        let end = bio.end.0 as i64 - call.enter.0 as i64;
        assert!(end >= 0 && bio.end <= call.exit, "ended {end} ns after the begin of {call:?}: {bio:?}");
        linked += 1;
        own += u64::from(write.root == call.span);
        let spans = spans_of(trace);
        let span = spans.iter().find(|span| span.id == call.span).unwrap();
        let link = span.links.iter().find(|link| link.span == write.span);
        if write.root == call.span {
            assert_eq!(link, None, "the bio is below the call");
            continue;
        }
        let link = link.unwrap();
        let bios_trace = recording.traces.iter().find(|trace| trace.root_span == write.root).unwrap();
        assert_eq!(link.trace, bios_trace.id, "{link:?}");
    }
    println!(
        "{waited} of {} fsyncs waited for the log, {linked} for a bio in flight, {own} for one of their own; \
         {journal} have time in the journal; at most {farthest} ns less than by ftrace",
        PROCESSES * SYNCS
    );
    assert!(waited >= PROCESSES * SYNCS / 4 && linked * 2 >= waited, "{waited} waits, {linked} links");
    assert!(journal * 10 >= waited as u64 * 9 || own > 0, "{journal}");
}

/// Parses ftrace's lines: by thread, the times in ns and whether the event is a wait.
fn events(text: &str) -> HashMap<u32, Vec<(u64, bool)>> {
    let mut found: HashMap<u32, Vec<(u64, bool)>> = HashMap::new();
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let (task, rest) = line.split_once(" [").unwrap();
        let tid = task.rsplit_once('-').unwrap().1.trim().parse().unwrap();
        let mut words = rest.split_whitespace();
        let ns = time_ns(words.nth(2).unwrap().trim_end_matches(':')).unwrap();
        found.entry(tid).or_default().push((ns, words.next().unwrap().starts_with("xlog_iclog_wait_on")));
    }
    found
}
