//! Waits of system calls for locks and for dirty pages, and of requests for other programs.
//!
//! *Judge*: ftrace's own events of the same run (`lock:contention_begin` and `_end`,
//! `writeback:balance_dirty_pages`), by number and by time.

use std::collections::HashMap;
use std::fs::{self, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, Ordering};

use blkkin_tracer::TracerConfig;
use blkkin_wire::call_waits::{CallWaits, WaitKind};
use blkkin_wire::event::SyscallEvent;
use serde_json::Value;

use crate::support::direct;
use crate::support::disk::Disk;
use crate::support::ftrace::{Ftrace, time_ns};
use crate::support::gated_process::GatedProcess;
use crate::support::live::LiveTrace;
use crate::support::queue::QueueSettings;
use crate::support::recording::{Recorder, Recording, record_one};
use crate::support::tools::is_guest;
use crate::support::vm_settings::VmSettings;
use crate::support::{needs, or_skip};

/// Writes of the process that waits for the lock.
const WRITES: usize = 300;
/// Bytes of a write of the process that holds the lock.
const HELD_BYTES: usize = 4 << 20;

/// Waits of a kind by ftrace: number, and time in ns.
type Witnessed = (u64, u64);

/// *Input*: a process that extends a file by direct I/O and sleeps for its requests while it holds the
/// file's lock, and one that writes to the same file.
#[test]
fn a_wait_for_a_files_lock_has_its_time_and_its_holder() {
    needs!();
    let disk = or_skip!(Disk::ext4(1 << 30));
    let path = disk.mount_point().join("shared");
    fs::write(&path, [b'.'; 4096]).unwrap();
    let ftrace = or_skip!(Ftrace::create(&disk.file("trace"), "65536"));
    let direct = OpenOptions::new().write(true).custom_flags(libc::O_DIRECT).open(&path).unwrap();
    let buffered = OpenOptions::new().write(true).open(&path).unwrap();
    let (direct, buffered) = (direct.as_raw_fd(), buffered.as_raw_fd());
    // The holder ends with the waiter, or when the disk is nearly full.
    let ended = SharedFlag::new();
    let mut holder = GatedProcess::with_name(c"holds the lock", || {
        // SAFETY: the mapping is private memory of this process; the writes are of its length.
        unsafe {
            let buffer = memory(HELD_BYTES);
            for n in (1..220).take_while(|_| !ended.is_set()) {
                libc::pwrite(direct, buffer, HELD_BYTES, (n * HELD_BYTES) as i64);
            }
        }
        0
    });
    let mut waiter = GatedProcess::with_name(c"waits for it", || {
        // SAFETY: as above.
        unsafe {
            let buffer = memory(4096);
            for n in 0..WRITES {
                libc::pwrite(buffered, buffer, 4096, (n % 16 * 4096) as i64);
                libc::usleep(500);
            }
            ended.set();
        }
        0
    });
    ftrace.set("trace_clock", "mono").unwrap();
    ftrace.set("set_event_pid", &waiter.pid().0.to_string()).unwrap();
    for event in ["lock/contention_begin", "lock/contention_end"] {
        ftrace.set(&format!("events/{event}/enable"), "1").unwrap();
    }
    let holder_pid = holder.pid();
    let recorder = Recorder::start(&TracerConfig::default(), &[holder.pid(), waiter.pid()]);
    holder.release();
    assert_eq!((waiter.run_to_exit(), holder.run_to_exit()), (0, 0));
    let recording = recorder.finish();
    recording.assert_calls_complete();
    let waits: Vec<(&SyscallEvent, &CallWaits)> =
        waits_in(&recording, |call| call.call.name() == "pwrite64" && call.args[2] == 4096);
    let (count, time) = sum(&waits, WaitKind::FileLock);
    let delayed: u64 = waits.iter().filter_map(|(call, _)| call.cpu_wait.get()).map(|wait| wait.0).sum();
    let (seen, seen_time) = longest_lock(&ftrace.finish());
    println!("{count} waits, {time} ns; by ftrace {seen}, {seen_time} ns; CPU wait {delayed} ns");
    assert!(count > 10, "the process hardly waited");
    assert_eq!(count, seen);
    // ftrace's time includes the wait for a CPU, and is in units of 1 us. Between the two readings of a
    // clock lies the other one's program, which takes longer in an emulated guest.
    let tolerance = count * if is_guest() { 200_000 } else { 5_000 };
    assert!(time <= seen_time + tolerance, "more than ftrace's");
    assert!(time + delayed + tolerance >= seen_time, "less than ftrace's");
    let held: Vec<_> = waits.iter().filter(|(_, waits)| waits.longest.kind == WaitKind::FileLock).collect();
    let named: Vec<_> = held.iter().filter_map(|(_, waits)| waits.longest.holder.as_ref()).collect();
    println!("{} of {} longest waits have a holder", named.len(), held.len());
    assert!(named.len() * 10 >= held.len() * 9, "holders are missing");
    for holder in named {
        assert_eq!((holder.pid, &*holder.comm), (holder_pid, "holds the lock"));
        assert_eq!(holder.tid.0, holder.pid.0);
    }
    for (call, waits) in waits {
        let longest = &waits.longest;
        assert!(call.enter <= longest.begin && longest.begin.0 + longest.time.0 <= call.exit.0, "{call:?}");
        assert!(waits.locks().0 <= call.exit.since(call.enter).0, "{call:?}");
        assert!(waits.sleeps <= call.sleeps, "{call:?}");
    }
}

