//! The writers of what the kernel writes back later.
//!
//! *Input*: programs that write blocks with their own number into files that they share, and the
//! disk's content afterwards. Each sector on the disk must be from a write that the trace names for
//! the bio that carried the sector last.

pub(crate) mod writers;

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::ops::Range;
use std::path::Path;

use blkkin_tracer::{TraceScope, TracerConfig};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, SyscallEvent};
use blkkin_wire::ids::{Pid, SpanId};
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, PageWriter, WritebackReason, WriterEvidence};

use crate::support::disk::{Disk, sync};
use crate::support::gated_process::GatedProcess;
use crate::support::memory_limit::MemoryLimit;
use crate::support::missed_ends::until_complete;
use crate::support::overlay::Overlay;
use crate::support::recording::{Recorder, Recording, record_one};
use crate::support::single_process::c_path;
use crate::support::tools::is_guest;
use crate::support::uring::{Mode, append_buffered};
use crate::support::{needs, or_skip};
use writers::SECTOR;

const WRITERS: u64 = 8;
/// Time for which a bio's event waits behind its end for the calls that were under way (`END_WAIT` of
/// `tracer/src/enrich/page_origins`).
const END_WAIT: u64 = 100_000_000;
/// Time for which a bio's event waits behind its queueing for the calls that were open then (`WAIT_MAX` of
/// `tracer/src/enrich/page_origins`).
const WAIT_MAX: u64 = 2_000_000_000;
/// Time for which a writer stays known after its bytes were written back (`CARRIED_KEPT` of
/// `tracer/src/enrich/page_origins`).
const CARRIED_KEPT: u64 = 1_000_000_000;
/// Steps of a writer; an emulated guest is slower.
fn number_of_steps() -> usize {
    if is_guest() { 400 } else { 3_000 }
}

#[test]
fn each_sector_of_ext4_is_from_a_named_writer() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(96 << 20));
    sectors_are_from_named_writers(&disk, &disk.mount_point(), None);
}

#[test]
fn each_sector_of_xfs_is_from_a_named_writer() {
    needs!("losetup", "mkfs.xfs");
    let disk = or_skip!(Disk::with_file_system(320 << 20, "xfs"));
    sectors_are_from_named_writers(&disk, &disk.mount_point(), None);
}

#[test]
fn each_sector_of_btrfs_is_from_a_named_writer() {
    needs!("losetup", "mkfs.btrfs");
    let disk = or_skip!(Disk::with_file_system(256 << 20, "btrfs"));
    sectors_are_from_named_writers(&disk, &disk.mount_point(), None);
}

/// The kernel writes back the files of the upper layer; the programs write to those of the mount.
#[test]
fn each_sector_below_overlayfs_is_from_a_named_writer() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(96 << 20));
    let overlay = or_skip!(Overlay::mount(&disk));
    sectors_are_from_named_writers(&disk, &overlay.merged, None);
}

/// The writers have room for half of their files: the kernel writes pages back while others are
/// written.
#[test]
fn each_sector_is_from_a_named_writer_under_memory_pressure() {
    needs!("losetup", "mkfs.ext4");
    let limit = or_skip!(MemoryLimit::new(4 << 20));
    let disk = or_skip!(Disk::ext4(96 << 20));
    let recording = sectors_are_from_named_writers(&disk, &disk.mount_point(), Some(&limit));
    let pressure = Some(WritebackReason::MemoryPressure);
    let origins: Vec<_> = recording.page_origins().filter(|origin| origin.reason == pressure).collect();
    println!("{} bios because of memory pressure", origins.len());
    assert!(!origins.is_empty());
}

