//! Figures: a value, its spread and its goal.
//!
//! No figure is asserted. If the spread is larger than the distance to the goal, there is no
//! verdict; nor if the whole run is invalid ([`super::Conditions`]).

use serde::{Deserialize, Serialize};

use super::Rounds;

/// Figure of a benchmark.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// Name of the measured quantity.
    pub(crate) name: String,
    /// Measured value: the median of the rounds.
    #[serde(deserialize_with = "null_as_nan")]
    pub(crate) value: f64,
    /// Distance to the true value with high probability; 0 for counts, NaN if unknown.
    #[serde(deserialize_with = "null_as_nan")]
    pub(crate) spread: f64,
    pub(crate) unit: String,
    /// Expected limit.
    pub(crate) goal: Option<Goal>,
    pub(crate) verdict: Verdict,
    pub(crate) note: String,
}

/// Goal of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// Comparison of a figure with its goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Reached,
    Missed,
    /// No verdict is possible, with the reason.
    None(String),
    /// The figure has no goal.
    #[serde(rename = "not_asked")]
    NoGoal,
}

/// Deserializes null as NaN, which JSON lacks.
fn null_as_nan<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|value| value.unwrap_or(f64::NAN))
}

impl Figure {
    /// Makes a figure without a goal.
    pub(crate) fn new(name: impl Into<String>, value: f64, spread: f64, unit: &str) -> Figure {
        let (name, note, unit) = (name.into(), String::new(), unit.to_owned());
        Figure { name, value, spread, unit, goal: None, verdict: Verdict::NoGoal, note }
    }

    /// Makes a figure from the median of rounds.
    pub(crate) fn of(name: impl Into<String>, rounds: &Rounds, unit: &str) -> Figure {
        Figure::new(name, rounds.median(), rounds.spread(), unit)
    }

    /// Adds a goal and the verdict.
    pub(crate) fn goal(mut self, goal: Goal) -> Figure {
        let (distance, reached) = match goal {
            Goal::AtMost(limit) => (limit - self.value, self.value <= limit),
            Goal::AtLeast(limit) => (self.value - limit, self.value >= limit),
        };
        self.goal = Some(goal);
        self.verdict = match (distance.abs() < self.spread || self.spread.is_nan(), reached) {
            (true, _) => Verdict::None("the spread is larger than the distance to the goal".to_owned()),
            (false, true) => Verdict::Reached,
            (false, false) => Verdict::Missed,
        };
        self
    }

    /// Adds a note.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    /// Removes the verdict in an invalid run.
    pub(crate) fn invalidated(mut self, why: Option<&str>) -> Figure {
        if let (Some(why), Some(_)) = (why, self.goal) {
            self.verdict = Verdict::None(why.to_owned());
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spread_larger_than_distance_gives_no_verdict() {
        let reached =
            |value, spread| match Figure::new("x", value, spread, "ns").goal(Goal::AtMost(300.0)).verdict {
                Verdict::Reached => Some(true),
                Verdict::Missed => Some(false),
                Verdict::None(_) | Verdict::NoGoal => None,
            };
        assert_eq!(reached(290.0, 5.0), Some(true));
        assert_eq!(reached(310.0, 5.0), Some(false));
        assert_eq!(reached(310.0, 15.0), None);
        assert_eq!(reached(290.0, 15.0), None);
        assert_eq!(reached(290.0, f64::NAN), None);
        assert_eq!(Figure::new("x", 0.0, 0.0, "lost").goal(Goal::AtMost(0.0)).verdict, Verdict::Reached);
    }

    #[test]
    fn invalidation_removes_verdicts_and_adds_none() {
        let figure = Figure::new("x", 1.0, 0.0, "ns").goal(Goal::AtMost(2.0));
        assert_eq!(figure.clone().invalidated(None).verdict, Verdict::Reached);
        assert_eq!(figure.invalidated(Some("noise")).verdict, Verdict::None("noise".to_owned()));
        assert_eq!(Figure::new("x", 1.0, 0.0, "ns").invalidated(Some("noise")).verdict, Verdict::NoGoal);
    }
}
