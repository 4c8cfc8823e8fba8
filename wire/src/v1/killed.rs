//! Starts that were killed.

use super::message;
use crate::ids::StartEpoch;
use crate::killed::{Killed, Remains, Tally};

pub(super) fn write(killed: &Killed) -> message::Killed {
    let tally = |of: fn(&Remains) -> Tally| killed.remains.as_ref().map(|remains| write_tally(&of(remains)));
    message::Killed {
        epoch: killed.epoch.map_or(0, |epoch| epoch.0),
        unknown: killed.remains.is_none(),
        fired: tally(|remains| remains.fired),
        dropped: tally(|remains| remains.dropped),
        read: tally(|remains| remains.read),
        kept: tally(|remains| remains.kept),
        doubtful: tally(|remains| remains.doubtful),
    }
}

pub(super) fn read(message: &message::Killed) -> Killed {
    let tally = |tally: &Option<message::Tally>| tally.as_ref().map(read_tally).unwrap_or_default();
    let remains = || Remains {
        fired: tally(&message.fired),
        dropped: tally(&message.dropped),
        read: tally(&message.read),
        kept: tally(&message.kept),
        doubtful: tally(&message.doubtful),
    };
    Killed {
        epoch: (message.epoch != 0).then_some(StartEpoch(message.epoch)),
        remains: (!message.unknown).then(remains),
    }
}

fn write_tally(tally: &Tally) -> message::Tally {
    let Tally { calls, bios, requests, commits, names } = *tally;
    message::Tally { calls, bios, requests, commits, names }
}

fn read_tally(message: &message::Tally) -> Tally {
    let message::Tally { calls, bios, requests, commits, names } = *message;
    Tally { calls, bios, requests, commits, names }
}
