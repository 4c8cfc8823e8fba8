//! Filters in the kernel: matching operations are recorded, and for all others not even a counter
//! changes.
//!
//! *Input*: child processes that make a known number of reads, together with processes that must
//! not be recorded. The expected number of calls is the number that the processes make.

use std::collections::HashSet;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use blkkin_tracer::{AttachKind, Detail, Filter, PathPattern, TraceScope, TracerConfig};
use blkkin_wire::event::{Submitter, TaskChange};
use blkkin_wire::ids::{CgroupId, Tid};
use blkkin_wire::syscalls::SyscallId;

use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::live::LiveTrace;
use crate::support::missed_ends::until_complete;
use crate::support::recording::{Recorder, Recording, record};
use crate::support::single_process::{c_path, create_file, file_of};
use crate::support::tools::identity;
use crate::support::{needs, or_skip};

const READS: usize = 100;

#[test]
fn by_process() {
    needs!();
    let (mut wanted, mut other) = (reader("one"), reader("two"));
    let filter = Filter { pids: vec![wanted.pid()], ..Filter::default() };
    assert_only_readers(&trace_all(filter, &mut [&mut wanted, &mut other]), 1);
}

#[test]
fn by_name() {
    needs!();
    let (mut wanted, mut other) = (reader("blkkin-wanted"), reader("blkkin-other"));
    let filter = Filter { comms: vec!["blkkin-wanted".into()], ..Filter::default() };
    assert_only_readers(&trace_all(filter, &mut [&mut wanted, &mut other]), 1);
}

/// The kernel keeps 15 bytes of a name; a longer name in a filter is cut to them.
#[test]
fn by_a_name_that_is_truncated() {
    needs!();
    let mut wanted = reader("blkkin-wanted-c");
    let filter = Filter { comms: vec!["blkkin-wanted-cut".into()], ..Filter::default() };
    assert_only_readers(&trace_all(filter, &mut [&mut wanted]), 1);
}

#[test]
fn by_thread() {
    needs!();
    let mut process = GatedProcess::new(|| {
        // Another thread of the same process, which the filter excludes.
        std::thread::spawn(read).join().unwrap();
        read();
        0
    });
    let filter = Filter {
        tids: vec![Tid(process.pid().0)],
        syscalls: vec![SyscallId::by_name("pread64").unwrap()],
        ..Filter::default()
    };
    let recording = trace_all(filter, &mut [&mut process]);
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
    let recording = trace_all(filter, &mut [&mut wanted, &mut other]);
    assert_only_readers(&recording, 1);
    assert!(recording.tasks().all(|task| task.cgroup == id));
}

#[test]
fn by_call() {
    needs!();
    let mut process = reader("one");
    let filter = Filter { syscalls: vec![SyscallId::by_name("pread64").unwrap()], ..Filter::default() };
    let recording = record(&TracerConfig { filter, ..TracerConfig::default() }, &mut [&mut process]);
    recording.assert_calls_complete();
    assert_eq!(recording.counts().into_iter().collect::<Vec<_>>(), [("pread64", READS)]);
    assert_eq!(recording.stats.calls_entered, READS as u64);
}

/// Bios that a task submits in a filtered call are not recorded as the kernel's either.
#[test]
fn by_call_without_requests_of_other_calls() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(READS as u64 * 4096));
    for (name, bios) in [("pread64", READS), ("lseek", 0)] {
        let recording = until_complete(|| {
            let mut process = direct_reader(disk.node(), disk.node());
            let filter = Filter { syscalls: vec![SyscallId::by_name(name).unwrap()], ..Filter::default() };
            record(&TracerConfig { filter, ..TracerConfig::default() }, &mut [&mut process])
        });
        assert_eq!(recording.counts().into_iter().collect::<Vec<_>>(), [(name, READS)]);
        assert_eq!((recording.bios().count(), recording.requests().count()), (bios, bios));
    }
}

/// Marked tasks pass the same filters.
#[test]
fn marked_tasks_by_name_and_by_process() {
    needs!();
    for by_name in [true, false] {
        let (mut wanted, mut other) = (reader("blkkin-wanted"), reader("blkkin-other"));
        let filter = if by_name {
            Filter { comms: vec!["blkkin-wanted".into()], ..Filter::default() }
        } else {
            Filter { pids: vec![wanted.pid()], ..Filter::default() }
        };
        let config = TracerConfig { filter, ..TracerConfig::default() };
        let recording = record(&config, &mut [&mut wanted, &mut other]);
        recording.assert_calls_complete();
        assert_only_readers(&recording, 1);
    }
}

