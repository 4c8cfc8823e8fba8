//! Ratio that keeps a cost within a budget.
//!
//! *In*: the cost of each tenth of a second, and its part that a smaller ratio lowers. *Out*: the ratio.
//! *Invariant*: never above the greatest ratio, never below [`HeadSampling::MIN_RATIO`].
//!
//! *Down at once, up slowly.* A tick well above the budget, or a second above it, lowers the ratio in one
//! step to where the cost will be at its target. The ratio rises again, one step at a time, when two
//! seconds show that the greater one stays below the target too.
//!
//! *Target*: [`AIM`] of the budget. Where the hooks and the idle process alone take more than half of it, the
//! middle between them and the budget: what is left is used, however little it is.
//!
//! *Operations that are deferred* until they end cost about as much as recorded ones, but for the ring and the
//! reader. Rules that keep some of them come before the share that is sampled. If the cost is above the budget
//! though next to nothing is sampled, nothing more is deferred; it is tried again after 20 s, and after twice the time
//! whenever the try fails, up to 320 s.
//!
//! *Rejected*: a controller that knows only the total (halve above, double below a half). Where the hooks
//! alone take half of the budget it never rises again.

use std::collections::VecDeque;

use blkkin_wire::head_sampling::HeadSampling;

use super::meter::Tick;

/// Part of the budget that is the target, unless the fixed cost takes most of it.
const AIM: f64 = 0.75;
/// A tick above this multiple of the budget lowers the ratio at once.
const AT_ONCE: f64 = 1.25;
/// Seconds above the budget that lower the ratio, and below it that raise it.
const ABOVE: f64 = 1.0;
const BELOW: f64 = 2.0;
/// Seconds above the budget with nothing left to save, after which it counts as exceeded.
const STUCK: f64 = 3.0;
/// Seconds above the budget with nothing left to save, after which nothing more is deferred.
const SUSPEND_AFTER: f64 = 1.0;
/// Seconds until operations are deferred again: at first, and at most.
const PAUSE: f64 = 20.0;
const PAUSE_MAX: f64 = 320.0;
/// Below this part of the budget a smaller ratio saves nothing more.
const NOTHING_LEFT: f64 = 0.02;

pub(super) struct Controller {
    budget: f64,
    greatest: HeadSampling,
    ratio: HeadSampling,
    /// Ticks since the ratio changed, at most of [`BELOW`] seconds.
    ticks: VecDeque<Tick>,
    /// Seconds above the budget in which a smaller ratio would not have helped.
    stuck: f64,
    /// Rules keep operations at their end.
    keeps: bool,
    /// Operations that are not sampled are not deferred.
    keep_suspended: bool,
    /// Seconds since that changed.
    unchanged: f64,
    /// Seconds for which nothing more is deferred.
    pause: f64,
    /// Ratio when they were over last.
    ratio_suspended: HeadSampling,
    /// The next tick does not count.
    skips: bool,
}

impl Controller {
    pub(super) fn new(budget: f64, greatest: HeadSampling, keeps: bool) -> Controller {
        Controller {
            budget,
            greatest,
            ratio: greatest,
            ticks: VecDeque::new(),
            stuck: 0.0,
            keeps,
            keep_suspended: false,
            unchanged: PAUSE,
            pause: PAUSE,
            ratio_suspended: greatest,
            skips: false,
        }
    }

    /// Returns the present ratio.
    pub(super) fn ratio(&self) -> HeadSampling {
        self.ratio
    }

    /// Changes the limits, and returns the ratio. The tick of the change is of both, so it does not count.
    pub(super) fn set(&mut self, budget: f64, greatest: HeadSampling, keeps: bool) -> HeadSampling {
        (self.budget, self.greatest) = (budget, greatest);
        self.ratio = HeadSampling::at_least(self.ratio.log2().max(greatest.log2()));
        if keeps != self.keeps {
            (self.keeps, self.keep_suspended, self.unchanged) = (keeps, false, PAUSE);
        }
        self.ticks.clear();
        (self.stuck, self.skips) = (0.0, true);
        self.ratio
    }

    /// Returns whether operations that are not sampled are dropped at once, because the budget has no room for
    /// deferring them.
    pub(super) fn keep_suspended(&self) -> bool {
        self.keep_suspended
    }

