//! Who takes as much of the client's CPUs, while an ignorant server is asked, as those who collect take while a traced one is.
//!
//! The client asks again and again for what has not come yet, and that costs the server it asks: both use one socket, and its lock. While
//! those who collect have the client's CPU it asks less. So a traced server would look cheaper than it is, beside one whose client has its CPU
//! for itself. *In*: what part of a time they took. *Out*: a thread that takes that part of each ms, as long as it is told to. *Rejected*: a
//! client that waits: to be woken costs the server more, and more often the more of the client's CPU others take.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::process::thread_time;

const PERIOD: Duration = Duration::from_millis(1);
/// It is to end.
const OVER: u64 = u64::MAX;

/// The thread, on the CPUs of whoever starts it.
pub(super) struct Burden {
    /// ns of each [`PERIOD`].
    takes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Burden {
    pub(super) fn new() -> Burden {
        let takes = Arc::new(AtomicU64::new(0));
        let told = Arc::clone(&takes);
        Burden { takes, thread: Some(std::thread::spawn(move || work(&told))) }
    }

    /// While `asked` runs it takes this part.
    pub(super) fn during<T>(&self, part: f64, asked: impl FnOnce() -> T) -> T {
        self.takes.store((part.clamp(0.0, 0.9) * PERIOD.as_nanos() as f64) as u64, Relaxed);
        let done = asked();
        self.takes.store(0, Relaxed);
        done
    }
}

impl Drop for Burden {
    fn drop(&mut self) {
        self.takes.store(OVER, Relaxed);
        // It panics nowhere.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn work(takes: &AtomicU64) {
    loop {
        let ns = takes.load(Relaxed);
        if ns == OVER {
            return;
        }
        let piece = Duration::from_nanos(ns);
        let begun = thread_time();
        while thread_time() - begun < piece {
            std::hint::spin_loop();
        }
        std::thread::sleep(PERIOD.saturating_sub(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;

    /// Of so many ms: processor time, and time.
    fn worked(ms: u64) -> (Duration, Duration) {
        let takes = AtomicU64::new(300_000);
        std::thread::scope(|scope| {
            let thread = scope.spawn(|| {
                let begun = Instant::now();
                work(&takes);
                (thread_time(), begun.elapsed())
            });
            std::thread::sleep(Duration::from_millis(ms));
            takes.store(OVER, Relaxed);
            thread.join().unwrap()
        })
    }

    #[test]
    fn it_takes_what_it_is_told_to_and_no_more() {
        // A busy machine gives it less, and perhaps nothing for a while.
        let mut tries = [100, 1_000, 10_000].into_iter().map(worked);
        let (used, wall) = tries.find(|(used, _)| *used > 3 * PERIOD).unwrap();
        assert!(used < wall / 2, "{used:?} of {wall:?}");
        assert_eq!(Burden::new().during(0.5, || 7), 7);
    }
}
