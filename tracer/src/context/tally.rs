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
    /// Processes that are there and say who they are.
    pub(crate) resources_publishing: AtomicU64,
    /// Times that this could not be understood.
    pub(crate) resources_malformed: AtomicU64,
    /// Times that it was being written at each attempt.
    pub(crate) resources_unread: AtomicU64,
    /// Times that there was no room for it.
    pub(crate) resources_no_room: AtomicU64,
}

impl Tally {
    /// Puts the numbers into the books.
    pub(crate) fn fill(&self, accounts: &mut Accounts) {
        accounts.contexts_publishing = self.publishing.load(Relaxed);
        accounts.contexts_denied = self.denied.load(Relaxed);
        accounts.contexts_no_room = self.no_room.load(Relaxed);
        accounts.resources_publishing = self.resources_publishing.load(Relaxed);
        accounts.resources_malformed = self.resources_malformed.load(Relaxed);
        accounts.resources_unread = self.resources_unread.load(Relaxed);
        accounts.resources_no_room = self.resources_no_room.load(Relaxed);
    }
}
