//! Page faults: each major fault of a program is a root with its bios and requests, and each first
//! store into a page of a mapping is a dirty range.
//!
//! *Input*: programs that map a file of a loop device with ext4 and access its pages. *Witnesses*:
//! the program's own clock, the kernel's count of its major faults (getrusage), and the device's
//! own count of bytes (/sys/block/NAME/stat).

use std::collections::{BTreeSet, HashSet};
use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{FaultEvent, RequestEvent};

use crate::support;
use crate::support::context::Programs;
use crate::support::context::recorded_program::record_with_output;
use crate::support::disk::{Disk, stat_columns};
use crate::support::gated_process::GatedProcess;
use crate::support::mapping::{
    Access, Barrier, MappingProgram, PAGE, Witness, cold_file, major_faults, make_cold, map,
};
use crate::support::missed_ends::until_complete;
use crate::support::recording::{Recording, record, record_one};
use crate::support::tools::{capture, kernel, tool};
use crate::support::{needs, or_skip};

const DISK: u64 = 64 << 20;
const PAGES: usize = 1_024;

/// Each page of a random access is read by a fault of its own.
#[test]
fn every_major_fault_is_a_root_with_its_file_offset_and_time() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let path = disk.mount_point().join("random");
    let pages = || (0..64).map(|n| n * 16 + 3);
    let mut witnesses = Vec::new();
    let mut device = 0;
    let recording = until_complete(|| {
        let file = cold_file(&path, PAGES);
        let mut program = MappingProgram::new(&file, Access::Load, libc::MADV_RANDOM, pages());
        let before = read_bytes(&disk);
        let recording = record_one(&mut program.process);
        device = read_bytes(&disk) - before;
        witnesses = program.accesses();
        recording
    });
    let faults: Vec<&FaultEvent> = recording.faults().collect();
    println!("{} faults, {} major by getrusage, {device} bytes", faults.len(), majors(&witnesses));
    assert_eq!((faults.len(), majors(&witnesses)), (64, 64));
    let ino = fs::metadata(&path).unwrap().ino();
    for ((fault, witness), page) in faults.iter().zip(&witnesses).zip(pages()) {
        assert!(fault.major && fault.end_seen, "{fault:?}");
        assert_eq!(fault.address, Some(witness.address));
        assert_eq!(fault.file.map(|file| (file.device, file.ino)), Some((disk.device(), ino)));
        assert_eq!(fault.offset, names_pages().then_some((page * PAGE) as u64));
        assert!(
            witness.before_ns <= fault.begin.0 && fault.end.0 <= witness.after_ns,
            "{fault:?} {witness:?}"
        );
        assert!(fault.begin < fault.end);
    }
    let traces: Vec<&Trace> = fault_traces(&recording).collect();
    assert_eq!(traces.len(), 64);
    for trace in &traces {
        assert_eq!(trace.names.file.as_ref().map(|file| &*file.path), None, "opened before the trace");
        assert!(trace.names.task.is_some());
        assert_eq!(requested(trace), PAGE as u64);
        for bio in &trace.bios {
            assert!(trace.start() <= bio.queue && bio.end <= trace.end(), "{trace:?}");
        }
    }
    assert_device(&recording, &disk, device);
}