/// A mark passes through tasks that the filter excludes: both shells.
#[test]
fn programs_by_name_below_programs_with_other_names() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let data = create_file(folder.path(), "data", 1);
    let script = format!("head -c1 {0}; sh -c 'cat {0}; head -c1 {0}; cat {0}'", data.display());
    for kind in ["raw_tp", "tp_btf"] {
        let mut shell = GatedProcess::program(&["sh", "-c", &script], &folder.path().join("out"));
        let config = TracerConfig {
            filter: Filter { comms: vec!["cat".into()], ..Filter::default() },
            attach: AttachKind::by_name(kind),
            ..TracerConfig::default()
        };
        let recording = record(&config, &mut [&mut shell]);
        recording.assert_calls_complete();
        let on_data = recording.calls_named("openat");
        let on_data = on_data.iter().filter(|call| file_of(call) == Some(identity(&data))).count();
        assert_eq!(on_data, 2, "{kind}");
        assert!(recording.tasks().all(|task| &*task.comm == "cat"), "{kind}: {:#?}", recording.events);
        assert_eq!(recording.stats.tasks_missed, 0, "{kind}");
    }
}

/// A task that takes another name is no longer recorded, but its end is.
#[test]
fn a_task_that_the_filter_excludes_later_ends() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let data = create_file(folder.path(), "data", 1);
    let mut shell = GatedProcess::program(
        &["sh", "-c", &format!("exec cat {}", data.display())],
        &folder.path().join("out"),
    );
    let filter = Filter { comms: vec!["sh".into()], ..Filter::default() };
    let recording = record(&TracerConfig { filter, ..TracerConfig::default() }, &mut [&mut shell]);
    recording.assert_calls_complete();
    assert!(recording.calls().all(|call| file_of(call) != Some(identity(&data))));
    let changes: Vec<TaskChange> = recording.tasks().map(|task| task.change).collect();
    assert_eq!(changes.last(), Some(&TaskChange::Exited), "{changes:?}");
    assert!(changes.len() > 1, "{changes:?}");
}

/// A filter that matches no marked task leaves nothing of its system calls and of its block I/O.
#[test]
fn no_marked_task() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(READS as u64 * 4096));
    let mut process = direct_reader(disk.node(), disk.node());
    let filter = Filter { comms: vec!["blkkin-other".into()], ..Filter::default() };
    let recording = record(&TracerConfig { filter, ..TracerConfig::default() }, &mut [&mut process]);
    let of_disk = recording.bios().filter(|bio| bio.device == disk.device()).count();
    assert_eq!((recording.calls().count(), of_disk, recording.tasks().count()), (0, 0, 0));
    assert_eq!(recording.stats.calls_entered, 0, "{:#?}", recording.stats);
}

/// Filters of different kinds must all match; of one kind any one must.
#[test]
fn by_name_and_process() {
    needs!();
    let mut processes = ["blkkin-a", "blkkin-b", "blkkin-a"].map(reader);
    let filter = Filter {
        pids: vec![processes[0].pid(), processes[1].pid()],
        comms: vec!["blkkin-a".into(), "blkkin-c".into()],
        ..Filter::default()
    };
    let [first, second, third] = &mut processes;
    assert_only_readers(&trace_all(filter, &mut [first, second, third]), 1);
}

/// Rounds of [`rounds_on_two_files`], of 10 ms each: the reader knows both paths after a few.
const ROUNDS: usize = 100;

/// Each round reads, writes and syncs a file with a matching path, and another file. Both reach the disk. Judge: the process' own count.
#[test]
fn by_path() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(16 << 20));
    let [wanted, other] = ["wanted/data", "other/data"].map(|name| disk.mount_point().join(name));
    for file in [&wanted, &other] {
        fs::create_dir(file.parent().unwrap()).unwrap();
        fs::write(file, [1u8; 4096]).unwrap();
        fs::File::open(file).unwrap().sync_all().unwrap();
    }
    let paths = vec![PathPattern::parse(wanted.parent().unwrap().to_str().unwrap()).unwrap()];
    let filter = Filter { paths, ..Filter::default() };
    let recording = until_complete(|| {
        let mut process = rounds_on_two_files(&other, &wanted);
        record(&TracerConfig { filter: filter.clone(), ..TracerConfig::default() }, &mut [&mut process])
    });
    recording.assert_calls_complete();
    let on = |file: &Path| {
        let id = identity(file);
        recording.calls().filter(move |call| call.call.name() != "openat" && file_of(call) == Some(id))
    };
    // Of a matching file: each call.
    assert_eq!(on(&wanted).count(), 3 * ROUNDS, "{:#?}", recording.stats);
    // Of the other one: calls with block I/O before its path was known.
    let early = on(&other).count();
    assert!(on(&other).all(|call| call.bios > 0) && early < ROUNDS, "{early} {:#?}", recording.stats);
    // No bio of an excluded call passes for one of the kernel, nor has a call that is not there.
    // A page fault of its program is a root too, if other programs displaced the program's pages.
    let calls = recording.calls().map(|call| call.span);
    let roots: HashSet<_> = calls.chain(recording.faults().map(|fault| fault.span)).collect();
    let task = recording.calls().next().unwrap().task.id;
    let own: Vec<_> = recording.bios().filter(|bio| bio.task.id == task).collect();
    assert!(own.iter().all(|bio| roots.contains(&bio.root)), "{own:#?}");
    println!("{early} calls on the other file, {} filtered", recording.stats.calls_filtered);
    let stats = &recording.stats;
    assert_eq!(stats.calls_entered, stats.calls.fired + stats.calls_filtered, "{stats:#?}");
    // The reader drops both opens of the other file, and writes of it that the kernel side recorded.
    let filtered = stats.calls_filtered + stats.calls_excluded;
    assert_eq!(filtered, (3 * ROUNDS + 2 - early) as u64, "{stats:#?}");
    assert!(stats.calls_excluded >= 2 && stats.calls_filtered > 2 * ROUNDS as u64, "{stats:#?}");
    assert_eq!(stats.calls.recorded, recording.calls().count() as u64 + stats.calls_excluded);
}

