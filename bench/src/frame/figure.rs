//! A figure: what came out, how far it can be trusted, and what was hoped for.
//!
//! Nothing here is an assertion. Where the spread is larger than the distance to the goal the verdict is that there is
//! none; the same where the whole run cannot be believed ([`super::Conditions`]).

use serde::{Deserialize, Serialize};

use super::Rounds;

/// One figure of a bench.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Figure {
    /// What was measured.
    pub(crate) name: String,
    /// What came out: of rounds the median.
    #[serde(deserialize_with = "or_unknown")]
    pub(crate) value: f64,
    /// How far the true value may be from it; 0 where something was counted, not a number where it is unknown.
    #[serde(deserialize_with = "or_unknown")]
    pub(crate) spread: f64,
    pub(crate) unit: String,
    /// What was hoped for.
    pub(crate) goal: Option<Goal>,
    pub(crate) verdict: Verdict,
    pub(crate) note: String,
    /// The same as a ratio to something measured beside it: what is compared with an earlier run.
    pub(crate) ratio: Option<Ratio>,
}

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Goal {
    AtMost(f64),
    AtLeast(f64),
}

/// How a figure compares with its goal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Verdict {
    Reached,
    Missed,
    /// None is possible, and why.
    None(String),
    /// There is no goal.
    NotAsked,
}

/// With tracing to without, in turns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ratio {
    #[serde(deserialize_with = "or_unknown")]
    pub(crate) value: f64,
    #[serde(deserialize_with = "or_unknown")]
    pub(crate) spread: f64,
}

/// JSON has no "not a number": there it is null.
fn or_unknown<'de, D: serde::Deserializer<'de>>(from: D) -> Result<f64, D::Error> {
    Option::<f64>::deserialize(from).map(|value| value.unwrap_or(f64::NAN))
}

impl Figure {
    /// A figure without a goal.
    pub(crate) fn new(name: impl Into<String>, value: f64, spread: f64, unit: &str) -> Figure {
        let (name, note, unit) = (name.into(), String::new(), unit.to_owned());
        Figure { name, value, spread, unit, goal: None, verdict: Verdict::NotAsked, note, ratio: None }
    }

    /// The median of rounds.
    pub(crate) fn of(name: impl Into<String>, rounds: &Rounds, unit: &str) -> Figure {
        Figure::new(name, rounds.median(), rounds.spread(), unit)
    }

    /// The same with a goal, and how it compares.
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

    /// The same with a remark.
    pub(crate) fn note(mut self, note: impl Into<String>) -> Figure {
        self.note = note.into();
        self
    }

    /// The same with what later runs are compared by.
    pub(crate) fn ratio(mut self, ratios: &Rounds) -> Figure {
        self.ratio = Some(Ratio { value: ratios.median(), spread: ratios.spread() });
        self
    }

    /// The same in a run that says nothing.
    pub(crate) fn doubted(mut self, why: Option<&str>) -> Figure {
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
    fn no_verdict_where_the_spread_exceeds_the_distance() {
        let reached =
            |value, spread| match Figure::new("x", value, spread, "ns").goal(Goal::AtMost(300.0)).verdict {
                Verdict::Reached => Some(true),
                Verdict::Missed => Some(false),
                Verdict::None(_) | Verdict::NotAsked => None,
            };
        assert_eq!(reached(290.0, 5.0), Some(true));
        assert_eq!(reached(310.0, 5.0), Some(false));
        assert_eq!(reached(310.0, 15.0), None);
        assert_eq!(reached(290.0, 15.0), None);
        assert_eq!(reached(290.0, f64::NAN), None);
        assert_eq!(Figure::new("x", 0.0, 0.0, "lost").goal(Goal::AtMost(0.0)).verdict, Verdict::Reached);
    }

    #[test]
    fn doubt_takes_verdicts_and_adds_none() {
        let judged = Figure::new("x", 1.0, 0.0, "ns").goal(Goal::AtMost(2.0));
        assert_eq!(judged.clone().doubted(None).verdict, Verdict::Reached);
        assert_eq!(judged.doubted(Some("noise")).verdict, Verdict::None("noise".to_owned()));
        assert_eq!(Figure::new("x", 1.0, 0.0, "ns").doubted(Some("noise")).verdict, Verdict::NotAsked);
    }
}
