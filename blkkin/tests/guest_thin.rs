//! A thin volume, whose pool alone knows where a block is. Each write contains its own number, and
//! the block at the sector that the trace names contains that number.
//!
//! *Input*: a dm-thin pool made by `xtask/src/vm/init.sh` (guests only). The pool's worker submits
//! the first write to a block; the task itself submits later ones. The ground truth is the data
//! that is read back from the lower disk.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use blkkin_aggregator::trace::Trace;
use blkkin_wire::event::{BioEvent, Submitter};
use blkkin_wire::ids::DeviceId;

use crate::support::direct::{self, BLOCK, Block};
use crate::support::gated_process::GatedProcess;
use crate::support::needs_guest;
use crate::support::recording::record_one;
use crate::support::tools::block_device;

const WRITES: u64 = 200;
/// Distance of two writes in blocks; a block of the pool has 64 KiB.
const STEP: u64 = 5;
/// Lower device of the volume.
const POOL: &str = "dm-0";

#[test]
fn written_data_is_at_the_sector_of_the_trace() {
    needs_guest!();
    let target = PathBuf::from(std::env::var("BLKKIN_TEST_DISK").unwrap());
    let node = target.clone();
    let mut writer = GatedProcess::new(move || {
        let device = direct::open(&node);
        let write = |number: u64| {
            let mut block = Block([0; BLOCK]);
            block.0[..8].copy_from_slice(&number.to_le_bytes());
            device.write_all_at(&block.0, number * STEP * BLOCK as u64)
        };
        i32::from((1..=WRITES).any(|number| write(number).is_err()))
    });
    let recording = record_one(&mut writer);
    recording.assert_complete();
    let [volume, pool, disk] = [target.file_name().unwrap().to_str().unwrap(), POOL, "vda"].map(block_device);
    let lower_disk = direct::open(Path::new("/dev/vda"));
    let is_write = |trace: &&Trace| trace.call().is_some_and(|call| call.call.name() == "pwrite64");
    let traces: Vec<&Trace> = recording.traces.iter().filter(is_write).collect();
    assert_eq!(traces.len() as u64, WRITES);
    let mut by_worker = 0;
    for trace in traces {
        let call = trace.call().unwrap();
        let at = |device: DeviceId| -> Vec<&BioEvent> {
            trace.bios.iter().filter(|bio| bio.device == device && bio.bytes as usize == BLOCK).collect()
        };
        let [upper] = at(volume)[..] else { panic!("{trace:#?}") };
        let [middle] = at(pool)[..] else { panic!("{trace:#?}") };
        let [lower] = at(disk)[..] else { panic!("{trace:#?}") };
        assert_eq!(upper.submitter, Submitter::Span(call.span), "{trace:#?}");
        assert_eq!(middle.submitter, Submitter::Span(upper.span), "{trace:#?}");
        assert_eq!(lower.submitter, Submitter::Span(middle.span), "{trace:#?}");
        assert_eq!(upper.sector.0 * 512, call.args[3], "{trace:#?}");
        let request = trace.requests.iter().find(|request| request.parent == Some(lower.span)).unwrap();
        let number = direct::first_word(&lower_disk, request.sector.0 * 512);
        assert_eq!(number * STEP * BLOCK as u64, call.args[3], "{trace:#?}");
        by_worker += u64::from(lower.task != call.task);
    }
    println!("{WRITES} writes, {by_worker} of them submitted by the pool's worker");
    assert!(by_worker > 0 && by_worker < WRITES);
}
