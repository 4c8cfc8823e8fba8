//! The state of starts of a tracer that have ended: a node that starts its tracer again and again
//! does not make the state grow by what was traced.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../../blkkin/tests/support/synthetic_batches.rs"]
mod synthetic_batches;

use blkkin_aggregator::stage::join::{JoinStage, JoinStageConfig};
use blkkin_wire::fragment::{Incarnation, TraceFragment};
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1;

const STARTS: u64 = 5;
/// Bytes of saved state that an ended start may keep until it is forgotten: its names, the roots of
/// its incomplete traces and the number of its last batch.
const BYTES_MAX: usize = 8_192;

struct Ignored;

impl StageOutput for Ignored {
    fn fragment(&mut self, _: u32, _: u64, _: TraceFragment) {}
    fn side_output(&mut self, _: u32, _: u64, _: TraceFragment) {}
    fn dead_letter(&mut self, why: String) {
        panic!("{why}")
    }
}

/// Returns the size of the state after [`STARTS`] starts of `calls` calls each.
fn state_after(calls: u64) -> usize {
    let mut stage = JoinStage::new(Incarnation(1), JoinStageConfig::new(12));
    let mut at = 0;
    for start in 1..=STARTS {
        for batch in synthetic_batches::batches_of_start(1, start, calls) {
            at += 1;
            stage.apply(InputRecord { at: Some(LogTime(at)), bytes: &v1::encode(&batch) }, &mut Ignored);
        }
        assert_eq!(stage.pending(), 0);
    }
    stage.save().unwrap().len()
}

#[test]
fn a_start_that_has_ended_keeps_no_commits() {
    let (few, many) = (state_after(100), state_after(2_000));
    let bytes = many.saturating_sub(few) / STARTS as usize;
    assert!(bytes < BYTES_MAX, "{bytes} bytes a start: {few} bytes after few calls, {many} after many");
}
