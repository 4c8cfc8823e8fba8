//! The wish to end, and how long what is under way may still take.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// What a service manager grants is 90 s (systemd, DefaultTimeoutStopSec); a person waits this long.
const IN_FLIGHT: Duration = Duration::from_secs(10);

/// Shared by all who have to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Stop(Arc<OnceLock<Instant>>);

impl Stop {
    /// From now on nothing new is begun.
    pub(super) fn stop(&self) {
        // The first wish counts.
        let _ = self.0.set(Instant::now());
    }

    /// Whether to end.
    pub(super) fn asked(&self) -> bool {
        self.0.get().is_some()
    }

    /// What is under way may take so long; none while nobody wants to end.
    pub(super) fn left(&self) -> Option<Duration> {
        self.0.get().map(|asked| IN_FLIGHT.saturating_sub(asked.elapsed()))
    }

    /// Nothing may take any longer.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
