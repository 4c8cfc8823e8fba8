//! The ring itself.
//!
//! *In*: entries. *Out*: completions. *Invariant*: an entry that the kernel does not take yet is kept, and submitted later.

use std::collections::VecDeque;
use std::io;

use io_uring::IoUring;
use io_uring::squeue::Entry;

/// Entries that are submitted at once.
const ENTRIES: u32 = 256;
/// Completions that fit before the kernel keeps them elsewhere.
const COMPLETIONS: u32 = 4_096;

pub(super) struct Queue {
    ring: IoUring,
    kept: VecDeque<Entry>,
}

impl Queue {
    /// With what a thread of its own allows, where the kernel has it: completions are then made when they are asked for,
    /// many at once (`IORING_SETUP_DEFER_TASKRUN`, since Linux 6.1).
    pub(super) fn new() -> io::Result<Self> {
        let mut best = IoUring::builder();
        best.setup_single_issuer().setup_defer_taskrun().setup_cqsize(COMPLETIONS);
        let ring =
            best.build(ENTRIES).or_else(|_| IoUring::builder().setup_cqsize(COMPLETIONS).build(ENTRIES))?;
        Ok(Self { ring, kept: VecDeque::new() })
    }

    /// To be submitted with the next ones.
    ///
    /// # Safety
    ///
    /// What it points to lives, and is touched by nobody, until its completion was taken.
    pub(super) unsafe fn push(&mut self, entry: Entry) {
        self.kept.push_back(entry);
        self.fill();
    }

    /// Submits what waits. What is not taken now is by the next turn.
    pub(super) fn submit(&mut self) {
        self.fill();
        let _ = self.ring.submit();
    }

    /// Submits, waits for a completion and takes all there are.
    pub(super) fn turn(&mut self, completed: &mut Vec<(u64, i32)>) {
        self.fill();
        // What is kept still has to be submitted first, and completions may have to be taken before (`EBUSY`).
        let wanted = usize::from(self.kept.is_empty());
        match self.ring.submit_and_wait(wanted) {
            Ok(_) => {}
            Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::EINTR | libc::EAGAIN)) => {}
            Err(error) => panic!("a ring that fails: {error}"),
        }
        completed.extend(self.ring.completion().map(|entry| (entry.user_data(), entry.result())));
    }

    fn fill(&mut self) {
        while let Some(entry) = self.kept.front() {
            // SAFETY: who pushed it has promised what the kernel asks for.
            if unsafe { self.ring.submission().push(entry) }.is_err() {
                match self.ring.submit() {
                    Ok(taken) if taken > 0 => continue,
                    _ => return,
                }
            }
            self.kept.pop_front();
        }
    }
}
