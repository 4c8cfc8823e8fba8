//! Random ids for spans and traces: 64 bits, never 0.
//!
//! Each thread takes its state from the kernel once, then steps it by splitmix64, without a lock or
//! a shared cache line.
//!
//! *Invariant*: a forked child does not repeat ids of its parent. It has a copy of its parent's
//! memory, so after a fork each thread takes a new state.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks since the ancestor that had the first ids. Each thread remembers the value for
/// which it took its state.
static GENERATION: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static STATE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// Returns a new id.
#[inline]
pub(crate) fn next_id() -> u64 {
    STATE.with(|cell| {
        let (mut state, drawn) = cell.get();
        let generation = GENERATION.load(Ordering::Relaxed);
        if drawn != generation {
            state = seed();
        }
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        cell.set((state, generation));
        mix(state).max(1)
    })
}

/// Invalidates the states in a forked child. Without the probe no id leaves the process.
#[cfg(any(blkkin_probe, test))]
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// Computes the last step of splitmix64: a bijection, so an id repeats after 2^64 others.
fn mix(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

#[cold]
fn seed() -> u64 {
    // The standard library takes random keys from the kernel once per thread and then counts them
    // up. The hash of nothing with these keys is 64 bits that no other thread has.
    use std::hash::{BuildHasher, RandomState};
    let own = RandomState::new().hash_one(GENERATION.load(Ordering::Relaxed));
    // A forked child has its parent's keys.
    own ^ mix(u64::from(std::process::id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn ids_are_unique_in_a_thread_across_threads_and_after_a_fork() {
        let mut all: Vec<u64> = (0..10_000).map(|_| next_id()).collect();
        for _ in 0..4 {
            let more = std::thread::spawn(|| (0..10_000).map(|_| next_id()).collect::<Vec<_>>());
            all.extend(more.join().unwrap());
        }
        forked();
        all.extend((0..10_000).map(|_| next_id()));
        assert!(all.iter().all(|&id| id != 0));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
