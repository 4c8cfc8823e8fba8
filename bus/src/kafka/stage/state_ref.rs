//! Commit metadata: the reference to the state at the committed offset.
//!
//! *In* and *out*: a [`StateRef`] and its text. *Invariant*: text of another client does not parse.
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
    pub(super) slot: StateSlot,
    /// Offset, in its partition of the topic of states, of the first of its chunks.
    pub(super) at: i64,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    pub(super) checksum: u32,
}

const PREFIX: &str = "blkkin1";

impl fmt::Display for StateRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let StateRef { slot, at, chunks, bytes, checksum } = self;
        write!(f, "{PREFIX} {:016x} {} {at} {chunks} {bytes} {checksum:08x}", slot.writer, slot.count)
    }
}

impl StateRef {
    /// Parses commit metadata; `None` if another kind of client wrote it.
    pub(super) fn parse(text: &str) -> Option<StateRef> {
        let mut words = text.split(' ');
        if words.next()? != PREFIX {
            return None;
        }
        let slot = StateSlot {
            writer: u64::from_str_radix(words.next()?, 16).ok()?,
            count: words.next()?.parse().ok()?,
        };
        let (at, chunks, bytes) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let checksum = u32::from_str_radix(words.next()?, 16).ok()?;
        words.next().is_none().then_some(StateRef { slot, at, chunks, bytes, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reference_round_trips_and_other_text_is_none() {
        let slot = StateSlot { writer: u64::MAX, count: 7 };
        let state_ref = StateRef { slot, at: 1 << 40, chunks: 3, bytes: 1_500_000, checksum: 0xab };
        assert_eq!(StateRef::parse(&state_ref.to_string()), Some(state_ref));
        assert!(state_ref.to_string().len() < 4_096, "offset.metadata.max.bytes");
        for other in ["", "blkkin1", "blkkin2 0 0 0 0 0 0", &format!("{state_ref} more"), "00f3 17"] {
            assert_eq!(StateRef::parse(other), None, "{other}");
        }
    }
}
