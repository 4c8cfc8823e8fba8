//! The one way out: what is given out is in order and booked.

use super::accounts::JoinAccounts;
use crate::trace::Trace;

/// Where finished traces go, and the books.
#[derive(Debug)]
pub(super) struct Sink<'a> {
    pub(super) out: &'a mut Vec<Trace>,
    pub(super) accounts: &'a mut JoinAccounts,
}

impl Sink<'_> {
    pub(super) fn emit(&mut self, mut trace: Trace) {
        trace.arrange();
        self.accounts.settle(&trace);
        self.out.push(trace);
    }
}
