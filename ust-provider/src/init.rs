//! Connecting the process to LTTng: explicit, once, and never a reason not to start.

use std::time::Duration;

use crate::probe;

/// How to connect.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Options {
    /// So many roots a second are aimed at, and the rest is not recorded; none: all are. `BLKKIN_UST_ROOTS` in the
    /// environment counts before this.
    pub roots_per_second: Option<u32>,
    /// Children that are forked without an exec are traced too. Else they are silent: see the README.
    pub follow_forks: bool,
}

/// The process is connected.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Started {
    /// How long connecting took.
    pub took: Duration,
}

impl Started {
    /// Whether some session has the events of this process enabled.
    pub fn is_enabled(&self) -> bool {
        probe::on()
    }
}

/// Why nothing will be traced. The daemon goes on: every call stays what it is while nobody traces.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum InitError {
    /// `BLKKIN_UST=0` is in the environment.
    #[error("switched off by BLKKIN_UST=0")]
    SwitchedOff,
    /// The crate was built without the probe.
    #[error("built without LTTng-UST: {0}")]
    NotBuilt(&'static str),
    /// LTTng's library is not there, or refused.
    #[error("cannot load LTTng-UST: {0}")]
    NotLoaded(String),
}

/// Connects this process to LTTng; call it after daemonizing. With [`Options::default`].
pub fn init() -> Result<Started, InitError> {
    init_with(&Options::default())
}

/// Connects this process to LTTng. A second call changes nothing, and says again what the first one said.
pub fn init_with(_options: &Options) -> Result<Started, InitError> {
    Err(InitError::NotBuilt("not yet written"))
}

/// Whether some session has the events of this process enabled: worth asking before work that is only for a span.
#[inline(always)]
pub fn enabled() -> bool {
    probe::on()
}
