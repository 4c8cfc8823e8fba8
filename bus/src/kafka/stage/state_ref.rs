//! Commit metadata: the reference to the state at the committed offset.
//!
//! ```text
//! blkkin1 WRITER COUNT AT CHUNKS BYTES CRC32
//! ```

use std::fmt;

/// Slot of a state. Only its writer writes to it, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct StateSlot {
    /// Random id, drawn when a partition is assigned.
    pub(super) writer: u64,
    /// Number of that writer's state.
    pub(super) count: u64,
}

/// Reference to a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StateRef {
    pub(super) place: StateSlot,
    /// Offset, in its partition of the topic of states, of the first of its chunks.
    pub(super) at: i64,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    pub(super) checksum: u32,
}

const MARK: &str = "blkkin1";

impl fmt::Display for StateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateRef { place, at, chunks, bytes, checksum } = self;
        write!(f, "{MARK} {:016x} {} {at} {chunks} {bytes} {checksum:08x}", place.writer, place.count)
    }
}

impl StateRef {
    /// Parses commit metadata; `None` if another kind of client wrote it.
    pub(super) fn parse(text: &str) -> Option<StateRef> {
        let mut words = text.split(' ');
        if words.next()? != MARK {
            return None;
        }
        let place = StateSlot {
            writer: u64::from_str_radix(words.next()?, 16).ok()?,
            count: words.next()?.parse().ok()?,
        };
        let (at, chunks, bytes) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let checksum = u32::from_str_radix(words.next()?, 16).ok()?;
        words.next().is_none().then_some(StateRef { place, at, chunks, bytes, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_as_it_was_written_and_nothing_else_is_one() {
        let place = StateSlot { writer: u64::MAX, count: 7 };
        let note = StateRef { place, at: 1 << 40, chunks: 3, bytes: 1_500_000, checksum: 0xab };
        assert_eq!(StateRef::parse(&note.to_string()), Some(note));
        assert!(note.to_string().len() < 4_096, "offset.metadata.max.bytes");
        for other in ["", "blkkin1", "blkkin2 0 0 0 0 0 0", &format!("{note} more"), "00f3 17"] {
            assert_eq!(StateRef::parse(other), None, "{other}");
        }
    }
}
