//! Stacked devices: the bios and requests that a call causes on each level are descendants of the
//! call, on the right sectors.
//!
//! *Input*: fio on dm-linear, dm-crypt, dm-mirror, md raid0 and raid10 and combinations, made by
//! `xtask/src/vm/init.sh` (guests only). The expected sectors come from the device-mapper's table
//! and md's offsets, the totals from `/sys/block/*/stat`.

use std::fs;
use std::path::Path;

use blkkin_aggregator::trace::Trace;
use blkkin_tracer::TracerConfig;
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::DeviceId;

use crate::support::disk::{Statistics, statistics};
use crate::support::fio::Fio;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::needs_guest;
use crate::support::recording::{Recording, record};
use crate::support::tools::{block_device, identity};

const REQUESTS: u32 = 400;
const BYTES: u32 = 4096;

#[test]
fn linear_reads_and_writes_go_to_the_lower_device() {
    needs_guest!();
    let stack = Stack::find();
    for pattern in ["randread", "randwrite"] {
        stack.check(pattern, 1);
    }
}

/// A worker submits the writes, from pages that dm-crypt allocates.
#[test]
fn crypt_reads_and_writes_go_to_the_lower_device() {
    needs_guest!();
    let stack = Stack::find();
    for pattern in ["randread", "randwrite"] {
        stack.check(pattern, 1);
    }
}

#[test]
fn mirror_writes_go_to_both_and_reads_to_one() {
    needs_guest!();
    let stack = Stack::find();
    stack.check("randwrite", 2);
    stack.check("randread", 1);
}

#[test]
fn tower_requests_go_through_both_levels() {
    needs_guest!();
    let stack = Stack::find();
    stack.check("randwrite", 2);
    stack.check("randread", 1);
}

/// md computes the disk of a chunk; there is no table.
#[test]
fn raid0_requests_go_to_the_disk_of_their_chunk() {
    needs_guest!();
    let stack = Stack::find();
    stack.check("randwrite", 1);
    stack.check("randread", 1);
}

/// Two near copies on two disks behave like a mirror.
#[test]
fn raid10_writes_go_to_both_and_reads_to_one() {
    needs_guest!();
    let stack = Stack::find();
    stack.check("randwrite", 2);
    stack.check("randread", 1);
}

/// A device and its lower devices.
struct Layer {
    name: String,
    device: DeviceId,
    /// Lower devices, each with the offset that is added to a sector of this device.
    lower: Vec<(Layer, u64)>,
    /// Sectors of a chunk if chunks alternate between the lower devices.
    chunk: Option<u64>,
}

impl Layer {
    /// Reads the stack from sysfs.
    fn find(name: &str) -> Layer {
        let slaves = fs::read_dir(format!("/sys/block/{name}/slaves")).unwrap();
        let slaves = slaves.map(|slave| slave.unwrap().file_name().into_string().unwrap());
        let mut lower: Vec<_> = slaves.map(|slave| (Layer::find(&slave), offset(name, &slave))).collect();
        lower.sort_by_key(|(layer, _)| layer.device);
        let is_striped = |name| fs::read_to_string(name).is_ok_and(|level| level.trim() == "raid0");
        let chunk = is_striped(format!("/sys/block/{name}/md/level"))
            .then(|| read(&format!("/sys/block/{name}/md/chunk_size")).parse::<u64>().unwrap() / 512);
        Layer { name: name.to_owned(), device: block_device(name), lower, chunk }
    }

    /// Returns the lower device and its sector for a sector of this device. `found` is the device
    /// on which the part was recorded.
    fn lower_sector(&self, sector: u64, found: DeviceId) -> (&Layer, u64) {
        let at = self.lower.iter().position(|(layer, _)| layer.device == found).unwrap();
        let (layer, offset) = &self.lower[at];
        let Some(chunk) = self.chunk else { return (layer, sector + offset) };
        let (number, disks) = (sector / chunk, self.lower.len() as u64);
        assert_eq!(number % disks, at as u64, "{sector}");
        (layer, number / disks * chunk + sector % chunk + offset)
    }

    /// Returns the devices that have no lower device.
    fn bottom(&self) -> Vec<&Layer> {
        if self.lower.is_empty() {
            vec![self]
        } else {
            self.lower.iter().flat_map(|(layer, _)| layer.bottom()).collect()
        }
    }

