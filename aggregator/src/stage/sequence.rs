//! Sequence numbers of fragments, by output partition.
//!
//! *In*: fragments. *Out*: the same fragments with their partition and number. *Invariant*: the
//! numbers of a partition count up by one.

use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::stage::StageOutput;
use serde::{Deserialize, Serialize};

/// The next number of each output partition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SequenceNumbers(Vec<u64>);

impl SequenceNumbers {
    pub(super) fn new(partitions: u32) -> Self {
        SequenceNumbers(vec![0; partitions.max(1) as usize])
    }

    /// Writes `fragment` under its number.
    pub(super) fn write(&mut self, fragment: TraceFragment, out: &mut dyn StageOutput) {
        let partition = fragment.trace.partition(self.0.len() as u32);
        if let Some(number) = self.next(partition) {
            out.fragment(partition, number, fragment);
        }
    }

    /// Writes `fragment` to the side output under its number.
    pub(super) fn write_side(&mut self, fragment: TraceFragment, out: &mut dyn StageOutput) {
        let partitions = self.0.len() as u32;
        let partition = match &fragment.remote_link {
            RemoteLink::Endpoint(endpoint) => endpoint.event.key.partition(partitions),
            _ => fragment.trace.partition(partitions),
        };
        if let Some(number) = self.next(partition) {
            out.side_output(partition, number, fragment);
        }
    }

    fn next(&mut self, partition: u32) -> Option<u64> {
        let next = self.0.get_mut(partition as usize)?;
        Some(std::mem::replace(next, next.wrapping_add(1)))
    }
}
