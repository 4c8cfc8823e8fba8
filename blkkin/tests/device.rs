//! Requests of a device, also those of the kernel: `TraceScope::All` with a device filter.
//!
//! *Input*: an ext4 on a loop device under journal commits, write-back, read-ahead and discards.
//! The tracer must record as many requests and sectors as the kernel counts (`/sys/block/*/stat`).

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::fd::AsRawFd;
use std::ptr::null_mut;

use blkkin_tracer::{Filter, TraceScope, TracerConfig};
use blkkin_wire::event::RequestEvent;
use blkkin_wire::ids::SpanId;

use crate::support::disk::{Disk, Statistics};
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::queue::QueueSettings;
use crate::support::recording::{Recorder, Recording, record_one};
use crate::support::single_process::c_path;
use crate::support::{needs, or_skip};

const DISK: u64 = 64 << 20;
const ROUNDS: usize = 60;
const PRIVATE_PAGE: libc::c_int = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
/// `_IOWR('X', 121, struct fstrim_range)` (include/uapi/linux/fs.h), the same on x86_64 and
/// aarch64.
const FITRIM: libc::Ioctl = 0xc018_5879_u32 as libc::Ioctl;

/// Durable appends (journal, flushes), data written back by the kernel, reads with read-ahead, and
/// discards.
#[test]
fn requests_of_a_busy_file_system() {
    needs!("losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(DISK));
    let config = TracerConfig {
        scope: TraceScope::All,
        filter: Filter { devices: vec![disk.device()], ..Filter::default() },
        kernel_origin: true,
        ..TracerConfig::default()
    };
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let recorder = Recorder::start(&config, &[]);
        let before = disk.statistics();
        work(&disk);
        counted = disk.statistics().since(before);
        recorder.finish()
    });
    let sectors = recording.requests().map(|request| u64::from(request.bytes) / 512).sum();
    let recorded = Statistics { requests: recording.requests().count() as u64, sectors };
    let kinds = ["read", "write", "flush", "discard"].map(|kind| {
        (kind, recording.requests().filter(|request| request.op.name_for(request.bytes) == kind).count())
    });
    println!("{kinds:?}");
    assert_eq!(recorded, counted, "{kinds:?}");
    assert!(kinds.iter().all(|(_, count)| *count > 0), "{kinds:?}");
    assert!(recording.requests().all(|request| request.device == disk.device()));
    assert_bios_fill_their_requests(&recording);
}

/// The kernel sets a request's owner whether or not it counts (`blk_account_io_start`,
/// block/blk-mq.c), so the tracer needs no `iostats`.
#[test]
fn requests_of_a_disk_without_statistics() {
    const WRITES: usize = 8;
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    let _queue = or_skip!(QueueSettings::set(&disk, &[("iostats", "0")]));
    let target = c_path(disk.node());
    let write_each = || {
        // SAFETY: a string and a page that outlive the calls.
        unsafe {
            let page = libc::mmap(null_mut(), 4096, libc::PROT_READ | libc::PROT_WRITE, PRIVATE_PAGE, -1, 0);
            let fd = libc::open(target.as_ptr(), libc::O_WRONLY | libc::O_DIRECT);
            i32::from((0..WRITES).any(|_| libc::write(fd, page, 4096) != 4096))
        }
    };
    let counted = disk.statistics();
    let recording = until_complete(|| record_one(&mut GatedProcess::new(write_each)));
    assert_eq!(disk.statistics(), counted, "the kernel counts");
    let calls: Vec<_> = recording.calls_named("write").iter().map(|call| call.span).collect();
    let requests: Vec<_> = recording.requests().filter(|request| request.device == disk.device()).collect();
    assert_eq!((calls.len(), requests.len()), (WRITES, WRITES));
    assert!(requests.iter().all(|request| calls.contains(&request.root) && request.bytes == 4096));
}

/// Asserts that the bios' bytes equal the requests' bytes after all merges and splits. Both are
/// counted independently.
fn assert_bios_fill_their_requests(recording: &Recording) {
    let requests: HashMap<SpanId, &RequestEvent> = recording.requests().map(|r| (r.span, r)).collect();
    let split: HashSet<SpanId> = recording.bios().filter(|bio| bio.split).map(|bio| bio.span).collect();
    // Bytes, bios, and first bios.
    let mut by_request: HashMap<SpanId, (u64, u16, u16)> = HashMap::new();
    let mut shared: HashSet<SpanId> = requests
        .values()
        .filter(|r| r.parent.is_some_and(|bio| split.contains(&bio)))
        .map(|r| r.span)
        .collect();
    for bio in recording.bios() {
        let request = requests[&bio.request.unwrap()];
        assert_eq!(request.op.name(), bio.op.name(), "{bio:#?} {request:#?}");
        assert_eq!(request.parent == Some(bio.span), bio.first, "{bio:#?} {request:#?}");
        assert_eq!(request.complete, bio.end, "{bio:#?} {request:#?}");
        let sum = by_request.entry(request.span).or_default();
        *sum = (sum.0 + u64::from(bio.bytes), sum.1 + 1, sum.2 + u16::from(bio.first));
        if bio.split {
            shared.insert(request.span);
        }
    }
    let merged = by_request.values().filter(|sum| sum.1 > 1).count();
    println!("{merged} of {} requests merged, {} bios split", requests.len(), split.len());
    assert!(merged > 0);
    for request in requests.values().filter(|request| !shared.contains(&request.span)) {
        assert_eq!(by_request[&request.span], (u64::from(request.bytes), request.bios, 1), "{request:#?}");
    }
    let bytes: u64 = requests.values().map(|request| u64::from(request.bytes)).sum();
    assert_eq!(recording.bios().map(|bio| u64::from(bio.bytes)).sum::<u64>(), bytes);
}

/// Runs the workload; all data is on the device when it returns.
fn work(disk: &Disk) {
    let folder = disk.mount_point();
    let mut log = File::create(folder.join("log")).unwrap();
    for round in 0..ROUNDS {
        log.write_all(&[round as u8; 1000]).unwrap();
        if round % 2 == 0 { log.sync_data().unwrap() } else { log.sync_all().unwrap() }
    }
    log.rewind().unwrap();
    for round in 0..ROUNDS {
        // Only data changes: no commit, so the flush is a separate request.
        log.write_all(&[round as u8; 100]).unwrap();
        log.sync_data().unwrap();
    }
    fs::write(folder.join("big"), vec![1u8; 8 << 20]).unwrap();
    let big = File::open(folder.join("big")).unwrap();
    big.sync_all().unwrap();
    // SAFETY: numbers only; then a structure that outlives the call.
    unsafe { libc::posix_fadvise(big.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(fs::read(folder.join("big")).unwrap().len(), 8 << 20);
    fs::remove_file(folder.join("big")).unwrap();
    File::open(&folder).unwrap().sync_all().unwrap();
    // `struct fstrim_range`: start, length, minimum length.
    let mut range = [0u64, u64::MAX, 0];
    let top = File::open(&folder).unwrap();
    // SAFETY: a structure of three numbers that outlives the call.
    let trimmed = unsafe { libc::ioctl(top.as_raw_fd(), FITRIM, range.as_mut_ptr()) };
    assert_eq!(trimmed, 0, "{}", std::io::Error::last_os_error());
    rustix::fs::syncfs(&top).unwrap();
}
