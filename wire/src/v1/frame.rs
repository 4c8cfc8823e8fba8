//! Frame of a batch: source, clock anchor, counters.

use super::Malformed;
use super::message;
use crate::batch::{RecordStats, SourceStats};
use crate::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use crate::ids::{BootId, NodeId, Source, StartEpoch};

/// Defines both conversions between two structs with the same fields. A message of `and` is absent
/// if it is zero: earlier versions had none.
macro_rules! conversions {
    ($write:ident, $read:ident, $type:ident { $($field:ident),+ } of { $($record_stats:ident),* } and { $($optional:ident),* }) => {
        pub(super) fn $write(value: &$type) -> message::$type {
            message::$type {
                $($field: value.$field,)+
                $($record_stats: write_record_stats(&value.$record_stats),)*
                $($optional: write_optional(&value.$optional),)*
            }
        }

        pub(super) fn $read(message: &message::$type) -> $type {
            $type {
                $($field: message.$field,)+
                $($record_stats: read_record_stats(&message.$record_stats),)*
                $($optional: message.$optional.as_ref().map(read_record_stats).unwrap_or_default(),)*
            }
        }
    };
}

conversions!(write_record_stats, read_record_stats, RecordStats { fired, recorded, dropped } of {} and {});
conversions!(
    write_stats,
    read_stats,
    SourceStats {
        calls_entered, calls_filtered, calls_incomplete, calls_truncated, files_truncated, calls_compat, bios_queued,
        requests_started, requests_merged, ends_missed, untracked, tasks_missed, recursion_misses, malformed,
        requests_foreign, paths_failed, walk_overflow,
        flushes_served, flush_overflow, contexts_faulted, contexts_unread, contexts_invalid,
        contexts_publishing, contexts_denied, contexts_no_room,
        resources_publishing, resources_malformed, resources_unread, resources_no_room,
        attributes_cut, attributes_unread, dirty_writes_evicted, dirty_bytes, faults_filtered, calls_excluded,
        names_displaced, events_overwritten, calls_unsampled, kept_slow, kept_failed, kept_large
    } of { calls, bios, requests, commits, names } and { page_origins, faults, waits, sleeps }
);

/// Returns the counters, or none if all are 0, so that the field is absent.
fn write_optional(stats: &RecordStats) -> Option<message::RecordStats> {
    (*stats != RecordStats::default()).then(|| write_record_stats(stats))
}

pub(super) fn write_anchor(anchor: &ClockAnchor) -> message::Anchor {
    message::Anchor {
        monotonic: anchor.monotonic.0,
        wallclock: anchor.wallclock.0,
        uncertainty: anchor.uncertainty.0,
        suspended: anchor.suspended.0,
        max_error: anchor.max_error.map(|claimed| claimed.0),
    }
}

pub(super) fn read_anchor(message: &message::Anchor) -> ClockAnchor {
    ClockAnchor {
        monotonic: MonotonicNs(message.monotonic),
        wallclock: WallclockNs(message.wallclock),
        uncertainty: DurationNs(message.uncertainty),
        suspended: DurationNs(message.suspended),
        max_error: message.max_error.map(DurationNs),
    }
}

pub(super) fn read_source(node: &[u8], boot: &[u8], epoch: u64) -> Result<Source, Malformed> {
    source_of(node, boot, epoch, ["EventBatch.node", "EventBatch.boot"])
}

/// Creates a source from its parts; `columns` are their names in errors.
pub(super) fn source_of(
    node: &[u8],
    boot: &[u8],
    epoch: u64,
    columns: [&'static str; 2],
) -> Result<Source, Malformed> {
    let wide = |bytes: &[u8], column| {
        let bytes = <[u8; 16]>::try_from(bytes)
            .map_err(|_| Malformed::Value { column, value: bytes.len() as u64 })?;
        Ok(u128::from_be_bytes(bytes))
    };
    Ok(Source {
        node: NodeId(wide(node, columns[0])?),
        boot: BootId(wide(boot, columns[1])?),
        epoch: StartEpoch(epoch),
    })
}