/// A sequential access reads ahead: in the major faults, and in minor ones that do not wait.
#[test]
fn read_ahead_belongs_to_the_fault_that_starts_it() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let path = disk.mount_point().join("sequential");
    let mut witnesses = Vec::new();
    let mut device = 0;
    let recording = until_complete(|| {
        let file = cold_file(&path, PAGES);
        let mut program = MappingProgram::new(&file, Access::Load, libc::MADV_SEQUENTIAL, 0..PAGES);
        let before = read_bytes(&disk);
        let recording = record_one(&mut program.process);
        device = read_bytes(&disk) - before;
        witnesses = program.accesses();
        recording
    });
    let (major, minor): (Vec<_>, Vec<_>) = recording.faults().partition(|fault| fault.major);
    println!("{} major, {} read-ahead only, {device} bytes", major.len(), minor.len());
    assert_eq!(major.len() as u64, majors(&witnesses));
    // Linux 6.1 waits for each read-ahead of this access.
    assert!(!minor.is_empty() || !names_pages(), "no fault started a read-ahead without waiting");
    assert!(minor.iter().all(|fault| fault.bios > 0 && !fault.end_seen), "{minor:#?}");
    let bytes: u64 = fault_traces(&recording).map(requested).sum();
    assert_eq!(bytes, (PAGES * PAGE) as u64);
    assert_device(&recording, &disk, device);
    for fault in recording.faults() {
        let witness = witnesses
            .iter()
            .find(|witness| witness.before_ns <= fault.begin.0 && fault.end.0 <= witness.after_ns);
        let witness = witness.unwrap_or_else(|| panic!("no access explains {fault:?}"));
        if let Some(address) = fault.address {
            assert_eq!(address, witness.address);
        }
    }
}

/// Two programs access the same pages at the same time: the one that waits for a page of the other
/// has a fault without bios.
#[test]
fn a_fault_that_waits_for_another_tasks_read_is_recorded() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let path = disk.mount_point().join("shared");
    let mut witnesses = Vec::new();
    let recording = until_complete(|| {
        let file = cold_file(&path, PAGES);
        let barrier = Barrier::new();
        let [mut first, mut second] = [(); 2].map(|()| {
            let mapping = map(&file, Access::Load, libc::MADV_RANDOM);
            MappingProgram::with(|report| {
                for (nth, page) in (0..PAGES).step_by(2).enumerate() {
                    barrier.wait(nth);
                    report.access(mapping.page(page), Access::Load);
                }
                0
            })
        });
        let recorder = support::recording::Recorder::start(
            &TracerConfig::default(),
            &[first.process.pid(), second.process.pid()],
        );
        first.process.release();
        second.process.release();
        assert_eq!((first.process.run_to_exit(), second.process.run_to_exit()), (0, 0));
        witnesses = vec![first.accesses(), second.accesses()];
        recorder.finish()
    });
    let counted: u64 = witnesses.iter().map(|one| majors(one)).sum();
    let major: Vec<_> = recording.faults().filter(|fault| fault.major).collect();
    let waited = major.iter().filter(|fault| fault.bios == 0).count();
    println!("{counted} major faults by getrusage, {} recorded, {waited} waited for the other", major.len());
    assert_eq!(major.len() as u64, counted);
    for fault in major.iter().filter(|fault| fault.bios == 0) {
        assert!(fault.begin_seen && fault.file.is_some() == names_pages(), "{fault:?}");
    }
}

/// A write call whose buffer is a mapped page reads that page itself.
#[test]
fn a_fault_inside_a_system_call_is_part_of_the_call() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let path = disk.mount_point().join("buffer");
    let recording = until_complete(|| {
        let file = cold_file(&path, PAGES);
        let mapping = map(&file, Access::Load, libc::MADV_RANDOM);
        let (_reader, writer) = std::io::pipe().unwrap();
        let mut program = MappingProgram::with(|_| {
            for page in 0..8 {
                let from = mapping.page(page * 32) as *const libc::c_void;
                // SAFETY: mapped memory.
                if unsafe { libc::write(writer.as_raw_fd(), from, 64) } != 64 {
                    return 1;
                }
            }
            0
        });
        record_one(&mut program.process)
    });
    assert_eq!(recording.faults().count(), 0);
    let writes =
        recording.traces.iter().filter(|trace| trace.call().is_some_and(|call| call.call.name() == "write"));
    let bytes: Vec<u64> = writes.map(requested).collect();
    assert_eq!(bytes, [PAGE as u64; 8]);
}

