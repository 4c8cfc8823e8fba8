//! A thread whose calls are counted by itself, so that what an agent says of them has a witness.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::live::eventually;

/// A thread that makes calls which nobody else makes, and counts them.
pub(crate) struct Caller {
    pub(crate) tid: i64,
    made: Arc<AtomicU64>,
    endless: Arc<AtomicBool>,
    orders: Option<Sender<u64>>,
    thread: Option<JoinHandle<()>>,
}

impl Caller {
    pub(crate) fn new() -> Caller {
        let (made, endless) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
        let (orders, ordered) = channel::<u64>();
        let (tell, told) = channel();
        let (counts, goes_on) = (Arc::clone(&made), Arc::clone(&endless));
        let thread = std::thread::spawn(move || {
            let file = File::open("/proc/self/exe").unwrap();
            // SAFETY: a number.
            tell.send(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap();
            let mut byte = 0u8;
            while let Ok(calls) = ordered.recv() {
                let (mut left, begun) = (calls, made_before(&counts));
                while left > 0 || goes_on.load(Ordering::Relaxed) {
                    // SAFETY: one byte, which outlives the call.
                    unsafe { libc::pread(file.as_raw_fd(), (&raw mut byte).cast(), 1, 0) };
                    left = left.saturating_sub(1);
                    let made = counts.fetch_add(1, Ordering::Release) + 1;
                    // Some 100,000 a second: a load, and no attempt to overrun rings.
                    if calls > 0 && (made - begun).is_multiple_of(500) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        });
        let tid = told.recv().unwrap();
        Caller { tid, made, endless, orders: Some(orders), thread: Some(thread) }
    }

    pub(crate) fn order(&self, calls: u64) {
        self.orders.as_ref().unwrap().send(calls).unwrap();
    }

    /// Makes so many, and comes back when all are made.
    pub(crate) fn make(&self, calls: u64) {
        let until = self.made() + calls;
        self.order(calls);
        assert!(eventually(|| self.made() >= until));
    }

    /// Goes on with what was ordered until told otherwise.
    pub(crate) fn without_end(&self, endless: bool) {
        self.endless.store(endless, Ordering::Relaxed);
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }
}

fn made_before(counts: &AtomicU64) -> u64 {
    counts.load(Ordering::Acquire)
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.without_end(false);
        drop(self.orders.take());
        let _ = self.thread.take().unwrap().join();
    }
}
