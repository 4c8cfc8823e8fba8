//! Creates a live session, replaces it when a ring is stuck, and destroys it.
//!
//! *In*: a [`SessionConfig`]. *Out*: the name of a session that is started.
//!
//! *Session names* are `blkkin-PID-START-N`. START is the process's start time in ticks since boot,
//! so that a reused process id is not taken for the owner. Each start destroys the sessions of
//! owners that no longer exist.
//!
//! *Stuck rings.* If a process is killed between reserving and committing space in a shared ring
//! (LTTng-UST 2.13), the consumer waits for the commit forever. That ring then delivers neither
//! packets nor beacons, while other processes write until it is full. LTTng's count of discarded
//! events stays 0, because packets carry it. A stream counts as stuck if it is inactive for
//! [`INACTIVE_PERIODS`] periods while other streams are active. `lttng enable-channel` refuses to
//! add a channel to a started session, so the whole session is replaced.

use std::sync::Arc;
use std::time::{Duration, Instant};

use blkkin_lttng_live::live::follow::{Follower, Target};
use blkkin_lttng_live::live::reader::ReaderSettings;

use super::lttng_command::{LttngCommand, LttngError};
use super::private_network::PrivateNetwork;

/// Periods of the live timer after which an inactive stream is stuck. On a busy machine the
/// consumer can be late by some periods.
pub const INACTIVE_PERIODS: u32 = 200;
/// Minimum time until an inactive stream is stuck, for short periods.
pub const INACTIVE_MIN: Duration = Duration::from_secs(1);

/// Address of a relay.
#[derive(Clone, Debug)]
pub struct Relay {
    /// Host name or address.
    pub host: String,
    /// Port for the session daemon's commands.
    pub control: u16,
    /// Port for packets.
    pub data: u16,
    /// Port for live readers; in `network`, if there is one.
    pub live: u16,
    /// Network of the relay; `None` if it is this process's own.
    pub network: Option<Arc<PrivateNetwork>>,
}

impl Relay {
    /// Returns the address for live readers.
    pub fn live_address(&self) -> String {
        format!("{}:{}", self.host, self.live)
    }

    /// Returns a reader of the session `name` at this relay.
    pub fn follower(&self, name: &str, settings: ReaderSettings) -> Follower {
        let target = Target { address: self.live_address(), session: name.to_owned(), settings };
        let follower = Follower::new(target);
        match &self.network {
            Some(network) => {
                let (network, port) = (Arc::clone(network), self.live);
                follower.connect_by(move || network.connect(port))
            }
            None => follower,
        }
    }
}

/// Sharing of ring buffers.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Buffers {
    /// Ring per CPU for each user.
    #[default]
    User,
    /// Ring per CPU for each process.
    Process,
}

/// Configuration of a session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SessionConfig {
    /// Sharing of ring buffers.
    pub buffers: Buffers,
    /// Period in which data and beacons are sent; at least 1 ms.
    pub live_timer_us: u32,
    /// Size of a sub-buffer in bytes: a power of two.
    pub subbuf_size: u64,
    /// Number of sub-buffers per ring: a power of two, at least 16. With fewer, a burst of 1 ms was
    /// lost.
    pub num_subbuf: u32,
    /// Maximum size of a file at the relay in bytes; at least a sub-buffer.
    pub tracefile_size: u64,
    /// Files per stream at the relay; the oldest is overwritten.
    pub tracefile_count: u32,
    /// Names of the enabled events; `*` matches any suffix.
    pub events: Vec<String>,
}

impl Default for SessionConfig {
    fn default() -> Self {
        Self {
            buffers: Buffers::User,
            live_timer_us: 5000,
            subbuf_size: 256 << 10,
            num_subbuf: 16,
            tracefile_size: 16 << 20,
            tracefile_count: 4,
            events: vec!["blkkin:*".to_owned(), "zipkin:*".to_owned()],
        }
    }
}

