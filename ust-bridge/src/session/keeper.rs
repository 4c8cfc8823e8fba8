//! Makes a live session, watches over it, and takes it away.
//!
//! Its name says whose it is: `blkkin-PID-START-N`, with when the process began in ticks since the boot, so that a number
//! that came again is not taken for its owner. At each start sessions are taken away whose owner is gone.
//!
//! A ring that several processes share is left stuck by one that is killed between reserving room in it and committing
//! it (LTTng-UST 2.13): the consumer waits for the commit for ever, and neither packets nor beacons of that ring come any
//! more, while other processes write until it is full. LTTng's own count of discarded events stays 0 then, because it comes
//! with packets. So a stream of which nothing is heard for [`SILENT_PERIODS`] periods, while others speak, is stuck. A channel
//! cannot be added to a session that has started (`lttng enable-channel` refuses), so the session is replaced, channel and all.

use std::time::{Duration, Instant};

use super::tool::{Tool, ToolError};

/// Periods of the live timer without a word that make a stream stuck. A consumer on a busy machine may be late by some.
pub const SILENT_PERIODS: u32 = 200;
/// Never sooner than this, however short the period.
pub const SILENT_LEAST: Duration = Duration::from_secs(1);

/// Where a relay listens.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Relay {
    /// Its name or address.
    pub host: String,
    /// For the session daemon's commands.
    pub control: u16,
    /// For packets.
    pub data: u16,
    /// For readers.
    pub live: u16,
}

impl Relay {
    /// What a reader connects to.
    pub fn live_address(&self) -> String {
        format!("{}:{}", self.host, self.live)
    }
}

/// Whose rings there are.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub enum Buffers {
    /// One a processor for each user.
    #[default]
    User,
    /// One a processor for each process.
    Process,
}

/// What a session is like.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Plan {
    /// Whose rings there are.
    pub buffers: Buffers,
    /// How often what is there is sent; 1 ms and more.
    pub live_timer_us: u32,
    /// Bytes of a sub-buffer: a power of two.
    pub subbuf_size: u64,
    /// Sub-buffers of a ring: a power of two, 16 or more. With fewer a burst of 1 ms was lost.
    pub num_subbuf: u32,
    /// Bytes of a file at the relay; at least a sub-buffer.
    pub tracefile_size: u64,
    /// Files of a stream at the relay: the oldest is written over.
    pub tracefile_count: u32,
    /// Names of events, with `*` for any rest.
    pub events: Vec<String>,
}

impl Default for Plan {
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

impl Plan {
    fn check(&self) -> Result<(), ToolError> {
        let wrong = |what: &str| Err(ToolError::Setting(what.to_owned()));
        match () {
            () if self.num_subbuf < 16 || !self.num_subbuf.is_power_of_two() => {
                wrong("sub-buffers: a power of two, 16 or more")
            }
            () if self.subbuf_size < 4096 || !self.subbuf_size.is_power_of_two() => {
                wrong("the size of a sub-buffer: a power of two, 4096 or more")
            }
            () if self.tracefile_size < self.subbuf_size || self.tracefile_count < 2 => {
                wrong("the relay's files: 2 or more, each as large as a sub-buffer or larger")
            }
            () if self.live_timer_us < 1000 => wrong("the live timer: 1000 µs or more"),
            () if self.events.is_empty() => wrong("no events are named"),
            () => Ok(()),
        }
    }

    /// The most that the relay keeps on its disk for `streams` streams.
    pub fn relay_bytes_max(&self, streams: u64) -> u64 {
        self.tracefile_size * u64::from(self.tracefile_count) * streams
    }

    /// How long a stream may say nothing.
    pub fn silent_max(&self) -> Duration {
        (Duration::from_micros(u64::from(self.live_timer_us)) * SILENT_PERIODS).max(SILENT_LEAST)
    }
}

/// A session that is ours.
#[derive(Debug)]
pub struct Keeper {
    tool: Tool,
    relay: Relay,
    plan: Plan,
    name: String,
    generation: u32,
    /// When it was made.
    pub since: Instant,
}

impl Keeper {
    /// Takes away sessions whose keepers are gone, and makes one; how many were taken away.
    pub fn create(tool: Tool, relay: Relay, plan: Plan) -> Result<(Self, usize), ToolError> {
        plan.check()?;
        let stale = take_away_stale(&tool)?;
        let mut keeper =
            Self { tool, relay, plan, name: String::new(), generation: 0, since: Instant::now() };
        keeper.make()?;
        Ok((keeper, stale))
    }

    /// The session's name: what a reader asks the relay for.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Where it sends to.
    pub fn relay(&self) -> &Relay {
        &self.relay
    }

    /// What it is like.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// Makes a new session in place of this one, whose ring is stuck; the old one's name. What the old one's other rings
    /// have is still sent: read it until it is over. What is in the stuck ring is lost, and nothing counts it.
    pub fn replace(&mut self) -> Result<String, ToolError> {
        let old = std::mem::take(&mut self.name);
        // The new one first: between them events may come twice, but none is missed.
        let made = self.make();
        // Without waiting: data of the stuck ring never comes.
        let gone = self.tool.lttng(&["destroy", "--no-wait", &old]);
        made?;
        gone.map(|_| old)
    }

