//! Connection of the process to LTTng.
//!
//! *In*: the environment and [`Options`]. *Out*: the installed probe, or the reason why it is
//! missing.
//!
//! The connection is explicit and happens once. LTTng's library starts two threads and waits up to
//! 3 s for the session daemon if there is one (`LTTNG_UST_REGISTER_TIMEOUT`). A fork loses these
//! threads, so call [`init`] after daemonizing.
//!
//! *Invariant*: a failure never prevents the daemon from starting.
//!
//! *Forks*: a forked child would write to its parent's buffers under its parent's name, so it emits
//! nothing. With [`Options::follow_forks`] or a preloaded liblttng-ust-fork.so it connects again.
//! That is not the default because it costs the child milliseconds and two threads even if it only
//! calls exec.
//!
//! Thread contexts are published with or without LTTng: see [`crate::thread_context`].

use std::fmt::{self, Display, Formatter};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[cfg(blkkin_probe)]
use crate::ids;
use crate::probe;
use crate::thread_context::{self, ThreadContextError};

/// Options of [`init_with`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Target number of roots per second that sampling keeps; 0 keeps all, none selects the default
    /// of 1,000. `BLKKIN_UST_ROOTS` in the environment overrides it.
    pub roots_per_second: Option<u32>,
    /// Connects forked children to LTTng as processes of their own. Otherwise they emit nothing.
    pub follow_forks: bool,
    /// Publishes the current span of each thread (OpenTelemetry's thread context), unless the
    /// environment has `BLKKIN_UST_CONTEXT=0`. Disable it if another tracing library of the process
    /// publishes its own spans.
    pub thread_context: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { roots_per_second: None, follow_forks: false, thread_context: true }
    }
}

/// Result of a successful [`init`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Connected {
    /// Duration of the connection setup.
    pub took: Duration,
}

/// Reason why nothing is traced. The daemon keeps running, and every call behaves as while no
/// session records.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InitError {
    /// The environment has `BLKKIN_UST=0`.
    Disabled,
    /// The crate was built without the probe.
    NotBuilt(&'static str),
    /// LTTng's library is missing or failed.
    NotLoaded(String),
    /// The process was forked from one that was connected, and forks are not followed.
    Forked,
}

impl Display for InitError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::Disabled => f.write_str("switched off by BLKKIN_UST=0"),
            Self::NotBuilt(reason) => write!(f, "built without LTTng-UST: {reason}"),
            Self::NotLoaded(reason) => write!(f, "cannot load LTTng-UST: {reason}"),
            Self::Forked => f.write_str(
                "forked from a process that was connected to LTTng: connect after forking, or follow forks",
            ),
        }
    }
}

impl std::error::Error for InitError {}

/// Counters of the provider.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct ProviderStats {
    /// Events that this process passed to LTTng: the sum of those that one session recorded and
    /// discarded.
    pub seen_enabled: u64,
    /// Time from the call of [`init`] until the events were first found enabled, on its return or
    /// by the first event that was passed to LTTng. No counter has earlier events.
    pub time_to_enabled: Option<Duration>,
}

/// Result of the first call.
static RESULT: OnceLock<Result<Connected, InitError>> = OnceLock::new();

/// Status of publishing, which `init` sets.
static PUBLISHING: OnceLock<Result<(), ThreadContextError>> = OnceLock::new();

/// Set in a forked child that emits nothing.
static FORKED: AtomicBool = AtomicBool::new(false);

/// Time of the call of `init`.
static CALLED_NS: AtomicU64 = AtomicU64::new(0);
/// Time of the return of `init` if the events were enabled then, or 0.
static ENABLED_NS: AtomicU64 = AtomicU64::new(0);

/// Connects this process to LTTng, with [`Options::default`].
pub fn init() -> Result<Connected, InitError> {
    init_with(&Options::default())
}

/// Connects this process to LTTng. Later calls return the result of the first one.
pub fn init_with(options: &Options) -> Result<Connected, InitError> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(InitError::Forked);
    }
    PUBLISHING.get_or_init(|| thread_context::start(options.thread_context));
    RESULT.get_or_init(|| connect(options)).clone()
}

