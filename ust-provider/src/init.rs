//! Connecting the process to LTTng: explicit, once, and never a reason not to start.
//!
//! In: the environment and [`Options`]; out: the probe's states, published to every call, or why not. LTTng's library starts
//! two threads here and waits for the session daemon, if there is one, 3 s at most (`LTTNG_UST_REGISTER_TIMEOUT`). So it is
//! to be called after daemonizing: a fork leaves those threads behind.
//!
//! A forked child would write into its parent's buffers under its parent's name, so it is silent, unless LTTng's own way to
//! follow forks is on: [`Options::follow_forks`], or liblttng-ust-fork.so preloaded. Why not always: the child then connects
//! anew, which takes it milliseconds and two threads even if all that it does is exec.
//!
//! What threads work for is published besides, whether LTTng is there or not: [`crate::publish`] says how.

use std::fmt::{self, Display, Formatter};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

#[cfg(blkkin_probe)]
use crate::ids;
use crate::probe;
use crate::publish::{self, NotPublished};

/// How to connect.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// About so many roots a second are kept, and the others not recorded; none: all are kept. What `BLKKIN_UST_ROOTS` in
    /// the environment says counts before this (0: all).
    pub roots_per_second: Option<u32>,
    /// Children that are forked are processes of their own in the trace. Else they are silent.
    pub follow_forks: bool,
    /// Each thread publishes which span it works for (OpenTelemetry's thread context), unless `BLKKIN_UST_CONTEXT=0` is in the
    /// environment. To be switched off where a tracing library of the same process does so for spans of its own.
    pub thread_context: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { roots_per_second: None, follow_forks: false, thread_context: true }
    }
}

/// The process is connected.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct Started {
    /// How long connecting took.
    pub took: Duration,
}

/// Why nothing will be traced. The daemon goes on: every call stays what it is while nobody traces.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum InitError {
    /// `BLKKIN_UST=0` is in the environment.
    SwitchedOff,
    /// The crate was built without the probe.
    NotBuilt(&'static str),
    /// LTTng's library is not there, or refused.
    NotLoaded(String),
    /// This process was forked from one that was connected, and forks are not followed.
    Forked,
}

impl Display for InitError {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::SwitchedOff => f.write_str("switched off by BLKKIN_UST=0"),
            Self::NotBuilt(why) => write!(f, "built without LTTng-UST: {why}"),
            Self::NotLoaded(why) => write!(f, "cannot load LTTng-UST: {why}"),
            Self::Forked => f.write_str(
                "forked from a process that was connected to LTTng: connect after forking, or follow forks",
            ),
        }
    }
}

impl std::error::Error for InitError {}

/// What the provider counts itself.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub struct Counts {
    /// How many events this process gave to LTTng. What one session recorded and discarded adds up to it.
    pub seen_enabled: u64,
    /// From the call of [`init`] to the moment when the events were first found enabled: on its return, or by the first
    /// event that was given to LTTng. What happened before is in no counter.
    pub time_to_enabled: Option<Duration>,
}

/// The first call's verdict.
static VERDICT: OnceLock<Result<Started, InitError>> = OnceLock::new();

/// Whether threads publish what they work for.
static PUBLISHED: OnceLock<Result<(), NotPublished>> = OnceLock::new();

/// This process is a child that is silent.
static FORKED: AtomicBool = AtomicBool::new(false);

/// When `init` was called, and when the events were enabled if they were on its return. 0: no.
static CALLED_NS: AtomicU64 = AtomicU64::new(0);
static ENABLED_NS: AtomicU64 = AtomicU64::new(0);

/// Connects this process to LTTng, with [`Options::default`].
pub fn init() -> Result<Started, InitError> {
    init_with(&Options::default())
}

/// Connects this process to LTTng. Only the first call does; a later one gives the first one's verdict.
pub fn init_with(options: &Options) -> Result<Started, InitError> {
    if FORKED.load(Ordering::Relaxed) {
        return Err(InitError::Forked);
    }
    PUBLISHED.get_or_init(|| publish::begin(options.thread_context));
    VERDICT.get_or_init(|| connect(options)).clone()
}

