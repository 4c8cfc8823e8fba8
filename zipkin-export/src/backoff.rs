//! How long to wait before an attempt is repeated.
//!
//! *In*: the number of attempts that failed in a row, and a random number. *Out*: a delay. *Invariant*: between
//! half and all of `first · 2ⁿ`, never above `most`; no clock is read here and no generator kept.
//!
//! Half of the delay is random: agents that lost the same server together do not come back together.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Bounds of the delay between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The longest delay after the first failure.
    pub first: Duration,
    /// The longest delay of all.
    pub most: Duration,
}

impl Default for Backoff {
    /// 100 ms is below what a person notices, and above the pauses of a garbage collector; 5 s is how late a
    /// server that is back is noticed, and one POST in 5 s is no load for one that is not.
    fn default() -> Self {
        Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) }
    }
}

/// A number that differs from call to call and from process to process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(pub u32);

impl Jitter {
    /// A new one.
    pub fn random() -> Jitter {
        // Every RandomState has keys of its own.
        Jitter(RandomState::new().hash_one(()) as u32)
    }
}

impl Backoff {
    /// The delay after `failures` (at least one) in a row.
    pub fn delay(&self, failures: u32, jitter: Jitter) -> Duration {
        let doublings = failures.saturating_sub(1).min(31);
        let longest = self.first.saturating_mul(1 << doublings).min(self.most);
        let fraction = f64::from(jitter.0) / f64::from(u32::MAX);
        longest / 2 + (longest / 2).mul_f64(fraction)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BACKOFF: Backoff = Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) };

    #[test]
    fn the_longest_delay_doubles_up_to_the_bound() {
        let longest: Vec<_> = (1..9).map(|n| BACKOFF.delay(n, Jitter(u32::MAX)).as_millis()).collect();
        assert_eq!(longest, [100, 200, 400, 800, 1600, 3200, 5000, 5000]);
        assert_eq!(BACKOFF.delay(u32::MAX, Jitter(u32::MAX)), BACKOFF.most);
    }

    #[test]
    fn the_shortest_delay_is_half_of_it() {
        let shortest: Vec<_> = (1..9).map(|n| BACKOFF.delay(n, Jitter(0)).as_millis()).collect();
        assert_eq!(shortest, [50, 100, 200, 400, 800, 1600, 2500, 2500]);
        assert_eq!(BACKOFF.delay(0, Jitter(0)), BACKOFF.delay(1, Jitter(0)));
    }

    #[test]
    fn jitter_differs_from_call_to_call() {
        let drawn: std::collections::HashSet<_> = (0..64).map(|_| Jitter::random().0).collect();
        assert!(drawn.len() > 32);
    }
}