/// A fault of a thread that works for a span of its own is a child of that span, in its trace.
#[test]
fn a_fault_is_a_child_of_the_threads_own_span() {
    const FAULTS: u64 = 60;
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let path = disk.mount_point().join("mapped");
    cold_file(&path, PAGES);
    let programs = or_skip!(Programs::of("page-faults"));
    let go = programs.go();
    let args = [programs.program(), go.display().to_string(), path.display().to_string(), FAULTS.to_string()];
    let (recording, counted) = record_with_output(&TracerConfig::default(), &args, &go);
    let ino = fs::metadata(&path).unwrap().ino();
    let mut spans = Vec::new();
    for trace in fault_traces(&recording) {
        let Root::Fault(fault) = &trace.root else { unreachable!() };
        if fault.file.map(|file| file.ino) != Some(ino) {
            continue;
        }
        // Before Linux 6.12 a fault has no offset; the faults come one after another.
        let next = spans.len() as u64 + 1;
        let n = fault.offset.map_or(next, |offset| offset / (16 * PAGE as u64));
        spans.push(n);
        let exported = spans::spans_of(trace);
        if n.is_multiple_of(4) {
            assert_eq!((&fault.context, exported[0].parent), (&None, None));
            continue;
        }
        let id = u128::from(!n) << 64 | u128::from(n);
        assert_eq!((trace.id.0, exported[0].parent.map(|span| span.0)), (id, Some(n)));
        assert!(exported.len() >= 3 && exported.iter().all(|span| span.trace.0 == id), "{exported:#?}");
        assert_eq!(exported[0].name, "page fault");
        let path = trace.names.file.as_ref().map(|file| &*file.path);
        assert_eq!(path, path_of(&disk, "mapped").as_deref());
    }
    println!("{} faults of spans or none, {} by getrusage", spans.len(), counted.trim());
    assert_eq!(spans, (1..=FAULTS).collect::<Vec<_>>());
    assert_eq!(counted.trim(), FAULTS.to_string());
}

/// SQLite reads a database through a mapping (`PRAGMA mmap_size`): page faults, and no read calls.
#[test]
fn sqlite_with_a_mapping_reads_by_page_faults() {
    needs!("losetup", "mkfs.ext4", "sqlite3");
    let disk = or_skip!(Disk::ext4(DISK));
    let database = disk.mount_point().join("database").display().to_string();
    let rows = "CREATE TABLE t(k INTEGER PRIMARY KEY, v); \
        WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000) \
        INSERT INTO t SELECT i, randomblob(400) FROM n;";
    capture(tool("sqlite3").args([&database, rows])).unwrap();
    let query = "PRAGMA mmap_size=268435456; SELECT sum(length(v)) FROM t;";
    let folder = tempfile::tempdir().unwrap();
    let (mut counted, mut device) = (0, 0);
    let recording = until_complete(|| {
        make_cold(&File::open(&database).unwrap());
        let args = [tool("sqlite3").get_program().to_str().unwrap(), &database, query].map(str::to_owned);
        let mut process = GatedProcess::program(&args, &folder.path().join("out"));
        let (faults, bytes) = (major_faults(libc::RUSAGE_CHILDREN), read_bytes(&disk));
        let recording = record_one(&mut process);
        counted = major_faults(libc::RUSAGE_CHILDREN) - faults;
        device = read_bytes(&disk) - bytes;
        assert!(process.output().contains("8000000"), "{}", process.output());
        recording
    });
    let traces = fault_traces(&recording)
        .filter(|trace| trace.names.file.as_ref().is_some_and(|file| *file.path == *database));
    let traces: Vec<&Trace> = traces.collect();
    let read: u64 = traces.iter().map(|trace| requested(trace)).sum();
    let major = recording.faults().filter(|fault| fault.major).count() as u64;
    println!(
        "{} faults on the database, {read} of {device} bytes; {major} major, {counted} by getrusage",
        traces.len()
    );
    assert!(read > 7_000_000, "{read}");
    // With a long read-ahead no fault needs to wait.
    assert!(major <= counted, "{major} {counted}");
    assert_device(&recording, &disk, device);
}

