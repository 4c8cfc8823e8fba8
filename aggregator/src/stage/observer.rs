//! Observers of a stage, for metrics.
//!
//! *In*: what the stage shows, by reference. *Out*: nothing. *Invariant*: an observer is no part of
//! the state or of the configuration's fingerprint, so no output depends on it.

use std::fmt;
use std::sync::Arc;

/// A function that a stage calls. The default does nothing.
#[derive(Clone)]
pub struct Observer<T>(Arc<dyn Fn(&T) + Send + Sync>);

impl<T> Observer<T> {
    /// Creates an observer that calls `observe`.
    pub fn new(observe: impl Fn(&T) + Send + Sync + 'static) -> Self {
        Observer(Arc::new(observe))
    }

    pub(super) fn observe(&self, value: &T) {
        (self.0)(value);
    }
}

impl<T> Default for Observer<T> {
    fn default() -> Self {
        Observer::new(|_| {})
    }
}

impl<T> fmt::Debug for Observer<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Observer")
    }
}
