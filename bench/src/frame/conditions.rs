//! What the machine did besides: whether a figure of this run can be believed at all.
//!
//! *In*: /proc/stat before and after. *Out*: how much processor time the host took away (steal), how much others here
//! took, which other tracers ran. Steal above [`STEAL_MAX`] ends every verdict: such a run says what a neighbour did.

use std::fs;

use serde::{Deserialize, Serialize};

use super::tracers;

/// Per cent of processor time. Goals are told apart by 1 to 10 % of a run; what the host takes falls on single rounds
/// and not on all alike, so it must be well below what is to be told apart.
const STEAL_MAX: f64 = 2.0;

/// What the machine did meanwhile.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Conditions {
    /// Per cent of all processors' time that the host gave to others.
    pub(crate) steal: f64,
    /// Tasks that ran or wanted to, over the minute before the bench began.
    pub(crate) load_before: f64,
    /// Other tracers, seen before the bench began or after it: each makes some of what is measured dearer.
    pub(crate) tracers: Vec<String>,
    /// Short rounds, only to see that it works.
    pub(crate) quick: bool,
}

impl Conditions {
    /// Why nothing can be said whatever the figures are; none where it can.
    pub(crate) fn doubt(&self) -> Option<String> {
        if self.quick {
            return Some("a quick run".to_owned());
        }
        (self.steal > STEAL_MAX).then(|| format!("the host took {:.1} % of the processor time", self.steal))
    }

    /// In words, with what a reader should know.
    pub(crate) fn words(&self) -> String {
        let mut words =
            format!("load average before: {:.1}; taken by the host: {:.1} %", self.load_before, self.steal);
        if !self.tracers.is_empty() {
            words += &format!("; OTHER TRACERS RAN: {}", self.tracers.join(", "));
        }
        if let Some(doubt) = self.doubt() {
            words += &format!("; no verdicts: {doubt}");
        }
        words
    }
}

/// Looks from its start to its end.
pub(crate) struct Watch {
    before: Option<Times>,
    load_before: f64,
    tracers: Vec<String>,
    quick: bool,
}

impl Watch {
    pub(crate) fn start(quick: bool) -> Watch {
        Watch { before: times(), load_before: load_average(), tracers: tracers::running(), quick }
    }

    pub(crate) fn end(self) -> Conditions {
        let steal = self.before.zip(times()).map_or(0.0, |(before, after)| after.steal_since(&before));
        let mut tracers = self.tracers;
        tracers.extend(tracers::running());
        tracers.sort_unstable();
        tracers.dedup();
        Conditions { steal, load_before: self.load_before, tracers, quick: self.quick }
    }
}

/// Ticks of all processors together since the machine started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Times {
    all: u64,
    stolen: u64,
}

impl Times {
    /// The first line of /proc/stat (man 5 proc): user nice system idle iowait irq softirq steal guest guest_nice,
    /// where the guests' are in user and nice already.
    fn of(stat: &str) -> Option<Times> {
        let line = stat.lines().find_map(|line| line.strip_prefix("cpu "))?;
        let ticks: Vec<u64> = line.split_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
        Some(Times { all: ticks.iter().sum(), stolen: *ticks.get(7)? })
    }

    fn steal_since(self, before: &Times) -> f64 {
        let all = self.all.saturating_sub(before.all).max(1);
        100.0 * self.stolen.saturating_sub(before.stolen) as f64 / all as f64
    }
}

fn times() -> Option<Times> {
    Times::of(&fs::read_to_string("/proc/stat").ok()?)
}

fn load_average() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steal_is_the_eighth_number_and_guests_are_not_counted_twice() {
        let stat = "cpu  100 0 100 700 0 0 0 100 90 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n";
        let times = Times::of(stat).unwrap();
        assert_eq!(times, Times { all: 1000, stolen: 100 });
        assert_eq!(times.steal_since(&Times { all: 500, stolen: 95 }), 1.0);
        assert_eq!(Times::of("cpu 1 2 3"), None);
    }

    #[test]
    fn a_stolen_run_and_a_quick_one_say_nothing() {
        let stolen = Conditions { steal: 2.5, ..Conditions::default() };
        assert_eq!(stolen.doubt().as_deref(), Some("the host took 2.5 % of the processor time"));
        assert!(Conditions { quick: true, ..Conditions::default() }.doubt().is_some());
        assert_eq!(Conditions { steal: 1.9, ..Conditions::default() }.doubt(), None);
    }

    #[test]
    fn this_machine_has_times() {
        assert!(times().is_some() && load_average() >= 0.0);
    }
}
