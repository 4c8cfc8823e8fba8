//! Waits of storage calls and of requests by program and object, with the holders of the locks and the
//! other programs at a device.
//!
//! *In*: the traces of storage calls, and waits in queues from [`super::queue_waits`]. *Out*: rows by
//! waiting program, object and holder.
//!
//! *Invariant*: a call counts once in each row: with the sum of its waits for the object. The holder is
//! known of a call's longest wait only, so the sum of other objects has none.

use std::borrow::Cow;
use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::Arc;

use blkkin_wire::call_waits::{LockHolder, WaitKind};
use blkkin_wire::clock::DurationNs;

use super::classified::ClassifiedTrace;
use super::latency::Latency;

/// Maximum number of rows; the first ones get one. A row takes some 30 KiB, nearly all of it the
/// histogram: 8 MiB.
const ROWS_MAX: usize = 256;

/// Object of a wait.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum WaitObject {
    /// Lock, or dirty pages: recorded by the kernel.
    Kernel(WaitKind),
    /// Queue of the device of this name: inferred, see [`super::queue_waits`].
    Queue(Arc<str>),
}

impl WaitObject {
    /// Returns the name, as behind "waited for".
    pub fn name(&self) -> Cow<'static, str> {
        match self {
            WaitObject::Kernel(kind) => kind.name().into(),
            WaitObject::Queue(device) => format!("the queue of {device}").into(),
        }
    }
}

/// Waiting program, object, and the holder of a lock.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct WaitKey {
    /// Program that waited.
    pub program: Arc<str>,
    /// Object.
    pub object: WaitObject,
    /// Thread name of the lock's holder at the begin of the call's longest wait; of a queue, the program
    /// with requests at the device meanwhile.
    pub holder: Option<Arc<str>>,
}

/// Waits by program, object and holder.
#[derive(Clone, Debug, Default)]
pub struct Waits {
    rows: BTreeMap<WaitKey, Latency>,
    /// Waits beyond `ROWS_MAX`. Boxed: it is large and rare.
    others: Option<Box<Latency>>,
}

impl Waits {
    /// Adds the root call of a trace, if it is a storage call that waited.
    pub(crate) fn add(&mut self, classified: ClassifiedTrace<'_>) {
        let Some(call) = classified.storage_call() else { return };
        let Some(waits) = &call.waits else { return };
        let program = classified.trace.names.comm().unwrap_or_else(|| "unknown task".into());
        for sum in &waits.sums {
            let longest = &waits.longest;
            let holder = longest.holder.as_ref().filter(|_| longest.kind == sum.kind);
            let holder = holder.map(|LockHolder { comm, .. }| comm.clone());
            let object = WaitObject::Kernel(sum.kind);
            self.record(WaitKey { program: program.clone(), object, holder }, sum.time);
        }
    }

    /// Adds one wait.
    pub(crate) fn record(&mut self, key: WaitKey, time: DurationNs) {
        let row = if self.rows.len() >= ROWS_MAX && !self.rows.contains_key(&key) {
            &mut **self.others.get_or_insert_default()
        } else {
            self.rows.entry(key).or_default()
        };
        row.record(time);
    }

    /// Returns up to `limit` rows, ordered by total time.
    pub fn by_time(&self, limit: usize) -> Vec<(&WaitKey, &Latency)> {
        let mut rows: Vec<_> = self.rows.iter().collect();
        rows.sort_by_key(|(key, times)| (Reverse(times.total()), *key));
        rows.truncate(limit);
        rows
    }

    /// Returns the number of rows.
    pub fn count(&self) -> usize {
        self.rows.len()
    }

    /// Returns whether there are rows beyond `ROWS_MAX`.
    pub fn has_others(&self) -> bool {
        self.others.is_some()
    }
}

#[cfg(test)]
mod tests {
    use blkkin_aggregator::trace::Trace;
    use blkkin_wire::call_waits::{CallWaits, LongestWait, WaitSum};
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::TaskEvent;
    use blkkin_wire::ids::{Pid, Tid};

    use super::*;
    use crate::sample::{TASK, call, on_file, with_call};

    fn waited(span: u64, program: &str, sums: &[(WaitKind, u64)], holder: Option<&str>) -> Trace {
        let mut trace = on_file(call(span, "pwrite64", 1_000), "/srv/db", 0o100_644);
        trace.names.task = Some(Arc::new(TaskEvent::bare(TASK, MonotonicNs(0), program)));
        let sum = |(kind, time): &(WaitKind, u64)| WaitSum { kind: *kind, time: DurationNs(*time), count: 2 };
        let holder = holder.map(|name| LockHolder { pid: Pid(7), tid: Tid(8), comm: name.into() });
        let longest = LongestWait { kind: sums[0].0, begin: MonotonicNs(1), time: DurationNs(1), holder };
        let waits = CallWaits { sums: sums.iter().map(sum).collect(), longest, sleeps: 1, log_write: None };
        with_call(&mut trace, |call| call.waits = Some(Box::new(waits)));
        trace
    }

    #[test]
    fn rows_are_by_program_object_and_holder() {
        let mut table = Waits::default();
        let mut add = |trace: &Trace| table.add(ClassifiedTrace::from(trace));
        add(&waited(1, "db", &[(WaitKind::FileLock, 300), (WaitKind::Mutex, 20)], Some("backup")));
        add(&waited(2, "db", &[(WaitKind::FileLock, 200)], Some("backup")));
        add(&waited(3, "db", &[(WaitKind::FileLock, 100)], None));
        add(&waited(4, "cp", &[(WaitKind::DirtyPages, 900)], None));
        add(&call(5, "pwrite64", 1_000));
        let rows: Vec<_> = table.by_time(3);
        let shown: Vec<_> = rows
            .iter()
            .map(|(key, times)| {
                (&*key.program, key.object.clone(), key.holder.as_deref(), times.count(), times.total().0)
            })
            .collect();
        assert_eq!(
            shown,
            [
                ("cp", WaitObject::Kernel(WaitKind::DirtyPages), None, 1, 900),
                ("db", WaitObject::Kernel(WaitKind::FileLock), Some("backup"), 2, 500),
                ("db", WaitObject::Kernel(WaitKind::FileLock), None, 1, 100),
            ]
        );
        assert_eq!((table.count(), table.has_others()), (4, false));
    }

    #[test]
    fn rows_beyond_the_maximum_are_summed() {
        let mut table = Waits::default();
        for n in 0..ROWS_MAX + 3 {
            let trace = waited(1, &format!("p{n}"), &[(WaitKind::Mutex, 5)], None);
            table.add(ClassifiedTrace::from(&trace));
        }
        assert_eq!((table.count(), table.has_others()), (ROWS_MAX, true));
        assert_eq!(table.others.as_ref().map(|others| others.count()), Some(3));
    }
}
