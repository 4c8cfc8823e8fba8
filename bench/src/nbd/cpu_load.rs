//! Load on the client's CPUs while a disabled server is measured, equal to that of the collectors
//! of a traced one.
//!
//! The client polls for replies, and polling costs the server: both use one socket and its lock.
//! While the collectors use the client's CPU, it polls less. So a traced server would look cheaper
//! than it is, compared with a server whose client has the CPU alone. *In*: the share of CPU that
//! the collectors used. *Out*: a thread that uses that share of each ms until it is stopped.
//! *Rejected*: a client that waits: a wake-up costs the server more, and the number of wake-ups
//! depends on the use of the client's CPU.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::process::thread_time;

const PERIOD: Duration = Duration::from_millis(1);
/// Value that ends the thread.
const STOP: u64 = u64::MAX;

/// Thread on the CPUs of its creator.
pub(super) struct CpuLoad {
    /// Processor time in ns per [`PERIOD`].
    ns_per_period: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl CpuLoad {
    pub(super) fn new() -> CpuLoad {
        let ns_per_period = Arc::new(AtomicU64::new(0));
        let per_request = Arc::clone(&ns_per_period);
        CpuLoad { ns_per_period, thread: Some(std::thread::spawn(move || spin(&per_request))) }
    }

    /// Uses this share of CPU while `run` runs.
    pub(super) fn run_during<T>(&self, part: f64, run: impl FnOnce() -> T) -> T {
        self.ns_per_period.store((part.clamp(0.0, 0.9) * PERIOD.as_nanos() as f64) as u64, Relaxed);
        let result = run();
        self.ns_per_period.store(0, Relaxed);
        result
    }
}

impl Drop for CpuLoad {
    fn drop(&mut self) {
        self.ns_per_period.store(STOP, Relaxed);
        // The thread does not panic.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn spin(ns_per_period: &AtomicU64) {
    loop {
        let ns = ns_per_period.load(Relaxed);
        if ns == STOP {
            return;
        }
        let busy = Duration::from_nanos(ns);
        let started = thread_time();
        while thread_time() - started < busy {
            std::hint::spin_loop();
        }
        std::thread::sleep(PERIOD.saturating_sub(busy));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Runs for `ms` and returns processor time and wall time.
    fn measure(ms: u64) -> (Duration, Duration) {
        let ns_per_period = AtomicU64::new(300_000);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let started = Instant::now();
                spin(&ns_per_period);
                (thread_time(), started.elapsed())
            });
            std::thread::sleep(Duration::from_millis(ms));
            ns_per_period.store(STOP, Relaxed);
            thread.join().unwrap()
        })
    }

    #[test]
    fn load_uses_its_share_and_no_more() {
        // On a busy machine the thread gets less, perhaps nothing for a while.
        let mut tries = [100, 1_000, 10_000].into_iter().map(measure);
        let (processor, wall) = tries.find(|(processor, _)| *processor > 3 * PERIOD).unwrap();
        assert!(processor < wall / 2, "{processor:?} of {wall:?}");
        assert_eq!(CpuLoad::new().run_during(0.5, || 7), 7);
    }
}
