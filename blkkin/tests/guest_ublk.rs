//! A disk whose driver is a process, this test: what the server was asked for is what the trace says, and a server that ends is a
//! request that failed. Runs inside a guest only, where the kernel has ublk.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs;
use std::path::Path;

use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{RequestEvent, SyscallOutcome};

use support::direct::{self, BLOCK};
use support::disk::statistics;
use support::gated_process::GatedProcess;
use support::recording::{Recording, record};
use support::tools::device_number;
use support::ublk::{FLUSH, READ, Ublk, WRITE};
use support::{needs_guest, or_skip};

/// The first of such disks. Who works on it is forked before its server is there: a server's ring lives as long as anybody has its
/// descriptor, and its requests are given up when it ends.
const NODE: &str = "/dev/ublkb0";

#[test]
fn what_the_server_was_asked_for_is_what_is_said() {
    needs_guest!();
    const WRITES: u64 = 60;
    let actor = GatedProcess::new(move || {
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
    let asked_before = disk.requests().len();
    let recording = recorded(actor);
    recording.assert_complete();
    // Where a flush lies says nothing.
    let placed = |(operation, from, sectors)| match operation {
        FLUSH => (operation, 0, 0),
        _ => (operation, from, sectors),
    };
    let mut asked: Vec<_> = disk.requests().split_off(asked_before).into_iter().map(placed).collect();
    let number = |request: &RequestEvent| match request.op.name_for(request.bytes) {
        "read" => (READ, request.sector.0, request.bytes / 512),
        "write" => (WRITE, request.sector.0, request.bytes / 512),
        "flush" => (FLUSH, 0, 0),
        other => panic!("{other}: {request:#?}"),
    };
    let mut said: Vec<_> = recording.requests().map(number).collect();
    asked.sort_unstable();
    said.sort_unstable();
    assert_eq!(said, asked);
    assert_eq!(said.len() as u64, 2 * WRITES + 1);
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
fn a_server_that_ends_is_a_request_that_fails() {
    needs_guest!();
    const ANSWERED: u64 = 5;
    let actor = GatedProcess::new(move || {
        let device = direct::open(Path::new(NODE));
        let failed = (0..=ANSWERED).map(|block| direct::write_at(&device, block * BLOCK as u64).is_err());
        // The last one, and no other.
        i32::from(failed.collect::<Vec<_>>() != [false, false, false, false, false, true])
    });
    let disk = or_skip!(Ublk::start(ANSWERED));
    let device = device_number(&fs::read_to_string(format!("/sys/block/{}/dev", disk.name())).unwrap());
    let recording = recorded(actor);
    recording.assert_balanced();
    let requests: Vec<&RequestEvent> =
        recording.requests().filter(|request| request.device == device).collect();
    let (failed, done): (Vec<&RequestEvent>, Vec<&RequestEvent>) =
        requests.iter().partition(|request| !request.status.is_ok());
    let [failed] = failed[..] else { panic!("{failed:#?}") };
    assert_eq!((done.len() as u64, failed.status.name()), (ANSWERED, "I/O error"));
    assert!(failed.issue.is_some(), "{failed:#?}");
    let call = recording.calls().find(|call| call.span == failed.root).unwrap();
    let error = SyscallOutcome::Returned(-i64::from(libc::EIO));
    assert_eq!((call.call.name(), call.outcome, call.args[3]), ("pwrite64", error, ANSWERED * BLOCK as u64));
}

fn recorded(mut actor: GatedProcess) -> Recording {
    record(&TracerConfig::default(), &mut [&mut actor])
}
