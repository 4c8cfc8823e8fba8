//! Cost of tracing, from counters that only grow.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::counters::COUNTERS;

use crate::clock;

/// CPU time of an agent for a record, in ns: 29,800 events a second more take 1.17 % of a CPU more
/// (docs/performance/agent.md).
const PROCESS_RECORD_NS: u64 = 400;
/// Time in the kernel that a record takes and a call that is dropped does not, in ns: the difference of a
/// call that is recorded and one that `--path` excludes is 68 to 286 ns (docs/performance/call.md).
const RECORD_NS: u64 = 150;
/// Minimum time between two ticks.
const TICK: Duration = Duration::from_millis(100);
/// Time over which [`Meter::recent`] averages.
const RECENT: Duration = Duration::from_secs(10);

/// Cost between two ticks, as shares of the machine's CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Tick {
    /// Time between them.
    pub(super) seconds: f64,
    /// Whole cost.
    pub(super) total: f64,
    /// The part that a smaller ratio lowers in proportion.
    pub(super) variable: f64,
}

/// Counters of one moment.
#[derive(Clone, Copy, Debug)]
struct Reading {
    at: Instant,
    kernel_ns: u64,
    user_ns: u64,
    records: u64,
}

/// Turns counters into costs.
pub(super) struct Meter {
    cpus: f64,
    /// Time of the kernel's way into a program and out of it, in ns.
    run_ns: u64,
    /// Readings of the last [`RECENT`], the oldest first.
    readings: VecDeque<Reading>,
}

impl Meter {
    pub(super) fn new(cpus: usize, run_ns: u64) -> Meter {
        Meter { cpus: cpus as f64, run_ns, readings: VecDeque::new() }
    }

    /// Returns the time that programs with these counters took.
    pub(super) fn programs_ns(&self, kernel: &[u64; COUNTERS]) -> u64 {
        kernel[slot::TIMED_NS] * slot::TIMED_EVERY + kernel[slot::RUNS] * self.run_ns
    }

    /// Returns whether a tick is due.
    pub(super) fn is_due(&self, now: Instant) -> bool {
        self.readings.back().is_none_or(|last| now.duration_since(last.at) >= TICK)
    }

    /// Returns the cost since the last tick, when one [is due](Meter::is_due); none at the first one. `counting_ns`:
    /// [`Meter::programs_ns`] of the programs that count all requests.
    pub(super) fn update(
        &mut self,
        now: Instant,
        kernel: &[u64; COUNTERS],
        counting_ns: u64,
    ) -> Option<Tick> {
        let fired = [slot::NBD_FIRED, slot::PAGES_FIRED, slot::FAULTS_FIRED, slot::DIRTY_FIRED];
        let fired = fired.iter().chain(&[slot::ASYNC_FIRED, slot::WAITS_FIRED, slot::SLEEPS_FIRED]);
        let reading = Reading {
            at: now,
            kernel_ns: self.programs_ns(kernel) + counting_ns,
            user_ns: clock::process_cpu_ns(),
            records: (slot::FIRED..slot::DROPPED).chain(fired.copied()).map(|counter| kernel[counter]).sum(),
        };
        self.add(reading)
    }

    fn add(&mut self, now: Reading) -> Option<Tick> {
        let last = self.readings.back().copied();
        self.readings.push_back(now);
        while self.readings.get(1).is_some_and(|second| now.at.duration_since(second.at) >= RECENT) {
            self.readings.pop_front();
        }
        let last = last?;
        let seconds = now.at.duration_since(last.at).as_secs_f64();
        let share = |from: u64, to: u64| to.saturating_sub(from) as f64 / 1e9 / (seconds * self.cpus);
        let (kernel, user) = (share(last.kernel_ns, now.kernel_ns), share(last.user_ns, now.user_ns));
        let records = |ns: u64| share(last.records * ns, now.records * ns);
        let variable = records(RECORD_NS).min(kernel) + records(PROCESS_RECORD_NS).min(user);
        Some(Tick { seconds, total: kernel + user, variable })
    }

    /// Returns the shares of kernel and process over the last ten seconds.
    pub(super) fn recent(&self) -> [f64; 2] {
        let (Some(first), Some(last)) = (self.readings.front(), self.readings.back()) else {
            return [0.0; 2];
        };
        let seconds = last.at.duration_since(first.at).as_secs_f64();
        if seconds == 0.0 {
            return [0.0; 2];
        }
        [last.kernel_ns.saturating_sub(first.kernel_ns), last.user_ns.saturating_sub(first.user_ns)]
            .map(|ns| ns as f64 / 1e9 / (seconds * self.cpus))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn costs_are_shares_of_all_cpus() {
        let mut meter = Meter::new(2, 30);
        let mut counters = [0; COUNTERS];
        (counters[slot::TIMED_NS], counters[slot::RUNS]) = (5, 200);
        assert_eq!(meter.programs_ns(&counters), 5 * 61 + 200 * 30);
        let begin = Instant::now();
        let reading = |ms: u64, kernel_ns, user_ns, records| Reading {
            at: begin + Duration::from_millis(ms),
            kernel_ns,
            user_ns,
            records,
        };
        assert_eq!(meter.add(reading(0, 0, 0, 0)), None);
        let tick = meter.add(reading(100, 20_000_000, 10_000_000, 4_000)).unwrap();
        // 30 ms of 2 times 100 ms; 0.6 ms and 1.6 ms of them vary with the records.
        assert!((tick.total - 0.15).abs() < 1e-9 && (tick.variable - 0.011).abs() < 1e-9, "{tick:?}");
        let [kernel, user] = meter.recent();
        assert!((kernel - 0.1).abs() < 1e-9 && (user - 0.05).abs() < 1e-9, "{kernel} {user}");
        for second in 1..40 {
            meter.add(reading(second * 1_000, 20_000_000, 10_000_000, 4_000));
        }
        assert_eq!(meter.recent(), [0.0; 2], "the last ten seconds only");
        assert!(meter.readings.len() <= 12);
    }
}
