//! Collectors of the server's events: LTTng's daemons, a session configured like that of `--ust`,
//! and the reader of `--ust`.

use std::fs;
use std::os::unix::thread::JoinHandleExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_lttng_live::live::follow::{Follower, Step};
use blkkin_lttng_live::live::reader::ReaderSettings;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::session::lttng_command::LttngCommand;
use blkkin_ust_bridge::session::lttng_daemons::LttngDaemons;
use blkkin_ust_bridge::session::supervisor::{Relay, SessionConfig, SessionSupervisor};
use blkkin_ust_bridge::span_event::SpanEvent;

use super::Instrumentation;
use crate::process;

/// Time limit for the remaining events of a session that was stopped, which takes some ms.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// Running LTTng daemons.
pub(super) struct Collectors {
    /// Ended on drop.
    _daemons: LttngDaemons,
    relay: Relay,
}

/// LTTng session with a reader.
pub(super) struct Session {
    supervisor: SessionSupervisor,
    stop: Arc<AtomicBool>,
    reader: JoinHandle<CollectionStats>,
    /// Processor time of LTTng's daemons before the session.
    before: Duration,
}

/// Counters of a session, and its cost.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CollectionStats {
    pub(super) events: u64,
    /// Requests in the events.
    pub(super) begun: u64,
    /// Events that LTTng discarded because its buffers were full.
    pub(super) lost: u64,
    /// Processor time of blkkin's reader.
    pub(super) reader: Duration,
    /// Processor time of all LTTng daemons on this machine.
    pub(super) daemons: Duration,
}

impl Collectors {
    /// Starts the daemons on the CPUs of the calling thread.
    pub(super) fn start(folder: &Path) -> Result<Collectors> {
        let (daemons, relay) = LttngDaemons::ensure(&LttngCommand::default(), None, folder)?;
        Ok(Collectors { _daemons: daemons, relay })
    }

    pub(super) fn session(&self) -> Result<Session> {
        let before = daemons_time();
        let plan = SessionConfig { events: Mapping::built_in().events(true), ..SessionConfig::default() };
        let (supervisor, _stale) =
            SessionSupervisor::create(LttngCommand::default(), self.relay.clone(), plan)?;
        let follower = supervisor.follower(ReaderSettings::default());
        let stop = Arc::new(AtomicBool::new(false));
        let per_request = Arc::clone(&stop);
        let reader = std::thread::spawn(move || read(follower, &per_request));
        Ok(Session { supervisor, stop, reader, before })
    }
}

impl Session {
    /// Returns the processor time of all collectors since the daemons started.
    pub(super) fn processor_time(&self) -> Duration {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both variables are local, and a thread that is not joined has a valid id.
        let failed = unsafe {
            libc::pthread_getcpuclockid(self.reader.as_pthread_t(), &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        // The clock of a reader that ended early is gone; `end` returns its error.
        let reader =
            if failed { Duration::ZERO } else { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) };
        daemons_time() + reader
    }

    /// Stops the session and reads its remaining events.
    pub(super) fn end(self) -> Result<CollectionStats> {
        self.supervisor.end()?;
        self.stop.store(true, Ordering::Relaxed);
        let collected = self.reader.join().ok().context("the reader panicked")?;
        Ok(CollectionStats { daemons: daemons_time().saturating_sub(self.before), ..collected })
    }
}

impl CollectionStats {
    /// Checks that all requests were collected unless LTTng discarded events; of a sampled server,
    /// at least one.
    pub(super) fn check(&self, mode: Instrumentation, requests: u64) -> Result<()> {
        let least = if mode == Instrumentation::Sampled { 1 } else { requests };
        if self.lost == 0 && self.begun < least {
            bail!("the client made {requests} requests, but {} were collected", self.begun);
        }
        Ok(())
    }

    /// Adds two sessions.
    pub(super) fn and(self, other: CollectionStats) -> CollectionStats {
        CollectionStats {
            events: self.events + other.events,
            begun: self.begun + other.begun,
            lost: self.lost + other.lost,
            reader: self.reader + other.reader,
            daemons: self.daemons + other.daemons,
        }
    }
}

fn read(mut follower: Follower, stop: &AtomicBool) -> CollectionStats {
    let mut mapper = Mapper::new(Mapping::built_in());
    let mut begun = 0;
    let mut deadline = None;
    loop {
        let step = follower.step(&mut |view| {
            mapper.map(view, &mut |_, fact| begun += u64::from(matches!(fact, SpanEvent::Begin { .. })));
        });
        match step {
            Step::Read(wait) | Step::Unreachable(_, wait) => std::thread::sleep(wait),
            Step::Ended | Step::Destroyed | Step::Refused(_) => break,
        }
        if stop.load(Ordering::Relaxed)
            && *deadline.get_or_insert_with(|| Instant::now() + DRAIN_TIMEOUT) < Instant::now()
        {
            break;
        }
    }
    let counts = follower.stats();
    let (events, lost) = (counts.events, counts.lost.events);
    CollectionStats { events, begun, lost, reader: process::thread_time(), daemons: Duration::ZERO }
}

/// Returns the processor time of all LTTng daemons.
fn daemons_time() -> Duration {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let daemons = numbers.filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        ["lttng-sessiond", "lttng-consumerd", "lttng-relayd"]
            .iter()
            .any(|daemon| daemon.starts_with(name.trim_end()) && !name.trim_end().is_empty())
    });
    daemons.filter_map(|pid| process::usage_now(pid).ok()).map(|(time, _)| time).sum()
}
