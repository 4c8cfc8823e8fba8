//! Delay before a retry.
//!
//! *In*: the number of consecutive failures, and a random number. *Out*: a delay. *Invariant*:
//! between half and all of `first · 2ⁿ`, never above `most`. This module reads no clock and keeps
//! no generator.
//!
//! Half of the delay is random, so agents that lost the same server do not retry in lockstep.

use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

/// Bounds of the delay between attempts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Maximum delay after the first failure.
    pub first: Duration,
    /// Maximum delay.
    pub most: Duration,
}

impl Default for Backoff {
    /// Returns 100 ms to 5 s. 100 ms is imperceptible, and longer than a garbage collection pause.
    /// With 5 s, the recovery of a server is noticed in time, and one POST in 5 s is no load.
    fn default() -> Self {
        Backoff { first: Duration::from_millis(100), most: Duration::from_secs(5) }
    }
}

/// Random number that differs between calls and processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Jitter(pub u32);

impl Jitter {
    /// Draws a new number.
    pub fn random() -> Jitter {
        // Each RandomState has its own keys.
        Jitter(RandomState::new().hash_one(()) as u32)
    }
}

impl Backoff {
    /// Returns the delay after `failures` (at least one) consecutive failures.
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
