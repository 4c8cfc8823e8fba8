//! A driver's commands, sent past bios (SG_IO to a scsi_debug disk, and by a write to `/dev/sg`): each is named as what it is
//! and lies below the call that sent it, also where two tasks send at once. Which command is whose is said by its length.
//! Runs inside a guest only.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{RequestEvent, SyscallEvent};
use blkkin_wire::ids::DeviceId;

use support::direct::{self, BLOCK, Block};
use support::gated_process::GatedProcess;
use support::guest::node;
use support::needs_guest;
use support::recording::{Recorder, Recording, record};
use support::sg::{Command, Direction, SECTOR};
use support::tools::{device_number, kernel};

/// Since 6.5 (5a80bd075f3b) commands are announced in the task that sends them; before, only those are known to be somebody's
/// that their own task issues.
fn announced() -> bool {
    kernel() >= (6, 5)
}

#[test]
fn commands_are_named_and_below_the_call_that_sent_them() {
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

/// The queue is run by whoever comes: a command may be issued by another task than its own, which is inside a call too.
#[test]
fn commands_of_two_tasks_are_each_their_own() {
    needs_guest!();
    const COMMANDS: usize = 400;
    // Told apart by their lengths: even and odd numbers of sectors.
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
    // It plugs, and runs the queue.
    let mut beside = GatedProcess::new(move || {
        let device = direct::open(&target);
        i32::from((0..COMMANDS as u64).any(|block| direct::read_at(&device, block * BLOCK as u64).is_err()))
    });
    let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
    let recorder = Recorder::start(&config, &[one.pid(), other.pid(), beside.pid()]);
    [&mut one, &mut other, &mut beside].into_iter().for_each(GatedProcess::release);
    let played = [one.run_to_exit(), other.run_to_exit(), beside.run_to_exit()];
    let recording = recorder.finish();
    assert_eq!(played, [0; 3]);
    recording.assert_complete();
    let (mut linked, mut not_known) = (0, 0);
    for (actor, odd) in [(&one, 0), (&other, 1)] {
        let ours = |call: &SyscallEvent| recording.task_of(call).pid == actor.pid();
        let traces: Vec<&Trace> =
            ioctls(&recording).into_iter().filter(|trace| ours(trace.call().unwrap())).collect();
        assert_eq!(traces.len(), COMMANDS);
        for (blocks, trace) in lengths(odd).zip(traces) {
            match &trace.requests[..] {
                [request] => {
                    assert_eq!(request.bytes as usize, blocks * SECTOR, "{trace:#?}");
                    linked += 1;
                }
                [] => not_known += 1,
                _ => panic!("{trace:#?}"),
            }
        }
    }
    println!("{linked} commands below their calls, {not_known} that nobody is known to have sent");
    assert!(linked > 0 && (not_known == 0 || !announced()));
    // Those are there all the same, with no call above them.
    let alone =
        recording.requests().filter(|request| request.op.is_passthrough() && request.parent.is_none());
    assert_eq!(alone.filter(|request| request.bytes > 0).count(), not_known);
    let reads = recording.requests().filter(|request| request.op.name() == "read");
    assert!(reads.count() >= COMMANDS);
}

/// The write returns before the command ends; before 6.5 nobody knows whose it is.
#[test]
fn a_command_that_outlives_its_call_is_its_call_s() {
    needs_guest!();
    const COMMANDS: usize = 50;
    let device = generic();
    let _slow = Slow::down();
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
        if !announced() {
            assert!(request.parent.is_none() && trace.call().is_none(), "{trace:#?}");
            continue;
        }
        let call = trace.call().unwrap();
        assert_eq!(
            (call.call.name(), request.parent, call.bios),
            ("write", Some(call.span), 1),
            "{trace:#?}"
        );
        assert!(trace.missing.nothing() && trace.requests.len() == 1, "{trace:#?}");
        after += usize::from(request.complete > call.exit);
    }
    println!("{after} of {COMMANDS} ended after their call");
    assert!(after > 0 || !announced());
}

fn recorded(mut actor: GatedProcess) -> Recording {
    let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
    let recording = record(&config, &mut [&mut actor]);
    recording.assert_complete();
    recording
}

/// A disk that takes 5 ms, as long as this lives; else as `xtask/src/vm/init.sh` made it.
struct Slow;

impl Slow {
    fn down() -> Slow {
        answers_after("5000000");
        Slow
    }
}

impl Drop for Slow {
    fn drop(&mut self) {
        answers_after("20000");
    }
}

fn answers_after(ns: &str) {
    fs::write("/sys/bus/pseudo/drivers/scsi_debug/ndelay", ns).unwrap();
}

/// Of all ioctls, in their order.
fn ioctls(recording: &Recording) -> Vec<&Trace> {
    let is_ioctl = |trace: &&Trace| trace.call().is_some_and(|call| call.call.name() == "ioctl");
    let mut traces: Vec<&Trace> = recording.traces.iter().filter(is_ioctl).collect();
    traces.sort_by_key(|trace| trace.start());
    traces
}

fn name() -> String {
    node().file_name().unwrap().to_str().unwrap().to_owned()
}

fn number() -> DeviceId {
    device_number(&fs::read_to_string(format!("/sys/block/{}/dev", name())).unwrap())
}

/// `/dev/sgN` of the disk.
fn generic() -> PathBuf {
    let folder = format!("/sys/block/{}/device/scsi_generic", name());
    let found = fs::read_dir(folder).unwrap().next().unwrap().unwrap();
    Path::new("/dev").join(found.file_name())
}