    /// Asserts that `bio`, which was submitted to this device, has children on the expected
    /// sectors, down to the lowest level. Returns the number of all bios, and of those that ended
    /// on a lowest device.
    fn assert_children(&self, trace: &Trace, bio: &BioEvent) -> (usize, usize) {
        assert_eq!((bio.device, bio.bytes), (self.device, BYTES), "{trace:#?}");
        if self.lower.is_empty() {
            let request = trace.requests.iter().find(|request| Some(request.span) == bio.request).unwrap();
            assert_eq!((request.sector, request.parent), (bio.sector, Some(bio.span)), "{trace:#?}");
            assert_eq!((request.device, request.bytes), (self.device, BYTES), "{trace:#?}");
            assert_eq!(request.op.is_write(), bio.op.is_write(), "{trace:#?}");
            return (1, 1);
        }
        assert_eq!(bio.request, None, "{trace:#?}");
        let (mut all, mut ended) = (1, 0);
        for part in trace.bios.iter().filter(|part| part.submitter == Submitter::Span(bio.span)) {
            let (layer, sector) = self.lower_sector(bio.sector.0, part.device);
            assert_eq!(part.sector.0, sector, "{trace:#?}");
            assert_eq!((part.root, part.op.is_write()), (trace.root_span, bio.op.is_write()), "{trace:#?}");
            let counts = layer.assert_children(trace, part);
            (all, ended) = (all + counts.0, ended + counts.1);
        }
        (all, ended)
    }
}

/// Returns the offset of `upper` in `lower` in sectors, as `init.sh` gave it to the device-mapper
/// or as md reports it.
fn offset(upper: &str, lower: &str) -> u64 {
    if upper.starts_with("dm-") {
        2048
    } else {
        read(&format!("/sys/block/{upper}/md/dev-{lower}/offset")).parse().unwrap()
    }
}

/// The disk that the guest has stacked.
struct Stack {
    node: String,
    top: Layer,
}

impl Stack {
    fn find() -> Stack {
        let node = std::env::var("BLKKIN_TEST_DISK").unwrap();
        let top = Layer::find(node.trim_start_matches("/dev/"));
        // Merging is off: dm-crypt's worker submits the blocks of both jobs at once, and neighbours
        // could share a request.
        for disk in top.bottom() {
            fs::write(format!("/sys/block/{}/queue/nomerges", disk.name), "2").unwrap();
        }
        Stack { node, top }
    }

    /// Runs direct requests against the top device and checks every level of each. Nothing else is
    /// recorded except the kernel's own requests. Each request ends on `devices` devices.
    fn check(&self, pattern: &'static str, devices: usize) {
        let report = Path::new("/tmp/fio.json");
        let target = Path::new(&self.node);
        let fio = Fio { target, pattern, jobs: 2, requests: REQUESTS / 2, bytes: BYTES, report };
        let mut counted = self.counted();
        let recording = until_complete(|| {
            let before = self.counted();
            let mut process = GatedProcess::program(&fio.args(), Path::new("/tmp/fio.out"));
            // The kernel's own requests are traced too, because the device counts them.
            let config = TracerConfig { kernel_origin: true, ..TracerConfig::default() };
            let recording = record(&config, &mut [&mut process]);
            counted = self.counted().into_iter().zip(before).map(|(now, then)| now.since(then)).collect();
            recording
        });
        let traces = recording.traces.iter().filter(|trace| is_of(&fio, trace)).collect::<Vec<_>>();
        assert_eq!(
            (traces.len() as u64, fio.parse_report().requests),
            (u64::from(REQUESTS), u64::from(REQUESTS))
        );
        for trace in traces {
            let own: Vec<&BioEvent> = trace.bios.iter().filter(|bio| trace.queued_by_root(bio)).collect();
            assert_eq!((own.len(), own[0].sector.0 * 512), (1, trace.call().unwrap().args[3]), "{trace:#?}");
            let (all, ended) = self.top.assert_children(trace, own[0]);
            assert_eq!((all, ended), (trace.bios.len(), devices), "{trace:#?}");
            assert_eq!(trace.requests.len(), devices, "{trace:#?}");
        }
        println!("{pattern}: {REQUESTS} requests of {} on {devices} devices each", self.node);
        assert_eq!(self.recorded(&recording), counted);
    }

    /// Returns the kernel's counts of the lowest devices.
    fn counted(&self) -> Vec<Statistics> {
        self.top.bottom().iter().map(|layer| statistics(&layer.name)).collect()
    }

    /// Returns the tracer's counts of the lowest devices, for all submitters.
    fn recorded(&self, recording: &Recording) -> Vec<Statistics> {
        let at = |layer: &Layer| {
            let traces = recording.requests().filter(|request| request.device == layer.device);
            let bytes: Vec<u64> = traces.map(|request| u64::from(request.bytes)).collect();
            Statistics { requests: bytes.len() as u64, sectors: bytes.iter().sum::<u64>() / 512 }
        };
        self.top.bottom().into_iter().map(at).collect()
    }
}

fn is_of(fio: &Fio<'_>, trace: &Trace) -> bool {
    trace.call().is_some_and(|call| {
        let file = call.file.map(|open| (open.file.device, open.file.ino));
        call.call.name() == fio.call() && file == Some(identity(fio.target))
    })
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap().trim().to_owned()
}
