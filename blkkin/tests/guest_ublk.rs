//! A ublk disk, whose driver is this process. The trace must have exactly the requests that the
//! server received, and a server that exits must appear as one failed request.
//!
//! *Input*: `/dev/ublkb0` (guests only, where the kernel has ublk). The expected requests are those
//! that the server read, and the kernel's count in `/sys/block/*/stat`.

use std::path::Path;

use crate::support::disk::statistics;
use crate::support::gated_process::GatedProcess;
use crate::support::recording::record_one;
use crate::support::served_disk::{
    SERVED, assert_received, failed_request, write_and_read, write_until_failure,
};
use crate::support::tools::block_device;
use crate::support::ublk::{FLUSH, READ, Ublk, WRITE};
use crate::support::{needs_guest, or_skip};

/// Node of the first ublk disk. The writing process is forked before its server starts: a server's
/// ring lives as long as a process has its descriptor, and its requests fail only when it is
/// closed.
const NODE: &str = "/dev/ublkb0";

#[test]
fn recorded_requests_are_those_that_the_server_received() {
    needs_guest!();
    let mut process = GatedProcess::new(|| write_and_read(Path::new(NODE)));
    let disk = or_skip!(Ublk::start(u64::MAX));
    let before = statistics(disk.name());
    let received_before = disk.requests().len();
    let recording = record_one(&mut process);
    recording.assert_complete();
    // A flush has no meaningful sector.
    let without_flush_sector = |(operation, from, sectors)| match operation {
        FLUSH => (operation, 0, 0),
        _ => (operation, from, sectors),
    };
    let received = disk.requests().split_off(received_before).into_iter().map(without_flush_sector).collect();
    let counted = statistics(disk.name()).since(before);
    assert_received(&recording, [READ, WRITE, FLUSH], 512, received, counted);
}

#[test]
fn a_request_to_an_exited_server_fails() {
    needs_guest!();
    let mut process = GatedProcess::new(|| write_until_failure(Path::new(NODE)));
    let disk = or_skip!(Ublk::start(SERVED));
    let device = block_device(disk.name());
    let recording = record_one(&mut process);
    recording.assert_balanced();
    let failed = failed_request(&recording, device);
    assert!(failed.issue.is_some(), "{failed:#?}");
}