    fn make(&mut self) -> Result<(), ToolError> {
        let name = format!("{}-{}", own_prefix(), self.generation);
        self.generation += 1;
        let made = self.commands(&name);
        if made.is_err() {
            // What there is of it is of no use; and what it says of that matters less.
            let _ = self.tool.lttng(&["destroy", "--no-wait", &name]);
        }
        made?;
        (self.name, self.since) = (name, Instant::now());
        Ok(())
    }

    fn commands(&self, name: &str) -> Result<(), ToolError> {
        let (plan, relay) = (&self.plan, &self.relay);
        let live = format!("--live={}", plan.live_timer_us);
        let control = format!("--ctrl-url=tcp://{}:{}", relay.host, relay.control);
        let data = format!("--data-url=tcp://{}:{}", relay.host, relay.data);
        let mut create = vec!["create", name, &live, &control, &data];
        // From 2.15 on a session is of CTF 2 unless it is told otherwise (lttng-create(1)).
        if self.tool.version()? >= (2, 15) {
            create.push("--trace-format=ctf-1.8");
        }
        self.tool.lttng(&create)?;
        let buffers = match plan.buffers {
            Buffers::User => "--buffers-uid",
            Buffers::Process => "--buffers-pid",
        };
        let session = format!("--session={name}");
        let subbuf_size = format!("--subbuf-size={}", plan.subbuf_size);
        let num_subbuf = format!("--num-subbuf={}", plan.num_subbuf);
        let file_size = format!("--tracefile-size={}", plan.tracefile_size);
        let files = format!("--tracefile-count={}", plan.tracefile_count);
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
        self.tool.lttng(&channel)?;
        let events = plan.events.join(",");
        self.tool.lttng(&["enable-event", &session, "--userspace", "--channel=blkkin", &events])?;
        let contexts = ["--type=vpid", "--type=vtid", "--type=pid_ns", "--type=procname"];
        let add = [&["add-context", &session, "--userspace", "--channel=blkkin"], &contexts[..]].concat();
        self.tool.lttng(&add)?;
        self.tool.lttng(&["start", name])?;
        Ok(())
    }

    /// Ends the session; what its rings have is sent first.
    pub fn end(mut self) -> Result<(), ToolError> {
        let name = std::mem::take(&mut self.name);
        self.tool.lttng(&["destroy", &name]).map(drop)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        if !self.name.is_empty() {
            // Nobody is left to hear of it; the next start looks for it again.
            let _ = self.tool.lttng(&["destroy", "--no-wait", &self.name]);
        }
    }
}

/// `blkkin-PID-START` of this process.
fn own_prefix() -> String {
    let pid = std::process::id();
    format!("blkkin-{pid}-{}", began(pid).unwrap_or(0))
}

/// When a process began, in ticks since the boot (proc(5), field 22 of its stat); none if there is no such process.
fn began(pid: u32) -> Option<u64> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is its name in parentheses, which may hold anything.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(19)?.parse().ok()
}

/// True if the session is one of ours whose keeper is gone.
fn is_stale(name: &str) -> bool {
    let owner = || {
        let mut parts = name.strip_prefix("blkkin-")?.split('-');
        let (pid, start, generation) = (parts.next()?, parts.next()?, parts.next()?);
        generation.parse::<u32>().ok().filter(|_| parts.next().is_none())?;
        Some((pid.parse::<u32>().ok()?, start.parse::<u64>().ok()?))
    };
    owner().is_some_and(|(pid, start)| began(pid) != Some(start))
}

fn take_away_stale(tool: &Tool) -> Result<usize, ToolError> {
    let stale: Vec<String> = tool.sessions()?.into_iter().filter(|name| is_stale(name)).collect();
    for name in &stale {
        tool.lttng(&["destroy", "--no-wait", name])?;
    }
    Ok(stale.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sessions_whose_keeper_is_gone_are_stale() {
        assert!(!is_stale(&format!("{}-0", own_prefix())));
        let pid = std::process::id();
        assert!(is_stale(&format!("blkkin-{pid}-1-0")), "the number came again");
        for other in ["blkkin", "blkkin-mine", "blkkin-1-2", "blkkin-4000000000-1-0-x", "user-1-2-3"] {
            assert!(!is_stale(other), "{other}");
        }
        assert!(is_stale("blkkin-4000000000-1-0"));
    }

    #[test]
    fn settings_that_lose_events_are_refused() {
        assert!(Plan::default().check().is_ok());
        assert!(Plan { num_subbuf: 8, ..Plan::default() }.check().is_err());
        assert!(Plan { tracefile_count: 1, ..Plan::default() }.check().is_err());
        assert_eq!(Plan::default().relay_bytes_max(2), 128 << 20);
    }
}
