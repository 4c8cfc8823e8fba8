//! Liveness of a worker.
//!
//! *In*: one beat per iteration of a worker. *Out*: the time since the last beat. A worker without
//! work beats too; one that waits for something that may never come does not.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A heartbeat, shared by the worker and its observers.
#[derive(Clone, Debug)]
pub(crate) struct Heartbeat {
    started: Instant,
    /// The last beat, in ms since `begun`.
    last: Arc<AtomicU64>,
}

impl Default for Heartbeat {
    fn default() -> Heartbeat {
        Heartbeat::new()
    }
}

impl Heartbeat {
    /// Creates a heartbeat with the first beat now.
    pub(crate) fn new() -> Heartbeat {
        Heartbeat { started: Instant::now(), last: Arc::default() }
    }

    /// Records a beat.
    pub(crate) fn beat(&self) {
        self.last.store(self.started.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Returns the time since the last beat.
    pub(crate) fn since_last(&self) -> Duration {
        self.started.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn beat_resets_the_time_since_the_last() {
        let heartbeat = Heartbeat::new();
        std::thread::sleep(Duration::from_millis(20));
        let before = heartbeat.since_last();
        assert!(before >= Duration::from_millis(20));
        heartbeat.clone().beat();
        assert!(heartbeat.since_last() < before);
    }
}
