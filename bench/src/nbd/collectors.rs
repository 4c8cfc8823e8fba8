//! Who collects what the server says: LTTng's daemons, a session as `--ust` makes it, and the reader that `--ust` has.

use std::fs;
use std::os::unix::thread::JoinHandleExt as _;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_ust_bridge::facts::Fact;
use blkkin_ust_bridge::live::follow::{Follower, Step, Target};
use blkkin_ust_bridge::live::reader::Settings;
use blkkin_ust_bridge::mapping::config::Mapping;
use blkkin_ust_bridge::mapping::mapper::Mapper;
use blkkin_ust_bridge::session::daemons::Daemons;
use blkkin_ust_bridge::session::keeper::{Keeper, Plan, Relay};
use blkkin_ust_bridge::session::tool::Tool;

use super::Way;
use crate::process;

/// What a session that was ended still has comes within some ms.
const REST_WITHIN: Duration = Duration::from_secs(5);

/// The daemons.
pub(super) struct Collectors {
    /// They end with it.
    _daemons: Daemons,
    relay: Relay,
}

/// One session, which is read.
pub(super) struct Session {
    keeper: Keeper,
    ended: Arc<AtomicBool>,
    reader: JoinHandle<Heard>,
    /// Processor time of LTTng's daemons before it.
    before: Duration,
}

/// What was heard in a session, and what that took.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Heard {
    pub(super) events: u64,
    /// Requests.
    pub(super) begun: u64,
    /// Events that LTTng says it had no room for.
    pub(super) lost: u64,
    /// Processor time of our reader.
    pub(super) reader: Duration,
    /// Of LTTng's daemons, those that others run among them.
    pub(super) daemons: Duration,
}

impl Collectors {
    /// On the CPUs of the calling thread.
    pub(super) fn start(folder: &Path) -> Result<Collectors> {
        let (daemons, relay) = Daemons::ensure(&Tool::default(), None, folder)?;
        Ok(Collectors { _daemons: daemons, relay })
    }

    pub(super) fn session(&self) -> Result<Session> {
        let before = daemons_time();
        let plan = Plan { events: Mapping::built_in().events(true), ..Plan::default() };
        let (keeper, _stale) = Keeper::create(Tool::default(), self.relay.clone(), plan)?;
        let follower = Follower::new(Target {
            address: keeper.relay().live_address(),
            session: keeper.name().to_owned(),
            settings: Settings::default(),
        });
        let ended = Arc::new(AtomicBool::new(false));
        let told = Arc::clone(&ended);
        let reader = std::thread::spawn(move || read(follower, &told));
        Ok(Session { keeper, ended, reader, before })
    }
}

impl Session {
    /// Processor time of all who collect, since the daemons began.
    pub(super) fn taken(&self) -> Duration {
        let mut clock = 0;
        let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
        // SAFETY: both places are ours, and a thread that is not joined has its number.
        let failed = unsafe {
            libc::pthread_getcpuclockid(self.reader.as_pthread_t(), &mut clock) != 0
                || libc::clock_gettime(clock, &mut time) != 0
        };
        // Of a reader that has ended early nothing is known; `end` says so.
        let reader =
            if failed { Duration::ZERO } else { Duration::new(time.tv_sec as u64, time.tv_nsec as u32) };
        daemons_time() + reader
    }

    /// Ends it; what it still had is read.
    pub(super) fn end(self) -> Result<Heard> {
        self.keeper.end()?;
        self.ended.store(true, Ordering::Relaxed);
        let heard = self.reader.join().ok().context("the reader panicked")?;
        Ok(Heard { daemons: daemons_time().saturating_sub(self.before), ..heard })
    }
}

impl Heard {
    /// As many as were made, or LTTng says how many events it had no room for; of who keeps not all, some.
    pub(super) fn check(&self, way: Way, requests: u64) -> Result<()> {
        let least = if way == Way::Sampled { 1 } else { requests };
        if self.lost == 0 && self.begun < least {
            bail!("the client made {requests} requests, and {} were told of", self.begun);
        }
        Ok(())
    }

    /// Both together.
    pub(super) fn and(self, other: Heard) -> Heard {
        Heard {
            events: self.events + other.events,
            begun: self.begun + other.begun,
            lost: self.lost + other.lost,
            reader: self.reader + other.reader,
            daemons: self.daemons + other.daemons,
        }
    }
}

fn read(mut follower: Follower, ended: &AtomicBool) -> Heard {
    let mut mapper = Mapper::new(Mapping::built_in());
    let mut begun = 0;
    let mut deadline = None;
    loop {
        let step = follower.step(&mut |view| {
            mapper.map(view, &mut |_, fact| begun += u64::from(matches!(fact, Fact::Begin { .. })));
        });
        match step {
            Step::Read(wait) | Step::Away(_, wait) => std::thread::sleep(wait),
            Step::Over | Step::Gone | Step::Refused(_) => break,
        }
        if ended.load(Ordering::Relaxed)
            && *deadline.get_or_insert_with(|| Instant::now() + REST_WITHIN) < Instant::now()
        {
            break;
        }
    }
    let counts = follower.counts();
    let (events, lost) = (counts.events, counts.lost.events);
    Heard { events, begun, lost, reader: process::thread_time(), daemons: Duration::ZERO }
}

/// Of all processes that are LTTng's daemons.
fn daemons_time() -> Duration {
    let all = fs::read_dir("/proc").into_iter().flatten().flatten();
    let numbers = all.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let daemons = numbers.filter(|pid| {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        ["lttng-sessiond", "lttng-consumerd", "lttng-relayd"]
            .iter()
            .any(|daemon| daemon.starts_with(name.trim_end()) && !name.trim_end().is_empty())
    });
    daemons.filter_map(|pid| process::now(pid).ok()).map(|(time, _)| time).sum()
}
