//! The one way out: what is given out is in order and booked.
//!
//! A trace is lent, not handed over: most takers look at it once and let it go, and what it has allocated serves the next
//! one. Handing each over cost its move through a list, and two allocations for its bios and requests.

use super::accounts::JoinAccounts;
use crate::trace::Trace;

/// Takes finished traces.
pub trait TraceSink {
    /// Looks at one; clones what it wants to keep.
    fn take(&mut self, trace: &Trace);
}

impl<F: FnMut(&Trace)> TraceSink for F {
    fn take(&mut self, trace: &Trace) {
        self(trace);
    }
}

/// Keeps all.
impl TraceSink for Vec<Trace> {
    fn take(&mut self, trace: &Trace) {
        self.push(trace.clone());
    }
}

/// Where finished traces go, and the books.
pub(super) struct Sink<'a> {
    pub(super) out: &'a mut dyn TraceSink,
    pub(super) accounts: &'a mut JoinAccounts,
}

impl Sink<'_> {
    pub(super) fn emit(&mut self, trace: &mut Trace) {
        trace.arrange();
        self.accounts.settle(trace);
        self.out.take(trace);
    }
}