/// Whether each thread publishes which span it works for, since [`init`], or why not. It does so without LTTng too.
pub fn publishing() -> Result<(), NotPublished> {
    PUBLISHED.get().cloned().unwrap_or(Err(NotPublished::NotYet))
}

/// Whether some session has the events of this process enabled: worth asking before work that is only for a span.
#[inline(always)]
pub fn enabled() -> bool {
    probe::on()
}

/// What was counted until now. All 0 while not connected.
pub fn counts() -> Counts {
    let Some(probe) = probe::table() else { return Counts::default() };
    // SAFETY: two functions of the probe without arguments.
    let (seen_enabled, first_ns) = unsafe { ((probe.seen_enabled)(), (probe.first_enabled_ns)()) };
    let enabled_ns = match ENABLED_NS.load(Ordering::Relaxed) {
        0 => first_ns,
        on_return => on_return,
    };
    let since = |ns: u64| Duration::from_nanos(ns.saturating_sub(CALLED_NS.load(Ordering::Relaxed)));
    Counts { seen_enabled, time_to_enabled: (enabled_ns != 0).then(|| since(enabled_ns)) }
}

#[cfg(not(blkkin_probe))]
fn connect(_options: &Options) -> Result<Started, InitError> {
    if switched_off() {
        return Err(InitError::SwitchedOff);
    }
    Err(InitError::NotBuilt(env!("BLKKIN_NO_PROBE")))
}

#[cfg(blkkin_probe)]
fn connect(options: &Options) -> Result<Started, InitError> {
    if switched_off() {
        return Err(InitError::SwitchedOff);
    }
    let called_ns = monotonic_ns();
    CALLED_NS.store(called_ns, Ordering::Relaxed);
    let probe = crate::load::probe().map_err(InitError::NotLoaded)?;
    if let Some(rate) = roots_per_second(options) {
        // SAFETY: a function of the probe that takes a number.
        unsafe { (probe.set_rate)(rate) };
    }
    if options.follow_forks {
        // SAFETY: a function of the probe without arguments.
        match unsafe { (probe.follow_forks)() } {
            0 => FOLLOWED.store(true, Ordering::Relaxed),
            errno => {
                let why = std::io::Error::from_raw_os_error(errno);
                return Err(InitError::NotLoaded(format!("cannot follow forks: {why}")));
            }
        }
    }
    // Asked now: in a child of a process with threads it could wait for one of them for ever.
    if fork_is_wrapped() {
        FOLLOWED.store(true, Ordering::Relaxed);
    }
    // SAFETY: the handler touches atomics and nothing else.
    unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    probe::publish(probe);
    let now_ns = monotonic_ns();
    if probe::on() {
        ENABLED_NS.store(now_ns, Ordering::Relaxed);
    }
    Ok(Started { took: Duration::from_nanos(now_ns - called_ns) })
}

fn switched_off() -> bool {
    std::env::var_os("BLKKIN_UST").is_some_and(|value| value == "0")
}

#[cfg(blkkin_probe)]
static FOLLOWED: AtomicBool = AtomicBool::new(false);

#[cfg(blkkin_probe)]
fn roots_per_second(options: &Options) -> Option<u32> {
    let said = std::env::var("BLKKIN_UST_ROOTS").ok().and_then(|text| text.parse().ok());
    said.or(options.roots_per_second)
}

#[cfg(blkkin_probe)]
extern "C" fn in_child() {
    ids::forked();
    ENABLED_NS.store(0, Ordering::Relaxed);
    if !FOLLOWED.load(Ordering::Relaxed) {
        FORKED.store(true, Ordering::Relaxed);
        probe::withdraw();
    }
}

/// Whether liblttng-ust-fork was preloaded.
#[cfg(blkkin_probe)]
fn fork_is_wrapped() -> bool {
    let name = c"liblttng-ust-fork.so.1";
    // SAFETY: the name ends in a NUL; nothing is loaded that is not there.
    let found = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | libc::RTLD_NOLOAD) };
    !found.is_null()
}

#[cfg(blkkin_probe)]
fn monotonic_ns() -> u64 {
    let mut now = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the clock exists and the place is ours.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut now) };
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}
