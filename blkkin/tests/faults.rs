//! Planted faults: something makes storage calls slow, the tracer is not told what, and its account names it.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::ffi::CString;
use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::time::Duration;

use blkkin_aggregator::account::{Breakdown, breakdown};
use blkkin_tracer::TracerConfig;

use support::gated_process::GatedProcess;
use support::needs;
use support::recording::{Recording, record};
use support::single_process::c_path;

const BLOCK: usize = 1 << 20;
/// So many that the waits outside of them, of which there are few, do not weigh.
const READS: usize = 3000;
/// Programs that want the same CPU.
const RIVALS: usize = 3;
const HELD_MS: u64 = 60;

/// Three programs that only compute share a CPU with one that reads a file from the page cache: what its reads take is the
/// wait for the CPU, and so the kernel's own count of that wait says.
#[test]
fn a_starved_cpu() {
    needs!();
    let (file, said) = (Place::new("starved.dat"), Place::new("starved.said"));
    fs::write(&file.0, vec![1u8; BLOCK]).unwrap();
    let (path, into) = (c_path(Path::new(&file.0)), said.0.clone());
    let mut rivals: Vec<GatedProcess> = (0..RIVALS)
        .map(|_| {
            GatedProcess::new(|| {
                stay_on_the_first_cpu();
                loop {
                    std::hint::spin_loop();
                }
            })
        })
        .collect();
    let mut reader = GatedProcess::new(move || {
        stay_on_the_first_cpu();
        let before = run_delay();
        read_again_and_again(&path);
        fs::write(&into, (run_delay() - before).to_string()).unwrap();
        0
    });
    rivals.iter_mut().for_each(GatedProcess::release);
    let recording = record(&TracerConfig::default(), &mut [&mut reader]);
    drop(rivals);
    recording.assert_balanced();
    let sum = sum_of(&recording, "pread64");
    let kernel: u64 = fs::read_to_string(&said.0).unwrap().parse().unwrap();
    println!("{sum:?}; the kernel counted {kernel} ns of waiting in the whole program");
    assert!(sum.cpu.0 * 2 > sum.total().0, "{sum:?}");
    // What the program did besides its reads is next to nothing.
    assert!(sum.cpu.0 <= kernel && sum.cpu.0 * 10 >= kernel * 8, "{sum:?}, {kernel}");
    assert_eq!((sum.device.0, sum.block.0, sum.journal.0), (0, 0, 0), "{sum:?}");
}

/// Somebody holds a lock on the file: a wait for that is no storage's, and no CPU's.
#[test]
fn a_lock_held_by_another_program() {
    needs!();
    let file = Place::new("locked.dat");
    fs::write(&file.0, b"x").unwrap();
    let path = c_path(Path::new(&file.0));
    let (ready, told) = std::io::pipe().unwrap();
    let (asked, asks) = std::io::pipe().unwrap();
    let holders = path.clone();
    // Holds it until the other has asked for it, and a while longer.
    let mut holder = GatedProcess::new(move || {
        lock(open(&holders));
        (&told).write_all(b"l").unwrap();
        (&asked).read_exact(&mut [0]).unwrap();
        std::thread::sleep(Duration::from_millis(HELD_MS));
        0
    });
    holder.release();
    (&ready).read_exact(&mut [0]).unwrap();
    let mut waiter = GatedProcess::new(move || {
        let fd = open(&path);
        (&asks).write_all(b"a").unwrap();
        lock(fd);
        0
    });
    let recording = record(&TracerConfig::default(), &mut [&mut waiter]);
    drop(holder);
    recording.assert_balanced();
    let sum = sum_of(&recording, "fcntl");
    println!("{sum:?}");
    assert!(sum.total().0 > HELD_MS * 900_000 && sum.unaccounted.0 * 10 > sum.total().0 * 9, "{sum:?}");
}

/// Where the time of all calls of this name went.
fn sum_of(recording: &Recording, name: &str) -> Breakdown {
    let calls =
        recording.traces.iter().filter(|trace| trace.call().is_some_and(|call| call.call.name() == name));
    let mut sum = Breakdown::default();
    for part in calls.map(breakdown) {
        sum.device.0 += part.device.0;
        sum.block.0 += part.block.0;
        sum.journal.0 += part.journal.0;
        sum.cpu.0 += part.cpu.0;
        sum.file_system.0 += part.file_system.0;
        sum.unaccounted.0 += part.unaccounted.0;
    }
    sum
}

/// A file in memory that goes with the test.
struct Place(String);

impl Place {
    fn new(name: &str) -> Place {
        Place(format!("/dev/shm/blkkin-{}-{name}", std::process::id()))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn stay_on_the_first_cpu() {
    // SAFETY: a set of CPUs that outlives the call.
    unsafe {
        let mut cpus: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(0, &mut cpus);
        assert_eq!(libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &cpus), 0);
    }
}

/// Nanoseconds that this thread has waited for a CPU (Documentation/scheduler/sched-stats.rst: the second word).
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

fn read_again_and_again(path: &CString) {
    let fd = open(path);
    let mut block = vec![0u8; BLOCK];
    for _ in 0..READS {
        // SAFETY: a buffer of that length, which outlives the call.
        let read = unsafe { libc::pread(fd, block.as_mut_ptr().cast(), BLOCK, 0) };
        assert_eq!(read, BLOCK as isize);
    }
}