/// Runs the writers on files in this folder, whose data is on the disk.
fn sectors_are_from_named_writers(disk: &Disk, folder: &Path, limit: Option<&MemoryLimit>) -> Recording {
    let mut pids = Vec::new();
    // The bio that carried a sector last must not be one whose end was missed.
    let recording = until_complete(|| {
        writers::remove_files(folder);
        let mut processes: Vec<GatedProcess> =
            (0..WRITERS).map(|writer| writers::process(folder, writer, number_of_steps())).collect();
        pids = processes.iter().map(GatedProcess::pid).collect();
        limit.into_iter().for_each(|limit| pids.iter().for_each(|pid| limit.add(*pid)));
        let recorder = Recorder::start(&TracerConfig::default(), &pids);
        processes.iter_mut().for_each(GatedProcess::release);
        processes.iter_mut().for_each(|process| assert_eq!(process.run_to_exit(), 0));
        sync(&disk.mount_point());
        recorder.finish()
    });
    let truth = Truth::new(&recording, &pids);
    let checked = truth.check_disk(disk, &recording);
    println!("{checked:?}");
    assert_eq!(checked.wrong, 0, "{checked:?}");
    assert!(checked.sectors > 4_000, "{checked:?}");
    assert!(checked.not_named * 1_000 <= checked.sectors, "{checked:?}");
    assert!((checked.late + checked.forgotten) * 20 <= checked.sectors, "{checked:?}");
    recording
}

/// The writes of all writers.
struct Truth<'a> {
    /// Writer and its step, by the span of its call.
    by_span: HashMap<SpanId, (u64, usize)>,
    calls: HashMap<SpanId, &'a SyscallEvent>,
}

#[derive(Debug, Default)]
struct Checked {
    /// Sectors of the disk that a writer wrote and a traced bio carried.
    sectors: u64,
    not_named: u64,
    /// Not named because the call returned too late, more than [`END_WAIT`] after the bio's end or [`WAIT_MAX`] after
    /// its queueing: a stated limit, which an overloaded machine shows.
    late: u64,
    /// Not named because a bio with the page was queued during the call or soon after it, and the next bio came later
    /// than [`CARRIED_KEPT`]: the page became dirty again behind its cleaning. A stated limit, which an overloaded guest
    /// shows. There a bio was queued 15 ms after such a call.
    forgotten: u64,
    /// Named writers whose call did not write into the bio's range of its file.
    wrong: u64,
    named: u64,
    /// First sector that is not named, with the times of its call and of the bios that carried it.
    first_not_named: String,
}

