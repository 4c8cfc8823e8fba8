//! Conditions of a run: whether its figures are valid.
//!
//! *In*: /proc/stat before and after. *Out*: the steal (processor time that the host gave to other
//! guests), the load average and other tracers. Steal above [`STEAL_MAX`] invalidates every
//! verdict: such a run measures other guests.

use std::fs;

use serde::{Deserialize, Serialize};

use super::tracers;

/// Maximum steal in per cent of processor time. Goals differ by 1 to 10 % of a run. Steal affects
/// single rounds and not all alike, so the limit is well below the differences to detect.
const STEAL_MAX: f64 = 2.0;

/// Conditions of a run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// Per cent of all processors' time that the host gave to other guests.
    pub(crate) steal: f64,
    /// Runnable tasks, averaged over the minute before the benchmark.
    pub(crate) load_before: f64,
    /// Other tracers that ran before or after the benchmark: each makes traced operations slower.
    pub(crate) tracers: Vec<String>,
    /// Short rounds that only check that the benchmark works.
    pub(crate) quick: bool,
}

impl Conditions {
    /// Returns why no verdict is possible; `None` if verdicts are possible.
    pub(crate) fn invalid_reason(&self) -> Option<String> {
        if self.quick {
            return Some("a quick run".to_owned());
        }
        (self.steal > STEAL_MAX).then(|| format!("the host took {:.1} % of the processor time", self.steal))
    }

    /// Formats the conditions for readers.
    pub(crate) fn summary(&self) -> String {
        let mut summary =
            format!("load average before: {:.1}; taken by the host: {:.1} %", self.load_before, self.steal);
        if !self.tracers.is_empty() {
            summary += &format!("; OTHER TRACERS RAN: {}", self.tracers.join(", "));
        }
        if let Some(invalid_reason) = self.invalid_reason() {
            summary += &format!("; no verdicts: {invalid_reason}");
        }
        summary
    }
}

/// Recorder of the conditions from its start to its end.
pub(crate) struct ConditionsRecorder {
    before: Option<CpuTimes>,
    load_before: f64,
    tracers: Vec<String>,
    quick: bool,
}

impl ConditionsRecorder {
    pub(crate) fn start(quick: bool) -> ConditionsRecorder {
        ConditionsRecorder {
            before: times(),
            load_before: load_average(),
            tracers: tracers::find_running(),
            quick,
        }
    }

    pub(crate) fn end(self) -> Conditions {
        let steal = self.before.zip(times()).map_or(0.0, |(before, after)| after.steal_since(&before));
        let mut tracers = self.tracers;
        tracers.extend(tracers::find_running());
        tracers.sort_unstable();
        tracers.dedup();
        Conditions { steal, load_before: self.load_before, tracers, quick: self.quick }
    }
}

/// Ticks of all processors since boot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct CpuTimes {
    all: u64,
    stolen: u64,
}

impl CpuTimes {
    /// Parses the first line of /proc/stat (man 5 proc): user nice system idle iowait irq softirq
    /// steal guest guest_nice. Guest time is included in user and nice.
    fn of(stat: &str) -> Option<CpuTimes> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        Some(CpuTimes { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    fn steal_since(self, before: &CpuTimes) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        100.0 * self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

fn times() -> Option<CpuTimes> {
    CpuTimes::of(&fs::read_to_string("/proc/stat").ok()?)
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_parsed_and_guests_are_not_counted_twice() {
        let stat = "cpu  100 0 100 700 0 0 0 100 90 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let times = CpuTimes::of(stat).unwrap();
        assert_eq!(times, CpuTimes { all: 1000, stolen: 100 });
        assert_eq!(times.steal_since(&CpuTimes { all: 500, stolen: 95 }), 1.0);
        assert_eq!(CpuTimes::of("cpu 1 2 3"), None);
    }

    #[test]
    fn steal_and_quick_runs_invalidate_verdicts() {
        let stolen = Conditions { steal: 2.5, ..Conditions::default() };
        assert_eq!(stolen.invalid_reason().as_deref(), Some("the host took 2.5 % of the processor time"));
        assert!(Conditions { quick: true, ..Conditions::default() }.invalid_reason().is_some());
        assert_eq!(Conditions { steal: 1.9, ..Conditions::default() }.invalid_reason(), None);
    }

    #[test]
    fn cpu_times_of_this_machine_are_read() {
        assert!(times().is_some() && load_average() >= 0.0);
    }
}
