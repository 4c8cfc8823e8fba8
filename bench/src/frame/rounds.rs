//! Repeated measurements: their median and its spread.
//!
//! The spread assumes no distribution of the rounds (they are not normal: other work only makes a
//! round longer). The k-th smallest and k-th largest of n values enclose the true median unless
//! fewer than k of n values are on one side, with the probability of a coin toss.

/// Maximum probability that the interval misses the true median. Of five rounds it is the whole
/// range: 6.25 %.
const MISSES_MAX: f64 = 0.065;

/// Measured values in the order of the rounds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Rounds(Vec<f64>);

impl Rounds {
    pub(crate) fn median(&self) -> f64 {
        median(&mut self.0.clone())
    }

    /// Returns the larger distance from [`Rounds::median`] to the ends of its interval; NaN for one
    /// round.
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

    pub(crate) fn max(&self) -> f64 {
        self.0.iter().copied().fold(f64::NEG_INFINITY, f64::max)
    }

    /// Divides `with` by `without`, round by round, because the two runs of a round share the same
    /// conditions.
    pub(crate) fn ratios(with: &Rounds, without: &Rounds) -> Rounds {
        with.0.iter().zip(&without.0).map(|(with, without)| with / without).collect()
    }

    /// Subtracts `without` from `with`, round by round.
    pub(crate) fn differences(with: &Rounds, without: &Rounds) -> Rounds {
        with.0.iter().zip(&without.0).map(|(with, without)| with - without).collect()
    }

    /// Maps the value of each round.
    pub(crate) fn map(&self, change: impl Fn(f64) -> f64) -> Rounds {
        self.0.iter().map(|value| change(*value)).collect()
    }
}

impl FromIterator<f64> for Rounds {
    fn from_iter<I: IntoIterator<Item = f64>>(values: I) -> Rounds {
        Rounds(values.into_iter().collect())
    }
}

/// Returns the middle value; NaN for an empty slice.
pub(crate) fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    match values {
        [] => f64::NAN,
        _ => (values[(values.len() - 1) / 2] + values[values.len() / 2]) / 2.0,
    }
}

/// Returns the quantile `part` of the values, and sorts them.
pub(crate) fn quantile(values: &mut [f64], part: f64) -> f64 {
    values.sort_by(f64::total_cmp);
    let index = (values.len() as f64 * part).ceil() as usize;
    values.get(index.saturating_sub(1)).copied().unwrap_or(f64::NAN)
}

/// Returns the number of values outside the interval at each end.
fn outside(rounds: usize) -> usize {
    let (mut below, mut term, mut cut) = (0.0, 0.5_f64.powi(rounds as i32), 0);
    // Probability of exactly `cut` heads.
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
    fn median_of_even_count_is_mean_of_middle_two() {
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert!(median(&mut []).is_nan());
    }

    #[test]
    fn interval_matches_the_sign_test() {
        // From tables of the sign test (two-sided, 5 %): n = 9: 2nd to 8th, n = 15: 4th to 12th, n
        // = 20: 6th to 15th.
        assert_eq!([3, 5, 6, 9, 15, 20].map(outside), [0, 0, 0, 1, 3, 5]);
    }

    #[test]
    fn one_outlier_of_nine_does_not_widen_the_spread() {
        let rounds: Rounds = [10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0, 17.0, 500.0].into_iter().collect();
        assert_eq!((rounds.median(), rounds.spread()), (14.0, 3.0));
        let few: Rounds = [10.0, 11.0, 20.0].into_iter().collect();
        assert_eq!((few.median(), few.spread()), (11.0, 9.0), "of few rounds it is the range");
        assert!(Rounds::default().spread().is_nan());
    }

    #[test]
    fn ratios_pair_rounds_of_the_same_index() {
        let (with, without) = ([2.0, 6.0].into_iter().collect(), [1.0, 2.0].into_iter().collect());
        assert_eq!(Rounds::ratios(&with, &without).median(), 2.5);
    }

    #[test]
    fn p99_of_a_hundred_is_the_99th() {
        let mut values: Vec<f64> = (1..=100).rev().map(f64::from).collect();
        assert_eq!(quantile(&mut values, 0.99), 99.0);
        assert_eq!(quantile(&mut [7.0], 0.99), 7.0);
        assert!(quantile(&mut [], 0.99).is_nan());
    }
}
