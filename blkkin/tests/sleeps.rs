//! Places in the kernel where system calls sleep.
//!
//! *Judges*: the kernel's own count of voluntary context switches (`nvcsw`), call by call; the function in
//! `/proc/PID/wchan` while the task sleeps; the times that the test itself lets the task sleep.

use std::fs::{self, OpenOptions};
use std::io::{PipeReader, PipeWriter, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::time::Duration;

use blkkin_tracer::error::TracerError;
use blkkin_tracer::selection::keep::KeptOperations;
use blkkin_tracer::{AttachKind, Tracer, TracerConfig};
use blkkin_wire::call_sleeps::UNKNOWN_FUNCTION;
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::ids::Pid;

use serde_json::Value;

use crate::common;
use crate::keep;
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::recording::{Recorder, Recording};
use crate::support::tools::is_guest;
use crate::support::{needs, or_skip};

/// Shortest time for which the test lets a task sleep.
const SLEEP: Duration = Duration::from_millis(20);
/// Bytes that the reader waits for, one by one.
const BYTES: usize = 10;

/// Buffer for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; 64 << 10]);

fn config() -> TracerConfig {
    TracerConfig { sleeps: true, ..TracerConfig::default() }
}

/// Asserts of the calls that they slept as often as the kernel counts, and not longer than they took. Returns the number of
/// sleeps, and how many of them are at further places.
fn assert_sleeps(recording: &Recording) -> (u64, u64) {
    let (mut counted, mut all, mut others, mut unended) = (0, 0, 0, 0);
    for call in recording.calls() {
        let slept = call.slept.as_deref().cloned().unwrap_or_default();
        counted += u64::from(call.sleeps);
        all += slept.count();
        others += u64::from(slept.others);
        unended += u64::from(slept.unended);
        assert!(slept.count() <= u64::from(call.sleeps), "{call:#?}");
        let known = slept.time().0 + call.cpu_wait.get().map_or(0, |wait| wait.0);
        let tolerance = clock_ns() * (slept.count() + 1);
        assert!(known <= call.exit.since(call.enter).0 + tolerance, "{call:#?}");
        for place in &slept.places {
            assert!(!place.functions.is_empty(), "{call:#?}");
            assert!(!place.functions.iter().any(|function| **function == *UNKNOWN_FUNCTION), "{call:#?}");
        }
    }
    println!("{all} sleeps of {counted}, {others} at further places, {unended} without an end");
    // The program does not see each switch on hosted machines: of some 500, none in most runs, and two in one.
    let missing = counted - all + unended;
    assert!(missing * 100 <= counted.max(100), "{missing} of {counted}, {unended} of them without an end");
    (all, others)
}

/// Records direct and buffered reads and writes, and fsync, on ext4, of two processes that use one file.
fn users_of_one_file(disk: &Disk, config: &TracerConfig) -> Recording {
    let path = disk.mount_point().join("shared");
    fs::write(&path, vec![b'.'; 8 << 20]).unwrap();
    let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(&path).unwrap();
    let (direct_file, buffered) = (open(libc::O_DIRECT), open(0));
    let (direct_fd, buffered) = (direct_file.as_raw_fd(), buffered.as_raw_fd());
    let process = || {
        GatedProcess::new(|| {
            let mut buffer = Box::new(Aligned([0; 64 << 10]));
            let (at, bytes) = (buffer.0.as_mut_ptr().cast(), 64 << 10);
            for n in 0..100 {
                // SAFETY: the buffer has these bytes.
                let done = unsafe {
                    libc::pread(direct_fd, at, bytes, n % 128 * (64 << 10)) > 0
                        && libc::pwrite(buffered, at, 100, n * 5_000) == 100
                        && (n % 10 != 0 || libc::fsync(buffered) == 0)
                };
                if !done {
                    return 1;
                }
            }
            0
        })
    };
    let mut processes = [process(), process()];
    let recorder = Recorder::start(config, &processes.each_ref().map(GatedProcess::pid));
    processes.iter_mut().for_each(GatedProcess::release);
    assert!(processes.iter_mut().all(|process| process.run_to_exit() == 0));
    let recording = recorder.finish();
    recording.assert_balanced();
    let stats = &recording.stats;
    let slept = recording.calls().filter(|call| call.slept.is_some()).count() as u64;
    assert_eq!((stats.sleeps.fired, stats.sleeps.recorded, stats.sleeps.dropped), (slept, slept, 0));
    recording
}

#[test]
fn each_voluntary_context_switch_of_a_call_is_at_a_named_place() {
    needs!();
    let disk = or_skip!(Disk::ext4(1 << 28));
    let recording = users_of_one_file(&disk, &config());
    recording.assert_calls_complete();
    let (sleeps, others) = assert_sleeps(&recording);
    let mut functions: Vec<String> = Vec::new();
    for call in recording.calls() {
        functions.extend(
            call.slept.iter().flat_map(|slept| &slept.places).map(|place| place.function().to_owned()),
        );
    }
    functions.sort();
    functions.dedup();
    println!("{functions:?}");
    assert!(sleeps > 100, "{sleeps}");
    assert!(others * 20 <= sleeps, "{others} of {sleeps}");
    let reads = recording.calls_named("pread64");
    assert_all_but_missed(&recording, reads.len(), 200);
    assert!(reads.iter().any(|call| call.slept.is_some()));
}

/// Asserts that all calls were recorded, but for those that the kernel skipped: on a preemptible kernel another task may
/// interrupt a function's program, and does not run it then.
fn assert_all_but_missed(recording: &Recording, recorded: usize, made: usize) {
    let missed = recording.stats.recursion_misses as usize;
    assert!(recorded <= made && recorded + missed >= made, "{recorded} of {made}, {missed} missed");
    assert!(missed == 0 || is_guest(), "{missed} missed");
}

/// Returns by how many ns two clocks of the kernel may differ: it measures the wait for a CPU by the scheduler's clock,
/// which has the timer's resolution, 1 to 4 ms, where it cannot trust the CPU's counter, as in an emulated guest.
fn clock_ns() -> u64 {
    if is_guest() { 5_000_000 } else { 20_000 }
}

/// Records a process that reads a pipe, byte by byte, and waits for each. Returns the functions in which the kernel had
/// the task meanwhile.
fn reads_of_a_pipe(config: &TracerConfig) -> (Recording, Vec<String>) {
    let (reader, mut writer): (PipeReader, PipeWriter) = std::io::pipe().unwrap();
    let descriptor = reader.as_raw_fd();
    let mut process = GatedProcess::new(|| {
        let mut byte = 0u8;
        for _ in 0..BYTES {
            // SAFETY: one byte has room.
            if unsafe { libc::read(descriptor, (&raw mut byte).cast(), 1) } != 1 {
                return 1;
            }
        }
        0
    });
    let recorder = Recorder::start(config, &[process.pid()]);
    process.release();
    let mut functions = Vec::new();
    for _ in 0..BYTES {
        let sleeps_in = || sleeping_function(process.pid());
        assert!(eventually(|| sleeps_in().is_some()));
        functions.extend(sleeps_in());
        std::thread::sleep(SLEEP);
        writer.write_all(b"x").unwrap();
    }
    assert_eq!(process.run_to_exit(), 0);
    (recorder.finish(), functions)
}

#[test]
fn a_sleep_is_where_the_kernel_has_the_task_and_takes_its_time() {
    needs!();
    let (recording, functions) = reads_of_a_pipe(&config());
    assert_sleeps(&recording);
    let reads = recording.calls_named("read");
    assert_eq!((reads.len(), functions.len()), (BYTES, BYTES));
    for (read, function) in reads.iter().zip(&functions) {
        let slept = read.slept.as_deref().unwrap();
        assert_eq!(slept.places.len(), 1, "{slept:?}");
        assert_eq!(&*slept.places[0].functions[0], function, "{slept:?}");
        assert!(slept.time().0 + clock_ns() >= SLEEP.as_nanos() as u64, "{slept:?}");
    }
    println!("{:?}", reads[0].slept);
}

/// Returns the function in which a sleeping task waits, as the kernel names it; none while it runs.
fn sleeping_function(pid: Pid) -> Option<String> {
    let channel = fs::read_to_string(format!("/proc/{}/wchan", pid.0)).ok()?;
    let stat = fs::read_to_string(format!("/proc/{}/stat", pid.0)).ok()?;
    let is_asleep = stat.rsplit_once(") ")?.1.starts_with('S');
    (is_asleep && channel != "0").then(|| channel.split('.').next().unwrap_or_default().to_owned())
}

/// A rule decides at the end of the call, which has no I/O, so its records need not wait for another part.
#[test]
fn a_call_that_is_kept_at_its_end_has_its_sleeps() {
    needs!();
    let config = TracerConfig {
        keep: vec![keep::slower(KeptOperations::Reads, SLEEP.as_nanos() as u64 / 2)],
        head_sampling: Some(HeadSampling::from_log2(HeadSampling::MIN_RATIO.log2()).unwrap()),
        ..config()
    };
    let (recording, _) = reads_of_a_pipe(&config);
    assert_sleeps(&recording);
    let reads = recording.calls_named("read");
    assert_eq!(reads.len(), BYTES);
    assert!(
        reads.iter().all(|read| read.slept.is_some() && read.sampling != HeadSampling::ALL),
        "{reads:#?}"
    );
}

/// The records of these calls wait in the operation until its last request is complete, with those of its waits.
#[test]
fn an_operation_that_is_kept_at_its_end_has_the_sleeps_of_its_call() {
    needs!();
    let disk = or_skip!(Disk::ext4(1 << 28));
    let each = |operations| keep::slower(operations, 1);
    let config = TracerConfig {
        keep: [KeptOperations::Reads, KeptOperations::Writes, KeptOperations::Syncs].map(each).to_vec(),
        head_sampling: Some(HeadSampling::from_log2(HeadSampling::MIN_RATIO.log2()).unwrap()),
        ..config()
    };
    let recording = users_of_one_file(&disk, &config);
    let (sleeps, _) = assert_sleeps(&recording);
    assert!(sleeps > 100, "{sleeps}");
    let names = ["pread64", "pwrite64", "fsync"];
    assert_all_but_missed(&recording, names.iter().map(|name| recording.calls_named(name).len()).sum(), 420);
    assert!(recording.calls().all(|call| call.sampling != HeadSampling::ALL));
    let calls = || recording.calls().filter(|call| call.bios > 0 && call.slept.is_some());
    let with_waits = calls().filter(|call| call.waits.is_some()).count();
    println!("{} calls with bios and sleeps, {with_waits} of them with waits", calls().count());
    assert!(calls().count() > 50);
}

#[test]
fn doctor_tries_the_program() {
    needs!();
    let report: Value = serde_json::from_str(&common::run(&["doctor", "--json"]).stdout).unwrap();
    let probes = report["sleep_probes"].as_array().unwrap();
    let found = probes.iter().map(|probe| [&probe["name"], &probe["verdict"], &probe["attach"]]);
    assert_eq!(found.collect::<Vec<_>>(), [["sleep", "works", "tp_btf"]]);
    let table = common::run(&["doctor"]).stdout;
    assert!(table.contains("Probe for --sleeps only"), "{table}");
}

#[test]
fn sleeps_are_recorded_only_on_request() {
    needs!();
    let (recording, _) = reads_of_a_pipe(&TracerConfig::default());
    let reads = recording.calls_named("read");
    assert_eq!(reads.len(), BYTES);
    assert!(reads.iter().all(|call| call.sleeps == 1 && call.slept.is_none()), "{reads:#?}");
}

#[test]
fn untyped_programs_are_refused() {
    needs!();
    let config = TracerConfig { attach: Some(AttachKind::RawTp), ..config() };
    let error = Tracer::load(&config).err();
    assert!(matches!(error, Some(TracerError::SleepsKind { kind: "raw_tp" })), "{error:?}");
}
