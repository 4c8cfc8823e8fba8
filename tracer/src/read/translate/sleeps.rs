//! Sleeps of system calls, from their records to the calls.
//!
//! *In*: the records of sleeps, and the calls' records that follow them in the same ring. *Out*: the call's sleeps with the
//! names of the kernel's functions. *Invariant*: sleeps go to the call with their span or to none; those
//! of dropped calls are forgotten with the next poll.

use std::collections::HashMap;
use std::sync::Arc;

use blkkin_probe_abi::sleep::SleepsRecord;
use blkkin_wire::batch::SourceStats;
use blkkin_wire::call_sleeps::{CallSleeps, SleepPlace, UNKNOWN_FUNCTION};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::SyscallEvent;
use blkkin_wire::ids::SpanId;

use crate::read::kernel_functions::KernelFunctions;

/// Sleeps of calls that have not been read.
#[derive(Default)]
pub(crate) struct PendingSleeps {
    by_call: HashMap<SpanId, (MonotonicNs, CallSleeps)>,
    recorded: u64,
    /// Names; none if sleeps are not recorded.
    functions: Option<KernelFunctions>,
}

impl PendingSleeps {
    /// Names the functions from now on.
    pub(crate) fn set_functions(&mut self, functions: KernelFunctions) {
        self.functions = Some(functions);
    }

    /// Takes a record.
    #[cold]
    pub(crate) fn on_record(&mut self, record: &SleepsRecord) {
        self.recorded += 1;
        let returned = MonotonicNs(record.header.time_ns);
        let mut sleeps = CallSleeps {
            places: Vec::new(),
            others: record.others,
            others_time: DurationNs(record.others_ns),
            unended: record.unended,
        };
        for place in record.places.iter().filter(|place| place.count > 0) {
            let (time, count) = (DurationNs(place.time_ns), place.count);
            let functions = self.names(&place.functions, returned);
            // Two calls of one function return to two addresses.
            match sleeps.places.iter_mut().find(|known| known.functions == functions) {
                Some(known) => {
                    known.time.0 = known.time.0.saturating_add(time.0);
                    known.count = known.count.saturating_add(count);
                }
                None => sleeps.places.push(SleepPlace { functions, time, count }),
            }
        }
        self.by_call.insert(SpanId(record.span), (returned, sleeps));
    }

    fn names(&mut self, addresses: &[u64], time: MonotonicNs) -> Vec<Arc<str>> {
        let Some(functions) = &mut self.functions else { return Vec::new() };
        let addresses = addresses.iter().take_while(|address| **address != 0);
        addresses
            .map(|address| functions.name(*address, time).unwrap_or_else(|| UNKNOWN_FUNCTION.into()))
            .collect()
    }

    /// Gives a call its sleeps.
    #[cold]
    pub(crate) fn attach(&mut self, call: &mut SyscallEvent) {
        call.slept = self.by_call.remove(&call.span).map(|(_, sleeps)| Box::new(sleeps));
    }

    /// Adds the counters of these records.
    pub(crate) fn fill(&self, stats: &mut SourceStats) {
        stats.waits.recorded += self.recorded;
    }

    /// Forgets sleeps of calls that returned before `watermark`: their records have been dropped.
    pub(crate) fn expire(&mut self, watermark: MonotonicNs) {
        if !self.by_call.is_empty() {
            self.by_call.retain(|_, (returned, _)| *returned >= watermark);
        }
    }
}

#[cfg(test)]
mod tests {
    use blkkin_probe_abi::record::Header;
    use blkkin_wire::event::TaskRef;
    use blkkin_wire::ids::TaskId;
    use blkkin_wire::syscalls::SyscallId;

    use super::*;

    #[test]
    fn a_call_gets_its_own_sleeps_once_with_equal_places_together() {
        let mut record = SleepsRecord {
            header: Header { time_ns: 900, ..Header::default() },
            span: 7,
            others_ns: 11,
            others: 2,
            ..SleepsRecord::default()
        };
        for (place, count) in record.places.iter_mut().zip([3, 4]) {
            // In no function, both.
            (place.functions, place.time_ns, place.count) = ([count, 0, 0], 100, count as u32);
        }
        let mut pending = PendingSleeps::default();
        pending.set_functions(KernelFunctions::read());
        pending.on_record(&record);
        let task = TaskRef { id: TaskId(1), version: 0 };
        let name = SyscallId::by_name("fsync").unwrap();
        let call = |span| SyscallEvent::bare(SpanId(span), task, name, MonotonicNs(10), MonotonicNs(900));
        let (mut other, mut own, mut again) = (call(8), call(7), call(7));
        [&mut other, &mut own, &mut again].into_iter().for_each(|call| pending.attach(call));
        assert_eq!((&other.slept, &again.slept), (&None, &None));
        let sleeps = own.slept.unwrap();
        let functions = vec![UNKNOWN_FUNCTION.into()];
        assert_eq!(sleeps.places, [SleepPlace { functions, time: DurationNs(200), count: 7 }]);
        assert_eq!((sleeps.count(), sleeps.time()), (9, DurationNs(211)));
        pending.on_record(&record);
        pending.expire(MonotonicNs(900));
        assert_eq!(pending.by_call.len(), 1);
        pending.expire(MonotonicNs(901));
        assert_eq!(pending.by_call.len(), 0);
    }
}
