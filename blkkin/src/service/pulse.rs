//! Whether work goes on.
//!
//! *In*: a beat from whoever works, at each of its rounds. *Out*: how long ago the last one was. A worker that has nothing to
//! do beats too; one that waits for something that may never come does not, which is the point.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shared by who works and who looks.
#[derive(Clone, Debug)]
pub(crate) struct Pulse {
    begun: Instant,
    /// ms since then.
    last: Arc<AtomicU64>,
}

impl Default for Pulse {
    fn default() -> Pulse {
        Pulse::new()
    }
}

impl Pulse {
    /// The first beat is now.
    pub(crate) fn new() -> Pulse {
        Pulse { begun: Instant::now(), last: Arc::default() }
    }

    /// Work goes on.
    pub(crate) fn beat(&self) {
        self.last.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Since the last beat.
    pub(crate) fn silence(&self) -> Duration {
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beat_ends_the_silence() {
        let pulse = Pulse::new();
        std::thread::sleep(Duration::from_millis(20));
        let before = pulse.silence();
        assert!(before >= Duration::from_millis(20));
        pulse.clone().beat();
        assert!(pulse.silence() < before);
    }
}