/// The tree of a process that already runs: its members and their later children.
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
            let mut process = direct_reader(&file, disk.node());
            record(&config, &mut [&mut process])
        });
        let counts: Vec<_> = recording.counts().into_iter().collect();
        assert_eq!(counts, [("pread64", READS)]);
        assert!(recording.calls().all(|call| call.bios > 0));
        // The kernel's write-back to other disks is recorded without a device filter.
        let mut of_calls = recording.bios().filter(|bio| bio.submitter != Submitter::Kernel);
        assert!(of_calls.all(|bio| bio.device == device), "{:#?}", recording.bios().collect::<Vec<_>>());
        assert_eq!(recording.requests().filter(|request| request.device == device).count(), READS);
        // Calls that reached no device count as filtered.
        let stats = &recording.stats;
        assert_eq!(stats.calls_entered, stats.calls.fired + stats.calls_filtered);
        assert_eq!(stats.calls_filtered, 3 + READS as u64, "{stats:#?}");
    }
}

#[test]
fn another_device_is_not_recorded() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let mut process = direct_reader(disk.node(), disk.node());
    let other = blkkin_wire::ids::DeviceId { major: 7, minor: 0xf_ffff };
    let config = TracerConfig {
        filter: Filter { devices: vec![other], ..Filter::default() },
        kernel_origin: true,
        ..TracerConfig::default()
    };
    let recording = record(&config, &mut [&mut process]);
    assert_eq!(recording.events.len() - recording.tasks().count() - recording.files().count(), 0);
    assert_eq!((recording.stats.calls.fired, recording.stats.bios_queued), (0, 0));
}

/// Options of the command line reach the kernel.
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

/// Reads a byte `READS` times from an existing file.
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

/// Creates a process that takes this name and then reads.
fn reader(name: &'static str) -> GatedProcess {
    let name = c_path(Path::new(name));
    GatedProcess::new(move || {
        // SAFETY: a string that outlives the call.
        unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
        read();
        0
    })
}

/// Creates a process that reads the first file with direct I/O and calls `lseek` on the second
/// after each read.
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

/// Creates a process that, `ROUNDS` times and 10 ms apart, reads each file with direct I/O, writes it
/// through the page cache, and syncs it.
fn rounds_on_two_files(first: &Path, second: &Path) -> GatedProcess {
    let files = [first, second].map(c_path);
    GatedProcess::new(move || {
        let page = vec![1u8; 8192];
        let aligned = page.as_ptr().wrapping_add(page.as_ptr().align_offset(4096)).cast_mut();
        // SAFETY: strings, and a page, that outlive the calls.
        unsafe {
            let open = |flags| files.each_ref().map(|file| libc::open(file.as_ptr(), flags));
            let (direct, buffered) = (open(libc::O_RDONLY | libc::O_DIRECT), open(libc::O_WRONLY));
            for _ in 0..ROUNDS {
                for (direct, buffered) in direct.into_iter().zip(buffered) {
                    libc::pread(direct, aligned.cast(), 4096, 0);
                    libc::pwrite(buffered, aligned.cast(), 4096, 0);
                    libc::fsync(buffered);
                }
                libc::usleep(10_000);
            }
        }
        0
    })
}

/// Traces all tasks of the machine with this filter.
fn trace_all(filter: Filter, processes: &mut [&mut GatedProcess]) -> Recording {
    let recorder =
        Recorder::start(&TracerConfig { scope: TraceScope::All, filter, ..TracerConfig::default() }, &[]);
    for process in processes {
        assert_eq!(process.run_to_exit(), 0);
    }
    let recording = recorder.finish();
    recording.assert_calls_complete();
    recording
}

/// Asserts that exactly this many readers were recorded, completely, and nothing else.
#[track_caller]
fn assert_only_readers(recording: &Recording, readers: usize) {
    let mut counts: Vec<_> = recording.counts().into_iter().collect();
    counts.sort_unstable();
    assert_eq!(counts, [("close", readers), ("openat", readers), ("pread64", readers * READS)]);
    let stats = &recording.stats;
    assert_eq!(
        (stats.calls_entered, stats.calls_filtered),
        ((readers * (READS + 2)) as u64, 0),
        "{stats:#?}"
    );
    let processes: HashSet<_> = recording.tasks().map(|task| task.pid).collect();
    assert_eq!(processes.len(), readers);
}

/// A cgroup for this test, in the hierarchy whose ids the eBPF programs read.
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
        // Empty once its last process has been waited for.
        let _ = fs::remove_dir(&self.0).inspect_err(|error| println!("{}: {error}", self.0.display()));
    }
}
