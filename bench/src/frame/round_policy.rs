//! Order and number of rounds: A B C, B C A, …, with as many rounds as the difference requires.
//!
//! Subjects alternate, so that other work on the machine (another guest, a slow phase of a hosted
//! disk) affects all alike. The order rotates by one each round, so that no subject always runs
//! after the same other one.
//!
//! Rounds end when the spread is small enough, never depending on the verdict: stopping at a
//! favourable result would bias it.

use std::time::{Duration, Instant};

use anyhow::Result;

/// Number of rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundPolicy {
    /// Rounds that are not counted: caches, page tables, the disk's own cache.
    pub(crate) warm_up: usize,
    pub(crate) min_rounds: usize,
    pub(crate) max_rounds: usize,
    /// No new round begins after this time.
    pub(crate) time_limit: Duration,
}

impl RoundPolicy {
    /// Limits the policy to one short counted round, which only shows that the benchmark works.
    pub(crate) fn quick(self, quick: bool) -> RoundPolicy {
        if quick { RoundPolicy { warm_up: 0, min_rounds: 1, max_rounds: 1, ..self } } else { self }
    }

    /// Runs each of `subjects` once per round, until `is_enough` accepts the measurements so far
    /// (one list per subject).
    pub(crate) fn run<W: Copy, T>(
        self,
        subjects: &[W],
        mut measure: impl FnMut(W) -> Result<T>,
        is_enough: impl Fn(&[Vec<T>]) -> bool,
    ) -> Result<Vec<Vec<T>>> {
        let mut measured: Vec<Vec<T>> = subjects.iter().map(|_| Vec::new()).collect();
        let started = Instant::now();
        for round in 0..self.warm_up + self.max_rounds {
            let counted = round.saturating_sub(self.warm_up);
            let is_over = started.elapsed() > self.time_limit && counted > 0;
            if is_over || (counted >= self.min_rounds && is_enough(&measured)) {
                break;
            }
            for turn in 0..subjects.len() {
                let index = (turn + round) % subjects.len();
                let value = measure(subjects[index])?;
                if round >= self.warm_up {
                    measured[index].push(value);
                }
            }
        }
        Ok(measured)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const POLICY: RoundPolicy =
        RoundPolicy { warm_up: 1, min_rounds: 2, max_rounds: 5, time_limit: Duration::from_secs(3600) };

    fn order(policy: RoundPolicy, is_enough: impl Fn(&[Vec<char>]) -> bool) -> (String, Vec<Vec<char>>) {
        let mut order = String::new();
        let measure = |subject: char| {
            order.push(subject);
            Ok(subject)
        };
        let measured = policy.run(&['a', 'b', 'c'], measure, is_enough).unwrap();
        (order, measured)
    }

    #[test]
    fn rounds_rotate_the_order_and_discard_the_warm_up() {
        let (order, measured) = order(POLICY, |_| true);
        assert_eq!(order, "abcbcacab");
        assert_eq!(measured, [['a', 'a'], ['b', 'b'], ['c', 'c']]);
    }

    #[test]
    fn rounds_end_when_enough_or_at_a_limit() {
        assert_eq!(order(POLICY, |measured| measured[0].len() == 3).1[0].len(), 3);
        assert_eq!(order(POLICY, |_| false).1[2].len(), 5);
        assert_eq!(order(RoundPolicy { time_limit: Duration::ZERO, ..POLICY }, |_| false).1[0].len(), 1);
        assert_eq!(order(POLICY.quick(true), |_| false).0, "abc");
    }
}
