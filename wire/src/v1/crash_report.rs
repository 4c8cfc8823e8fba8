//! Crashed starts.

use super::message;
use crate::crash_report::{CrashedRun, LossReport, RecordCounts};
use crate::ids::StartEpoch;

pub(super) fn write(run: &CrashedRun) -> message::CrashedRun {
    let counts =
        |of: fn(&LossReport) -> RecordCounts| run.losses.as_ref().map(|remains| write_counts(&of(remains)));
    message::CrashedRun {
        epoch: run.epoch.map_or(0, |epoch| epoch.0),
        unknown: run.losses.is_none(),
        fired: counts(|remains| remains.fired),
        dropped: counts(|remains| remains.dropped),
        read: counts(|remains| remains.read),
        persisted: counts(|remains| remains.persisted),
        unacknowledged: counts(|remains| remains.unacknowledged),
    }
}

pub(super) fn read(message: &message::CrashedRun) -> CrashedRun {
    let counts =
        |counts: &Option<message::RecordCounts>| counts.as_ref().map(read_counts).unwrap_or_default();
    let remains = || LossReport {
        fired: counts(&message.fired),
        dropped: counts(&message.dropped),
        read: counts(&message.read),
        persisted: counts(&message.persisted),
        unacknowledged: counts(&message.unacknowledged),
    };
    CrashedRun {
        epoch: (message.epoch != 0).then_some(StartEpoch(message.epoch)),
        losses: (!message.unknown).then(remains),
    }
}

fn write_counts(counts: &RecordCounts) -> message::RecordCounts {
    let RecordCounts { calls, bios, requests, commits, names } = *counts;
    message::RecordCounts { calls, bios, requests, commits, names }
}

fn read_counts(message: &message::RecordCounts) -> RecordCounts {
    let message::RecordCounts { calls, bios, requests, commits, names } = *message;
    RecordCounts { calls, bios, requests, commits, names }
}
