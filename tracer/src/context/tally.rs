//! What became of looks at processes, counted for whoever reports it.

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

use blkkin_wire::batch::Accounts;

/// Written by the thread that looks.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    /// Processes that are there and publish, as they were found.
    pub(crate) publishing: AtomicU64,
    /// Processes that this one had no right to look at.
    pub(crate) denied: AtomicU64,
    /// Places for which there was no room.
    pub(crate) no_room: AtomicU64,
}

impl Tally {
    /// Puts the numbers into the books.
    pub(crate) fn fill(&self, accounts: &mut Accounts) {
        accounts.contexts_publishing = self.publishing.load(Relaxed);
        accounts.contexts_denied = self.denied.load(Relaxed);
        accounts.contexts_no_room = self.no_room.load(Relaxed);
    }
}
