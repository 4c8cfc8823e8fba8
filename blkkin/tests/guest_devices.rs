//! Device features that the disks of the other tests lack: striping over two disks, planted
//! failures, and operations without data. Each bio and request has its own op and status, and is a
//! child of its call.
//!
//! *Input*: dm-stripe, dm-flakey, null_blk with a bad sector, and a disk with discard, made by
//! `xtask/src/vm/init.sh` (guests only). The expected sectors follow from the device-mapper's
//! table, the expected errors from the planted faults.

use std::collections::BTreeMap;

use blkkin_wire::event::{BioEvent, Submitter, SyscallOutcome};
use blkkin_wire::ids::DeviceId;

use crate::common;
use crate::support::direct::{self, BLOCK};
use crate::support::guest::{ioctl, name, node, recorded, traces};
use crate::support::needs_guest;
use crate::support::tools::block_device;

/// Size and start of a chunk in sectors, as `init.sh` gives them to the device-mapper.
const CHUNK: u64 = 16;
const START: u64 = 2048;
/// Writes to the stripes: first block and number of blocks.
const WRITES: [(u64, u64); 6] = [(0, 1), (1, 2), (3, 4), (7, 1), (2, 8), (5, 5)];

/// A bio that spans chunks is split into one per chunk. Each is a child of the upper bio, on the
/// sector that the table gives.
#[test]
fn stripe_bios_are_children_of_the_bio_that_spans_them() {
    needs_guest!();
    let target = node();
    let recording = recorded(move || {
        let device = direct::open(&target);
        for (block, count) in WRITES {
            direct::write_many(&device, block * BLOCK as u64, count as usize).unwrap();
        }
        0
    });
    let disks = ["vda", "vdb"].map(block_device);
    let mut parts_total = 0;
    for ((block, count), trace) in WRITES.into_iter().zip(traces(&recording, "pwrite64")) {
        let (from, to) = (block * 8, (block + count) * 8);
        let own: Vec<&BioEvent> = trace.bios.iter().filter(|bio| trace.queued_by_root(bio)).collect();
        let [upper] = own[..] else { panic!("{trace:#?}") };
        assert_eq!((upper.sector.0, u64::from(upper.bytes) / 512), (from, to - from), "{trace:#?}");
        let mut expected: Vec<(DeviceId, u64, u64)> = Vec::new();
        for chunk in from / CHUNK..to.div_ceil(CHUNK) {
            let (begin, end) = (from.max(chunk * CHUNK), to.min((chunk + 1) * CHUNK));
            let lower_sector = START + chunk / 2 * CHUNK + begin % CHUNK;
            expected.push((disks[(chunk % 2) as usize], lower_sector, end - begin));
        }
        expected.sort_unstable();
        let children = trace.bios.iter().filter(|bio| bio.submitter == Submitter::Span(upper.span));
        let mut parts: Vec<_> =
            children.map(|bio| (bio.device, bio.sector.0, u64::from(bio.bytes) / 512)).collect();
        parts.sort_unstable();
        assert_eq!(parts, expected, "{trace:#?}");
        assert_eq!(trace.bios.len(), 1 + parts.len(), "{trace:#?}");
        let requested: u64 = trace.requests.iter().map(|request| u64::from(request.bytes)).sum();
        assert_eq!(requested, count * BLOCK as u64, "{trace:#?}");
        parts_total += parts.len();
    }
    println!("{} bios went on as {parts_total}", WRITES.len());
}

/// dm-flakey fails everything: the failed bio has its device, and the lower disk gets no request.
#[test]
fn a_failure_of_a_flakey_device_names_that_device() {
    needs_guest!();
    let target = node();
    let recording = recorded(move || {
        let device = direct::open(&target);
        let refused =
            |result: std::io::Result<()>| result.is_err_and(|e| e.raw_os_error() == Some(libc::EIO));
        i32::from(!refused(direct::read_at(&device, 0)) || !refused(direct::write_at(&device, 0)))
    });
    for call in ["pread64", "pwrite64"] {
        let [trace] = traces(&recording, call)[..] else { panic!("{:#?}", recording.traces) };
        assert_eq!(trace.call().unwrap().outcome, SyscallOutcome::Returned(-i64::from(libc::EIO)));
        let [bio] = &trace.bios[..] else { panic!("{trace:#?}") };
        assert_eq!((bio.device, bio.status.name()), (block_device("dm-0"), "I/O error"), "{trace:#?}");
        assert!(trace.requests.is_empty(), "{trace:#?}");
    }
}

/// null_blk fails a read of its bad sector; bio, request, system call and report all show the
/// error.
#[test]
fn a_bad_sector_fails_at_its_place() {
    needs_guest!();
    const BAD: u64 = 104;
    let target = node();
    let recording = recorded(move || {
        let device = direct::open(&target);
        let good =
            [BAD - 8, BAD + 8].into_iter().all(|sector| direct::read_at(&device, sector * 512).is_ok());
        i32::from(!good || direct::read_at(&device, BAD * 512).is_ok())
    });
    let traces = traces(&recording, "pread64");
    assert_eq!(traces.len(), 3);
    for trace in traces {
        let ([bio], [request]) = (&trace.bios[..], &trace.requests[..]) else { panic!("{trace:#?}") };
        let bad = request.sector.0 == BAD;
        let name = if bad { "I/O error" } else { "ok" };
        assert_eq!((bio.status.name(), request.status.name()), (name, name), "{trace:#?}");
        let returned = if bad { -i64::from(libc::EIO) } else { BLOCK as i64 };
        assert_eq!(trace.call().unwrap().outcome, SyscallOutcome::Returned(returned), "{trace:#?}");
    }
    let command = format!("dd if={} of=/dev/null bs=4096 skip=13 count=1 iflag=direct", node().display());
    let run = common::run(&["run", "--slowest", "1", "--", "busybox", "sh", "-c", &command]);
    let failed = format!("failed: 1 read on {}", name());
    assert!(run.stderr.contains(&failed) && run.stderr.contains(": I/O error"), "{}", run.stderr);
}

/// `_IO(0x12, 119)` and `_IO(0x12, 127)` (include/uapi/linux/fs.h).
const BLKDISCARD: u32 = 0x1277;
const BLKZEROOUT: u32 = 0x127f;

#[test]
fn a_discard_and_zeroes_have_their_own_op() {
    needs_guest!();
    let operations: [(u32, [u64; 2], &str); 2] =
        [(BLKDISCARD, [1 << 20, 64 << 10], "discard"), (BLKZEROOUT, [2 << 20, 128 << 10], "write-zeroes")];
    let target = node();
    let recording = recorded(move || {
        let device = direct::open(&target);
        i32::from(operations.iter().any(|(request, range, _)| !ioctl(&device, *request, range)))
    });
    let traces = traces(&recording, "ioctl");
    assert_eq!(traces.len(), operations.len());
    for ((_, [from, bytes], name), trace) in operations.into_iter().zip(traces) {
        let mut ranges: BTreeMap<u64, u64> = BTreeMap::new();
        for request in &trace.requests {
            assert_eq!(request.op.name(), name, "{trace:#?}");
            ranges.insert(request.sector.0 * 512, u64::from(request.bytes));
        }
        assert!(trace.bios.iter().all(|bio| bio.op.name() == name), "{trace:#?}");
        let end =
            ranges.iter().fold(from, |end, (begin, bytes)| if *begin == end { end + bytes } else { end });
        assert_eq!(end, from + bytes, "{ranges:?}");
    }
}
