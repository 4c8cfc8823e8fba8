//! A batch's frame: where it comes from, its clock, its books.

use super::Malformed;
use super::message;
use crate::batch::{Account, Accounts};
use crate::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use crate::ids::{BootId, NodeId, Source, StartEpoch};

/// Both directions between structs of the same fields.
macro_rules! same {
    ($write:ident, $read:ident, $type:ident { $($field:ident),+ } of { $($account:ident),* }) => {
        pub(super) fn $write(value: &$type) -> message::$type {
            message::$type { $($field: value.$field,)+ $($account: write_account(&value.$account),)* }
        }

        pub(super) fn $read(message: &message::$type) -> $type {
            $type { $($field: message.$field,)+ $($account: read_account(&message.$account),)* }
        }
    };
}

same!(write_account, read_account, Account { fired, recorded, dropped } of {});
same!(
    write_accounts,
    read_accounts,
    Accounts {
        calls_entered, calls_filtered, calls_incomplete, calls_truncated, files_truncated, calls_compat, bios_queued,
        requests_started, requests_merged, ends_missed, untracked, tasks_missed, recursion_misses, malformed,
        requests_foreign, paths_failed, walk_overflow,
        flushes_served, flush_overflow, contexts_faulted, contexts_unread, contexts_invalid,
        contexts_publishing, contexts_denied, contexts_no_room,
        resources_publishing, resources_malformed, resources_unread, resources_no_room,
        attributes_cut, attributes_unread
    } of { calls, bios, requests, commits, names }
);

pub(super) fn write_anchor(anchor: &ClockAnchor) -> message::Anchor {
    message::Anchor {
        monotonic: anchor.monotonic.0,
        wallclock: anchor.wallclock.0,
        uncertainty: anchor.uncertainty.0,
        suspended: anchor.suspended.0,
        claimed: anchor.claimed.map(|claimed| claimed.0),
    }
}

pub(super) fn read_anchor(message: &message::Anchor) -> ClockAnchor {
    ClockAnchor {
        monotonic: MonotonicNs(message.monotonic),
        wallclock: WallclockNs(message.wallclock),
        uncertainty: DurationNs(message.uncertainty),
        suspended: DurationNs(message.suspended),
        claimed: message.claimed.map(DurationNs),
    }
}

pub(super) fn read_source(node: &[u8], boot: &[u8], epoch: u64) -> Result<Source, Malformed> {
    source_of(node, boot, epoch, ["EventBatch.node", "EventBatch.boot"])
}

/// A source by its parts; `columns` are what they are called where they stand.
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
