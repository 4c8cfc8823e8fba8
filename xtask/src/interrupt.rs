//! Ctrl-C and its like: noted, not obeyed at once, by a task that has things to take down first.
//!
//! *Invariant*: once [`catch`] has been called such a signal ends no task by itself; whoever waits asks [`check`].
//! (A handler, unlike an ignored signal, is not inherited by the programs that we start.)

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, LazyLock};

use anyhow::{Context, Result, bail};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

static CAME: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);

/// From now on signals are noted.
pub(crate) fn catch() -> Result<()> {
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&CAME)).context("cannot handle signals")?;
    }
    Ok(())
}

/// Whether one has come.
pub(crate) fn came() -> bool {
    CAME.load(Ordering::Relaxed)
}

/// An error once one has come.
pub(crate) fn check() -> Result<()> {
    if came() {
        bail!("interrupted");
    }
    Ok(())
}
