//! Devices on devices: what a call causes on each of them is the call's, and where it must lie is said by the kernel itself
//! (the device-mapper's table, md's offsets), not by a tracer. Runs inside a guest only, on disks that
//! `xtask/src/vm/init.sh` has stacked.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::DeviceId;

use support::actor::Actor;
use support::disk::{Statistics, statistics};
use support::fio::Fio;
use support::needs_guest;
use support::recording::{Recording, record, until_whole};
use support::tools::{device_number, identity};

const REQUESTS: u32 = 400;
const BYTES: u32 = 4096;

#[test]
fn linear_reads_and_writes_go_to_the_lower_device() {
    needs_guest!();
    let stack = Stack::find(|_| 2048);
    for pattern in ["randread", "randwrite"] {
        stack.follow(pattern, &|lower| assert_eq!(lower, stack.lower.keys().copied().collect::<Vec<_>>()));
    }
}

#[test]
fn mirror_writes_go_to_both_and_reads_to_one() {
    needs_guest!();
    let offset = |name: &str| read(&format!("/sys/block/md0/md/dev-{name}/offset")).parse().unwrap();
    let stack = Stack::find(offset);
    assert_eq!(stack.lower.len(), 2);
    stack.follow("randwrite", &|lower| assert_eq!(lower, stack.lower.keys().copied().collect::<Vec<_>>()));
    stack.follow("randread", &|lower| assert!(lower.len() == 1 && stack.lower.contains_key(&lower[0])));
}

/// A device, and those that it lies on.
struct Stack {
    node: String,
    upper: DeviceId,
    /// Names, and sectors by which a sector of the upper device is further on in each.
    lower: BTreeMap<DeviceId, (String, u64)>,
}

impl Stack {
    fn find(offset: impl Fn(&str) -> u64) -> Stack {
        let node = std::env::var("BLKKIN_TEST_DISK").unwrap();
        let name = node.trim_start_matches("/dev/");
        let slaves = fs::read_dir(format!("/sys/block/{name}/slaves")).unwrap();
        let lower = slaves.map(|slave| {
            let slave = slave.unwrap().file_name().into_string().unwrap();
            (device(&slave), (slave.clone(), offset(&slave)))
        });
        Stack { upper: device(name), lower: lower.collect(), node: node.clone() }
    }

    /// Direct requests to the upper device: each layer of every one of them, and nothing besides that is not the kernel's
    /// own. `expected` judges on which lower devices one of them ended.
    fn follow(&self, pattern: &'static str, expected: &dyn Fn(Vec<DeviceId>)) {
        let account = Path::new("/tmp/fio.json");
        let target = Path::new(&self.node);
        let fio = Fio { target, pattern, jobs: 2, requests: REQUESTS / 2, bytes: BYTES, account };
        let mut counted = self.counted();
        let recording = until_whole(|| {
            let before = self.counted();
            let mut actor = Actor::program(&fio.words(), Path::new("/tmp/fio.out"));
            // With what the kernel does of its own, which the device counts too.
            let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
            let recording = record(&config, &mut [&mut actor]);
            counted = self.counted().into_iter().zip(before).map(|(now, then)| now.since(then)).collect();
            recording
        });
        let ours = recording.traces.iter().filter(|trace| is_of(&fio, trace)).collect::<Vec<_>>();
        assert_eq!((ours.len() as u64, fio.said().requests), (u64::from(REQUESTS), u64::from(REQUESTS)));
        for trace in ours {
            expected(self.assert_layers(trace));
        }
        assert_eq!(self.seen(&recording), counted);
    }

    /// The upper bio lies where the call said; each lower one, and its request, where the table says. Says on which devices.
    fn assert_layers(&self, trace: &Trace) -> Vec<DeviceId> {
        let call = trace.call().unwrap();
        let whole = |bio: &BioEvent| bio.bytes == BYTES && bio.submitter == Submitter::Span(trace.root_span);
        assert!(trace.bios.iter().all(whole), "{trace:#?}");
        let (upper, lower): (Vec<&BioEvent>, Vec<&BioEvent>) =
            trace.bios.iter().partition(|bio| bio.device == self.upper);
        assert_eq!(upper.len(), 1, "{trace:#?}");
        assert_eq!((upper[0].sector.0 * 512, upper[0].request), (call.args[3], None), "{trace:#?}");
        assert_eq!(trace.requests.len(), lower.len(), "{trace:#?}");
        for bio in &lower {
            let expected = upper[0].sector.0 + self.lower[&bio.device].1;
            let request = trace.requests.iter().find(|request| Some(request.span) == bio.request).unwrap();
            assert_eq!((bio.sector.0, request.sector.0), (expected, expected), "{trace:#?}");
            assert_eq!((request.parent, request.device), (Some(bio.span), bio.device), "{trace:#?}");
            assert_eq!((request.bytes, request.op.is_write()), (BYTES, bio.op.is_write()), "{trace:#?}");
        }
        let mut devices: Vec<_> = lower.iter().map(|bio| bio.device).collect();
        devices.sort();
        devices
    }

    /// What the kernel has counted of the lower devices.
    fn counted(&self) -> Vec<Statistics> {
        self.lower.values().map(|(name, _)| statistics(name)).collect()
    }

    /// What was seen there, whoever asked for it.
    fn seen(&self, recording: &Recording) -> Vec<Statistics> {
        let at = |device: &DeviceId| {
            let bytes =
                recording.requests().filter(|request| request.device == *device).map(|r| u64::from(r.bytes));
            let bytes: Vec<u64> = bytes.collect();
            Statistics { requests: bytes.len() as u64, sectors: bytes.iter().sum::<u64>() / 512 }
        };
        self.lower.keys().map(at).collect()
    }
}

fn is_of(fio: &Fio<'_>, trace: &Trace) -> bool {
    trace.call().is_some_and(|call| {
        let file = call.file.map(|open| (open.file.device, open.file.ino));
        call.call.name() == fio.call() && file == Some(identity(fio.target))
    })
}

fn device(name: &str) -> DeviceId {
    device_number(&read(&format!("/sys/block/{name}/dev")))
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}
