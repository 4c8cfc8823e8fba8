//! Sleeps of a system call inside the kernel, by the function that slept.

use std::cmp::Reverse;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::clock::DurationNs;

/// Maximum number of places of a call that have sums of their own.
pub const PLACES_MAX: usize = 4;
/// Maximum number of functions of a place.
pub const FUNCTIONS_MAX: usize = 3;

/// Functions in which the kernel waits for any bit of a folio: their caller knows which.
const GENERIC: [&str; 3] = ["folio_wait_bit_common", "folio_wait_bit", "folio_wait_bit_killable"];

/// Name in place of a function that the kernel does not name.
pub const UNKNOWN_FUNCTION: &str = "unknown function";

/// Place in the kernel, and the sleeps there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SleepPlace {
    /// Innermost functions outside the scheduler, up to three: the one that slept, and its callers. Empty if
    /// the stack could not be read.
    pub functions: Vec<Arc<str>>,
    /// Total time, without the time in which the task was runnable but not running.
    pub time: DurationNs,
    /// Number of sleeps.
    pub count: u32,
}

impl SleepPlace {
    /// Returns the function that explains most of the sleep: the innermost one, or its caller if that one waits for
    /// any bit of a folio.
    pub fn function(&self) -> &str {
        self.specific().first().map_or(UNKNOWN_FUNCTION, |function| function)
    }

    /// Returns the recorded callers of that function, innermost first.
    pub fn callers(&self) -> &[Arc<str>] {
        self.specific().get(1..).unwrap_or_default()
    }

    fn specific(&self) -> &[Arc<str>] {
        let generic = self.functions.iter().take_while(|function| GENERIC.contains(&&***function)).count();
        &self.functions[generic.min(self.functions.len().saturating_sub(1))..]
    }
}

/// Sleeps of a system call: its voluntary context switches.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CallSleeps {
    /// Up to four places.
    pub places: Vec<SleepPlace>,
    /// Sleeps at further places.
    pub others: u32,
    /// Time of the sleeps at further places.
    pub others_time: DurationNs,
    /// Sleeps, at any place, of which the end was not observed. They are counted without a time.
    pub unended: u32,
}

impl CallSleeps {
    /// Returns the places, the longest time first.
    pub fn by_time(&self) -> Vec<&SleepPlace> {
        let mut places: Vec<&SleepPlace> = self.places.iter().collect();
        places.sort_by_key(|place| Reverse(place.time));
        places
    }

    /// Returns the number of sleeps.
    pub fn count(&self) -> u64 {
        self.places.iter().fold(self.others.into(), |count, place| count + u64::from(place.count))
    }

    /// Returns the total time.
    pub fn time(&self) -> DurationNs {
        let total =
            self.places.iter().fold(self.others_time.0, |time, place| time.saturating_add(place.time.0));
        DurationNs(total)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(functions: &[&str], time: u64) -> SleepPlace {
        let functions = functions.iter().map(|function| (*function).into()).collect();
        SleepPlace { functions, time: DurationNs(time), count: 1 }
    }

    #[test]
    fn a_wait_for_any_bit_of_a_folio_goes_by_its_caller() {
        let names = |functions: &[&str]| {
            let place = place(functions, 1);
            (place.function().to_owned(), place.callers().len())
        };
        assert_eq!(
            names(&["jbd2_log_wait_commit", "ext4_sync_file"]),
            ("jbd2_log_wait_commit".to_owned(), 1)
        );
        let write_back = ["folio_wait_bit_common", "folio_wait_bit", "folio_wait_writeback"];
        assert_eq!(names(&write_back), ("folio_wait_writeback".to_owned(), 0));
        assert_eq!(names(&write_back[..2]), ("folio_wait_bit".to_owned(), 0));
        assert_eq!(names(&[]), (UNKNOWN_FUNCTION.to_owned(), 0));
    }

    #[test]
    fn sums_cover_further_places() {
        let sleeps = CallSleeps {
            places: vec![place(&["a"], 5), place(&["b"], 9)],
            others: 3,
            others_time: DurationNs(20),
            unended: 0,
        };
        assert_eq!((sleeps.count(), sleeps.time()), (5, DurationNs(34)));
        assert_eq!(sleeps.by_time()[0].function(), "b");
    }
}
