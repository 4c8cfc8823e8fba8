//! Loads of a disk whose server is the test, and checks of their recordings.

use std::path::Path;

use blkkin_wire::event::{RequestEvent, SyscallOutcome};
use blkkin_wire::ids::DeviceId;

use super::direct::{self, BLOCK};
use super::disk::Statistics;
use super::recording::Recording;

/// Blocks that [`write_and_read`] writes and reads.
const BLOCKS: u64 = 60;
/// Writes that a server of [`write_until_failure`] answers.
pub(crate) const SERVED: u64 = 5;

/// Writes blocks with gaps between them, flushes, and reads the same blocks. Returns an exit status.
pub(crate) fn write_and_read(node: &Path) -> i32 {
    let device = direct::open(node);
    for block in 0..BLOCKS {
        direct::write_at(&device, block * 3 * BLOCK as u64).unwrap();
    }
    device.sync_all().unwrap();
    for block in 0..BLOCKS {
        direct::read_at(&device, block * 3 * BLOCK as u64).unwrap();
    }
    0
}

/// Asserts that the requests of [`write_and_read`] are those that the server received, that the kernel
/// counted them, and that each has the range of its call. A received request has one of the numbers for
/// reads, writes and flushes, and its offset and length in units of `unit` bytes; a flush has neither.
#[track_caller]
pub(crate) fn assert_received<Number: Copy + Ord + std::fmt::Debug>(
    recording: &Recording,
    numbers: [Number; 3],
    unit: u32,
    mut received: Vec<(Number, u64, u32)>,
    counted: Statistics,
) {
    let [read, write, flush] = numbers;
    let with_extent = |number, request: &RequestEvent| {
        (number, request.sector.0 * 512 / u64::from(unit), request.bytes / unit)
    };
    let number = |request: &RequestEvent| match request.op.name_for(request.bytes) {
        "read" => with_extent(read, request),
        "write" => with_extent(write, request),
        "flush" => (flush, 0, 0),
        other => panic!("{other}: {request:#?}"),
    };
    let mut requests: Vec<_> = recording.requests().map(number).collect();
    received.sort_unstable();
    requests.sort_unstable();
    assert_eq!(requests, received);
    assert_eq!(requests.len() as u64, 2 * BLOCKS + 1);
    assert_eq!((counted.requests, counted.sectors), (2 * BLOCKS + 1, 2 * BLOCKS * BLOCK as u64 / 512));
    for request in recording.requests() {
        let call = recording.calls().find(|call| call.span == request.root).unwrap();
        // The sector of a flush has no meaning.
        let offset = request.sector.0.wrapping_mul(512);
        match call.call.name() {
            "fsync" => assert_eq!(request.bytes, 0, "{request:#?}"),
            _ => assert_eq!((call.args[3], request.bytes as usize), (offset, BLOCK), "{request:#?}"),
        }
    }
}

/// Writes one block more than [`SERVED`]. Returns an exit status, which is 0 if only the last write fails.
pub(crate) fn write_until_failure(node: &Path) -> i32 {
    let device = direct::open(node);
    let failed = (0..=SERVED).map(|block| direct::write_at(&device, block * BLOCK as u64).is_err());
    i32::from(failed.collect::<Vec<_>>() != [false, false, false, false, false, true])
}

/// Returns the failed request of [`write_until_failure`]. Asserts that all others succeeded, and that its call
/// returned its error.
#[track_caller]
pub(crate) fn failed_request(recording: &Recording, device: DeviceId) -> &RequestEvent {
    let requests = recording.requests().filter(|request| request.device == device);
    let (failed, done): (Vec<&RequestEvent>, Vec<&RequestEvent>) =
        requests.partition(|request| !request.status.is_ok());
    let [failed] = failed[..] else { panic!("{failed:#?}") };
    assert_eq!((done.len() as u64, failed.status.name()), (SERVED, "I/O error"));
    let call = recording.calls().find(|call| call.span == failed.root).unwrap();
    let error = SyscallOutcome::Returned(-i64::from(libc::EIO));
    assert_eq!((call.call.name(), call.outcome, call.args[3]), ("pwrite64", error, SERVED * BLOCK as u64));
    failed
}
