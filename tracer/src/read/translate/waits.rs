//! Waits of system calls, from their records.
//!
//! *In*: the records of waits. *Out*: the waits of a call, which wait for the call's record ([`PendingByCall`]).

use blkkin_probe_abi::wait::{WAITS_HAS_HOLDER, WaitsRecord};
use blkkin_wire::call_waits::{CallWaits, LockHolder, LogWrite, LongestWait, WaitKind, WaitSum};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::ids::{Pid, SpanId, Tid, TraceId};

use super::nul_terminated;

/// Returns the waits of a record; none if it has a number that is no kind's.
pub(crate) fn waits(record: &WaitsRecord) -> Option<CallWaits> {
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
    use super::*;
    use blkkin_probe_abi::record::Header;
    use blkkin_probe_abi::wait::{WAIT_INODE, WAIT_MUTEX};

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

    #[test]
    fn a_record_has_the_sums_of_its_kinds_and_its_longest_wait() {
        let waits = waits(&record()).unwrap();
        assert_eq!((waits.locks(), waits.paused(), waits.sleeps), (DurationNs(350), DurationNs(0), 3));
        let sum = |kind, time, count| WaitSum { kind, time: DurationNs(time), count };
        assert_eq!(waits.sums, [sum(WaitKind::FileLock, 50, 2), sum(WaitKind::Mutex, 300, 1)]);
        let holder = LockHolder { pid: Pid(41), tid: Tid(42), comm: "writer".into() };
        let (kind, begin, time) = (WaitKind::Mutex, MonotonicNs(100), DurationNs(300));
        assert_eq!(waits.longest, LongestWait { kind, begin, time, holder: Some(holder) });
    }

    #[test]
    fn an_unknown_kind_is_malformed() {
        assert_eq!(waits(&WaitsRecord { longest_kind: 8, ..record() }), None);
    }
}
