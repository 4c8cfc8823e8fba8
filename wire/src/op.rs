//! What is asked of a device: an operation and flags.
//!
//! *Invariant*: the operation's number is that of this file, whichever kernel said it. Linux has numbered operations on zones
//! anew, in stable kernels too: 6.1.192, 6.12.117 and 6.18 close a zone with 13, which had been another's. The tracer, which
//! knows the kernel, translates. Flags are as include/linux/blk_types.h has them: those that are named here have not moved.

use serde::{Deserialize, Serialize};

/// Operation in the low 8 bits, flags above.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct BlockOp(pub u32);

/// All operations: the number here, the kernel's name of it, and ours.
pub const OPERATIONS: &[(u8, &str, &str)] = &[
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

/// The number of an operation that is none of these.
pub const UNKNOWN: u8 = 0xff;

impl BlockOp {
    const FLAG_SYNC: u32 = 1 << 11;
    const FLAG_META: u32 = 1 << 12;
    const FLAG_FUA: u32 = 1 << 17;
    const FLAG_PREFLUSH: u32 = 1 << 18;
    const FLAG_RAHEAD: u32 = 1 << 19;

    /// The operation's number.
    pub fn number(self) -> u8 {
        self.0 as u8
    }
    /// Its name, in lower case.
    pub fn name(self) -> &'static str {
        let known = OPERATIONS.iter().find(|(number, ..)| *number == self.number());
        known.map_or("unknown", |(_, _, name)| name)
    }
    /// Moves data towards the device.
    pub fn is_write(self) -> bool {
        self.0 & 1 != 0
    }
    /// A driver's command (SG_IO, NVMe passthrough): no bio was queued for it, and it has no sector.
    pub fn is_command(self) -> bool {
        matches!(self.number(), 34 | 35)
    }
    /// Somebody waits for it (REQ_SYNC).
    pub fn is_sync(self) -> bool {
        self.0 & Self::FLAG_SYNC != 0
    }
    /// File system metadata (REQ_META).
    pub fn is_meta(self) -> bool {
        self.0 & Self::FLAG_META != 0
    }
    /// Must be on stable storage at completion (REQ_FUA).
    pub fn is_fua(self) -> bool {
        self.0 & Self::FLAG_FUA != 0
    }
    /// Asks for a flush before it (REQ_PREFLUSH).
    pub fn is_preflush(self) -> bool {
        self.0 & Self::FLAG_PREFLUSH != 0
    }
    /// Read ahead of demand (REQ_RAHEAD).
    pub fn is_readahead(self) -> bool {
        self.0 & Self::FLAG_RAHEAD != 0
    }
    /// The name, given how many bytes are moved: an empty write with PREFLUSH is a flush.
    pub fn name_for(self, bytes: u32) -> &'static str {
        if bytes == 0 && self.is_preflush() { "flush" } else { self.name() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_of_drivers() {
        let commands = OPERATIONS.iter().filter(|(number, ..)| BlockOp(u32::from(*number)).is_command());
        assert!(commands.map(|(.., name)| *name).eq(["driver-in", "driver-out"]));
    }

    #[test]
    fn an_operation_is_named_whatever_its_flags() {
        assert_eq!(BlockOp(17 | 1 << 11).name(), "zone-reset");
        assert_eq!(BlockOp(u32::from(UNKNOWN)).name(), "unknown");
        assert_eq!(
            (BlockOp(1 | 1 << 18).name_for(0), BlockOp(1 | 1 << 18).name_for(512)),
            ("flush", "write")
        );
    }
}
