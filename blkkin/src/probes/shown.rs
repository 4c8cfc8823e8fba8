//! What there is to see of it while it works: for a service that runs for weeks.

use std::sync::{Arc, Mutex, PoisonError};

use blkkin_ust_bridge::weave::WeaveBooks;

use crate::service::{Family, Kind};

/// Shared by the thread that listens and who asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown(Arc<Mutex<Told>>);

/// What hits became.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Told {
    /// Hits that came.
    pub(crate) hits: u64,
    /// Hits for which the rings had no room.
    pub(crate) lost: u64,
    /// Hits that came while others were lost.
    pub(crate) unbelieved: u64,
    /// Hits with an argument that could not be read.
    pub(crate) unread: u64,
    /// What was made of the rest.
    pub(crate) woven: WeaveBooks,
}

impl Shown {
    /// It is so by now.
    pub(super) fn tell(&self, told: Told) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = told;
    }

    /// As metrics.
    pub(crate) fn families(&self) -> Vec<Family> {
        let Told { hits, lost, unbelieved, unread, woven } =
            *self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let counter = |name, help, value: u64| Family::one(Kind::Counter, name, help, value as f64);
        let unused =
            [("no room", lost), ("while others were lost", unbelieved), ("argument not read", unread)];
        vec![
            counter("probe_hits", "Times that a followed thread came by a probe", hits),
            Family::by("why", "probe_hits_lost", "Hits of probes that could not be used", unused),
            counter("probe_operations", "Operations that probes told of", woven.operations),
            counter(
                "probe_operations_unfinished",
                "Of these without an end: their process ended, hits were lost, or too many were open",
                woven.operations_unfinished,
            ),
            counter("probe_calls_linked", "Calls below an operation that probes told of", woven.calls_linked),
        ]
    }
}
