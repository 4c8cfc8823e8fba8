//! Passthrough requests, which have no bio (SG_IO to a scsi_debug disk, and writes to `/dev/sg`):
//! each has its direction as op and is a child of the call that sent it, also when two tasks send
//! at once.
//!
//! *Input*: SCSI commands that this test sends (guests only). The length of a command identifies
//! its sender, independently of the tracer.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{RequestEvent, SyscallEvent};
use blkkin_wire::ids::DeviceId;

use crate::support::direct::{self, BLOCK, Block};
use crate::support::gated_process::GatedProcess;
use crate::support::guest::{name, node};
use crate::support::needs_guest;
use crate::support::recording::{Recorder, Recording, record};
use crate::support::sg::{Command, Direction, SECTOR};
use crate::support::tools::{block_device, kernel};

/// Since 6.5 (5a80bd075f3b) the kernel announces a command in the task that sends it. Before, the
/// submitter is known only if the task issues its own command.
fn announces_commands() -> bool {
    kernel() >= (6, 5)
}

#[test]
fn commands_have_their_op_and_are_children_of_their_call() {
    needs_guest!();
    const ROUNDS: u32 = 20;
    let target = node();
    let commands: Vec<Command> = (0..ROUNDS)
        .flat_map(|round| {
            [
                Command::inquiry(),
                Command::test_unit_ready(),
                Command::write(round * 8, 8),
                Command::read(round * 8, 3),
            ]
        })
        .collect();
    let sent = commands.clone();
    let recording = recorded(GatedProcess::new(move || {
        let device = File::options().read(true).write(true).open(&target).unwrap();
        let mut data = Block([7; BLOCK]);
        for command in &sent {
            if let Err(error) = command.send(&device, &mut data) {
                println!("{command:?}: {error}");
                return 1;
            }
            if command.length == 96 && &data.0[8..26] != b"Linux   scsi_debug" {
                return 2;
            }
        }
        0
    }));
    let traces = ioctls(&recording);
    assert_eq!(traces.len(), commands.len());
    for (command, trace) in commands.iter().zip(traces) {
        let call = trace.call().unwrap();
        let [request] = &trace.requests[..] else { panic!("{command:?}: {trace:#?}") };
        assert_eq!((call.bios, trace.bios.len(), request.bios), (1, 0, 0), "{trace:#?}");
        let name = if command.direction == Direction::Out { "driver-out" } else { "driver-in" };
        assert_eq!((request.op.name(), request.bytes as usize), (name, command.length), "{trace:#?}");
        assert_eq!((request.parent, request.task), (Some(call.span), call.task), "{trace:#?}");
        assert_eq!((request.device, request.status.name()), (number(), "ok"), "{trace:#?}");
        let issue = request.issue.unwrap();
        assert!(call.enter <= request.start && request.start <= issue && issue <= request.complete);
        assert!(request.complete <= call.exit, "{trace:#?}");
    }
}

/// Any task may run the queue, so a command can be issued inside another task's call.
#[test]
fn commands_of_two_tasks_have_the_right_parents() {
    needs_guest!();
    const COMMANDS: usize = 400;
    // The senders use different lengths: odd and even numbers of sectors.
    let lengths = |odd: usize| (0..COMMANDS).map(move |n| 2 * (n % 4) + 1 + odd);
    let sender = |odd: usize| {
        let target = node();
        GatedProcess::new(move || {
            let device = File::open(&target).unwrap();
            let mut data = Block([0; BLOCK]);
            let sent = lengths(odd).map(|blocks| Command::read(0, blocks as u16).send(&device, &mut data));
            i32::from(sent.fold(false, |failed, sent| failed | sent.is_err()))
        })
    };
    let (mut one, mut other, target) = (sender(0), sender(1), node());
    // This task plugs, and runs the queue.
    let mut reader = GatedProcess::new(move || {
        let device = direct::open(&target);
        i32::from((0..COMMANDS as u64).any(|block| direct::read_at(&device, block * BLOCK as u64).is_err()))
    });
    let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[one.pid(), other.pid(), reader.pid()]);
    [&mut one, &mut other, &mut reader].into_iter().for_each(GatedProcess::release);
    let played = [one.run_to_exit(), other.run_to_exit(), reader.run_to_exit()];
    let recording = recorder.finish();
    assert_eq!(played, [0; 3]);
    recording.assert_complete();
    let (mut linked, mut orphans) = (0, 0);
    for (process, odd) in [(&one, 0), (&other, 1)] {
        let is_own = |call: &SyscallEvent| recording.task_of(call).pid == process.pid();
        let traces: Vec<&Trace> =
            ioctls(&recording).into_iter().filter(|trace| is_own(trace.call().unwrap())).collect();
        assert_eq!(traces.len(), COMMANDS);
        for (blocks, trace) in lengths(odd).zip(traces) {
            match &trace.requests[..] {
                [request] => {
                    assert_eq!(request.bytes as usize, blocks * SECTOR, "{trace:#?}");
                    linked += 1;
                }
                [] => orphans += 1,
                _ => panic!("{trace:#?}"),
            }
        }
    }
    println!("{linked} commands that are children of their calls, {orphans} without a known submitter");
    assert!(linked > 0 && (orphans == 0 || !announces_commands()));
    // Commands without a known submitter are recorded without a parent.
    let without_parent =
        recording.requests().filter(|request| request.op.is_passthrough() && request.parent.is_none());
    assert_eq!(without_parent.filter(|request| request.bytes > 0).count(), orphans);
    let reads = recording.requests().filter(|request| request.op.name() == "read");
    assert!(reads.count() >= COMMANDS);
}

