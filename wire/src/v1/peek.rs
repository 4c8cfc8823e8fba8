//! Header of a record without its events: source, sequence number, and event counts by kind. It
//! costs a hundredth of decoding.

use prost::Message;

use super::message::{EventBatchHeader, Kind};
use super::{Malformed, VERSION, frame};
use crate::crash_report::RecordCounts;
use crate::ids::Source;

/// Header of an event batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peeked {
    /// Source.
    pub source: Source,
    /// Sequence number of the batch.
    pub sequence: u64,
    /// Number of events.
    pub events: u64,
    /// Records by kind.
    pub counts: RecordCounts,
}

/// Reads the header of a record of `blkkin.events`. Success does not imply that
/// [`decode`](super::decode) succeeds.
pub fn peek(bytes: &[u8]) -> Result<Peeked, Malformed> {
    let header = EventBatchHeader::decode(bytes).map_err(|error| Malformed::Protobuf(error.to_string()))?;
    if header.version != VERSION {
        return Err(Malformed::Version(header.version));
    }
    let mut counts = RecordCounts::default();
    for kind in &header.kinds {
        match Kind::try_from(*kind) {
            Ok(Kind::Syscall) => counts.calls += 1,
            Ok(Kind::Bio) => counts.bios += 1,
            Ok(Kind::Request) => counts.requests += 1,
            Ok(Kind::Pair) => {
                counts.bios += 1;
                counts.requests += 1;
            }
            Ok(Kind::Commit) => counts.commits += 1,
            Ok(Kind::Task | Kind::File) => counts.names += 1,
            Ok(Kind::Device | Kind::RpcEndpoint | Kind::DaemonSpan | Kind::Unspecified) | Err(_) => {}
        }
    }
    let source = frame::read_source(&header.node, &header.boot, header.epoch)?;
    let page_origins = header.page_origin_events.map_or(0, |origins| origins.before.len());
    let async_ios = header.async_io_events.map_or(0, |columns| columns.flags.len());
    counts.calls += async_ios as u64;
    let faults = header.fault_events.map_or(0, |faults| faults.flags.len());
    let outside = header.process_context_events.len()
        + header.virtual_machine_events.len()
        + page_origins
        + async_ios
        + faults;
    let events = (header.kinds.len() + outside) as u64;
    Ok(Peeked { source, sequence: header.sequence, events, counts })
}
