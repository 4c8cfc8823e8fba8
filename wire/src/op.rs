//! Op of a bio or block request: the operation and its flags.
//!
//! *Invariant*: the op number is that of this file on every kernel. Linux has renumbered zone
//! operations, in stable kernels too: 6.1.192, 6.12.117 and 6.18 use 13 for zone close, formerly
//! another operation. The tracer knows the kernel and translates. Flags are those of
//! include/linux/blk_types.h; the flags named here have not moved.

use serde::{Deserialize, Serialize};

/// Op number in the low 8 bits, flags in the upper bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockOp(pub u32);

/// Known ops: number here, kernel name, name in spans.
pub const BLOCK_OPS: &[(u8, &str, &str)] = &[
    (0, "REQ_OP_READ", "read"),
    (1, "REQ_OP_WRITE", "write"),
    (2, "REQ_OP_FLUSH", "flush"),
    (3, "REQ_OP_DISCARD", "discard"),
    (5, "REQ_OP_SECURE_ERASE", "secure-erase"),
    (7, "REQ_OP_ZONE_APPEND", "zone-append"),
    (9, "REQ_OP_WRITE_ZEROES", "write-zeroes"),
    (11, "REQ_OP_ZONE_OPEN", "zone-open"),
    (13, "REQ_OP_ZONE_CLOSE", "zone-close"),
    (15, "REQ_OP_ZONE_FINISH", "zone-finish"),
    (17, "REQ_OP_ZONE_RESET", "zone-reset"),
    (19, "REQ_OP_ZONE_RESET_ALL", "zone-reset-all"),
    (34, "REQ_OP_DRV_IN", "driver-in"),
    (35, "REQ_OP_DRV_OUT", "driver-out"),
];

/// Number of an op that is not in [`BLOCK_OPS`].
pub const UNKNOWN_OP: u8 = 0xff;

impl BlockOp {
    const FLAG_SYNC: u32 = 1 << 11;
    const FLAG_META: u32 = 1 << 12;
    const FLAG_FUA: u32 = 1 << 17;
    const FLAG_PREFLUSH: u32 = 1 << 18;
    const FLAG_RAHEAD: u32 = 1 << 19;

    /// Returns the op number.
    pub fn number(self) -> u8 {
        self.0 as u8
    }
    /// Returns the op name, in lower case.
    pub fn name(self) -> &'static str {
        let known = BLOCK_OPS.iter().find(|(number, ..)| *number == self.number());
        known.map_or("unknown", |(_, _, name)| name)
    }
    /// Returns whether the op moves data to the device.
    pub fn is_write(self) -> bool {
        self.0 & 1 != 0
    }
    /// Returns whether the op reports to the device which blocks are no longer in use.
    pub fn is_discard(self) -> bool {
        matches!(self.number(), 3 | 5)
    }
    /// Returns whether this is a passthrough request (SG_IO, NVMe passthrough). It has no bio
    /// submission and no sector.
    pub fn is_passthrough(self) -> bool {
        matches!(self.number(), 34 | 35)
    }
    /// Returns whether a task waits for it (REQ_SYNC).
    pub fn is_sync(self) -> bool {
        self.0 & Self::FLAG_SYNC != 0
    }
    /// Returns whether it moves file system metadata (REQ_META).
    pub fn is_meta(self) -> bool {
        self.0 & Self::FLAG_META != 0
    }
    /// Returns whether data must be on stable storage at completion (REQ_FUA).
    pub fn is_fua(self) -> bool {
        self.0 & Self::FLAG_FUA != 0
    }
    /// Returns whether it requires a cache flush first (REQ_PREFLUSH).
    pub fn is_preflush(self) -> bool {
        self.0 & Self::FLAG_PREFLUSH != 0
    }
    /// Returns whether it is read-ahead (REQ_RAHEAD).
    pub fn is_readahead(self) -> bool {
        self.0 & Self::FLAG_RAHEAD != 0
    }
    /// Returns the op name for a request of `bytes` bytes: an empty write with PREFLUSH is a flush.
    pub fn name_for(self, bytes: u32) -> &'static str {
        if bytes == 0 && self.is_preflush() { "flush" } else { self.name() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passthrough_ops_are_driver_ops() {
        let commands = BLOCK_OPS.iter().filter(|(number, ..)| BlockOp(u32::from(*number)).is_passthrough());
        assert!(commands.map(|(.., name)| *name).eq(["driver-in", "driver-out"]));
    }

    #[test]
    fn op_name_ignores_flags() {
        assert_eq!(BlockOp(17 | 1 << 11).name(), "zone-reset");
        assert_eq!(BlockOp(u32::from(UNKNOWN_OP)).name(), "unknown");
        assert_eq!(
            (BlockOp(1 | 1 << 18).name_for(0), BlockOp(1 | 1 << 18).name_for(512)),
            ("flush", "write")
        );
    }
}
