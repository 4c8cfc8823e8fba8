//! Counts of one interval.
//!
//! *In*: the totals since the start. *Out*: a [`Sample`]: the differences to those of the interval before, by key, and
//! grouped. *Invariant*: the rows of a sample add up to all requests that completed in its interval, but for those
//! that are named apart.

use std::collections::{BTreeMap, HashMap};
use std::time::{Duration, Instant, SystemTime};

use blkkin_tracer::TracerError;
use blkkin_tracer::enrich::devices::DeviceNames;
use blkkin_tracer::totals::{RequestCounter, RequestKey, RequestTotal, Totals};
use blkkin_wire::ids::DeviceId;
use chrono::{DateTime, Utc};

use crate::cli::Group;

/// Requests that completed in one interval.
#[derive(Clone, Debug, Default)]
pub(super) struct Sample {
    /// End of the interval.
    pub(super) time: DateTime<Utc>,
    pub(super) length: Duration,
    /// Rows with requests, by key.
    pub(super) rows: Vec<(RequestKey, RequestTotal)>,
    /// Names of their disks.
    pub(super) disks: HashMap<DeviceId, Box<str>>,
    /// Requests without a key, because there are too many keys.
    pub(super) others: RequestTotal,
    /// Requests that are in no row, because too many are in flight.
    pub(super) untracked: u64,
    /// Runs of the programs that the kernel skipped.
    pub(super) missed: u64,
}

/// Fields of a key that a group has in common; the others are empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct GroupKey {
    pub(super) program: Box<str>,
    pub(super) cgroup: Option<u64>,
    pub(super) disk: Box<str>,
    pub(super) operation: &'static str,
}

impl Sample {
    /// Returns the sums of each disk, by name.
    pub(super) fn by_disk(&self) -> BTreeMap<Box<str>, RequestTotal> {
        self.sums(|key| self.disk(key))
    }

    /// Returns the sums of each group.
    pub(super) fn by(&self, group: Group) -> BTreeMap<GroupKey, RequestTotal> {
        self.sums(|key| {
            let (program, cgroup) = (key.program.clone(), Some(key.cgroup));
            let (disk, operation) = (self.disk(key), key.operation);
            match group {
                Group::Program => GroupKey { program, ..GroupKey::default() },
                Group::Cgroup => GroupKey { cgroup, ..GroupKey::default() },
                Group::Operation => GroupKey { disk, operation, ..GroupKey::default() },
                Group::All => GroupKey { program, cgroup, disk, operation },
            }
        })
    }

    /// Returns the sum of all requests, also of those without a key.
    pub(super) fn total(&self) -> RequestTotal {
        let mut total = self.others.clone();
        self.rows.iter().for_each(|(_, row)| total.add(row));
        total
    }

    /// Returns the name of a key's disk.
    pub(super) fn disk(&self, key: &RequestKey) -> Box<str> {
        self.disks.get(&key.disk).cloned().unwrap_or_else(|| key.disk.to_string().into())
    }

    fn sums<K: Ord>(&self, key_of: impl Fn(&RequestKey) -> K) -> BTreeMap<K, RequestTotal> {
        let mut sums = BTreeMap::<K, RequestTotal>::new();
        for (key, total) in &self.rows {
            sums.entry(key_of(key)).or_default().add(total);
        }
        sums
    }
}

/// Reads the totals and forms the differences.
pub(super) struct Sampler {
    counter: RequestCounter,
    names: DeviceNames,
    last: Totals,
    read: Instant,
}

impl Sampler {
    pub(super) fn start(mut counter: RequestCounter) -> Result<Sampler, TracerError> {
        let last = counter.read()?;
        Ok(Sampler { counter, names: DeviceNames::snapshot(), last, read: Instant::now() })
    }

    /// Returns what was counted since the last call.
    pub(super) fn next(&mut self) -> Result<Sample, TracerError> {
        let totals = self.counter.read()?;
        let now = Instant::now();
        let length = now - std::mem::replace(&mut self.read, now);
        let last = std::mem::replace(&mut self.last, totals);
        let (totals, none) = (&self.last, RequestTotal::default());
        let mut rows = Vec::new();
        let mut disks = HashMap::new();
        for (key, total) in &totals.rows {
            let difference = total.since(last.rows.get(key).unwrap_or(&none));
            if difference.requests > 0 {
                disks.entry(key.disk).or_insert_with(|| self.names.name(key.disk));
                rows.push((key.clone(), difference));
            }
        }
        rows.sort_by(|(one, _), (other, _)| one.cmp(other));
        Ok(Sample {
            time: SystemTime::now().into(),
            length,
            rows,
            disks,
            others: totals.others.since(&last.others),
            untracked: totals.untracked - last.untracked,
            missed: totals.missed.saturating_sub(last.missed),
        })
    }
}
