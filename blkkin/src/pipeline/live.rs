//! What was seen so far, for whoever wants to watch.

use std::sync::{Mutex, PoisonError};

use blkkin_report::Progress;

/// Written by the join's thread once a batch, read when the progress line is drawn.
#[derive(Debug, Default)]
pub(crate) struct Live(Mutex<Progress>);

impl Live {
    /// Replaces what is known.
    pub(crate) fn note(&self, progress: Progress) {
        // A number that a panicking thread left is still a number.
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = progress;
    }

    /// What is known.
    pub(crate) fn read(&self) -> Progress {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
