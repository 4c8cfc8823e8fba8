//! Submission and completion queue of one io_uring.
//!
//! *In*: entries. *Out*: completions. *Invariant*: an entry that the kernel does not take yet stays
//! in the backlog and is submitted later.

use std::collections::VecDeque;
use std::io;

use io_uring::IoUring;
use io_uring::squeue::Entry;

/// Size of the submission queue.
const ENTRIES: u32 = 256;
/// Size of the completion queue. The kernel stores further completions elsewhere.
const COMPLETIONS: u32 = 4_096;

pub(super) struct RingQueue {
    ring: IoUring,
    backlog: VecDeque<Entry>,
}

impl RingQueue {
    /// Creates a ring for a single issuer, where the kernel supports it. Completions are then
    /// processed in batches when the thread waits for them (`IORING_SETUP_DEFER_TASKRUN`, since
    /// Linux 6.1).
    pub(super) fn new() -> io::Result<Self> {
        let mut deferred = IoUring::builder();
        deferred.setup_single_issuer().setup_defer_taskrun().setup_cqsize(COMPLETIONS);
        let ring = deferred
            .build(ENTRIES)
            .or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES))?;
        Ok(Self { ring, backlog: VecDeque::new() })
    }

    /// Queues an entry for the next submission.
    ///
    /// # Safety
    ///
    /// The memory that the entry refers to stays allocated and untouched until its completion was
    /// taken.
    pub(super) unsafe fn push(&mut self, entry: Entry) {
        self.backlog.push_back(entry);
        self.fill();
    }

    /// Submits the queued entries. Those that the kernel does not take remain for the next call.
    pub(super) fn submit(&mut self) {
        self.fill();
        let _ = self.ring.submit();
    }

    /// Submits, waits for a completion, and takes all completions.
    pub(super) fn submit_and_wait(&mut self, completions: &mut Vec<(u64, i32)>) {
        self.fill();
        // With a backlog the call must not wait: completions may have to be taken before the kernel
        // takes more entries (`EBUSY`).
        let wanted = usize::from(self.backlog.is_empty());
        match self.ring.submit_and_wait(wanted) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINTR | libc::EAGAIN)) => {}
            Err(error) => panic!("io_uring_enter failed: {error}"),
        }
        completions.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    fn fill(&mut self) {
        while let Some(entry) = self.backlog.front() {
            // SAFETY: the caller of `push` guarantees what the kernel requires.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                match self.ring.submit() {
                    Ok(taken) if taken > 0 => continue,
                    _ => return,
                }
            }
            self.backlog.pop_front();
        }
    }
}
