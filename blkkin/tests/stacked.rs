//! A loop device whose file is on a file system on another disk: one trace has both devices.
//!
//! *Input*: fio on the loop device. The expected sectors of the lower disk come from the file
//! system (FIEMAP), the totals from `/sys/block/*/stat`.

use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::trace::stacked::Stacked;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{BioEvent, Submitter};

use crate::support::disk::{self, Disk, Statistics, Upper};
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::recording::{Recorder, Recording};
use crate::support::{needs, or_skip};

const LOWER: u64 = 96 << 20;
const UPPER: u64 = 32 << 20;

#[test]
fn reads_of_a_loop_device_continue_on_the_lower_disk() {
    assert_traced(&["--ioengine=psync", "--rw=randread", "--bs=4k", "--number_ios=400"]);
}

#[test]
fn writes_of_a_loop_device_continue_on_the_lower_disk() {
    assert_traced(&["--ioengine=psync", "--rw=randwrite", "--bs=4k", "--number_ios=400"]);
}

/// The upper device's requests have several bios of several calls, and extend over more than one
/// extent of the file.
#[test]
fn merged_requests_of_a_loop_device_continue_as_one() {
    let batch =
        ["--ioengine=libaio", "--iodepth=32", "--iodepth_batch=16", "--iodepth_batch_complete_min=16"];
    assert_traced(&[&batch[..], &["--rw=read", "--bs=16k"]].concat());
}

fn assert_traced(arguments: &[&str]) {
    needs!("fio", "losetup", "mkfs.ext4", "filefrag");
    let disk = or_skip!(Disk::ext4(LOWER));
    let upper = or_skip!(disk.upper(UPPER));
    let target = format!("--filename={}", upper.node.display());
    let args = ["fio", "--name=t", "--direct=1", "--randrepeat=1", "--allow_file_create=0", &target];
    let args = [&args[..], arguments].concat();
    let mut counted = disk.statistics();
    let recording = until_complete(|| {
        let before = disk.statistics();
        let mut process = GatedProcess::program(&args, &disk.file("fio.out"));
        let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
        let recorder = Recorder::start(&config, &[process.pid()]);
        assert_eq!(process.run_to_exit(), 0, "{}", process.output());
        // fio changes the times of the device's file. ext4 would commit them within 5 s, between the
        // end of the recording and the kernel's counts. If ext4 has committed them already, the sync is
        // a flush without data, which the kernel counts as a write of no sectors.
        disk::sync(&disk.mount_point());
        let recording = recorder.finish();
        counted = disk.statistics().since(before);
        recording
    });
    let stack = Stack { extents: upper.extents(), upper: &upper, lower: &disk };
    let (mut upper_requests, mut lower_bios) = (0, 0);
    for trace in &recording.traces {
        let (requests, bios) = stack.assert_children(trace);
        upper_requests += requests;
        lower_bios += bios;
    }
    println!("{}: {upper_requests} upper requests, {lower_bios} lower bios", arguments.join(" "));
    assert!(
        upper_requests >= 100 && lower_bios >= upper_requests,
        "{upper_requests} upper requests, {lower_bios} lower bios"
    );
    assert_eq!(stack.recorded_lower(&recording), counted);
}

struct Stack<'a> {
    upper: &'a Upper,
    lower: &'a Disk,
    extents: Vec<(u64, u64, u64)>,
}

impl Stack<'_> {
    /// Asserts that child bios move every byte of each upper request, at the file's blocks and
    /// between its issue and completion. No bio has a wrong parent. Returns the number of upper
    /// requests and of lower bios.
    fn assert_children(&self, trace: &Trace) -> (usize, usize) {
        let stacked = Stacked::of(trace);
        let (mut upper_requests, mut lower_bios) = (0, 0);
        for request in trace.requests.iter().filter(|request| request.device == self.upper.device()) {
            assert!(stacked.is_above(request), "{trace:#?}");
            let is_child = |bio: &&BioEvent| bio.submitter == Submitter::Span(request.span);
            let bios: Vec<&BioEvent> = trace.bios.iter().filter(is_child).collect();
            assert_eq!(bios.iter().map(|bio| bio.bytes).sum::<u32>(), request.bytes, "{trace:#?}");
            for bio in &bios {
                assert_eq!(
                    (bio.device, bio.op.is_write()),
                    (self.lower.device(), request.op.is_write()),
                    "{trace:#?}"
                );
                assert_eq!(bio.root, trace.root_span, "{trace:#?}");
                let first = self.upper_sector(bio.sector.0);
                let within = request.sector.0..request.sector.0 + u64::from(request.bytes) / 512;
                assert!(within.contains(&first), "{first} is not in {within:?}: {trace:#?}");
                let issue = request.issue.unwrap();
                assert!(issue <= bio.queue && bio.end <= request.complete, "{trace:#?}");
            }
            upper_requests += 1;
            lower_bios += bios.len();
        }
        let layered = trace.bios.iter().filter(|bio| !trace.queued_by_root(bio)).count();
        assert_eq!(layered, lower_bios, "{trace:#?}");
        (upper_requests, lower_bios)
    }

    /// Returns the upper device's sector for this sector of the lower disk.
    fn upper_sector(&self, sector: u64) -> u64 {
        let contains = |(_, lower_start, length): &&(u64, u64, u64)| {
            (*lower_start..lower_start + length).contains(&sector)
        };
        let (upper_start, lower_start, _) = self.extents.iter().find(contains).unwrap();
        upper_start + (sector - lower_start)
    }

    /// Returns the tracer's counts of the lower disk, for all submitters. A flush without data counts, as
    /// in the kernel.
    fn recorded_lower(&self, recording: &Recording) -> Statistics {
        let lower = self.lower.device();
        let moved: Vec<u64> = recording
            .requests()
            .filter(|request| request.device == lower)
            .map(|request| u64::from(request.bytes) / 512)
            .collect();
        Statistics { requests: moved.len() as u64, sectors: moved.iter().sum() }
    }
}