    /// Returns whether the cost exceeds the budget and a smaller ratio would not help.
    pub(super) fn is_exceeded(&self) -> bool {
        self.stuck >= STUCK
    }

    /// Returns the ratio from now on.
    pub(super) fn update(&mut self, tick: &Tick) -> HeadSampling {
        if std::mem::take(&mut self.skips) {
            return self.ratio;
        }
        self.ticks.push_back(*tick);
        while self.seconds() - self.ticks.front().map_or(0.0, |first| first.seconds) >= BELOW {
            self.ticks.pop_front();
        }
        let average = self.average(ABOVE).filter(|average| average.total > self.budget);
        // A tick that the process spent on something else is no reason: no ratio lowers that.
        let jump = tick.total > AT_ONCE * self.budget && tick.total - tick.variable <= self.budget;
        let above = if jump { Some(*tick) } else { average };
        let ratio = above.map_or_else(|| self.above(), |above| self.below(&above));
        self.stuck = if above.is_some() && ratio == self.ratio { self.stuck + tick.seconds } else { 0.0 };
        if ratio != self.ratio {
            self.ticks.clear();
            self.ratio = ratio;
        }
        if self.keeps {
            self.decide_suspension(tick.seconds);
        }
        self.ratio
    }

    /// Stops deferring operations if the budget has no room for it, and tries again later.
    fn decide_suspension(&mut self, seconds: f64) {
        self.unchanged += seconds;
        if !self.keep_suspended && self.stuck >= SUSPEND_AFTER {
            let failed_soon = self.unchanged < PAUSE;
            self.pause = if failed_soon { (2.0 * self.pause).min(PAUSE_MAX) } else { PAUSE };
            if failed_soon {
                self.ratio = self.ratio_suspended;
            }
        } else if !self.keep_suspended || self.unchanged < self.pause || self.average(BELOW).is_none() {
            return;
        } else {
            self.ratio_suspended = self.ratio;
        }
        self.keep_suspended = !self.keep_suspended;
        (self.unchanged, self.stuck) = (0.0, 0.0);
        self.ticks.clear();
    }

    /// Returns the cost to aim at, with this cost that no ratio lowers.
    fn target(&self, fixed: f64) -> f64 {
        (AIM * self.budget).max((fixed + self.budget) / 2.0)
    }

    /// Returns the greatest ratio at which the cost will be at its target, or is all that is left.
    fn below(&self, tick: &Tick) -> HeadSampling {
        let fixed = tick.total - tick.variable;
        let (mut variable, mut steps) = (tick.variable, 0);
        while fixed + variable > self.target(fixed) && variable > NOTHING_LEFT * self.budget {
            (variable, steps) = (variable / 2.0, steps + 1);
        }
        HeadSampling::at_least(self.ratio.log2().saturating_add(steps))
    }

    /// Returns a greater ratio if the last seconds allow it.
    fn above(&self) -> HeadSampling {
        let Some(average) = self.average(BELOW) else { return self.ratio };
        let fits = average.total + average.variable <= self.target(average.total - average.variable);
        let steps = u8::from(fits && self.ratio.log2() > self.greatest.log2());
        HeadSampling::from_log2(self.ratio.log2() - steps).unwrap_or(self.ratio)
    }

    fn seconds(&self) -> f64 {
        self.ticks.iter().map(|tick| tick.seconds).sum()
    }

