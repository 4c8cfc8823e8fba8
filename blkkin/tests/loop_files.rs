//! A loop device that writes through the page cache of its file, as `losetup` makes it: what the kernel
//! writes to the lower disk later leads to the loop device's bios, and to the calls above them.
//!
//! *Input*: programs that write sectors with their own number, and the lower disk's content afterwards.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::path::Path;

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::BioEvent;
use blkkin_wire::ids::{DeviceId, SpanId};
use blkkin_wire::page_origin::{PageKind, PageOriginEvent, WriterEvidence};

use crate::support;
use crate::support::disk::{Disk, Upper, sync};
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::overlay::Overlay;
use crate::support::recording::{Recorder, Recording};
use crate::support::tools::is_guest;
use crate::support::{needs, or_skip};
use crate::writeback::writers;
use crate::writeback::writers::SECTOR;

const LOWER: u64 = 96 << 20;
const UPPER: u64 = 32 << 20;
/// Offset of the device in its file, in the test with one.
const OFFSET: u64 = 1 << 20;
const WRITERS: u64 = 4;

fn number_of_steps() -> usize {
    if is_guest() { 200 } else { 1_500 }
}

/// A writer: its number and the number of its step.
type Author = (u64, usize);

/// The writers' file system is on the loop device: the kernel writes their pages to it, and later
/// the pages of its file to the disk.
#[test]
fn each_sector_below_a_mounted_loop_device_is_from_a_named_writer() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(LOWER));
    let upper = or_skip!(disk.upper_with(UPPER, &[]));
    let folder = or_skip!(disk.mount_upper(&upper));
    sectors_are_from_named_writers(
        &disk,
        &upper,
        0,
        || {
            writers::remove_files(&folder);
            (0..WRITERS).map(|writer| writers::process(&folder, writer, number_of_steps())).collect()
        },
        |writer| writers::writes(writer, number_of_steps()),
        || sync(&folder),
    );
}

/// The programs write to the device itself, past its own page cache, and the device begins in the middle
/// of its file.
#[test]
fn each_sector_that_was_written_to_a_loop_device_is_from_a_named_call() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(LOWER));
    let upper = or_skip!(disk.upper_with(UPPER, &[&format!("--offset={OFFSET}")]));
    let processes = || (0..WRITERS).map(|writer| direct_writer(&upper.node, writer)).collect();
    let each_step = |_| (0..number_of_steps()).collect();
    sectors_are_from_named_writers(&disk, &upper, OFFSET, processes, each_step, || ());
}

/// The same, with the device's file on overlayfs.
#[test]
fn each_sector_of_a_loop_device_on_overlayfs_is_from_a_named_call() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(LOWER));
    let overlay = or_skip!(Overlay::mount(&disk));
    let upper = or_skip!(disk.upper_in(&overlay.merged, UPPER, &[]));
    let processes = || (0..WRITERS).map(|writer| direct_writer(&upper.node, writer)).collect();
    let each_step = |_| (0..number_of_steps()).collect();
    sectors_are_from_named_writers(&disk, &upper, 0, processes, each_step, || ());
}

/// Forks a process that writes each block of its quarter of the device, every other one twice.
fn direct_writer(node: &Path, writer: u64) -> GatedProcess {
    let device = support::direct::open(node);
    GatedProcess::new(move || {
        let blocks = number_of_steps() as u64;
        for step in 0..blocks {
            let block = writer * blocks + step / 3 * 2 + step % 3 % 2;
            if writers::write_direct(&device, block, (writer, step as usize)).is_err() {
                return 1;
            }
        }
        0
    })
}

fn sectors_are_from_named_writers(
    disk: &Disk,
    upper: &Upper,
    offset: u64,
    processes: impl Fn() -> Vec<GatedProcess>,
    writes: impl Fn(u64) -> Vec<usize>,
    sync_upper: impl Fn(),
) {
    let mut pids = Vec::new();
    let recording = until_complete(|| {
        let mut processes = processes();
        pids = processes.iter().map(GatedProcess::pid).collect();
        let recorder = Recorder::start(&TracerConfig::default(), &pids);
        processes.iter_mut().for_each(GatedProcess::release);
        processes.iter_mut().for_each(|process| assert_eq!(process.run_to_exit(), 0));
        sync_upper();
        sync(&disk.mount_point());
        recorder.finish()
    });
    let authors = writers::authors(&recording, &pids, writes);
    let truth = Truth::new(&recording, authors, upper.device(), offset);
    let checked = truth.check(disk, &recording);
    println!("{checked:?}");
    assert_eq!(checked.wrong, 0, "{checked:?}");
    assert!(checked.sectors > 4_000 && checked.named >= 100, "{checked:?}");
    assert!(checked.not_named * 1_000 <= checked.sectors, "{checked:?}");
}

