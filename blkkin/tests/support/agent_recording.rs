//! Batches that `blkkin agent --record` wrote.

use std::path::Path;

use blkkin_bus::recording::{Position, Recording};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::syscalls::SyscallClass;
use blkkin_wire::v1;

/// Reads all batches of a recording, in their order.
pub(crate) fn batches(folder: &Path) -> Vec<EventBatch> {
    let mut recording = Recording::open(folder, Position::default()).unwrap();
    let mut batches = Vec::new();
    while let Some((bytes, _)) = recording.read().unwrap() {
        batches.push(v1::decode(&bytes).unwrap().batch);
    }
    batches
}

/// Returns whether the call is a truncation, of which head sampling records each one.
pub(crate) fn is_truncation(call: &SyscallEvent) -> bool {
    call.call.spec().class == SyscallClass::Truncate
}
