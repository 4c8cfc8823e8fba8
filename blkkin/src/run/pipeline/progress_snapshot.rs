//! The latest progress, shared between threads.

use std::sync::{Mutex, PoisonError};

use blkkin_report::Progress;

/// Progress, written by the join thread once per batch and read by the progress line.
#[derive(Debug, Default)]
pub(crate) struct ProgressSnapshot(Mutex<Progress>);

impl ProgressSnapshot {
    /// Replaces the progress.
    pub(crate) fn set(&self, progress: Progress) {
        // A counter that a panicking thread left is still valid.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// Returns the latest progress.
    pub(crate) fn get(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
