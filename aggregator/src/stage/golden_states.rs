//! Stored states of each version that this release restores: a change of a type in a state must
//! raise [`VERSION`], and a release restores the states of the one before.
//!
//! *Input*: the golden records of `wire/golden`, which never change, and `aggregator/golden`, the
//! states that releases made of them.

use std::fs;
use std::path::PathBuf;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::fragment::{Incarnation, TraceFragment};
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1;

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::join::{JoinStage, JoinStageConfig};
use super::link::{LinkStage, LinkStageConfig};
use super::sampling::SamplingRules;
use super::snapshot::{OLDEST, VERSION};

/// Length of a snapshot's header; its last part, the fingerprint, is another one in each release.
const HEADER: usize = 17;
const NOW: LogTime = LogTime(1_700_000_000_000);

struct Ignored;

impl StageOutput for Ignored {
    fn fragment(&mut self, _: u32, _: u64, _: TraceFragment) {}
    fn side_output(&mut self, _: u32, _: u64, _: TraceFragment) {}
    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}

fn golden(version: u32, stage: &str) -> PathBuf {
    let name = format!("golden/state-{version}-{stage}.bin");
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(name)
}

/// Asserts that the stage saves the same state of these records as when its version was recorded,
/// and that states of each version from [`OLDEST`] on are restored. With BLESS in the environment it
/// records the state of this version.
fn assert_states<S: Stage>(stage: &str, config: S::Config, records: &[Vec<u8>]) -> Vec<u8>
where
    S::Error: std::fmt::Debug,
{
    let mut now = S::new(Incarnation(7), config.clone());
    for bytes in records {
        now.apply(InputRecord { at: Some(NOW), bytes }, &mut Ignored);
    }
    let (saved, empty) = (now.save().unwrap(), S::new(Incarnation(7), config.clone()).save().unwrap());
    assert!(saved.len() > empty.len(), "{stage}: the records are in the state");
    if std::env::var_os("BLESS").is_some() {
        fs::write(golden(VERSION, stage), &saved).unwrap();
    }
    let recorded = fs::read(golden(VERSION, stage)).unwrap();
    assert!(
        saved[HEADER..] == recorded[HEADER..],
        "the state of {stage} has changed: raise VERSION, restore version {VERSION} too, and record it (BLESS=1)"
    );
    for version in OLDEST..=VERSION {
        let recorded = fs::read(golden(version, stage)).unwrap();
        let mut restored = S::restore(&recorded, config.clone(), Incarnation(8)).unwrap();
        assert!(
            restored.save().unwrap()[HEADER..] == saved[HEADER..],
            "{stage}: restored from version {version}"
        );
    }
    saved
}

fn record(name: &str) -> Vec<u8> {
    fs::read(format!("{}/../wire/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"))).unwrap()
}

/// Returns golden batches as one source sends them: each has a number of its own.
fn batches(names: &[&str]) -> Vec<Vec<u8>> {
    let numbered = |(sequence, name): (u64, &&str)| {
        let batch = v1::decode(&record(name)).unwrap().batch;
        v1::encode(&EventBatch { sequence, ..batch })
    };
    (3..).zip(names).map(numbered).collect()
}

#[test]
fn states_of_each_supported_version_are_restored() {
    let names = ["context-v1", "daemon-span-v1", "process-v1", "rpc-endpoint-v1", "nbd-disks-v1"];
    let saved = assert_states::<JoinStage>("join", JoinStageConfig::new(3), &batches(&names));
    // Each record is in the state: the last one has this disk.
    assert!(saved.windows(10).any(|text| text == b"serial=far"));
    let rules = SamplingRules { one_in: 2, errors: true, slower_than: None, by_application: false };
    let config = AssembleStageConfig::new(2, rules);
    assert_states::<AssembleStage>("assemble", config, &[record("fragments-v1")]);
    assert_states::<LinkStage>("link", LinkStageConfig::new(2), &[record("links-v1")]);
}
