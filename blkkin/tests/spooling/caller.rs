//! A thread that makes and counts its own system calls: the independent count of what an agent
//! reports.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::support::live::eventually;

/// A thread that is the only one to make these calls, and counts them.
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
        let (orders, order_receiver) = channel::<u64>();
        let (tid_sender, tid_receiver) = channel();
        let (counts, keep_calling) = (Arc::clone(&made), Arc::clone(&endless));
        let thread = std::thread::spawn(move || {
            let file = File::open("/proc/self/exe").unwrap();
            // SAFETY: passes numbers only.
            tid_sender.send(unsafe { libc::syscall(libc::SYS_gettid) }).unwrap();
            let mut byte = 0u8;
            while let Ok(calls) = order_receiver.recv() {
                let (mut left, first) = (calls, load(&counts));
                while left > 0 || keep_calling.load(Ordering::Relaxed) {
                    // SAFETY: reads one byte, which outlives the call.
                    unsafe { libc::pread(file.as_raw_fd(), (&raw mut byte).cast(), 1, 0) };
                    left = left.saturating_sub(1);
                    let made = counts.fetch_add(1, Ordering::Release) + 1;
                    // About 100,000 calls a second: a load that does not overrun the rings.
                    if calls > 0 && (made - first).is_multiple_of(500) {
                        std::thread::sleep(Duration::from_millis(5));
                    }
                }
            }
        });
        let tid = tid_receiver.recv().unwrap();
        Caller { tid, made, endless, orders: Some(orders), thread: Some(thread) }
    }

    pub(crate) fn order(&self, calls: u64) {
        self.orders.as_ref().unwrap().send(calls).unwrap();
    }

    /// Makes this number of calls and returns after the last one.
    pub(crate) fn make(&self, calls: u64) {
        let until = self.made() + calls;
        self.order(calls);
        assert!(eventually(|| self.made() >= until));
    }

    /// Sets whether the calls of an order continue without a limit, until this is false again.
    pub(crate) fn set_endless(&self, endless: bool) {
        self.endless.store(endless, Ordering::Relaxed);
    }

    pub(crate) fn made(&self) -> u64 {
        self.made.load(Ordering::Acquire)
    }
}

fn load(counts: &AtomicU64) -> u64 {
    counts.load(Ordering::Acquire)
}

impl Drop for Caller {
    fn drop(&mut self) {
        self.set_endless(false);
        drop(self.orders.take());
        let _ = self.thread.take().unwrap().join();
    }
}
