//! Signal that stops a tracer from another thread.

use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

/// Flag that stops a tracer.
#[derive(Clone, Debug, Default)]
pub struct StopSignal {
    shared: Arc<(Mutex<bool>, Condvar)>,
}

impl StopSignal {
    /// Creates a signal that is not set.
    pub fn new() -> Self {
        StopSignal::default()
    }

    /// Sets the signal.
    pub fn stop(&self) {
        let (flag, woken) = &*self.shared;
        *flag.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = true;
        woken.notify_all();
    }

    /// Returns whether the signal is set.
    pub fn is_set(&self) -> bool {
        self.wait(Duration::ZERO)
    }

    /// Waits up to `period`; returns whether the signal is set.
    pub fn wait(&self, period: Duration) -> bool {
        let (flag, woken) = &*self.shared;
        let guard = flag.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        match woken.wait_timeout_while(guard, period, |stopped| !*stopped) {
            Ok((stopped, _)) => *stopped,
            Err(poisoned) => *poisoned.into_inner().0,
        }
    }
}
