//! Filters in the kernel: what matches is recorded, and of everything else nothing, not even a count.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_tracer::{Detail, Filter, TraceScope, TracerConfig};
use blkkin_wire::ids::{CgroupId, Tid};
use blkkin_wire::syscalls::SyscallId;

use support::disk::Disk;
use support::gated_process::GatedProcess;
use support::live::LiveTrace;
use support::recording::{Recorder, Recording, record, until_complete};
use support::single_process::{c_path, create_file, file_of};
use support::tools::identity;
use support::{needs, or_skip};

const READS: usize = 100;

#[test]
fn by_process() {
    needs!();
    let (mut wanted, mut other) = (reader("one"), reader("two"));
    let filter = Filter { pids: vec![wanted.pid()], ..Filter::default() };
    only_reads_of(&everybody(filter, &mut [&mut wanted, &mut other]), 1);
}

#[test]
fn by_name() {
    needs!();
    let (mut wanted, mut other) = (reader("blkkin-wanted"), reader("blkkin-other"));
    let filter = Filter { comms: vec!["blkkin-wanted".into()], ..Filter::default() };
    only_reads_of(&everybody(filter, &mut [&mut wanted, &mut other]), 1);
}

/// A name has 15 bytes in the kernel; a longer one is compared by those.
#[test]
fn by_a_name_that_is_cut() {
    needs!();
    let mut wanted = reader("blkkin-wanted-c");
    let filter = Filter { comms: vec!["blkkin-wanted-cut".into()], ..Filter::default() };
    only_reads_of(&everybody(filter, &mut [&mut wanted]), 1);
}

#[test]
fn by_thread() {
    needs!();
    let mut actor = GatedProcess::new(|| {
        // Another thread of the same process, not asked for.
        std::thread::spawn(read).join().unwrap();
        read();
        0
    });
    let filter = Filter {
        tids: vec![Tid(actor.pid().0)],
        syscalls: vec![SyscallId::by_name("pread64").unwrap()],
        ..Filter::default()
    };
    let recording = everybody(filter, &mut [&mut actor]);
    assert_eq!(recording.counts().into_iter().collect::<Vec<_>>(), [("pread64", READS)]);
    assert_eq!(recording.stats.calls_entered, READS as u64);
}

#[test]
fn by_cgroup() {
    needs!();
    let cgroup = or_skip!(Cgroup::make());
    let (mut wanted, mut other) = (reader("one"), reader("two"));
    fs::write(cgroup.0.join("cgroup.procs"), wanted.pid().0.to_string()).unwrap();
    let id = CgroupId(fs::metadata(&cgroup.0).unwrap().ino());
    let filter = Filter { cgroups: vec![id], ..Filter::default() };
    let recording = everybody(filter, &mut [&mut wanted, &mut other]);
    only_reads_of(&recording, 1);
    assert!(recording.tasks().all(|task| task.cgroup == id));
}

#[test]
fn by_call() {
    needs!();
    let mut actor = reader("one");
    let filter = Filter { syscalls: vec![SyscallId::by_name("pread64").unwrap()], ..Filter::default() };
    let recording = record(&TracerConfig { filter, ..TracerConfig::default() }, &mut [&mut actor]);
    recording.assert_calls_complete();
    assert_eq!(recording.counts().into_iter().collect::<Vec<_>>(), [("pread64", READS)]);
    assert_eq!(recording.stats.calls_entered, READS as u64);
}

/// What a task queues in a call that was not asked for is not shown as nobody's either.
#[test]
fn by_call_without_the_requests_of_others() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(READS as u64 * 4096));
    for (name, bios) in [("pread64", READS), ("lseek", 0)] {
        let recording = until_complete(|| {
            let mut actor = direct_reader(disk.node(), disk.node());
            let filter = Filter { syscalls: vec![SyscallId::by_name(name).unwrap()], ..Filter::default() };
            record(&TracerConfig { filter, ..TracerConfig::default() }, &mut [&mut actor])
        });
        assert_eq!(recording.counts().into_iter().collect::<Vec<_>>(), [(name, READS)]);
        assert_eq!((recording.bios().count(), recording.requests().count()), (bios, bios));
    }
}