/// Writes of the programs and of the loop device.
struct Truth<'a> {
    authors: HashMap<SpanId, Author>,
    /// Origins of bios.
    origins: HashMap<SpanId, &'a PageOriginEvent>,
    /// Write bios of the loop device by the root of their trace, with their ranges of the file.
    upper: HashMap<SpanId, Vec<(Range<u64>, &'a BioEvent)>>,
}

#[derive(Debug, Default)]
struct Checked {
    /// Sectors of the lower disk that a writer wrote and a recorded bio carried.
    sectors: u64,
    not_named: u64,
    /// Named writers.
    named: u64,
    /// Named writers without a bio of the loop device that wrote into the range before.
    wrong: u64,
}

impl<'a> Truth<'a> {
    fn new(
        recording: &'a Recording,
        authors: HashMap<SpanId, Author>,
        device: DeviceId,
        offset: u64,
    ) -> Truth<'a> {
        let mut upper: HashMap<SpanId, Vec<_>> = HashMap::new();
        for bio in recording.writes_to(device) {
            let start = offset + bio.sector.0 * SECTOR as u64;
            upper.entry(bio.root).or_default().push((start..start + u64::from(bio.bytes), bio));
        }
        let origins = recording.page_origins().map(|origin| (origin.bio, origin)).collect();
        Truth { authors, origins, upper }
    }

    fn check(&self, disk: &Disk, recording: &Recording) -> Checked {
        let mut checked = Checked::default();
        recording.writes_to(disk.device()).into_iter().for_each(|bio| self.check_names(bio, &mut checked));
        let last = recording.last_writes(disk.device());
        let mut named: HashMap<SpanId, HashSet<Author>> = HashMap::new();
        for (number, sector) in (0..).zip(disk.content().chunks_exact(SECTOR)) {
            let (Some(author), Some(bio)) = (writers::author(sector), last.get(&number)) else { continue };
            checked.sectors += 1;
            let named = named.entry(bio.span).or_insert_with(|| {
                self.origins.get(&bio.span).map(|origin| self.named(origin)).unwrap_or_default()
            });
            if !named.contains(&author) {
                checked.not_named += 1;
                if checked.not_named <= 3 {
                    println!("sector {number}: {author:?} is not among {named:?}\n{bio:?}");
                }
            }
        }
        checked
    }

    /// Returns the authors that an origin names, through the loop device.
    fn named(&self, origin: &PageOriginEvent) -> HashSet<Author> {
        let bios = |root: &SpanId| self.upper.get(root).into_iter().flatten();
        let of_root = |root: SpanId| {
            let of_bios = bios(&root).filter_map(|(_, bio)| self.origins.get(&bio.span));
            let writers = of_bios.flat_map(|origin| &origin.writers).map(|writer| writer.span);
            writers.chain([root]).collect::<Vec<_>>()
        };
        let spans = origin.writers.iter().flat_map(|writer| of_root(writer.span));
        spans.filter_map(|span| self.authors.get(&span).copied()).collect()
    }

    /// Checks that the loop device wrote into the bio's range before, for each writer.
    fn check_names(&self, bio: &BioEvent, checked: &mut Checked) {
        let Some(origin) = self.origins.get(&bio.span) else { return };
        for writer in origin.writers.iter().filter(|_| origin.kind == PageKind::File) {
            checked.named += 1;
            let in_time = |upper: &BioEvent| match writer.evidence {
                WriterEvidence::LoopDevice => upper.end <= origin.time,
                _ => upper.queue <= bio.end,
            };
            let wrote = self.upper.get(&writer.span).into_iter().flatten().any(|(range, upper)| {
                let overlaps = |part: Range<u64>| part.start < range.end && range.start < part.end;
                origin.ranges().any(overlaps) && in_time(upper)
            });
            if !wrote {
                checked.wrong += 1;
                println!("{writer:?} of {origin:?}");
            }
        }
    }
}
