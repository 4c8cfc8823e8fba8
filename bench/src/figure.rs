//! A figure: what came out, how far it can be trusted, and what was hoped for.
//!
//! Nothing here is an assertion. A machine that does other things at the same time makes every time longer and never
//! shorter, so the smallest of several rounds is the figure, and the distance to the lower quartile its spread: of
//! nine rounds the fastest three must agree, whatever became of the others.
//! Where the spread is larger than what is to be told apart, the verdict is that there is none.

use serde::Serialize;

/// One figure of a bench.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// What came out.
    pub(crate) value: f64,
    /// How far apart the rounds were.
    pub(crate) spread: f64,
    pub(crate) unit: &'static str,
    /// What was hoped for, and whether it came true.
    pub(crate) goal: Option<Goal>,
    pub(crate) verdict: Verdict,
    pub(crate) note: String,
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// How a figure compares with its goal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Reached,
    Missed,
    /// The spread is larger than the distance to the goal.
    None,
    /// There is no goal.
    NotAsked,
}

impl Figure {
    /// A figure without a goal.
    pub(crate) fn new(name: impl Into<String>, value: f64, spread: f64, unit: &'static str) -> Figure {
        let (name, note) = (name.into(), String::new());
        Figure { name, value, spread, unit, goal: None, verdict: Verdict::NotAsked, note }
    }

    /// The same with a goal, and how it compares.
    pub(crate) fn goal(mut self, goal: Goal) -> Figure {
        let (distance, reached) = match goal {
            Goal::AtMost(limit) => (limit - self.value, self.value <= limit),
            Goal::AtLeast(limit) => (self.value - limit, self.value >= limit),
        };
        self.goal = Some(goal);
        self.verdict = match (distance.abs() < self.spread, reached) {
            (true, _) => Verdict::None,
            (false, true) => Verdict::Reached,
            (false, false) => Verdict::Missed,
        };
        self
    }

    /// The same with a remark.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }
}

/// Several measurements of one thing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn push(&mut self, value: f64) {
        self.0.push(value);
    }

    /// The smallest: what it takes when nothing else is in the way.
    pub(crate) fn fastest(&self) -> f64 {
        self.0.iter().copied().fold(f64::INFINITY, f64::min)
    }

    pub(crate) fn median(&self) -> f64 {
        median(&mut self.0.clone())
    }

    /// From the fastest round to the lower quartile.
    pub(crate) fn spread_of_fastest(&self) -> f64 {
        self.at(0.25) - self.fastest()
    }

    /// The largest: as [`Rounds::fastest`] for what is counted a second.
    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// From the upper quartile to the largest.
    pub(crate) fn spread_of_most(&self) -> f64 {
        self.most() - self.at(0.75)
    }

    /// Half the distance between the quartiles.
    pub(crate) fn spread_of_median(&self) -> f64 {
        (self.at(0.75) - self.at(0.25)) / 2.0
    }

    /// The value that this part of the rounds is not above.
    pub(crate) fn at(&self, part: f64) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_by(f64::total_cmp);
        let index = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
        sorted.get(index).copied().unwrap_or(f64::NAN)
    }
}

impl FromIterator<f64> for Rounds {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Rounds {
        Rounds(values.into_iter().collect())
    }
}

/// The middle value; not a number of nothing.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values {
        [] => f64::NAN,
        _ => (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_verdict_where_the_spread_exceeds_the_distance() {
        let figure = |value, spread| Figure::new("x", value, spread, "ns").goal(Goal::AtMost(300.0)).verdict;
        assert_eq!(figure(290.0, 5.0), Verdict::Reached);
        assert_eq!(figure(310.0, 5.0), Verdict::Missed);
        assert_eq!(figure(310.0, 15.0), Verdict::None);
        assert_eq!(figure(290.0, 15.0), Verdict::None);
        assert_eq!(Figure::new("x", 0.0, 0.0, "lost").goal(Goal::AtMost(0.0)).verdict, Verdict::Reached);
    }

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn slow_rounds_do_not_count_against_the_fastest() {
        let rounds: Rounds = [12.0, 10.0, 11.0, 50.0, 60.0].into_iter().collect();
        assert_eq!((rounds.fastest(), rounds.spread_of_fastest()), (10.0, 1.0));
        assert_eq!((rounds.median(), rounds.spread_of_median()), (12.0, 19.5));
    }
}