impl<'a> Truth<'a> {
    fn new(recording: &'a Recording, pids: &[Pid]) -> Truth<'a> {
        let writes = |writer| writers::writes(writer, number_of_steps());
        let by_span = writers::authors(recording, pids, writes);
        let calls = recording.calls_named("pwrite64").into_iter().map(|call| (call.span, call)).collect();
        Truth { by_span, calls }
    }

    fn check_disk(&self, disk: &Disk, recording: &Recording) -> Checked {
        let mut checked = Checked::default();
        let origins: HashMap<SpanId, &PageOriginEvent> =
            recording.page_origins().map(|origin| (origin.bio, origin)).collect();
        self.check_names(&origins, &mut checked);
        let sectors = |bio: &BioEvent| bio.sector.0..bio.sector.0 + u64::from(bio.bytes) / 512;
        let (last, writes) = (recording.last_writes(disk.device()), recording.writes_to(disk.device()));
        for (number, sector) in (0..).zip(disk.content().chunks_exact(SECTOR)) {
            let (Some(author), Some(bio)) = (writers::author(sector), last.get(&number)) else { continue };
            checked.sectors += 1;
            let named = origins.get(&bio.span).is_some_and(|origin| {
                origin.writers.iter().any(|writer| self.by_span.get(&writer.span) == Some(&author))
            });
            if !named {
                let call =
                    self.by_span.iter().find(|(_, of)| **of == author).map(|(span, _)| self.calls[span]);
                let last_known = (bio.end.0 + END_WAIT).min(bio.queue.0 + WAIT_MAX);
                if call.is_some_and(|call| call.exit.0 > last_known) {
                    checked.late += 1;
                    continue;
                }
                let is_forgotten = |call: &SyscallEvent| {
                    writes.iter().any(|earlier| {
                        sectors(earlier).contains(&number)
                            && (call.enter.0..call.exit.0 + END_WAIT).contains(&earlier.queue.0)
                            && earlier.queue.0 + CARRIED_KEPT < bio.queue.0
                    })
                };
                if call.is_some_and(is_forgotten) {
                    checked.forgotten += 1;
                    continue;
                }
                checked.not_named += 1;
                let origin = origins.get(&bio.span);
                if checked.not_named <= 5 {
                    println!("sector {number}: {author:?} is not named: {call:?}\n{bio:?}\n{origin:#?}");
                }
                if checked.first_not_named.is_empty() {
                    let since = |time: MonotonicNs| call.map(|call| time.0 as i64 - call.enter.0 as i64);
                    let of_sector = writes.iter().filter(|bio| sectors(bio).contains(&number));
                    checked.first_not_named = format!(
                        "{number}: ns from the call's begin: its end {:?}, begin and end of the sector's bios {:?}; \
                         {:?} writers, {:?} bytes without one",
                        call.and_then(|call| since(call.exit)),
                        of_sector.map(|bio| (since(bio.queue), since(bio.end))).collect::<Vec<_>>(),
                        origin.map(|origin| origin.writers.len()),
                        origin.map(|origin| origin.bytes_unattributed),
                    );
                }
            }
        }
        checked
    }

    /// Checks that each named writer's own record has a write into the range, before its
    /// bio ended.
    fn check_names(&self, origins: &HashMap<SpanId, &PageOriginEvent>, checked: &mut Checked) {
        for origin in origins.values().filter(|origin| origin.kind == PageKind::File) {
            for writer in &origin.writers {
                checked.named += 1;
                let Some(call) = self.calls.get(&writer.span) else { continue };
                let (start, bytes) = (call.args[3], call.args[2]);
                let in_range =
                    |range: Range<u64>| range.end.min(start + bytes).saturating_sub(range.start.max(start));
                let overlaps = origin.ranges().map(in_range).sum::<u64>() >= u64::from(writer.bytes);
                let same_file = call.file.map(|open| open.file.unnamed()) == origin.file;
                let in_time = call.enter <= origin.time || writer.evidence == WriterEvidence::DuringTransfer;
                if !overlaps || !same_file || !in_time {
                    checked.wrong += 1;
                    println!("{writer:?} of {origin:?}: {call:?}");
                }
            }
        }
    }
}

/// On a whole machine, writes by programs that are not marked are named too.
#[test]
fn a_file_that_is_written_and_closed_is_named_later() {
    needs!("losetup", "mkfs.ext4", "dd");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let config = TracerConfig { scope: TraceScope::All, kernel_origin: true, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[]);
    let file = disk.mount_point().join("file");
    let dd = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "count=64", "status=none"])
        .arg(format!("of={}", file.display()))
        .status();
    assert!(dd.unwrap().success());
    sync(&disk.mount_point());
    let recording = recorder.finish();
    let writes: Vec<_> = recording.calls_named("write").iter().map(|call| call.span).collect();
    // The kernel may write a page back twice: while dd writes, and afterwards.
    let mut written = HashSet::new();
    for origin in recording.page_origins().filter(|origin| {
        origin.writers.iter().any(|writer| writes.contains(&writer.span)) && origin.bytes_unattributed == 0
    }) {
        written.extend(origin.ranges().flat_map(|range| range.step_by(4_096)));
    }
    assert_eq!(
        written,
        (0..4 << 20).step_by(4_096).collect(),
        "{:#?}",
        recording.page_origins().collect::<Vec<_>>()
    );
}

