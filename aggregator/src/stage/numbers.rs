//! The numbers of pieces, by output partition.

use blkkin_wire::piece::Piece;
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
    pub(super) fn write(&mut self, piece: Piece, out: &mut dyn Outlet) {
        let partition = piece.trace.partition(self.0.len() as u32);
        if let Some(next) = self.0.get_mut(partition as usize) {
            let number = *next;
            *next = next.wrapping_add(1);
            out.piece(partition, number, piece);
        }
    }
}