/// The write returns before the command ends. Before 6.5 the submitter is unknown.
#[test]
fn a_command_that_outlives_its_call_is_its_child() {
    needs_guest!();
    const COMMANDS: usize = 50;
    let device = generic();
    let _slow = Slow::start();
    let recording = recorded(GatedProcess::new(move || {
        let device = File::options().read(true).write(true).open(&device).unwrap();
        let mut data = Block([0; BLOCK]);
        let mut sent = (0..COMMANDS).map(|_| Command::read(0, 5).send_by_write(&device, &mut data));
        i32::from(sent.any(|sent| sent.is_err()))
    }));
    let commands: Vec<&RequestEvent> = recording
        .requests()
        .filter(|request| request.op.is_passthrough() && request.bytes as usize == 5 * SECTOR)
        .collect();
    assert_eq!(commands.len(), COMMANDS);
    let mut after = 0;
    for request in commands {
        let trace = recording.traces.iter().find(|trace| trace.root_span == request.root).unwrap();
        if !announces_commands() {
            assert!(request.parent.is_none() && trace.call().is_none(), "{trace:#?}");
            continue;
        }
        let call = trace.call().unwrap();
        assert_eq!(
            (call.call.name(), request.parent, call.bios),
            ("write", Some(call.span), 1),
            "{trace:#?}"
        );
        assert!(trace.incomplete.is_empty() && trace.requests.len() == 1, "{trace:#?}");
        after += usize::from(request.complete > call.exit);
    }
    println!("{after} of {COMMANDS} ended after their call");
    assert!(after > 0 || !announces_commands());
}

fn recorded(mut process: GatedProcess) -> Recording {
    let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
    let recording = record(&config, &mut [&mut process]);
    recording.assert_complete();
    recording
}

/// A disk that takes 5 ms per command while this value lives; otherwise as fast as
/// `xtask/src/vm/init.sh` made it.
struct Slow;

impl Slow {
    fn start() -> Slow {
        set_delay("5000000");
        Slow
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        set_delay("20000");
    }
}

fn set_delay(ns: &str) {
    fs::write("/sys/bus/pseudo/drivers/scsi_debug/ndelay", ns).unwrap();
}

/// Returns the traces of all ioctl calls in their order.
fn ioctls(recording: &Recording) -> Vec<&Trace> {
    let is_ioctl = |trace: &&Trace| trace.call().is_some_and(|call| call.call.name() == "ioctl");
    let mut traces: Vec<&Trace> = recording.traces.iter().filter(is_ioctl).collect();
    traces.sort_by_key(|trace| trace.start());
    traces
}

fn number() -> DeviceId {
    block_device(&name())
}

/// Returns the path `/dev/sgN` of the disk.
fn generic() -> PathBuf {
    let folder = format!("/sys/block/{}/device/scsi_generic", name());
    let found = fs::read_dir(folder).unwrap().next().unwrap().unwrap();
    Path::new("/dev").join(found.file_name())
}