/// Filters of different kinds must all match, of one kind any.
#[test]
fn by_name_and_process() {
    needs!();
    let mut actors = ["blkkin-a", "blkkin-b", "blkkin-a"].map(reader);
    let filter = Filter {
        pids: vec![actors[0].pid(), actors[1].pid()],
        comms: vec!["blkkin-a".into(), "blkkin-c".into()],
        ..Filter::default()
    };
    let [first, second, third] = &mut actors;
    only_reads_of(&everybody(filter, &mut [first, second, third]), 1);
}

/// A tree that lives already: its members and what they fork later.
#[test]
fn by_tree() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let data = create_file(folder.path(), "data", 1);
    let script = format!("cat {0}; cat {0}", data.display());
    let mut shell = GatedProcess::program(&["sh", "-c", &script], &folder.path().join("out"));
    let mut other = GatedProcess::program(&["cat", data.to_str().unwrap()], &folder.path().join("other"));
    let recorder = Recorder::start(&TracerConfig::default(), &[shell.pid()]);
    assert_eq!((shell.run_to_exit(), other.run_to_exit()), (0, 0));
    let recording = recorder.finish();
    recording.assert_calls_complete();
    let opens =
        recording.calls_named("openat").into_iter().filter(|call| file_of(call) == Some(identity(&data)));
    assert_eq!(opens.count(), 2);
}

#[test]
fn by_device_and_by_detail() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(16 << 20));
    let (file, device) = (disk.mount_point().join("data"), disk.device());
    fs::write(&file, vec![1u8; READS * 4096]).unwrap();
    fs::File::open(&file).unwrap().sync_all().unwrap();
    let by_device = TracerConfig {
        filter: Filter { devices: vec![device], ..Filter::default() },
        ..TracerConfig::default()
    };
    let by_detail = TracerConfig { detail: Detail::Requests, ..TracerConfig::default() };
    for config in [by_device, by_detail] {
        let recording = until_complete(|| {
            let mut actor = direct_reader(&file, disk.node());
            record(&config, &mut [&mut actor])
        });
        let counts: Vec<_> = recording.counts().into_iter().collect();
        assert_eq!(counts, [("pread64", READS)]);
        assert!(recording.calls().all(|call| call.bios > 0));
        assert!(recording.bios().all(|bio| bio.device == device));
        assert_eq!(recording.requests().filter(|request| request.device == device).count(), READS);
        // Those that reached no device are counted as left out.
        let books = &recording.stats;
        assert_eq!(books.calls_entered, books.calls.fired + books.calls_filtered);
        assert_eq!(books.calls_filtered, 3 + READS as u64, "{books:#?}");
    }
}

#[test]
fn another_device_is_not_seen() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let mut actor = direct_reader(disk.node(), disk.node());
    let other = blkkin_wire::ids::DeviceId { major: 7, minor: 0xf_ffff };
    let config = TracerConfig {
        filter: Filter { devices: vec![other], ..Filter::default() },
        kernel_origin: true,
        ..TracerConfig::default()
    };
    let recording = record(&config, &mut [&mut actor]);
    assert_eq!(recording.events.len() - recording.tasks().count() - recording.files().count(), 0);
    assert_eq!((recording.stats.calls.fired, recording.stats.bios_queued), (0, 0));
}