/// Buffered writes through io_uring are writers, under the call that submitted them or, where a thread
/// of the kernel polls the ring, under their own span. Each is found by its range: also one at the file's own
/// position, and one at the end of the file.
#[test]
fn requests_of_io_uring_are_writers() {
    const BLOCKS: u64 = 256;
    needs!("losetup", "mkfs.ext4");
    for (mode, offset, append) in [
        (Mode::Plain, true, false),
        (Mode::Plain, false, false),
        (Mode::Plain, true, true),
        (Mode::Worker, true, false),
        (Mode::Sqpoll, true, false),
    ] {
        let disk = or_skip!(Disk::ext4(64 << 20));
        let path = disk.mount_point().join("file");
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let mut options = File::options();
                let options = if append { options.append(true) } else { options.write(true) };
                let file = options.create(true).open(&path).unwrap();
                let failed = append_buffered(&file, mode, BLOCKS, offset);
                if failed != 0 { failed } else { -i32::from(file.sync_all().is_err()) }
            });
            let recording = record_one(&mut process);
            std::fs::remove_file(&path).unwrap();
            recording
        });
        let mut requests: Vec<_> = recording.async_ios().filter(|io| io.writes_page_cache).collect();
        requests.sort_by_key(|io| io.user_data);
        assert_eq!(requests.len() as u64, BLOCKS, "{mode:?}");
        for io in &requests {
            assert_eq!(io.offset, Some(io.user_data as i64 * 4_096), "{mode:?} {io:#?}");
            assert_eq!(io.submitter.is_none(), mode == Mode::Sqpoll, "{io:#?}");
        }
        let file = requests[0].file.unwrap().unnamed();
        let mut bytes = 0;
        for origin in recording.page_origins().filter(|origin| origin.file == Some(file)) {
            let blocks = origin.offset / 4_096..(origin.offset + u64::from(origin.bytes)) / 4_096;
            let expected: HashSet<SpanId> = blocks.map(|block| requests[block as usize].root()).collect();
            let named: HashSet<SpanId> = origin.writers.iter().map(|writer| writer.span).collect();
            assert_eq!((named, origin.bytes_unattributed), (expected, 0), "{mode:?} {origin:#?}");
            bytes += u64::from(origin.bytes);
        }
        assert_eq!(bytes, BLOCKS * 4_096, "{mode:?}");
    }
}

/// Stores into a mapping have no call: the writer is the task, from the store that made the page
/// writable.
#[test]
fn stores_into_a_mapping_are_named() {
    const PAGES: usize = 64;
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(64 << 20));
    let path = c_path(&disk.mount_point().join("mapped"));
    let bytes = PAGES * 4_096;
    let mut process = GatedProcess::new(|| {
        // SAFETY: the mapping has as many bytes as the file.
        unsafe {
            let fd = libc::open(path.as_ptr(), libc::O_RDWR | libc::O_CREAT, 0o644);
            libc::ftruncate(fd, bytes as i64);
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let memory = libc::mmap(std::ptr::null_mut(), bytes, access, libc::MAP_SHARED, fd, 0);
            for page in 0..PAGES {
                memory.cast::<u8>().add(page * 4_096).write_volatile(1);
            }
        }
        0
    });
    let config = TracerConfig { dirty_pages: true, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[process.pid()]);
    assert_eq!(process.run_to_exit(), 0);
    sync(&disk.mount_point());
    let recording = recorder.finish();
    let tasks: HashMap<_, _> = recording.tasks().map(|task| (task.task.id, task.pid)).collect();
    let of_the_process = |origin: &&PageOriginEvent| {
        let writer = |writer: &PageWriter| tasks.get(&writer.task.id) == Some(&process.pid());
        origin.kind == PageKind::File && origin.writers.iter().any(writer)
    };
    let origins: Vec<_> = recording.page_origins().filter(of_the_process).collect();
    let written: u32 = origins.iter().map(|origin| origin.bytes - origin.bytes_unattributed).sum();
    assert_eq!(written as usize, bytes, "{origins:#?}");
    let mapped = |writer: &PageWriter| writer.evidence == WriterEvidence::MappedStore;
    assert!(origins.iter().all(|origin| origin.writers.iter().all(mapped)), "{origins:#?}");
}
