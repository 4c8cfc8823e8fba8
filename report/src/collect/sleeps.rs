//! Places in the kernel where storage calls slept, by program.
//!
//! *In*: the traces of storage calls, if sleeps are recorded. *Out*: rows by program, function and its caller.
//!
//! *Invariant*: each sleep of a call is in one row, or among the sleeps at further places. A call counts once in each of its
//! rows.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::clock::DurationNs;

use super::classified::ClassifiedTrace;

/// Maximum number of rows; the first ones get one. A row takes some 200 bytes.
const ROWS_MAX: usize = 1_024;

/// Program, and the place where its calls slept.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SleepKey {
    /// Program that slept.
    pub program: Arc<str>,
    /// Function that slept.
    pub function: Arc<str>,
    /// Caller of that function, if known.
    pub caller: Option<Arc<str>>,
}

/// Sums of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SleepSums {
    /// System calls.
    pub calls: u64,
    /// Sleeps.
    pub sleeps: u64,
    /// Time of the sleeps.
    pub time: DurationNs,
}

/// Sleeps by program and place.
#[derive(Clone, Debug, Default)]
pub struct Sleeps {
    rows: BTreeMap<SleepKey, SleepSums>,
    /// Sleeps at further places of a call, and those beyond `ROWS_MAX`.
    others: SleepSums,
    /// Sleeps of which the end was not observed.
    unended: u64,
}

impl SleepSums {
    fn add(&mut self, sleeps: u32, time: DurationNs) {
        self.calls += 1;
        self.sleeps += u64::from(sleeps);
        self.time.0 = self.time.0.saturating_add(time.0);
    }
}

impl Sleeps {
    /// Adds the root call of a trace, if it is a storage call that slept.
    pub(crate) fn add(&mut self, classified: ClassifiedTrace<'_>) {
        let Some(slept) = classified.storage_call().and_then(|call| call.slept.as_deref()) else { return };
        let program = classified.trace.names.comm().unwrap_or_else(|| "unknown task".into());
        // Two places of a call may have the function and its caller in common.
        let mut places = BTreeMap::new();
        for place in &slept.places {
            let key = SleepKey {
                program: program.clone(),
                function: place.function().into(),
                caller: place.callers().first().cloned(),
            };
            let (sleeps, time): &mut (u32, DurationNs) = places.entry(key).or_default();
            *sleeps = sleeps.saturating_add(place.count);
            time.0 = time.0.saturating_add(place.time.0);
        }
        for (key, (sleeps, time)) in places {
            let is_full = self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key);
            let row = if is_full { &mut self.others } else { self.rows.entry(key).or_default() };
            row.add(sleeps, time);
        }
        self.unended += u64::from(slept.unended);
        if slept.others > 0 {
            self.others.add(slept.others, slept.others_time);
        }
    }

    /// Returns up to `limit` rows, ordered by total time.
    pub fn by_time(&self, limit: usize) -> Vec<(&SleepKey, SleepSums)> {
        let mut rows: Vec<_> = self.rows.iter().map(|(key, sums)| (key, *sums)).collect();
        rows.sort_by_key(|(key, sums)| (Reverse(sums.time), *key));
        rows.truncate(limit);
        rows
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns the number of sleeps of which the end was not observed: their time is missing.
    pub fn unended(&self) -> u64 {
        self.unended
    }

    /// Returns the sleeps that are in no row.
    pub fn others(&self) -> SleepSums {
        self.others
    }
}

#[cfg(test)]
mod tests {
    use blkkin_aggregator::trace::Trace;
    use blkkin_wire::call_sleeps::{CallSleeps, SleepPlace};

    use super::*;
    use crate::sample::{call, on_file, with_call};

    fn slept(span: u64, places: &[(&[&str], u64)], others: u32) -> Trace {
        let mut trace = on_file(call(span, "fsync", 1_000), "/srv/db", 0o100_644);
        let place = |(functions, time): &(&[&str], u64)| SleepPlace {
            functions: functions.iter().map(|function| (*function).into()).collect(),
            time: DurationNs(*time),
            count: 2,
        };
        let places = places.iter().map(place).collect();
        let slept = CallSleeps { places, others, others_time: DurationNs(others.into()), unended: 1 };
        with_call(&mut trace, |call| call.slept = Some(Box::new(slept)));
        trace
    }

    #[test]
    fn a_call_counts_once_in_each_row() {
        let mut sleeps = Sleeps::default();
        let write_back: &[&str] = &["folio_wait_bit_common", "folio_wait_writeback", "a"];
        let same: &[&str] = &["folio_wait_writeback", "a", "b"];
        for trace in [
            slept(1, &[(write_back, 10), (same, 5), (&["x"], 1)], 3),
            slept(2, &[(write_back, 20)], 0),
            slept(3, &[], 0),
        ] {
            sleeps.add(ClassifiedTrace::from(&trace));
        }
        let rows = sleeps.by_time(10);
        let rows: Vec<_> =
            rows.iter().map(|(key, sums)| (&*key.function, key.caller.as_deref(), *sums)).collect();
        let sums = |calls, sleeps, time| SleepSums { calls, sleeps, time: DurationNs(time) };
        assert_eq!(rows, [("folio_wait_writeback", Some("a"), sums(2, 6, 35)), ("x", None, sums(1, 2, 1))]);
        assert_eq!((sleeps.count(), sleeps.others()), (2, sums(1, 3, 3)));
        assert_eq!(sleeps.unended(), 3);
        assert_eq!(sleeps.by_time(1).len(), 1);
    }

    #[test]
    fn rows_beyond_the_limit_are_counted_together() {
        let mut sleeps = Sleeps::default();
        for n in 0..ROWS_MAX + 2 {
            let name = format!("f{n}");
            sleeps.add(ClassifiedTrace::from(&slept(1, &[(&[&*name], 7)], 0)));
        }
        assert_eq!((sleeps.count(), sleeps.others().sleeps), (ROWS_MAX, 4));
    }
}
