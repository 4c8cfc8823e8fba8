//! Bytes that reads found in the page cache, and bytes that they fetched.
//!
//! *Input*: programs that ask `mincore` which pages of a file are in memory before and after each of
//! their reads. The bytes that a read fetched by its trace must be those of its range that were not there
//! before, and the read-ahead those that were there afterwards.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::Path;

use blkkin_aggregator::trace::page_cache::CachedRead;

use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::mapping::{PAGE, cold_file};
use crate::support::missed_ends::until_complete;
use crate::support::overlay::Overlay;
use crate::support::recording::record_one;
use crate::support::{needs, or_skip};

const DISK: u64 = 64 << 20;
const PAGES: usize = 2_048;
const READS: usize = 400;
/// Bytes of the largest read.
const BYTES_MAX: usize = 48 << 10;

/// A read, and the pages in memory before and after it.
#[derive(Clone, Copy)]
#[repr(C)]
struct Witness {
    offset: u64,
    bytes: u64,
    before: [u8; PAGES],
    after: [u8; PAGES],
}

#[test]
fn random_reads_fetch_what_was_not_in_memory() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    assert_fetched(&disk, &disk.mount_point(), libc::POSIX_FADV_RANDOM, random_read);
}

#[test]
fn random_reads_on_overlayfs_fetch_what_was_not_in_memory() {
    needs!("losetup", "mkfs.ext4", "mount");
    let disk = or_skip!(Disk::ext4(DISK));
    let overlay = or_skip!(Overlay::mount(&disk));
    assert_fetched(&disk, &overlay.merged, libc::POSIX_FADV_RANDOM, random_read);
}

/// Returns offset and bytes of a step.
fn random_read(step: usize) -> (u64, u64) {
    let random = blend(step as u64);
    (random % (PAGES * PAGE - BYTES_MAX) as u64, 1 + (random >> 32) % BYTES_MAX as u64)
}

#[test]
fn sequential_reads_find_what_was_read_ahead() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let bytes = (PAGES * PAGE / READS) as u64;
    assert_fetched(&disk, &disk.mount_point(), libc::POSIX_FADV_NORMAL, |step| (step as u64 * bytes, bytes));
}

/// Reads a file in this folder, whose data is on the disk.
fn assert_fetched(disk: &Disk, folder: &Path, advice: i32, read: impl Fn(usize) -> (u64, u64)) {
    let path = folder.join("file");
    let witnesses = Witnesses::new();
    let mut read_from_disk = 0;
    let recording = until_complete(|| {
        let file = cold_file(&path, PAGES);
        let before = disk.statistics();
        let mut process = reader(disk, &file, advice, &read, &witnesses);
        let recording = record_one(&mut process);
        read_from_disk = disk.statistics().since(before).sectors * 512;
        recording
    });
    let mut calls = Vec::new();
    for trace in &recording.traces {
        let call = trace.call().filter(|call| call.call.name() == "pread64");
        calls.extend(call.map(|call| (call.enter, CachedRead::of(trace))));
    }
    calls.sort_by_key(|(enter, _)| *enter);
    assert_eq!(calls.len(), READS);
    let mut sum = CachedRead::default();
    let mut hits = 0;
    for ((_, found), witness) in calls.iter().zip(witnesses.all()) {
        let expected = witness.expected();
        assert_eq!(*found, Some(expected), "{} bytes at {}", witness.bytes, witness.offset);
        hits += usize::from(expected.fetched == 0);
        sum.bytes += expected.bytes;
        sum.fetched += expected.fetched;
        sum.read_ahead += expected.read_ahead;
    }
    println!("{READS} reads, {hits} hits, {sum:?}, {read_from_disk} bytes read from the disk");
    assert!((10..READS).contains(&hits), "{hits}");
    // The rest of the first and the last page is neither, and metadata of the file system comes from the disk too.
    let rest = 2 * PAGE * (READS - hits) + PAGES * PAGE / 20;
    assert!(
        (sum.fetched + sum.read_ahead..=sum.fetched + sum.read_ahead + rest as u64).contains(&read_from_disk)
    );
}

/// Mixes a number: the finalizer of splitmix64.
fn blend(number: u64) -> u64 {
    let mut state = number.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

/// Forks a process that reads, and looks before and after each read.
fn reader(
    disk: &Disk,
    file: &File,
    advice: i32,
    read: &impl Fn(usize) -> (u64, u64),
    witnesses: &Witnesses,
) -> GatedProcess {
    let mut buffer = vec![0u8; BYTES_MAX];
    let (fd, shared) = (file.as_raw_fd(), witnesses.0);
    let in_flight = File::open(format!("/sys/block/{}/inflight", disk.name())).unwrap();
    GatedProcess::new(move || {
        // SAFETY: buffers of these sizes, and memory that the processes share.
        unsafe {
            libc::posix_fadvise(fd, 0, 0, advice);
            let map =
                libc::mmap(std::ptr::null_mut(), PAGES * PAGE, libc::PROT_READ, libc::MAP_SHARED, fd, 0);
            for step in 0..READS {
                let witness = &mut *shared.add(step);
                (witness.offset, witness.bytes) = read(step);
                libc::mincore(map, PAGES * PAGE, witness.before.as_mut_ptr());
                let at = witness.offset as i64;
                if libc::pread(fd, buffer.as_mut_ptr().cast(), witness.bytes as usize, at) as u64
                    != witness.bytes
                {
                    return 1;
                }
                // Until what was read ahead has arrived. A request leaves this count before its pages are
                // marked as read.
                while !is_idle(&in_flight) {
                    libc::usleep(1_000);
                }
                libc::usleep(5_000);
                libc::mincore(map, PAGES * PAGE, witness.after.as_mut_ptr());
            }
        }
        0
    })
}

/// Returns whether the disk has no request.
fn is_idle(in_flight: &File) -> bool {
    let mut text = [0u8; 64];
    // SAFETY: passes a buffer of this length.
    let length = unsafe {
        libc::lseek(in_flight.as_raw_fd(), 0, libc::SEEK_SET);
        libc::read(in_flight.as_raw_fd(), text.as_mut_ptr().cast(), text.len())
    };
    text[..length.max(0) as usize].iter().all(|byte| matches!(byte, b'0' | b' ' | b'\n'))
}

/// Memory that a forked process shares.
struct Witnesses(*mut Witness);

impl Witnesses {
    fn new() -> Witnesses {
        let (protection, flags) =
            (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_SHARED | libc::MAP_ANONYMOUS);
        // SAFETY: maps new memory.
        let memory = unsafe {
            libc::mmap(std::ptr::null_mut(), READS * size_of::<Witness>(), protection, flags, -1, 0)
        };
        assert_ne!(memory, libc::MAP_FAILED);
        Witnesses(memory.cast())
    }

    fn all(&self) -> &[Witness] {
        // SAFETY: the process that wrote has ended.
        unsafe { std::slice::from_raw_parts(self.0, READS) }
    }
}

impl Witness {
    fn expected(&self) -> CachedRead {
        let mut expected = CachedRead { bytes: self.bytes, ..CachedRead::default() };
        let end = self.offset + self.bytes;
        for (page, (before, after)) in self.before.iter().zip(&self.after).enumerate() {
            let came = before & 1 == 0 && after & 1 == 1;
            let (start, next) = ((page * PAGE) as u64, ((page + 1) * PAGE) as u64);
            let own = end.min(next).saturating_sub(self.offset.max(start));
            if came {
                expected.fetched += own;
                expected.read_ahead += if own == 0 { PAGE as u64 } else { 0 };
            }
        }
        expected
    }
}
