//! The numbers of pieces, by output partition.

use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::remote_link::RemoteLink;
use serde::{Deserialize, Serialize};

use super::Outlet;

/// The next number of each partition of the output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Numbers(Vec<u64>);

impl Numbers {
    pub(super) fn new(partitions: u32) -> Self {
        Numbers(vec![0; partitions.max(1) as usize])
    }

    /// Gives `piece` out under the number that is its.
    pub(super) fn write(&mut self, piece: TraceFragment, out: &mut dyn Outlet) {
        let partition = piece.trace.partition(self.0.len() as u32);
        if let Some(number) = self.next(partition) {
            out.piece(partition, number, piece);
        }
    }

    /// The same, beside the stage's output.
    pub(super) fn write_aside(&mut self, piece: TraceFragment, out: &mut dyn Outlet) {
        let partitions = self.0.len() as u32;
        let partition = match &piece.remote_link {
            RemoteLink::Endpoint(half) => half.event.key.partition(partitions),
            _ => piece.trace.partition(partitions),
        };
        if let Some(number) = self.next(partition) {
            out.aside(partition, number, piece);
        }
    }

    fn next(&mut self, partition: u32) -> Option<u64> {
        let next = self.0.get_mut(partition as usize)?;
        Some(std::mem::replace(next, next.wrapping_add(1)))
    }
}