/// Returns whether threads publish their current span since [`init`], or the reason why not. They
/// do so without LTTng too.
pub fn publishing() -> Result<(), ThreadContextError> {
    PUBLISHING.get().cloned().unwrap_or(Err(ThreadContextError::NotInitialized))
}

/// Returns whether a session has the events of this process enabled. Check it before work that only
/// a span needs.
#[inline(always)]
pub fn enabled() -> bool {
    probe::is_enabled()
}

/// Returns the counters of this process. All are 0 while it is not connected.
pub fn stats() -> ProviderStats {
    let Some(probe) = probe::table() else { return ProviderStats::default() };
    // SAFETY: two functions of the probe without arguments.
    let (seen_enabled, first_ns) = unsafe { ((probe.seen_enabled)(), (probe.first_enabled_ns)()) };
    let enabled_ns = match ENABLED_NS.load(Ordering::Relaxed) {
        0 => first_ns,
        on_return => on_return,
    };
    let since = |ns: u64| Duration::from_nanos(ns.saturating_sub(CALLED_NS.load(Ordering::Relaxed)));
    ProviderStats { seen_enabled, time_to_enabled: (enabled_ns != 0).then(|| since(enabled_ns)) }
}

#[cfg(not(blkkin_probe))]
fn connect(_options: &Options) -> Result<Connected, InitError> {
    if is_disabled() {
        return Err(InitError::Disabled);
    }
    Err(InitError::NotBuilt(env!("BLKKIN_NO_PROBE")))
}

#[cfg(blkkin_probe)]
fn connect(options: &Options) -> Result<Connected, InitError> {
    if is_disabled() {
        return Err(InitError::Disabled);
    }
    let called_ns = monotonic_ns();
    CALLED_NS.store(called_ns, Ordering::Relaxed);
    let probe = crate::probe::load().map_err(InitError::NotLoaded)?;
    if let Some(rate) = roots_per_second(options) {
        // SAFETY: a function of the probe that takes a number.
        unsafe { (probe.set_rate)(rate) };
    }
    if options.follow_forks {
        // SAFETY: a function of the probe without arguments.
        match unsafe { (probe.follow_forks)() } {
            0 => FOLLOWS_FORKS.store(true, Ordering::Relaxed),
            errno => {
                let error = std::io::Error::from_raw_os_error(errno);
                return Err(InitError::NotLoaded(format!("cannot follow forks: {error}")));
            }
        }
    }
    // Checked here: in a forked child of a process with threads, the loader's lock may be held for
    // ever.
    if is_fork_library_loaded() {
        FOLLOWS_FORKS.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler only accesses atomics.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    probe::install(probe);
    let now_ns = monotonic_ns();
    if probe::is_enabled() {
        ENABLED_NS.store(now_ns, Ordering::Relaxed);
    }
    Ok(Connected { took: Duration::from_nanos(now_ns - called_ns) })
}

fn is_disabled() -> bool {
    std::env::var_os("BLKKIN_UST").is_some_and(|value| value == "0")
}

#[cfg(blkkin_probe)]
static FOLLOWS_FORKS: AtomicBool = AtomicBool::new(false);

#[cfg(blkkin_probe)]
fn roots_per_second(options: &Options) -> Option<u32> {
    let from_environment = std::env::var("BLKKIN_UST_ROOTS").ok().and_then(|text| text.parse().ok());
    from_environment.or(options.roots_per_second)
}

#[cfg(blkkin_probe)]
extern "C" fn in_child() {
    ids::forked();
    ENABLED_NS.store(0, Ordering::Relaxed);
    if !FOLLOWS_FORKS.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
        probe::uninstall();
    }
}

/// Returns whether liblttng-ust-fork was preloaded.
#[cfg(blkkin_probe)]
fn is_fork_library_loaded() -> bool {
    let name = c"liblttng-ust-fork.so.1";
    // SAFETY: the name ends in a NUL. RTLD_NOLOAD loads nothing.
    let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    !found.is_null()
}

#[cfg(blkkin_probe)]
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and `now` is writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
