//! Who runs when: A B C, A B C, …, with as many rounds as the difference needs.
//!
//! What is compared runs in turns, so that what the machine does meanwhile (a neighbour, the weather of a hosted disk)
//! falls on all alike. The order is turned by one each round: nobody always runs after the same.
//!
//! Rounds end when what is asked for is known well enough, and that is a matter of the spread alone, never of the
//! verdict: who stops when he likes what he sees finds what he likes.

use std::time::{Duration, Instant};

use anyhow::Result;

/// How many rounds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Turns {
    /// Rounds that are not counted: caches, page tables, the disk's own memory.
    pub(crate) warm_up: usize,
    pub(crate) least: usize,
    pub(crate) most: usize,
    /// No new round begins after it.
    pub(crate) at_most: Duration,
}

impl Turns {
    /// One short round, counted: shows that it works.
    pub(crate) fn quick(self, quick: bool) -> Turns {
        if quick { Turns { warm_up: 0, least: 1, most: 1, ..self } } else { self }
    }

    /// Runs each of `who` once a round, until `enough` says so of what was measured so far (a list for each of `who`).
    pub(crate) fn run<W: Copy, T>(
        self,
        who: &[W],
        mut measure: impl FnMut(W) -> Result<T>,
        enough: impl Fn(&[Vec<T>]) -> bool,
    ) -> Result<Vec<Vec<T>>> {
        let mut measured: Vec<Vec<T>> = who.iter().map(|_| Vec::new()).collect();
        let begun = Instant::now();
        for round in 0..self.warm_up + self.most {
            let counted = round.saturating_sub(self.warm_up);
            let over = begun.elapsed() > self.at_most && counted > 0;
            if over || (counted >= self.least && enough(&measured)) {
                break;
            }
            for turn in 0..who.len() {
                let index = (turn + round) % who.len();
                let value = measure(who[index])?;
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

    const TURNS: Turns = Turns { warm_up: 1, least: 2, most: 5, at_most: Duration::from_secs(3600) };

    fn order(turns: Turns, enough: impl Fn(&[Vec<char>]) -> bool) -> (String, Vec<Vec<char>>) {
        let mut order = String::new();
        let measure = |who: char| {
            order.push(who);
            Ok(who)
        };
        let measured = turns.run(&['a', 'b', 'c'], measure, enough).unwrap();
        (order, measured)
    }

    #[test]
    fn all_run_in_each_round_in_turned_order_and_the_warm_up_is_not_kept() {
        let (order, measured) = order(TURNS, |_| true);
        assert_eq!(order, "abcbcacab");
        assert_eq!(measured, [['a', 'a'], ['b', 'b'], ['c', 'c']]);
    }

    #[test]
    fn rounds_go_on_until_it_is_enough_or_the_most() {
        assert_eq!(order(TURNS, |measured| measured[0].len() == 3).1[0].len(), 3);
        assert_eq!(order(TURNS, |_| false).1[2].len(), 5);
        assert_eq!(order(Turns { at_most: Duration::ZERO, ..TURNS }, |_| false).1[0].len(), 1);
        assert_eq!(order(TURNS.quick(true), |_| false).0, "abc");
    }
}
