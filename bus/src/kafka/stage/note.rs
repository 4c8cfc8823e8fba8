//! What a commit says beside the offset: where the state of that moment lies.
//!
//! ```text
//! blkkin1 WRITER COUNT AT CHUNKS BYTES CRC32
//! ```

use std::fmt;

/// A place for a state. Nobody but its writer writes there, and never twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Place {
    /// Drawn when a partition came to a member.
    pub(super) writer: u64,
    /// Counts that writer's states.
    pub(super) count: u64,
}

/// Which state it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Note {
    pub(super) place: Place,
    /// Offset, in its partition of the topic of states, of the first of its chunks.
    pub(super) at: i64,
    pub(super) chunks: u32,
    pub(super) bytes: u64,
    pub(super) checksum: u32,
}

const MARK: &str = "blkkin1";

impl fmt::Display for Note {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Note { place, at, chunks, bytes, checksum } = self;
        write!(f, "{MARK} {:016x} {} {at} {chunks} {bytes} {checksum:08x}", place.writer, place.count)
    }
}

impl Note {
    /// From such a text; none where somebody else wrote it.
    pub(super) fn read(text: &str) -> Option<Note> {
        let mut words = text.split(' ');
        if words.next()? != MARK {
            return None;
        }
        let place = Place {
            writer: u64::from_str_radix(words.next()?, 16).ok()?,
            count: words.next()?.parse().ok()?,
        };
        let (at, chunks, bytes) =
            (words.next()?.parse().ok()?, words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let checksum = u32::from_str_radix(words.next()?, 16).ok()?;
        words.next().is_none().then_some(Note { place, at, chunks, bytes, checksum })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_reads_as_it_was_written_and_nothing_else_is_one() {
        let place = Place { writer: u64::MAX, count: 7 };
        let note = Note { place, at: 1 << 40, chunks: 3, bytes: 1_500_000, checksum: 0xab };
        assert_eq!(Note::read(&note.to_string()), Some(note));
        assert!(note.to_string().len() < 4_096, "offset.metadata.max.bytes");
        for other in ["", "blkkin1", "blkkin2 0 0 0 0 0 0", &format!("{note} more"), "00f3 17"] {
            assert_eq!(Note::read(other), None, "{other}");
        }
    }
}