/// A process writes more than the kernel lets be dirty.
#[test]
fn pauses_for_dirty_pages_are_those_of_the_kernel() {
    needs!();
    let disk = or_skip!(Disk::ext4(1 << 30));
    let ftrace = or_skip!(Ftrace::create(&disk.file("trace"), "65536"));
    let file = OpenOptions::new().create_new(true).write(true).open(disk.mount_point().join("data")).unwrap();
    let descriptor = file.as_raw_fd();
    let mut writer = GatedProcess::new(|| {
        // SAFETY: the mapping is private memory of this process; the writes are of its length.
        unsafe {
            let buffer = memory(1 << 20);
            for n in 0..100 {
                libc::pwrite(descriptor, buffer, 1 << 20, n << 20);
            }
        }
        0
    });
    ftrace.set("set_event_pid", &writer.pid().0.to_string()).unwrap();
    ftrace.set("events/writeback/balance_dirty_pages/enable", "1").unwrap();
    let limit = VmSettings::set(&[("dirty_bytes", 4 << 20), ("dirty_background_bytes", 2 << 20)]);
    let recording = record_one(&mut writer);
    drop(limit);
    recording.assert_calls_complete();
    let waits = waits_in(&recording, |call| call.call.name() == "pwrite64");
    let (count, time) = sum(&waits, WaitKind::DirtyPages);
    let (seen, seen_time) = pauses(&ftrace.finish());
    println!("{count} pauses, {time} ns; by ftrace {seen}, {seen_time} ns");
    assert!(count > 0, "the process was not paused");
    assert_eq!(count, seen);
    // ftrace rounds each pause down to a ms.
    assert!(
        (seen_time..=seen_time + count * 1_000_000).contains(&time),
        "{time} ns, by ftrace {seen_time} ns"
    );
    let longer = waits.iter().filter(|(call, waits)| waits.paused().0 > call.exit.since(call.enter).0);
    // A pause ends up to a tick earlier than its length: it begins inside one.
    let ticks = longer.map(|(call, waits)| waits.paused().0 - call.exit.since(call.enter).0).max();
    println!("a call's pauses are at most {} ns longer than the call", ticks.unwrap_or_default());
    assert!(ticks.unwrap_or_default() <= 10_000_000);
}

/// *Input*: a process that reads blocks of a disk with room for few requests, alone and then while another
/// process floods the disk.
#[test]
fn a_request_waits_for_the_program_that_floods_its_disk() {
    needs!();
    let disk = or_skip!(Disk::raw(1 << 30));
    let settings = or_skip!(QueueSettings::set(&disk, &[("scheduler", "none"), ("nr_requests", "4")]));
    let device = direct::open(disk.node());
    let victim = || {
        GatedProcess::with_name(c"victim", || {
            for n in 0..600 {
                direct::read_at(&device, n * 8_192).unwrap();
                // SAFETY: passes a number only.
                unsafe { libc::usleep(500) };
            }
            0
        })
    };
    let rows = |name: &str, flooded: bool| {
        let mut victim = victim();
        let flood = || {
            // SAFETY: the mapping is private memory of this process; the writes are of its length.
            unsafe {
                let buffer = memory(HELD_BYTES);
                while libc::getppid() > 1 {
                    libc::pwrite(device.as_raw_fd(), buffer, HELD_BYTES, 1 << 29);
                }
            }
            0
        };
        let mut floods = [(); 2].map(|()| GatedProcess::with_name(c"flood", flood));
        let live = LiveTrace::trace(&["--device", disk.name()], disk.file(name));
        if flooded {
            floods.iter_mut().for_each(GatedProcess::release);
        }
        assert_eq!(victim.run_to_exit(), 0);
        drop(floods);
        let report = live.finish();
        let queue = format!("the queue of {}", disk.name());
        let rows = report["waits"]["rows"].as_array().unwrap().clone();
        rows.into_iter().filter(|row| row["for"] == *queue && row["program"] == "victim").collect::<Vec<_>>()
    };
    assert_eq!(rows("alone.json", false), Vec::<Value>::new());
    let flooded = rows("flooded.json", true);
    println!("{flooded:#?}");
    assert_eq!(flooded.len(), 1);
    assert_eq!(flooded[0]["holder"], "flood");
    // How many wait depends on the machine: 24 of 150 during three busy loops, 100 alone.
    assert!(flooded[0]["times"].as_u64().unwrap() > 0);
    drop(settings);
}

