//! A SCSI disk whose driver requeues commands, loses them and fails them (scsi_debug). Each command
//! is one request, with its first issue and its final status.
//!
//! *Input*: faults planted in scsi_debug (guests only). Issues and requeues are compared with those
//! that ftrace recorded from the block tracepoints.

use std::collections::HashSet;
use std::fs;
use std::path::Path;

use blkkin_wire::event::{BlockStatus, RequestEvent, SyscallOutcome};

use crate::support::blktrace::{Actions, BlockTrace};
use crate::support::direct::{self, BLOCK};
use crate::support::gated_process::GatedProcess;
use crate::support::guest::{name, node};
use crate::support::needs_guest;
use crate::support::recording::{Recording, record_one};
use crate::support::tools::block_device;

/// Faults that scsi_debug applies to every n-th command (drivers/scsi/scsi_debug.c, SDEBUG_OPT_*).
const NOTHING: u32 = 0;
const MEDIUM_ERROR: u32 = 2;
const TIMEOUT: u32 = 4;
const HOST_BUSY: u32 = 0x8000;
const SETTINGS: &str = "/sys/bus/pseudo/drivers/scsi_debug";
/// Default sector at which its medium fails.
const BAD_SECTOR: u64 = 0x1234;

/// The host reports busy: the request is requeued and issued again.
#[test]
fn requeued_commands() {
    needs_guest!();
    const WRITES: u64 = 100;
    let _fault = Fault::plant(HOST_BUSY, 5);
    let (recording, actions) = writes(WRITES);
    let requeued = assert_requests_agree(&recording, &actions, WRITES);
    println!("{requeued} of {WRITES} were put back");
    assert!(requeued >= WRITES as usize / 10, "{requeued}");
}

/// A command is lost; after one second it is aborted and issued again.
#[test]
fn commands_that_time_out() {
    needs_guest!();
    const WRITES: u64 = 6;
    const SECOND_NS: u64 = 1_000_000_000;
    fs::write(format!("/sys/block/{}/device/timeout", name()), "1").unwrap();
    let _fault = Fault::plant(TIMEOUT, 4);
    let (recording, actions) = writes(WRITES);
    let requeued = assert_requests_agree(&recording, &actions, WRITES);
    println!("{requeued} of {WRITES} timed out");
    assert!(requeued > 0);
    for request in recording.requests() {
        let at_device = request.complete.since(request.issue.unwrap()).0;
        assert_eq!(request.requeued, at_device >= SECOND_NS, "{request:#?}");
    }
}

/// An unreadable sector, for which the block layer returns ENODATA (blk_errors, block/blk-core.c).
#[test]
fn a_medium_error() {
    needs_guest!();
    let target = node();
    let _fault = Fault::plant(MEDIUM_ERROR, 0);
    let recording = record_one(&mut GatedProcess::new(move || {
        let device = direct::open(&target);
        let bad = BAD_SECTOR * 512 / BLOCK as u64 * BLOCK as u64;
        let failed =
            direct::read_at(&device, bad).is_err_and(|error| error.raw_os_error() == Some(libc::ENODATA));
        i32::from(!failed || direct::read_at(&device, 0).is_err())
    }));
    let failed: Vec<&RequestEvent> = recording.requests().filter(|request| !request.status.is_ok()).collect();
    let [request] = failed[..] else { panic!("{failed:#?}") };
    assert_eq!(request.status.name(), "medium error");
    assert!((request.sector.0..request.sector.0 + 8).contains(&BAD_SECTOR), "{request:#?}");
    assert_eq!(request.device, block_device(&name()));
    let bio = recording.bios().find(|bio| Some(bio.span) == request.parent).unwrap();
    assert_eq!(bio.status, request.status);
    let call = recording.calls().find(|call| call.span == request.root).unwrap();
    assert_eq!(
        (call.call.name(), call.outcome),
        ("pread64", SyscallOutcome::Returned(-i64::from(libc::ENODATA)))
    );
}

/// Asserts that each write is one complete request without error and a child of its own call. The
/// requests marked `requeued` are exactly those that ftrace recorded as issued more than once, with
/// the requeue between issue and completion. Returns their number.
fn assert_requests_agree(recording: &Recording, actions: &Actions, writes: u64) -> usize {
    recording.assert_complete();
    let requests: Vec<&RequestEvent> = recording.requests().collect();
    assert_eq!((requests.len() as u64, recording.calls_named("pwrite64").len() as u64), (writes, writes));
    let calls: HashSet<_> = requests.iter().map(|request| request.root).collect();
    assert_eq!(calls.len() as u64, writes, "each has its own call");
    for request in &requests {
        let trace = recording.traces.iter().find(|trace| trace.root_span == request.root).unwrap();
        assert_eq!(trace.call().unwrap().args[3], request.sector.0 * 512, "{trace:#?}");
        assert_eq!((request.status, request.bytes as usize), (BlockStatus(0), BLOCK), "{request:#?}");
        let extent = (request.sector.0, u64::from(request.bytes) / 512);
        let mut requeues = actions.requeues.iter().filter(|(at, _)| *at == extent).map(|(_, time)| *time);
        assert_eq!(request.requeued, actions.issues[&extent] > 1, "{request:#?}");
        // A driver may also requeue a request that was not issued yet. ftrace truncates times to a
        // microsecond.
        let (issue, end) = (request.issue.unwrap().0 / 1_000 * 1_000, request.complete.0);
        let between = requeues.any(|time| issue <= time && time <= end);
        assert!(between || !request.requeued, "{request:#?}");
    }
    requests.iter().filter(|request| request.requeued).count()
}

/// Writes this many blocks one after another, and returns the tracer's recording and ftrace's.
fn writes(count: u64) -> (Recording, Actions) {
    let device = block_device(&name());
    let target = node();
    let mut writer = GatedProcess::new(move || {
        direct::write(&target, 0..count);
        0
    });
    let ftrace = BlockTrace::by_ftrace(&[device], Path::new("/tmp")).unwrap();
    let recording = record_one(&mut writer);
    (recording, ftrace.finish())
}

/// A fault of the driver that lasts while this value lives.
struct Fault;

impl Fault {
    fn plant(options: u32, every: u32) -> Fault {
        set(options, every);
        Fault
    }
}

impl Drop for Fault {
    fn drop(&mut self) {
        set(NOTHING, 0);
    }
}

fn set(options: u32, every: u32) {
    fs::write(format!("{SETTINGS}/every_nth"), every.to_string()).unwrap();
    fs::write(format!("{SETTINGS}/opts"), format!("{options:#x}")).unwrap();
}