/// Returns whether the kernel has mm_filemap_fault, which names the page of a fault.
fn names_pages() -> bool {
    kernel() >= (6, 12)
}

fn path_of(disk: &Disk, name: &str) -> Option<String> {
    Some(disk.mount_point().join(name).to_str()?.to_owned())
}

/// Stores into pages of a mapping are dirty ranges of their file; the second store into a page
/// makes no fault.
#[test]
fn stores_into_a_mapping_are_dirty_ranges() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    dirty_pages(&disk.mount_point().join("stored"), disk.device());
}

fn dirty_pages(path: &Path, device: blkkin_wire::ids::DeviceId) {
    let stored: Vec<usize> = (0..100).map(|n| n * 7 + 1).collect();
    let mut witnesses = Vec::new();
    let config = TracerConfig { dirty_pages: true, ..TracerConfig::default() };
    let recording = until_complete(|| {
        let file = cold_file(path, PAGES);
        let twice = stored.iter().chain(&stored).copied();
        let mut program = MappingProgram::new(&file, Access::Store, libc::MADV_RANDOM, twice);
        let recording = record(&config, &mut [&mut program.process]);
        witnesses = program.accesses();
        recording
    });
    let ino = fs::metadata(path).unwrap().ino();
    let mut seen = BTreeSet::new();
    let spans: HashSet<_> = recording.faults().map(|fault| fault.span).collect();
    for dirty in recording.dirty() {
        assert_eq!((dirty.file.device, dirty.file.ino), (device, ino), "{dirty:?}");
        let first = dirty.offset as usize / PAGE;
        seen.extend(first..first + dirty.bytes as usize / PAGE);
        assert!(dirty.span.is_none_or(|span| spans.contains(&span)), "{dirty:?}");
        let during =
            witnesses.iter().any(|one| one.before_ns <= dirty.time.0 && dirty.time.0 <= one.after_ns);
        assert!(during, "{dirty:?}");
    }
    let events = recording.dirty().count();
    let with_span = recording.dirty().filter(|dirty| dirty.span.is_some()).count();
    println!(
        "{events} dirty ranges, {} pages, {with_span} with a fault's span, {} stored",
        seen.len(),
        stored.len()
    );
    assert!(stored.iter().all(|page| seen.contains(page)), "{seen:?}");
    assert_eq!(with_span, events, "each store read its page first");
    assert_eq!(majors(&witnesses), recording.faults().filter(|fault| fault.major).count() as u64);
}

fn fault_traces(recording: &Recording) -> impl Iterator<Item = &Trace> {
    recording.traces.iter().filter(|trace| matches!(trace.root, Root::Fault(_)))
}

fn requested(trace: &Trace) -> u64 {
    trace.requests.iter().map(|request| u64::from(request.bytes)).sum()
}

fn majors(witnesses: &[Witness]) -> u64 {
    witnesses.iter().map(|witness| witness.major).sum()
}

/// Asserts that the recorded reads are all that the device counted. The file system may write during the test: its
/// journal's superblock, or a commit 5 s after the file was made.
fn assert_device(recording: &Recording, disk: &Disk, counted: u64) {
    let of_disk = recording.requests().filter(|request| request.device == disk.device());
    let (writes, reads): (Vec<&RequestEvent>, Vec<&RequestEvent>) =
        of_disk.partition(|request| request.op.is_write());
    let recorded: u64 = reads.iter().map(|request| u64::from(request.bytes)).sum();
    assert_eq!(recorded, counted, "writes: {writes:#?}");
}

/// Returns the bytes that the device has read, by its own count.
fn read_bytes(disk: &Disk) -> u64 {
    stat_columns(disk.name())[2] * 512
}
