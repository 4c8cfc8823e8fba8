//! The stop request, and the time that work in flight may still take.

use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

/// Maximum time for work in flight after a stop request. systemd grants 90 s
/// (DefaultTimeoutStopSec), but a user may be waiting.
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
