//! A ublk disk, whose driver is this process. The trace must have exactly the requests that the
//! server received, and a server that exits must appear as one failed request.
//!
//! *Input*: `/dev/ublkb0` (guests only, where the kernel has ublk). The expected requests are those
//! that the server read, and the kernel's count in `/sys/block/*/stat`.

use std::fs;
use std::path::Path;

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{RequestEvent, SyscallOutcome};

use crate::support::direct::{self, BLOCK};
use crate::support::disk::statistics;
use crate::support::gated_process::GatedProcess;
use crate::support::recording::{Recording, record};
use crate::support::tools::device_number;
use crate::support::ublk::{FLUSH, READ, Ublk, WRITE};
use crate::support::{needs_guest, or_skip};

/// Node of the first ublk disk. The writing process is forked before its server starts: a server's
/// ring lives as long as a process has its descriptor, and its requests fail only when it is
/// closed.
const NODE: &str = "/dev/ublkb0";

#[test]
fn recorded_requests_are_those_that_the_server_received() {
    needs_guest!();
    const WRITES: u64 = 60;
    let process = GatedProcess::new(move || {
        let device = direct::open(Path::new(NODE));
        for block in 0..WRITES {
            direct::write_at(&device, block * 3 * BLOCK as u64).unwrap();
        }
        device.sync_all().unwrap();
        for block in 0..WRITES {
            direct::read_at(&device, block * 3 * BLOCK as u64).unwrap();
        }
        0
    });
    let disk = or_skip!(Ublk::start(u64::MAX));
    let before = statistics(disk.name());
    let received_before = disk.requests().len();
    let recording = recorded(process);
    recording.assert_complete();
    // A flush has no meaningful sector.
    let without_flush_sector = |(operation, from, sectors)| match operation {
        FLUSH => (operation, 0, 0),
        _ => (operation, from, sectors),
    };
    let mut received: Vec<_> =
        disk.requests().split_off(received_before).into_iter().map(without_flush_sector).collect();
    let number = |request: &RequestEvent| match request.op.name_for(request.bytes) {
        "read" => (READ, request.sector.0, request.bytes / 512),
        "write" => (WRITE, request.sector.0, request.bytes / 512),
        "flush" => (FLUSH, 0, 0),
        other => panic!("{other}: {request:#?}"),
    };
    let mut requests: Vec<_> = recording.requests().map(number).collect();
    received.sort_unstable();
    requests.sort_unstable();
    assert_eq!(requests, received);
    assert_eq!(requests.len() as u64, 2 * WRITES + 1);
    let counted = statistics(disk.name()).since(before);
    assert_eq!((counted.requests, counted.sectors), (2 * WRITES + 1, 2 * WRITES * BLOCK as u64 / 512));
    for request in recording.requests() {
        let call = recording.calls().find(|call| call.span == request.root).unwrap();
        let offset = request.sector.0.wrapping_mul(512);
        match call.call.name() {
            "fsync" => assert_eq!(request.bytes, 0, "{request:#?}"),
            _ => assert_eq!((call.args[3], request.bytes as usize), (offset, BLOCK), "{request:#?}"),
        }
    }
}

#[test]
fn a_request_to_an_exited_server_fails() {
    needs_guest!();
    const SERVED: u64 = 5;
    let process = GatedProcess::new(move || {
        let device = direct::open(Path::new(NODE));
        let failed = (0..=SERVED).map(|block| direct::write_at(&device, block * BLOCK as u64).is_err());
        // Only the last write fails.
        i32::from(failed.collect::<Vec<_>>() != [false, false, false, false, false, true])
    });
    let disk = or_skip!(Ublk::start(SERVED));
    let device = device_number(&fs::read_to_string(format!("/sys/block/{}/dev", disk.name())).unwrap());
    let recording = recorded(process);
    recording.assert_balanced();
    let requests: Vec<&RequestEvent> =
        recording.requests().filter(|request| request.device == device).collect();
    let (failed, done): (Vec<&RequestEvent>, Vec<&RequestEvent>) =
        requests.iter().partition(|request| !request.status.is_ok());
    let [failed] = failed[..] else { panic!("{failed:#?}") };
    assert_eq!((done.len() as u64, failed.status.name()), (SERVED, "I/O error"));
    assert!(failed.issue.is_some(), "{failed:#?}");
    let call = recording.calls().find(|call| call.span == failed.root).unwrap();
    let error = SyscallOutcome::Returned(-i64::from(libc::EIO));
    assert_eq!((call.call.name(), call.outcome, call.args[3]), ("pwrite64", error, SERVED * BLOCK as u64));
}

fn recorded(mut process: GatedProcess) -> Recording {
    record(&TracerConfig::default(), &mut [&mut process])
}
