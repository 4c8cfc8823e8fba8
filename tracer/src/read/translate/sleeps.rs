//! Sleeps of system calls, from their records.
//!
//! *In*: the records of sleeps. *Out*: the sleeps of a call with the names of the kernel's functions, which wait for
//! the call's record ([`PendingByCall`](super::pending::PendingByCall)).

use std::sync::Arc;

use blkkin_probe_abi::sleep::SleepsRecord;
use blkkin_wire::call_sleeps::{CallSleeps, SleepPlace, UNKNOWN_FUNCTION};
use blkkin_wire::clock::DurationNs;

use crate::read::kernel_functions::KernelFunctions;

/// Returns the sleeps of a record.
pub(crate) fn sleeps(record: &SleepsRecord, functions: &mut KernelFunctions) -> CallSleeps {
    let mut sleeps = CallSleeps {
        places: Vec::new(),
        others: record.others,
        others_time: DurationNs(record.others_ns),
        unended: record.unended,
    };
    for place in record.places.iter().filter(|place| place.count > 0) {
        let (time, count) = (DurationNs(place.time_ns), place.count);
        let functions = names(&place.functions, functions);
        // Two calls of one function return to two addresses.
        match sleeps.places.iter_mut().find(|known| known.functions == functions) {
            Some(known) => {
                known.time.0 = known.time.0.saturating_add(time.0);
                known.count = known.count.saturating_add(count);
            }
            None => sleeps.places.push(SleepPlace { functions, time, count }),
        }
    }
    sleeps
}

fn names(addresses: &[u64], functions: &mut KernelFunctions) -> Vec<Arc<str>> {
    let addresses = addresses.iter().take_while(|address| **address != 0);
    addresses.map(|address| functions.name(*address).unwrap_or_else(|| UNKNOWN_FUNCTION.into())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_places_are_one() {
        let mut record = SleepsRecord { others_ns: 11, others: 2, ..SleepsRecord::default() };
        for (place, count) in record.places.iter_mut().zip([3, 4]) {
            // In no function, both.
            (place.functions, place.time_ns, place.count) = ([count, 0, 0], 100, count as u32);
        }
        let sleeps = sleeps(&record, &mut KernelFunctions::read());
        let functions = vec![UNKNOWN_FUNCTION.into()];
        assert_eq!(sleeps.places, [SleepPlace { functions, time: DurationNs(200), count: 7 }]);
        assert_eq!((sleeps.count(), sleeps.time()), (9, DurationNs(211)));
    }
}