/// The words of the command line reach the kernel.
#[test]
fn the_binary_filters_too() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    for option in ["--comm", "--pid", "--tid", "--tree"] {
        let [mut wanted, mut other] = [c"blkkin-wanted", c"blkkin-other"].map(|name| {
            GatedProcess::with_name(name, || {
                read();
                0
            })
        });
        let number = wanted.pid().0.to_string();
        let value = if option == "--comm" { "blkkin-wanted" } else { &number };
        let live =
            LiveTrace::trace(&[option, value, "--syscall", "pread64"], folder.path().join("report.json"));
        assert_eq!((wanted.run_to_exit(), other.run_to_exit()), (0, 0));
        let report = live.finish();
        let rows = report["calls"].as_array().unwrap().iter();
        let rows: Vec<_> = rows.map(|row| (&row["call"], &row["count"])).collect();
        assert_eq!(rows, [(&"pread64".into(), &READS.into())], "{option}: {report:#}");
    }
}

/// Reads a byte so often, from a file that is there.
fn read() {
    let mut byte = 0u8;
    // SAFETY: a constant, and one byte that outlives the calls.
    unsafe {
        let fd = libc::open(c"/proc/self/exe".as_ptr(), libc::O_RDONLY);
        for _ in 0..READS {
            libc::pread(fd, (&raw mut byte).cast(), 1, 0);
        }
        libc::close(fd);
    }
}

/// One that takes this name and then reads.
fn reader(name: &'static str) -> GatedProcess {
    let name = c_path(Path::new(name));
    GatedProcess::new(move || {
        // SAFETY: a string that outlives the call.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        read();
        0
    })
}

/// Opens both, reads the first directly and asks for the position of the second after each.
fn direct_reader(target: &Path, other: &Path) -> GatedProcess {
    let (target, other) = (c_path(target), c_path(other));
    GatedProcess::new(move || {
        let page = vec![0u8; 8192];
        let aligned = page.as_ptr().wrapping_add(page.as_ptr().align_offset(4096)).cast_mut();
        // SAFETY: strings, and a page, that outlive the calls.
        unsafe {
            let fd = libc::open(target.as_ptr(), libc::O_RDONLY | libc::O_DIRECT);
            let other = libc::open(other.as_ptr(), libc::O_RDONLY);
            for i in 0..READS {
                libc::pread(fd, aligned.cast(), 4096, i as i64 * 4096);
                libc::lseek(other, 0, libc::SEEK_CUR);
            }
            libc::close(other);
        }
        0
    })
}

/// Everybody on the machine passes by; the filter decides.
fn everybody(filter: Filter, actors: &mut [&mut GatedProcess]) -> Recording {
    let recorder =
        Recorder::start(&TracerConfig { scope: TraceScope::All, filter, ..TracerConfig::default() }, &[]);
    for actor in actors {
        assert_eq!(actor.run_to_exit(), 0);
    }
    let recording = recorder.finish();
    recording.assert_calls_complete();
    recording
}

/// So many readers, whole, and nothing else.
#[track_caller]
fn only_reads_of(recording: &Recording, readers: usize) {
    let mut counts: Vec<_> = recording.counts().into_iter().collect();
    counts.sort_unstable();
    assert_eq!(counts, [("close", readers), ("openat", readers), ("pread64", readers * READS)]);
    let books = &recording.stats;
    assert_eq!(
        (books.calls_entered, books.calls_filtered),
        ((readers * (READS + 2)) as u64, 0),
        "{books:#?}"
    );
    let processes: std::collections::HashSet<_> = recording.tasks().map(|task| task.pid).collect();
    assert_eq!(processes.len(), readers);
}

/// A cgroup of the test's own, in the hierarchy whose ids the kernel side sees.
struct Cgroup(PathBuf);

impl Cgroup {
    fn make() -> Result<Cgroup, String> {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        let root = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
        let root = root.into_iter().find(|words| words[2] == "cgroup2").ok_or("no cgroup2 is mounted")?;
        let path = Path::new(root[1]).join(format!("blkkin-test-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("no cgroup can be made: {error}"))?;
        Ok(Cgroup(path))
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        // Empty when its last process has been waited for.
        let _ = fs::remove_dir(&self.0).inspect_err(|error| println!("{}: {error}", self.0.display()));
    }
}
