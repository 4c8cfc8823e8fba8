//! Several measurements of one thing: their median, and how far that can be trusted.
//!
//! The spread makes no assumption about how the rounds are distributed (they are not normal: other work makes a round
//! longer and never shorter). The k-th smallest and k-th largest of n values hold the true median between them unless
//! fewer than k of n fell on one side, which is counting heads in n throws of a coin.

/// How often an interval may miss the true median. Of five rounds it is the whole range: 6.25 %.
const MISSES_MAX: f64 = 0.065;

/// What came out, round by round, in that order.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn median(&self) -> f64 {
        median(&mut self.0.clone())
    }

    /// How far the true median may be from [`Rounds::median`], on the worse side. One round does not say.
    pub(crate) fn spread(&self) -> f64 {
        if self.0.len() < 2 {
            return f64::NAN;
        }
        let mut sorted = self.0.clone();
        let middle = median(&mut sorted);
        let cut = outside(sorted.len());
        let (low, high) = (sorted[cut], sorted[sorted.len() - 1 - cut]);
        (high - middle).max(middle - low)
    }

    pub(crate) fn most(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// `with` by `without`, round by round: neighbours in time share what the machine did then.
    pub(crate) fn ratios(with: &Rounds, without: &Rounds) -> Rounds {
        with.0.iter().zip(&without.0).map(|(with, without)| with / without).collect()
    }

    /// `with` less `without`, round by round.
    pub(crate) fn differences(with: &Rounds, without: &Rounds) -> Rounds {
        with.0.iter().zip(&without.0).map(|(with, without)| with - without).collect()
    }

    /// Each round's value, changed.
    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Rounds {
        self.0.iter().map(|value| change(*value)).collect()
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

/// The value that this part of them is not above; sorts them.
pub(crate) fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * part).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// How many values at each end lie outside of the interval.
fn outside(rounds: usize) -> usize {
    let (mut below, mut term, mut cut) = (0.0, 0.5_f64.powi(rounds as i32), 0);
    // `term` is the chance of exactly `cut` heads.
    while 2 * (cut + 1) < rounds {
        below += term;
        term *= (rounds - cut) as f64 / (cut + 1) as f64;
        if 2.0 * (below + term) > MISSES_MAX {
            break;
        }
        cut += 1;
    }
    cut
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_of_an_even_number_lies_between_the_middle_two() {
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn the_interval_is_that_of_the_sign_test() {
        // Of tables of the sign test (two sides, 5 %): n = 9: 2nd to 8th, n = 15: 4th to 12th, n = 20: 6th to 15th.
        assert_eq!([3, 5, 6, 9, 15, 20].map(outside), [0, 0, 0, 1, 3, 5]);
    }

    #[test]
    fn one_bad_round_of_nine_does_not_widen_the_spread() {
        let rounds: Rounds = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 500.0].into_iter().collect();
        assert_eq!((rounds.median(), rounds.spread()), (14.0, 3.0));
        let few: Rounds = [10.0, 11.0, 20.0].into_iter().collect();
        assert_eq!((few.median(), few.spread()), (11.0, 9.0), "of few rounds it is the range");
        assert!(Rounds::default().spread().is_nan());
    }

    #[test]
    fn ratios_are_of_neighbours() {
        let (with, without) = ([2.0, 6.0].into_iter().collect(), [1.0, 2.0].into_iter().collect());
        assert_eq!(Rounds::ratios(&with, &without).median(), 2.5);
    }

    #[test]
    fn the_99th_of_a_hundred_is_their_99_percentile() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.99), 99.0);
        assert_eq!(quantile(&mut [7.0], 0.99), 7.0);
        assert!(quantile(&mut [], 0.99).is_nan());
    }
}
