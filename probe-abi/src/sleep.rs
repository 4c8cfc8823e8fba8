//! Record of where a system call slept inside the kernel.
//!
//! A call that slept has one such record if sleeps are recorded. It precedes the call's own record in the same ring.

use crate::plain;
use crate::record::Header;

/// Sleeps of a system call.
pub const TAG_SLEEPS: u8 = 17;

/// Functions of a place: the innermost ones outside the scheduler.
pub const PLACE_FUNCTIONS: usize = 3;
/// Places of one call that have counts of their own. Further ones are counted together.
pub const PLACES: usize = 4;

/// A place in the kernel, and the sleeps there.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SleepPlace {
    /// Return addresses: in the function that slept, in its caller, and in the caller of that. 0: unknown.
    pub functions: [u64; PLACE_FUNCTIONS],
    /// Time in ns, without the time in which the task was runnable but not running.
    pub time_ns: u64,
    /// Number of sleeps.
    pub count: u32,
    /// Zero.
    pub reserved: u32,
}

/// Sleeps of one system call: voluntary context switches.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct SleepsRecord {
    /// Tag, length, time of the call's return.
    pub header: Header,
    /// Span of the system call.
    pub span: u64,
    /// Places. Those with a count of 0 are the last.
    pub places: [SleepPlace; PLACES],
    /// Time in ns at further places.
    pub others_ns: u64,
    /// Sleeps at further places.
    pub others: u32,
    /// Sleeps, at any place, of which the end was not observed. They are counted without a time.
    pub unended: u32,
}

impl SleepsRecord {
    /// Adds a sleep. At a fifth place it replaces the place with the shortest time, if it is longer; the shorter one goes to
    /// the further places.
    #[inline(always)]
    pub fn add(&mut self, functions: [u64; PLACE_FUNCTIONS], time_ns: u64) {
        let (mut at, mut shortest) = (0, 0);
        while at < PLACES {
            let place = &mut self.places[at];
            let different = (place.functions[0] ^ functions[0])
                | (place.functions[1] ^ functions[1])
                | (place.functions[2] ^ functions[2]);
            if place.count == 0 || different == 0 {
                place.functions = functions;
                place.time_ns += time_ns;
                place.count += 1;
                return;
            }
            if place.time_ns < self.places[shortest % PLACES].time_ns {
                shortest = at;
            }
            at += 1;
        }
        // The verifier does not know that it is one of the places.
        let place = &mut self.places[shortest % PLACES];
        if time_ns <= place.time_ns {
            self.others_ns += time_ns;
            self.others += 1;
            return;
        }
        self.others_ns += place.time_ns;
        self.others += place.count;
        *place = SleepPlace { functions, time_ns, count: 1, reserved: 0 };
    }

    /// Empties the record before its first sleep.
    #[inline(always)]
    pub fn clear(&mut self) {
        self.places =
            [SleepPlace { functions: [0; PLACE_FUNCTIONS], time_ns: 0, count: 0, reserved: 0 }; PLACES];
        (self.others_ns, self.others, self.unended) = (0, 0, 0);
    }
}

plain! { SleepPlace = 40 }
plain! { SleepsRecord = 200 }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_with_the_longest_times_have_sums_of_their_own() {
        let mut record = SleepsRecord { others: 9, unended: 9, ..SleepsRecord::default() };
        record.clear();
        // The sum of place 1 is compared, not its sleeps; a single sleep displaces it, and an equal one does not.
        for (place, time_ns) in [(1, 4), (2, 20), (1, 4), (3, 30), (4, 40), (5, 8), (5, 9), (6, 9)] {
            record.add([place, 0, 7], time_ns);
        }
        let places = record.places.map(|place| (place.functions[0], place.time_ns, place.count));
        assert_eq!(places, [(5, 9, 1), (2, 20, 1), (3, 30, 1), (4, 40, 1)]);
        assert_eq!((record.others, record.others_ns, record.unended), (4, 8 + 8 + 9, 0));
    }
}
