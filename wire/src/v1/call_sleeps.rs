//! Message of a system call's sleeps.

use std::sync::Arc;

use super::Malformed;
use super::decode_tables::DecodeTables;
use super::interned_strings::InternedStrings;
use super::message;
use crate::call_sleeps::{CallSleeps, FUNCTIONS_MAX, PLACES_MAX, SleepPlace};
use crate::clock::DurationNs;

/// Writes the sleeps of a call.
pub(super) fn write<'a>(sleeps: &'a CallSleeps, strings: &mut InternedStrings<'a>) -> message::CallSleeps {
    let place = |SleepPlace { functions, time, count }: &'a SleepPlace| message::SleepPlace {
        function: functions.iter().map(|function| strings.intern(function)).collect(),
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
pub(super) fn read(sleeps: &message::CallSleeps, tables: &DecodeTables<'_>) -> Result<CallSleeps, Malformed> {
    bound(sleeps.places.len(), PLACES_MAX, "CallSleeps.places")?;
    let place = |message::SleepPlace { function, time, count }: &message::SleepPlace| {
        bound(function.len(), FUNCTIONS_MAX, "SleepPlace.function")?;
        let name = |index| tables.shared_string(index, "SleepPlace.function");
        let functions = function.iter().map(name).collect::<Result<Vec<Arc<str>>, Malformed>>()?;
        Ok(SleepPlace { functions, time: DurationNs(*time), count: *count })
    };
    Ok(CallSleeps {
        places: sleeps.places.iter().map(place).collect::<Result<_, Malformed>>()?,
        others: sleeps.others,
        others_time: DurationNs(sleeps.others_time),
        unended: sleeps.unended,
    })
}

fn bound(number: usize, max: usize, column: &'static str) -> Result<(), Malformed> {
    if number > max { Err(Malformed::Value { column, value: number as u64 }) } else { Ok(()) }
}
