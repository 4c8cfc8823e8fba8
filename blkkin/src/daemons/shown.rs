//! What there is to see of it while it works: for a service that runs for weeks.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use blkkin_ust_bridge::live::reader::Counts;
use blkkin_ust_bridge::weave::WeaveBooks;

use crate::output::say;
use crate::service::{Family, Kind};

/// Shared by both threads and who asks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shown {
    latest: Arc<Mutex<Latest>>,
    /// Whether troubles are said when they come; otherwise they stand in what is said at the end.
    at_once: bool,
}

#[derive(Clone, Copy, Debug, Default)]
struct Latest {
    woven: WeaveBooks,
    counts: Counts,
    renewed: u64,
}

impl Shown {
    /// For a service.
    pub(crate) fn at_once() -> Shown {
        Shown { at_once: true, ..Shown::default() }
    }

    /// What the reading counts.
    pub(super) fn heard(&self, counts: Counts, renewed: u64) {
        let mut latest = self.latest();
        (latest.counts, latest.renewed) = (counts, renewed);
    }

    /// What the weaving counts.
    pub(super) fn woven(&self, books: &WeaveBooks) {
        self.latest().woven = *books;
    }

    /// A trouble that is new.
    pub(super) fn say(&self, trouble: &str) {
        if self.at_once {
            say(&format!("daemons: {trouble}"));
        }
    }

    /// As metrics.
    pub(crate) fn families(&self) -> Vec<Family> {
        let Latest { woven, counts, renewed } = *self.latest();
        let counter = |name, help, value: u64| Family::one(Kind::Counter, name, help, value as f64);
        let lost = [
            ("no room", counts.lost.events),
            ("late", counts.late),
            ("said after the call was judged", woven.words_late),
        ];
        vec![
            counter("daemon_operations", "Operations that daemons told of", woven.operations),
            counter(
                "daemon_operations_unfinished",
                "Of these without an end: their process was killed, or too many were open",
                woven.operations_unfinished,
            ),
            counter(
                "daemon_operations_elsewhere",
                "Of these those of another pid namespace whose process is not known here",
                woven.operations_elsewhere,
            ),
            counter("daemon_calls_linked", "Calls below an operation", woven.calls_linked),
            counter(
                "daemon_calls_unjudged",
                "Calls below nothing, as what daemons say came too late",
                woven.calls_unjudged,
            ),
            Family::by("why", "daemon_events_lost", "Events of daemons that could not be used", lost),
            counter("daemon_packets_lost", "Packets of such events that never came", counts.lost.packets),
            counter("daemon_sessions_renewed", "Times that the session with LTTng was made anew", renewed),
        ]
    }

    fn latest(&self) -> MutexGuard<'_, Latest> {
        self.latest.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
