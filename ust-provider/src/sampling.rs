//! Sampling of roots, as far as it runs in the program: most dropped roots only count down.
//!
//! *In*: each root. *Out*: its sampling ratio, or 0 if it is dropped. The probe decides
//! (`c/probe/sampling.h`), and returns how many next roots of this thread it drops without a call.

use std::cell::Cell;

use crate::{ids, probe};

thread_local! {
    static DROP_NEXT: Cell<u32> = const { Cell::new(0) };
}

/// Returns the sampling ratio of a root that begins now, per million; 0 if it is dropped.
#[inline]
pub(crate) fn keep_root(probe: &probe::Table) -> u32 {
    DROP_NEXT.with(|drop_next| match drop_next.get() {
        0 => {
            // SAFETY: a function of the probe that takes a number.
            let decided = unsafe { (probe.keep_root)(ids::next_id()) };
            drop_next.set((decided >> 32) as u32);
            decided as u32
        }
        count => {
            drop_next.set(count - 1);
            0
        }
    })
}
