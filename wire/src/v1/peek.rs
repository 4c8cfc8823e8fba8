//! What a record is, without reading its events: whose, which, and how many of what. A hundredth of what decoding takes.

use prost::Message;

use super::message::{Head, Kind};
use super::{Malformed, VERSION, totals};
use crate::ids::Source;
use crate::killed::Tally;

/// What a look sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Whose.
    pub source: Source,
    /// Which of its batches.
    pub sequence: u64,
    /// Events in it.
    pub events: u64,
    /// By kind.
    pub tally: Tally,
}

/// Looks at a record of `blkkin.events`. That it can be looked at does not say that it can be decoded.
pub fn peek(bytes: &[u8]) -> Result<Peeked, Malformed> {
    let head = Head::decode(bytes).map_err(|error| Malformed::Protobuf(error.to_string()))?;
    if head.version != VERSION {
        return Err(Malformed::Version(head.version));
    }
    let mut tally = Tally::default();
    for kind in &head.kinds {
        match Kind::try_from(*kind) {
            Ok(Kind::Call) => tally.calls += 1,
            Ok(Kind::Bio) => tally.bios += 1,
            Ok(Kind::Request) => tally.requests += 1,
            Ok(Kind::Pair) => {
                tally.bios += 1;
                tally.requests += 1;
            }
            Ok(Kind::Commit) => tally.commits += 1,
            Ok(Kind::Task | Kind::File) => tally.names += 1,
            Ok(Kind::Device | Kind::Meeting | Kind::Operation | Kind::Unspecified) | Err(_) => {}
        }
    }
    let source = totals::read_source(&head.node, &head.boot, head.epoch)?;
    let events = (head.kinds.len() + head.process_events.len()) as u64;
    Ok(Peeked { source, sequence: head.sequence, events, tally })
}
