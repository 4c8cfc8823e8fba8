//! Deferred handling of SIGINT, SIGTERM and SIGHUP, for tasks that must clean up first.
//!
//! *Invariant*: after [`catch`] these signals do not end the task. Code that waits calls [`check`].
//! (A handler, unlike an ignored signal, is not inherited by child processes.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static RECEIVED: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// Installs the handlers.
pub(crate) fn catch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&RECEIVED)).context("cannot handle signals")?;
    }
    Ok(())
}

/// Returns whether a signal has arrived.
pub(crate) fn received() -> bool {
    RECEIVED.load(Ordering::Relaxed)
}

/// Returns an error if a signal has arrived.
pub(crate) fn check() -> Result<()> {
    if received() {
        bail!("interrupted");
    }
    Ok(())
}
