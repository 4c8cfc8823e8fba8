//! Planted faults: a known cause makes storage calls slow, and the latency breakdown must attribute
//! the time to it. The tracer gets no hint.
//!
//! *Input*: a CPU that is shared with busy programs, and a file lock held by another program. The
//! CPU wait is compared with the kernel's own count in `/proc/thread-self/schedstat`.

use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use blkkin_aggregator::latency::{Breakdown, breakdown};
use serde_json::Value;

use crate::common;
use crate::common::Run;
use crate::support::gated_process::GatedProcess;
use crate::support::live::eventually;
use crate::support::needs;
use crate::support::recording::{Recording, record_one};
use crate::support::single_process::c_path;

const BLOCK: usize = 1 << 20;
/// Enough reads that the few waits outside of them do not count.
const READS: usize = 3000;
/// Programs that compete for the same CPU.
const RIVALS: usize = 3;
const HELD_MS: u64 = 60;

/// Three programs that only compute share a CPU with one that reads a file from the page cache. The
/// time of its reads is the wait for the CPU, and agrees with the kernel's count of that wait.
#[test]
fn a_busy_cpu() {
    needs!();
    let (file, delay_file) = (TempFile::new("starved.dat"), TempFile::new("starved.delay"));
    fs::write(&file.0, vec![1u8; BLOCK]).unwrap();
    let (path, into) = (c_path(Path::new(&file.0)), delay_file.0.clone());
    let mut rivals: Vec<GatedProcess> = (0..RIVALS)
        .map(|_| {
            GatedProcess::new(|| {
                pin_to_first_cpu();
                loop {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let mut reader = GatedProcess::new(move || {
        pin_to_first_cpu();
        let before = run_delay();
        read_repeatedly(&path);
        fs::write(&into, (run_delay() - before).to_string()).unwrap();
        0
    });
    rivals.iter_mut().for_each(GatedProcess::release);
    let recording = record_one(&mut reader);
    drop(rivals);
    recording.assert_balanced();
    let sum = sum_breakdowns(&recording, "pread64");
    let kernel: u64 = fs::read_to_string(&delay_file.0).unwrap().parse().unwrap();
    println!("{sum:?}; the kernel counted {kernel} ns of waiting in the whole program");
    assert!(sum.cpu.0 * 2 > sum.total().0, "{sum:?}");
    // Outside of its reads the program does almost nothing.
    assert!(sum.cpu.0 <= kernel && sum.cpu.0 * 10 >= kernel * 8, "{sum:?}, {kernel}");
    assert_eq!((sum.device.0, sum.block.0, sum.journal.0), (0, 0, 0), "{sum:?}");
}

/// Waiting for a file lock is neither storage time nor CPU wait: it is unaccounted.
#[test]
fn a_lock_held_by_another_program() {
    needs!();
    let file = TempFile::new("locked.dat");
    fs::write(&file.0, b"x").unwrap();
    let path = c_path(Path::new(&file.0));
    let (ready, holds_lock) = std::io::pipe().unwrap();
    let (requested, requests) = std::io::pipe().unwrap();
    let path_of_holder = path.clone();
    // Keeps the lock until the other program has requested it, and some ms longer.
    let mut holder = GatedProcess::new(move || {
        lock(open(&path_of_holder));
        (&holds_lock).write_all(b"l").unwrap();
        (&requested).read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(HELD_MS));
        0
    });
    holder.release();
    (&ready).read_exact(&mut [0]).unwrap();
    let mut waiter = GatedProcess::new(move || {
        let fd = open(&path);
        (&requests).write_all(b"a").unwrap();
        lock(fd);
        0
    });
    let recording = record_one(&mut waiter);
    drop(holder);
    recording.assert_balanced();
    let sum = sum_breakdowns(&recording, "fcntl");
    println!("{sum:?}");
    assert!(sum.total().0 > HELD_MS * 900_000 && sum.unaccounted.0 * 10 > sum.total().0 * 9, "{sum:?}");
}

/// The report attributes the wait for a lock to the call that waited, and names a lock as a cause.
#[test]
fn the_report_names_a_lock() {
    needs!("flock");
    let file = TempFile::new("reported.dat");
    fs::write(&file.0, b"x").unwrap();
    let held = fs::File::open(&file.0).unwrap();
    held.lock().unwrap();
    let report = TempFile::new("reported.json");
    let json = format!("--json={}", report.0);
    let mut command = common::blkkin(&["run", "--show", "layers", &json, "--", "flock", &file.0, "true"]);
    let run = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(eventually(|| has_waiter(&file.0)), "the program does not wait for the lock");
    std::thread::sleep(Duration::from_millis(HELD_MS));
    drop(held);
    let run = Run::from(run.wait_with_output().unwrap()).expect_code(0);
    let report: Value = serde_json::from_str(&fs::read_to_string(&report.0).unwrap()).unwrap();
    let row = |table: &str, key: &str, name: &str| {
        report[table].as_array().unwrap().iter().find(|row| row[key] == name).cloned().unwrap()
    };
    let waited = row("calls", "call", "flock")["max_ns"].as_u64().unwrap();
    let unaccounted = row("layers", "layer", "unaccounted")["max_ns"].as_u64().unwrap();
    println!("the call waited {waited} ns, {unaccounted} ns of it are unaccounted");
    assert!(waited > HELD_MS * 1_000_000, "{waited}");
    // The rest is the wait for a CPU after the wake-up, which a busy machine makes longer.
    let cpu = row("layers", "layer", "CPU wait")["max_ns"].as_u64().unwrap_or(0);
    assert!(
        unaccounted <= waited && unaccounted + cpu >= waited / 10 * 9,
        "{unaccounted} + {cpu} of {waited}"
    );
    assert!(unaccounted > HELD_MS * 1_000_000, "{unaccounted}");
    // A command's own output is on stdout.
    assert!(
        run.stderr.contains("unaccounted: slept for what its trace does not show (a lock of flock or fcntl,"),
        "{run:?}"
    );
}

/// Returns whether some process waits for a lock of this file (proc_locks(5)).
fn has_waiter(path: &str) -> bool {
    let inode = format!(":{} ", fs::metadata(path).unwrap().ino());
    let locks = fs::read_to_string("/proc/locks").unwrap();
    locks.lines().any(|line| line.contains("-> FLOCK") && line.contains(&inode))
}

/// Sums the breakdowns of all calls of this name.
fn sum_breakdowns(recording: &Recording, name: &str) -> Breakdown {
    let calls =
        recording.traces.iter().filter(|trace| trace.call().is_some_and(|call| call.call.name() == name));
    let mut sum = Breakdown::default();
    for part in calls.map(breakdown) {
        sum.device.0 += part.device.0;
        sum.block.0 += part.block.0;
        sum.journal.0 += part.journal.0;
        sum.locks.0 += part.locks.0;
        sum.throttled.0 += part.throttled.0;
        sum.cpu.0 += part.cpu.0;
        sum.file_system.0 += part.file_system.0;
        sum.unaccounted.0 += part.unaccounted.0;
    }
    sum
}

/// A file in memory that is removed with the test.
struct TempFile(String);

impl TempFile {
    fn new(name: &str) -> TempFile {
        TempFile(format!("/dev/shm/blkkin-{}-{name}", std::process::id()))
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn pin_to_first_cpu() {
    // SAFETY: a set of CPUs that outlives the call.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpus);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cpus), 0);
    }
}

/// Nanoseconds that this thread has waited for a CPU (Documentation/scheduler/sched-stats.rst: the
/// second word).
fn run_delay() -> u64 {
    fs::read_to_string("/proc/thread-self/schedstat").unwrap().split(' ').nth(1).unwrap().parse().unwrap()
}

fn open(path: &CString) -> i32 {
    // SAFETY: a string that outlives the call.
    let fd = unsafe { libc::open(path.as_ptr(), libc::O_RDWR) };
    assert!(fd >= 0);
    fd
}

fn lock(fd: i32) {
    // SAFETY: a lock that outlives the call.
    unsafe {
        let mut whole: libc::flock = std::mem::zeroed();
        whole.l_type = libc::F_WRLCK as libc::c_short;
        assert_eq!(libc::fcntl(fd, libc::F_SETLKW, &whole), 0);
    }
}

fn read_repeatedly(path: &CString) {
    let fd = open(path);
    let mut block = vec![0u8; BLOCK];
    for _ in 0..READS {
        // SAFETY: a buffer of that length, which outlives the call.
        let read = unsafe { libc::pread(fd, block.as_mut_ptr().cast(), BLOCK, 0) };
        assert_eq!(read, BLOCK as isize);
    }
}
