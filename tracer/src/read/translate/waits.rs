//! Waits of system calls, from their records to the calls.
//!
//! *In*: the records of waits, and the calls' records that follow them in the same ring. *Out*: the
//! call's waits. *Invariant*: waits go to the call with their span or to none; those whose call was
//! dropped are forgotten with the next poll.

use std::collections::HashMap;

use blkkin_probe_abi::wait::{WAITS_HAS_HOLDER, WaitsRecord};
use blkkin_wire::batch::SourceStats;
use blkkin_wire::call_waits::{CallWaits, LockHolder, LogWrite, LongestWait, WaitKind, WaitSum};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};

use super::nul_terminated;

/// Waits whose call has not been read.
#[derive(Default)]
pub(crate) struct PendingWaits {
    by_call: HashMap<SpanId, (MonotonicNs, CallWaits)>,
    recorded: u64,
    /// Records with a number that is no kind's.
    malformed: u64,
}

impl PendingWaits {
    /// Takes a record.
    #[cold]
    pub(crate) fn on_record(&mut self, record: &WaitsRecord) {
        self.recorded += 1;
        match waits(record) {
            Some(waits) => {
                self.by_call.insert(SpanId(record.span), (MonotonicNs(record.header.time_ns), waits));
            }
            None => self.malformed += 1,
        }
    }

    /// Gives a call its waits.
    #[cold]
    pub(crate) fn attach(&mut self, call: &mut SyscallEvent) {
        call.waits = self.by_call.remove(&call.span).map(|(_, waits)| Box::new(waits));
    }

    /// Adds the counters of these records.
    pub(crate) fn fill(&self, stats: &mut SourceStats) {
        stats.waits.recorded += self.recorded;
        stats.malformed += self.malformed;
    }

    /// Forgets waits whose call returned before `watermark`: its record has been dropped.
    pub(crate) fn expire(&mut self, watermark: MonotonicNs) {
        if !self.by_call.is_empty() {
            self.by_call.retain(|_, (returned, _)| *returned >= watermark);
        }
    }
}

fn waits(record: &WaitsRecord) -> Option<CallWaits> {
    let sums = WaitKind::ALL.into_iter().zip(record.counts).zip(record.time_ns);
    let sums = sums.filter(|((_, count), _)| *count > 0);
    let holder = (record.header.flags & WAITS_HAS_HOLDER != 0).then(|| {
        let comm: Vec<u8> = record.holder_comm.iter().flat_map(|word| word.to_ne_bytes()).collect();
        LockHolder { pid: Pid(record.holder_pid), tid: Tid(record.holder_tid), comm: nul_terminated(&comm) }
    });
    Some(CallWaits {
        sums: sums.map(|((kind, count), time)| WaitSum { kind, time: DurationNs(time), count }).collect(),
        longest: LongestWait {
            kind: WaitKind::from_number(record.longest_kind)?,
            begin: MonotonicNs(record.longest_begin_ns),
            time: DurationNs(record.longest_ns),
            holder,
        },
        sleeps: record.sleeps,
        log_write: (record.log_bio != 0).then_some(LogWrite {
            span: SpanId(record.log_bio),
            root: SpanId(record.log_root),
            trace: TraceId(0),
        }),
    })
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::record::Header;
    use blkkin_probe_abi::wait::{WAIT_INODE, WAIT_MUTEX};
    use blkkin_wire::event::TaskRef;
    use blkkin_wire::ids::TaskId;
    use blkkin_wire::syscalls::SyscallId;

    use super::*;

    fn record() -> WaitsRecord {
        let mut record = WaitsRecord {
            header: Header { flags: WAITS_HAS_HOLDER, time_ns: 900, ..Header::default() },
            span: 7,
            longest_begin_ns: 100,
            longest_ns: 300,
            longest_kind: WAIT_MUTEX,
            sleeps: 3,
            holder_pid: 41,
            holder_tid: 42,
            holder_comm: [u64::from_ne_bytes(*b"writer\0x"), 0],
            ..WaitsRecord::default()
        };
        (record.counts[WAIT_INODE as usize], record.time_ns[WAIT_INODE as usize]) = (2, 50);
        (record.counts[WAIT_MUTEX as usize], record.time_ns[WAIT_MUTEX as usize]) = (1, 300);
        record
    }

    fn call(span: u64) -> SyscallEvent {
        let task = TaskRef { id: TaskId(1), version: 0 };
        let call = SyscallId::by_name("fsync").unwrap();
        SyscallEvent::bare(SpanId(span), task, call, MonotonicNs(10), MonotonicNs(900))
    }

    #[test]
    fn a_call_gets_its_own_waits_once() {
        let mut pending = PendingWaits::default();
        pending.on_record(&record());
        let (mut other, mut own, mut again) = (call(8), call(7), call(7));
        [&mut other, &mut own, &mut again].into_iter().for_each(|call| pending.attach(call));
        assert_eq!((&other.waits, &again.waits), (&None, &None));
        let waits = own.waits.unwrap();
        assert_eq!((waits.locks(), waits.paused(), waits.sleeps), (DurationNs(350), DurationNs(0), 3));
        let sum = |kind, time, count| WaitSum { kind, time: DurationNs(time), count };
        assert_eq!(waits.sums, [sum(WaitKind::FileLock, 50, 2), sum(WaitKind::Mutex, 300, 1)]);
        let holder = LockHolder { pid: Pid(41), tid: Tid(42), comm: "writer".into() };
        let (kind, begin, time) = (WaitKind::Mutex, MonotonicNs(100), DurationNs(300));
        assert_eq!(waits.longest, LongestWait { kind, begin, time, holder: Some(holder) });
    }

    #[test]
    fn waits_without_their_call_are_forgotten() {
        let mut pending = PendingWaits::default();
        pending.on_record(&record());
        pending.expire(MonotonicNs(900));
        assert_eq!(pending.by_call.len(), 1);
        pending.expire(MonotonicNs(901));
        assert_eq!(pending.by_call.len(), 0);
    }

    #[test]
    fn an_unknown_kind_is_malformed() {
        let mut pending = PendingWaits::default();
        pending.on_record(&WaitsRecord { longest_kind: 8, ..record() });
        assert_eq!((pending.malformed, pending.recorded, pending.by_call.len()), (1, 1, 0));
    }
}