impl SessionConfig {
    fn check(&self) -> Result<(), LttngError> {
        let invalid = |problem: &str| Err(LttngError::Setup(problem.to_owned()));
        match () {
            () if self.num_subbuf < 16 || !self.num_subbuf.is_power_of_two() => {
                invalid("sub-buffers: a power of two, 16 or more")
            }
            () if self.subbuf_size < 4096 || !self.subbuf_size.is_power_of_two() => {
                invalid("the size of a sub-buffer: a power of two, 4096 or more")
            }
            () if self.tracefile_size < self.subbuf_size || self.tracefile_count < 2 => {
                invalid("the relay's files: 2 or more, each as large as a sub-buffer or larger")
            }
            () if self.live_timer_us < 1000 => invalid("the live timer: 1000 µs or more"),
            () if self.events.is_empty() => invalid("the list of events is empty"),
            () => Ok(()),
        }
    }

    /// Returns the maximum disk space in bytes that the relay uses for `streams` streams.
    pub fn relay_bytes_max(&self, streams: u64) -> u64 {
        self.tracefile_size * u64::from(self.tracefile_count) * streams
    }

    /// Returns the inactivity after which a stream is stuck.
    pub fn inactivity_max(&self) -> Duration {
        (Duration::from_micros(u64::from(self.live_timer_us)) * INACTIVE_PERIODS).max(INACTIVE_MIN)
    }
}

/// Owner of a session.
#[derive(Debug)]
pub struct SessionSupervisor {
    command: LttngCommand,
    relay: Relay,
    config: SessionConfig,
    name: String,
    generation: u32,
    /// Time of creation.
    pub since: Instant,
}

impl SessionSupervisor {
    /// Destroys stale sessions and creates a new one. Returns the number of destroyed sessions.
    pub fn create(
        command: LttngCommand,
        relay: Relay,
        config: SessionConfig,
    ) -> Result<(Self, usize), LttngError> {
        config.check()?;
        let stale = destroy_stale_sessions(&command)?;
        let mut supervisor =
            Self { command, relay, config, name: String::new(), generation: 0, since: Instant::now() };
        supervisor.create_session()?;
        Ok((supervisor, stale))
    }

    /// Returns the session's name at the relay.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the session's relay.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// Returns a reader of the session, which connects at its first step.
    pub fn follower(&self, settings: ReaderSettings) -> Follower {
        self.relay.follower(&self.name, settings)
    }

    /// Returns the session's configuration.
    pub fn config(&self) -> &SessionConfig {
        &self.config
    }

    /// Replaces a session with a stuck ring and returns the old session's name. The old session's
    /// other rings are still sent, so read it until it ends. The content of the stuck ring is lost
    /// and not counted.
    pub fn replace(&mut self) -> Result<String, LttngError> {
        let old = std::mem::take(&mut self.name);
        // The new session is created first: events may be read twice, but none is missed.
        let created = self.create_session();
        // `--no-wait`, because data of the stuck ring never arrives.
        let destroyed = self.command.lttng(&["destroy", "--no-wait", &old]);
        created?;
        destroyed.map(|_| old)
    }

    fn create_session(&mut self) -> Result<(), LttngError> {
        let name = format!("{}-{}", own_prefix(), self.generation);
        self.generation += 1;
        let created = self.run_commands(&name);
        if created.is_err() {
            // A partial session is useless, and the first error is the one to report.
            let _ = self.command.lttng(&["destroy", "--no-wait", &name]);
        }
        created?;
        (self.name, self.since) = (name, Instant::now());
        Ok(())
    }