/// A process that is alone with its file waits for nothing.
#[test]
fn a_call_that_did_not_wait_has_no_waits() {
    needs!();
    let disk = or_skip!(Disk::ext4(1 << 28));
    let file = OpenOptions::new().create_new(true).write(true).open(disk.mount_point().join("own")).unwrap();
    let descriptor = file.as_raw_fd();
    let mut writer = GatedProcess::new(|| {
        // SAFETY: the mapping is private memory of this process; the writes are of its length.
        unsafe {
            let buffer = memory(4096);
            for n in 0..500 {
                libc::pwrite(descriptor, buffer, 4096, n * 4096);
            }
        }
        0
    });
    let recording = record_one(&mut writer);
    recording.assert_calls_complete();
    assert_eq!(recording.calls_named("pwrite64").len(), 500);
    let waits = waits_in(&recording, |_| true);
    assert_eq!(sum(&waits, WaitKind::FileLock), (0, 0));
    assert_eq!(sum(&waits, WaitKind::DirtyPages), (0, 0));
}

/// Flag in memory that forked processes share.
struct SharedFlag(*const AtomicBool);

impl SharedFlag {
    fn new() -> SharedFlag {
        let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: a new mapping at an address of the kernel's choice; zero is a valid flag.
        SharedFlag(unsafe { libc::mmap(null_mut(), 4096, access, kind, -1, 0) }.cast())
    }

    fn set(&self) {
        // SAFETY: the mapping stays until the process ends.
        unsafe { &*self.0 }.store(true, Ordering::Relaxed);
    }

    fn is_set(&self) -> bool {
        // SAFETY: as above.
        unsafe { &*self.0 }.load(Ordering::Relaxed)
    }
}

/// Maps anonymous memory.
unsafe fn memory(bytes: usize) -> *mut libc::c_void {
    let (access, kind) = (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: a new mapping at an address of the kernel's choice.
    unsafe { libc::mmap(null_mut(), bytes, access, kind, -1, 0) }
}

fn waits_in(recording: &Recording, of: impl Fn(&SyscallEvent) -> bool) -> Vec<(&SyscallEvent, &CallWaits)> {
    let calls = recording.calls().filter(|call| of(call));
    calls.filter_map(|call| Some((call, call.waits.as_deref()?))).collect()
}

/// Returns number and time of the waits of a kind.
fn sum(waits: &[(&SyscallEvent, &CallWaits)], kind: WaitKind) -> Witnessed {
    let sums = waits.iter().flat_map(|(_, waits)| &waits.sums).filter(|sum| sum.kind == kind);
    sums.fold((0, 0), |(count, time), sum| (count + u64::from(sum.count), time + sum.time.0))
}

/// Returns the waits for the lock that was waited for longest. Spinning alone is no wait.
fn longest_lock(trace: &str) -> Witnessed {
    let mut open: HashMap<&str, u64> = HashMap::new();
    let mut locks: HashMap<&str, Witnessed> = HashMap::new();
    for line in trace.lines().filter(|line| !line.starts_with('#')) {
        let Some((time, event)) = event(line) else { continue };
        if let Some(begin) = event.strip_prefix("contention_begin: ") {
            let (lock, flags) = begin.split_once(' ').unwrap();
            if !flags.contains("SPIN") {
                open.entry(lock).or_insert(time);
            }
        } else if let Some(end) = event.strip_prefix("contention_end: ") {
            let lock = end.split(' ').next().unwrap();
            if let Some(begin) = open.remove(lock) {
                let (count, total) = locks.entry(lock).or_default();
                (*count, *total) = (*count + 1, *total + time - begin);
            }
        }
    }
    locks.into_values().max_by_key(|(_, time)| *time).unwrap_or_default()
}

/// Returns the pauses that followed, from lines with `pause=4`, in ms.
fn pauses(trace: &str) -> Witnessed {
    let pause = |line: &str| -> Option<i64> { line.split_once(" pause=")?.1.split(' ').next()?.parse().ok() };
    let pauses = trace.lines().filter_map(pause).filter(|pause| *pause > 0);
    pauses.fold((0, 0), |(count, time), pause| (count + 1, time + pause as u64 * 1_000_000))
}

/// Splits a line of ftrace into its time in ns and its event.
fn event(line: &str) -> Option<(u64, &str)> {
    let at = line.find("contention_")?;
    let time = line[..at].trim_end().trim_end_matches(':').rsplit(' ').next()?;
    Some((time_ns(time)?, &line[at..]))
}
