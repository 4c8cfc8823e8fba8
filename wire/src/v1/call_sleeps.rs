//! Message of a system call's sleeps.

use super::message;
use crate::call_sleeps::{CallSleeps, SleepPlace};
use crate::clock::DurationNs;

/// Writes the sleeps of a call.
pub(super) fn write(sleeps: &CallSleeps) -> message::CallSleeps {
    let place = |SleepPlace { functions, time, count }: &SleepPlace| message::SleepPlace {
        functions: functions.iter().map(|function| function.as_ref().to_owned()).collect(),
        time: time.0,
        count: *count,
    };
    message::CallSleeps {
        places: sleeps.places.iter().map(place).collect(),
        others: sleeps.others,
        others_time: sleeps.others_time.0,
        unended: sleeps.unended,
    }
}

/// Reads the sleeps of a call.
pub(super) fn read(sleeps: &message::CallSleeps) -> CallSleeps {
    let place = |message::SleepPlace { functions, time, count }: &message::SleepPlace| SleepPlace {
        functions: functions.iter().map(|function| function.as_str().into()).collect(),
        time: DurationNs(*time),
        count: *count,
    };
    CallSleeps {
        places: sleeps.places.iter().map(place).collect(),
        others: sleeps.others,
        others_time: DurationNs(sleeps.others_time),
        unended: sleeps.unended,
    }
}