    fn run_commands(&self, name: &str) -> Result<(), LttngError> {
        let (config, relay) = (&self.config, &self.relay);
        let live = format!("--live={}", config.live_timer_us);
        let control = format!("--ctrl-url=tcp://{}:{}", relay.host, relay.control);
        let data = format!("--data-url=tcp://{}:{}", relay.host, relay.data);
        let mut create = vec!["create", name, &live, &control, &data];
        // Since 2.15 the default format is CTF 2 (lttng-create(1)).
        if self.command.version()? >= (2, 15) {
            create.push("--trace-format=ctf-1.8");
        }
        self.command.lttng(&create)?;
        let buffers = match config.buffers {
            Buffers::User => "--buffers-uid",
            Buffers::Process => "--buffers-pid",
        };
        let session = format!("--session={name}");
        let subbuf_size = format!("--subbuf-size={}", config.subbuf_size);
        let num_subbuf = format!("--num-subbuf={}", config.num_subbuf);
        let file_size = format!("--tracefile-size={}", config.tracefile_size);
        let files = format!("--tracefile-count={}", config.tracefile_count);
        let channel = [
            "enable-channel",
            &session,
            "--userspace",
            buffers,
            &subbuf_size,
            &num_subbuf,
            &file_size,
            &files,
            "blkkin",
        ];
        self.command.lttng(&channel)?;
        let events = config.events.join(",");
        self.command.lttng(&["enable-event", &session, "--userspace", "--channel=blkkin", &events])?;
        let contexts = ["--type=vpid", "--type=vtid", "--type=pid_ns", "--type=procname"];
        let add = [&["add-context", &session, "--userspace", "--channel=blkkin"], &contexts[..]].concat();
        self.command.lttng(&add)?;
        self.command.lttng(&["start", name])?;
        Ok(())
    }

    /// Flushes the rings and destroys the session.
    pub fn end(mut self) -> Result<(), LttngError> {
        let name = std::mem::take(&mut self.name);
        self.command.lttng(&["destroy", &name]).map(drop)
    }
}

impl Drop for SessionSupervisor {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // An error cannot be reported here; the next start destroys the session.
            let _ = self.command.lttng(&["destroy", "--no-wait", &self.name]);
        }
    }
}

/// Returns `blkkin-PID-START` of this process.
fn own_prefix() -> String {
    let pid = std::process::id();
    format!("blkkin-{pid}-{}", process_start_ticks(pid).unwrap_or(0))
}

/// Returns a process's start time in ticks since boot (proc(5), field 22 of `stat`); `None` if
/// there is no such process.
fn process_start_ticks(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is the name in parentheses, which can contain any character.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

/// Returns true for a blkkin session with an owner that no longer exists.
fn is_stale(name: &str) -> bool {
    let owner = || {
        let mut parts = name.strip_prefix("blkkin-")?.split('-');
        let (pid, start, generation) = (parts.next()?, parts.next()?, parts.next()?);
        generation.parse::<u32>().ok().filter(|_| parts.next().is_none())?;
        Some((pid.parse::<u32>().ok()?, start.parse::<u64>().ok()?))
    };
    owner().is_some_and(|(pid, start)| process_start_ticks(pid) != Some(start))
}

fn destroy_stale_sessions(command: &LttngCommand) -> Result<usize, LttngError> {
    let stale: Vec<String> = command.sessions()?.into_iter().filter(|name| is_stale(name)).collect();
    for name in &stale {
        command.lttng(&["destroy", "--no-wait", name])?;
    }
    Ok(stale.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_without_a_living_owner_are_stale() {
        assert!(!is_stale(&format!("{}-0", own_prefix())));
        let pid = std::process::id();
        assert!(is_stale(&format!("blkkin-{pid}-1-0")), "a reused process id");
        for other in ["blkkin", "blkkin-mine", "blkkin-1-2", "blkkin-4000000000-1-0-x", "user-1-2-3"] {
            assert!(!is_stale(other), "{other}");
        }
        assert!(is_stale("blkkin-4000000000-1-0"));
    }

    #[test]
    fn configurations_that_lose_events_are_refused() {
        assert!(SessionConfig::default().check().is_ok());
        assert!(SessionConfig { num_subbuf: 8, ..SessionConfig::default() }.check().is_err());
        assert!(SessionConfig { tracefile_count: 1, ..SessionConfig::default() }.check().is_err());
        assert_eq!(SessionConfig::default().relay_bytes_max(2), 128 << 20);
    }
}
