//! Ids for spans and traces: 64 bits, never 0, each process with a random beginning, each thread with its own.
//!
//! A thread draws its state from the kernel once, then steps it by splitmix64: no lock and no shared line. A forked child
//! has its parent's memory, so it would draw its parent's next ids: after a fork every state is drawn anew.

use std::cell::Cell;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often this process was forked from one that had ids; what it was when a thread drew its state.
static GENERATION: AtomicU64 = AtomicU64::new(1);

thread_local! {
    static STATE: Cell<(u64, u64)> = const { Cell::new((0, 0)) };
}

/// A fresh id.
#[inline]
pub(crate) fn fresh() -> u64 {
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

/// In a forked child: no id of the parent's is drawn again. (Without the probe nothing that is drawn leaves the process.)
#[cfg(any(blkkin_probe, test))]
pub(crate) fn forked() {
    GENERATION.fetch_add(1, Ordering::Relaxed);
}

/// splitmix64's last step: a bijection, so no id repeats before 2^64 others.
fn mix(state: u64) -> u64 {
    let state = (state ^ state >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let state = (state ^ state >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    state ^ state >> 31
}

#[cold]
fn seed() -> u64 {
    // The standard library's own random keys come from the kernel, once a thread, and are then counted up: hashing
    // nothing with them gives 64 bits that no other thread has.
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
    fn ids_repeat_neither_in_a_thread_nor_over_threads_nor_after_a_fork() {
        let mut all: Vec<u64> = (0..10_000).map(|_| fresh()).collect();
        for _ in 0..4 {
            let more = std::thread::spawn(|| (0..10_000).map(|_| fresh()).collect::<Vec<_>>());
            all.extend(more.join().unwrap());
        }
        forked();
        all.extend((0..10_000).map(|_| fresh()));
        assert!(all.iter().all(|&id| id != 0));
        assert_eq!(all.iter().collect::<HashSet<_>>().len(), all.len());
    }
}
