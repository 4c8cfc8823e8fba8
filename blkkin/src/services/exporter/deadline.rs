//! The stop request, and the time that work in flight may still take.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// systemd grants 90 s (DefaultTimeoutStopSec); a user waits for this long.
const IN_FLIGHT: Duration = Duration::from_secs(10);

/// A stop request with a deadline, shared by all workers.
#[derive(Clone, Debug, Default)]
pub(super) struct StopDeadline(Arc<OnceLock<Instant>>);

impl StopDeadline {
    /// Requests the stop: no new work starts.
    pub(super) fn request(&self) {
        // The first request counts.
        let _ = self.0.set(Instant::now());
    }

    /// Returns whether a stop was requested.
    pub(super) fn is_requested(&self) -> bool {
        self.0.get().is_some()
    }

    /// Returns the time left for work in flight; `None` without a stop request.
    pub(super) fn left(&self) -> Option<Duration> {
        self.0.get().map(|requested_at| IN_FLIGHT.saturating_sub(requested_at.elapsed()))
    }

    /// Returns whether the deadline has passed.
    pub(super) fn is_over(&self) -> bool {
        self.left().is_some_and(|left| left.is_zero())
    }
}