    /// Returns the average of the last `seconds`; none if the ticks are of less time.
    fn average(&self, seconds: f64) -> Option<Tick> {
        let mut sum = Tick::default();
        for tick in self.ticks.iter().rev() {
            sum.seconds += tick.seconds;
            sum.total += tick.total * tick.seconds;
            sum.variable += tick.variable * tick.seconds;
            if sum.seconds >= seconds * 0.999 {
                let (total, variable) = (sum.total / sum.seconds, sum.variable / sum.seconds);
                return Some(Tick { seconds: sum.seconds, total, variable });
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUDGET: f64 = 0.01;
    const SECONDS: f64 = 0.1;

    /// A load: what the hooks take, and what recording everything takes in addition.
    #[derive(Clone, Copy)]
    struct Load {
        hooks: f64,
        records: f64,
    }

    /// Applies a load for this time and returns the cost of each tick.
    fn apply(controller: &mut Controller, load: Load, seconds: usize) -> Vec<f64> {
        (0..seconds * 10).map(|_| apply_tick(controller, load)).collect()
    }

    fn apply_tick(controller: &mut Controller, load: Load) -> f64 {
        let variable = load.records / controller.ratio.one_in() as f64;
        let tick = Tick { seconds: SECONDS, total: load.hooks + variable, variable };
        controller.update(&tick);
        tick.total
    }

    fn average(costs: &[f64]) -> f64 {
        costs.iter().sum::<f64>() / costs.len() as f64
    }

    /// A hundred times the load: within the budget after 5 s, and no ten seconds are above twice the budget.
    #[test]
    fn a_jump_of_the_load_is_within_the_budget_after_five_seconds() {
        for jump in [2.0, 10.0, 30.0, 100.0] {
            let mut controller = Controller::new(BUDGET, HeadSampling::ALL, false);
            let low = Load { hooks: 0.000_02, records: 0.003 };
            let high = Load { hooks: low.hooks * jump, records: low.records * jump };
            let mut costs = apply(&mut controller, low, 20);
            assert_eq!(controller.ratio, HeadSampling::ALL);
            costs.extend(apply(&mut controller, high, 60));
            assert!(costs[250..].iter().all(|cost| *cost <= BUDGET), "{jump}");
            let worst = costs.windows(100).map(average).fold(0.0, f64::max);
            assert!(worst <= 2.0 * BUDGET, "{jump}: {worst}");
            // And it is used: a greater ratio would not have fitted.
            let cost = costs[costs.len() - 1];
            assert!(
                cost + (cost - high.hooks) > AIM * BUDGET || controller.ratio == HeadSampling::ALL,
                "{jump}: {cost}"
            );
            // Back to the low load, everything is recorded again.
            apply(&mut controller, low, 30);
            assert_eq!(controller.ratio, HeadSampling::ALL, "{jump}");
        }
    }

    #[test]
    fn hooks_above_the_budget_are_reported_and_not_chased() {
        let mut controller = Controller::new(BUDGET, HeadSampling::ALL, false);
        apply(&mut controller, Load { hooks: 0.02, records: 0.1 }, 10);
        assert!(controller.is_exceeded());
        // What is left to save is below 2 % of the budget.
        assert!(
            controller.ratio.one_in() >= 512 && controller.ratio.one_in() <= 1_024,
            "{:?}",
            controller.ratio
        );
        apply(&mut controller, Load { hooks: 0.001, records: 0.001 }, 60);
        assert!(!controller.is_exceeded() && controller.ratio == HeadSampling::ALL);
    }

    /// Hooks that take most of the budget leave little, and that is used: the ratio does not stay at the smallest.
    #[test]
    fn what_the_hooks_leave_of_the_budget_is_used() {
        for hooks in [0.5, 0.75, 0.85, 0.95] {
            let mut controller = Controller::new(BUDGET, HeadSampling::ALL, false);
            let busy = Load { hooks: hooks * BUDGET, records: 0.1 };
            let costs = apply(&mut controller, busy, 60);
            assert!(costs[300..].iter().all(|cost| *cost <= BUDGET), "{hooks}");
            let cost = costs[costs.len() - 1];
            assert!(cost - busy.hooks > 0.2 * (BUDGET - busy.hooks), "{hooks}: {cost}");
            assert!(!controller.is_exceeded());
            apply(&mut controller, Load { hooks: busy.hooks, records: 0.01 * BUDGET }, 60);
            assert_eq!(controller.ratio, HeadSampling::ALL, "{hooks}");
        }
    }

    /// A tick that the process spends on something else than records changes nothing.
    #[test]
    fn a_peak_without_records_changes_nothing() {
        let mut controller = Controller::new(BUDGET, HeadSampling::ALL, false);
        for n in 0..1_000 {
            let total = if n % 20 == 0 { 3.0 * BUDGET } else { 0.5 * BUDGET };
            controller.update(&Tick { seconds: SECONDS, total, variable: 0.3 * BUDGET });
            assert_eq!(controller.ratio, HeadSampling::ALL, "{n}");
        }
    }

    #[test]
    fn the_ratio_of_the_option_is_the_greatest() {
        let greatest = HeadSampling::from_log2(4).unwrap();
        let mut controller = Controller::new(BUDGET, greatest, false);
        apply(&mut controller, Load { hooks: 0.0, records: 0.0 }, 60);
        assert_eq!(controller.ratio, greatest);
        apply(&mut controller, Load { hooks: 0.0, records: 1e9 }, 60);
        assert_eq!(controller.ratio, HeadSampling::MIN_RATIO);
        assert!(controller.is_exceeded());
    }

    /// Applies a load of which deferring takes a part, for this time, and returns the cost of each tick.
    fn apply_deferring(controller: &mut Controller, load: Load, deferring: f64, seconds: usize) -> Vec<f64> {
        let mut costs = Vec::new();
        for _ in 0..seconds * 10 {
            let deferred = if controller.keep_suspended() { 0.0 } else { deferring };
            let one = Load { hooks: load.hooks + deferred, ..load };
            costs.push(apply_tick(controller, one));
        }
        costs
    }

    /// Operations are deferred as long as the budget allows it. The share that is sampled goes first.
    #[test]
    fn keep_is_suspended_last_and_comes_back() {
        let mut controller = Controller::new(BUDGET, HeadSampling::ALL, true);
        let load = Load { hooks: 0.1 * BUDGET, records: 10.0 * BUDGET };
        let costs = apply_deferring(&mut controller, load, 0.5 * BUDGET, 60);
        assert!(!controller.keep_suspended() && controller.ratio != HeadSampling::ALL);
        assert!(costs[100..].iter().all(|cost| *cost <= BUDGET));
        // No room for it: within the budget but for a second now and then.
        let costs = apply_deferring(&mut controller, load, 3.0 * BUDGET, 1_000);
        let above = costs.iter().filter(|cost| **cost > BUDGET).count();
        assert!(above <= 10 * 30, "{above} ticks above");
        let worst = costs[50..].windows(100).map(average).fold(0.0, f64::max);
        assert!(worst <= 2.0 * BUDGET, "{worst}");
        assert!(controller.keep_suspended());
        // And back when there is.
        apply_deferring(&mut controller, Load { hooks: 0.0, records: 0.01 * BUDGET }, 0.1 * BUDGET, 400);
        assert!(!controller.keep_suspended() && controller.ratio == HeadSampling::ALL);
    }

    /// A tick that is a little above the budget, by chance, changes nothing.
    #[test]
    fn noise_around_the_aim_changes_nothing() {
        let mut controller = Controller::new(BUDGET, HeadSampling::ALL, false);
        for n in 0..1_000 {
            let total = BUDGET * if n % 7 == 0 { 1.2 } else { 0.8 };
            controller.update(&Tick { seconds: SECONDS, total, variable: total / 2.0 });
            assert_eq!(controller.ratio, HeadSampling::ALL);
        }
    }

    #[test]
    fn a_change_of_the_limits_keeps_a_ratio_that_is_small_enough() {
        let of = |n| HeadSampling::from_one_in(n).unwrap();
        let load = Load { hooks: 0.002, records: 0.3 };
        let mut controller = Controller::new(BUDGET, HeadSampling::ALL, false);
        apply(&mut controller, load, 20);
        let kept = controller.ratio;
        assert!(kept.one_in() >= 32, "{kept:?}");
        assert_eq!(controller.set(BUDGET, of(8), true), kept);
        assert_eq!(controller.set(BUDGET, of(1024), true), of(1024));
        // The tick of the change is of the ratio before.
        controller.update(&Tick { seconds: SECONDS, total: 0.3, variable: 0.3 });
        assert_eq!(controller.ratio, of(1024));
        // A greater limit is reached in steps, and the budget is kept.
        assert_eq!(controller.set(BUDGET, HeadSampling::ALL, true), of(1024));
        let costs = apply(&mut controller, load, 60);
        assert!(
            costs.iter().all(|cost| *cost <= BUDGET) && controller.ratio == kept,
            "{:?}",
            controller.ratio
        );
        assert_eq!(controller.set(0.5, HeadSampling::ALL, false), kept);
        apply(&mut controller, load, 60);
        assert_eq!(controller.ratio, HeadSampling::ALL);
    }
}
