//! A loop device on a file system on another disk: one trace through both. Where a sector of the upper device must lie on the
//! lower one is said by the file system (FIEMAP), not by a tracer.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use blkkin_aggregator::stacked::Stacked;
use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{BioEvent, Submitter};

use support::disk::{Disk, Statistics, Upper};
use support::gated_process::GatedProcess;
use support::recording::{Recording, until_complete};
use support::{needs, or_skip};

const LOWER: u64 = 96 << 20;
const UPPER: u64 = 32 << 20;

#[test]
fn reads_of_a_loop_device_go_on_to_the_disk_below() {
    followed(&["--ioengine=psync", "--rw=randread", "--bs=4k", "--number_ios=400"]);
}

#[test]
fn writes_of_a_loop_device_go_on_to_the_disk_below() {
    followed(&["--ioengine=psync", "--rw=randwrite", "--bs=4k", "--number_ios=400"]);
}

/// The upper device's requests carry several bios of several calls, and are more than one of the file's extents.
#[test]
fn merged_requests_of_a_loop_device_go_on_as_one() {
    let batch =
        ["--ioengine=libaio", "--iodepth=32", "--iodepth_batch=16", "--iodepth_batch_complete_min=16"];
    followed(&[&batch[..], &["--rw=read", "--bs=16k"]].concat());
}

fn followed(arguments: &[&str]) {
    needs!("fio", "losetup", "mkfs.ext4", "filefrag");
    let disk = or_skip!(Disk::ext4(LOWER));
    let upper = or_skip!(disk.upper(UPPER));
    let target = format!("--filename={}", upper.node.display());
    let words = ["fio", "--name=t", "--direct=1", "--randrepeat=1", "--allow_file_create=0", &target];
    let words = [&words[..], arguments].concat();
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let mut actor = GatedProcess::program(&words, &disk.file("fio.out"));
        let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
        let recording = support::recording::record(&config, &mut [&mut actor]);
        counted = disk.statistics().since(before);
        recording
    });
    let stack = Stack { extents: upper.extents(), upper: &upper, lower: &disk };
    let (mut above, mut below) = (0, 0);
    for trace in &recording.traces {
        let (of_upper, of_lower) = stack.judge(trace);
        above += of_upper;
        below += of_lower;
    }
    println!("{}: {above} requests above, {below} bios below", arguments.join(" "));
    assert!(above >= 100 && below >= above, "{above} requests, {below} bios below");
    assert_eq!(stack.seen_below(&recording), counted);
}

struct Stack<'a> {
    upper: &'a Upper,
    lower: &'a Disk,
    extents: Vec<(u64, u64, u64)>,
}

impl Stack<'_> {
    /// Every byte of each of the upper device's requests is moved by bios below it, where the file's blocks are, within its
    /// time with the device; and no bio is below another's. Says how many requests there were above and bios below.
    fn judge(&self, trace: &Trace) -> (usize, usize) {
        let stacked = Stacked::of(trace);
        let (mut above, mut below) = (0, 0);
        for request in trace.requests.iter().filter(|request| request.device == self.upper.device()) {
            assert!(stacked.is_above(request), "{trace:#?}");
            let ours = |bio: &&BioEvent| bio.submitter == Submitter::Span(request.span);
            let bios: Vec<&BioEvent> = trace.bios.iter().filter(ours).collect();
            assert_eq!(bios.iter().map(|bio| bio.bytes).sum::<u32>(), request.bytes, "{trace:#?}");
            for bio in &bios {
                assert_eq!(
                    (bio.device, bio.op.is_write()),
                    (self.lower.device(), request.op.is_write()),
                    "{trace:#?}"
                );
                assert_eq!(bio.root, trace.root_span, "{trace:#?}");
                let first = self.above(bio.sector.0);
                let within = request.sector.0..request.sector.0 + u64::from(request.bytes) / 512;
                assert!(within.contains(&first), "{first} is not in {within:?}: {trace:#?}");
                let issue = request.issue.unwrap();
                assert!(issue <= bio.queue && bio.end <= request.complete, "{trace:#?}");
            }
            above += 1;
            below += bios.len();
        }
        let layered = trace.bios.iter().filter(|bio| !trace.queued_by_root(bio)).count();
        assert_eq!(layered, below, "{trace:#?}");
        (above, below)
    }

    /// The upper device's sector that lies at this one of the lower.
    fn above(&self, sector: u64) -> u64 {
        let holds = |(_, there, length): &&(u64, u64, u64)| (*there..there + length).contains(&sector);
        let (here, there, _) = self.extents.iter().find(holds).unwrap();
        here + (sector - there)
    }

    /// What was seen of the lower device, whoever asked for it.
    fn seen_below(&self, recording: &Recording) -> Statistics {
        let lower = self.lower.device();
        let moved: Vec<u64> = recording
            .requests()
            .filter(|request| request.device == lower && request.bytes > 0)
            .map(|request| u64::from(request.bytes) / 512)
            .collect();
        Statistics { requests: moved.len() as u64, sectors: moved.iter().sum() }
    }
}
