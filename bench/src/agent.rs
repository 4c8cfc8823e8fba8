//! `agent`: what `blkkin agent` takes of the machine that it watches: processor time and memory, by requests a second.
//!
//! ```text
//! fio → kernel → blkkin agent → (spool, a file) → Kafka, on the same machine
//! ```
//!
//! *What is measured* is the agent's own process, as the kernel counts it, over rounds of steady load: user and system time of all
//! its threads, and what it has resident. *What it is told* is what its unit tells it: a spool, its defaults, everything that
//! happens on the machine is followed, the broker's own calls too, so that more than fio's is in the figure; how much is said.
//! *Rejected*: `--device`, which would leave out what an agent on a node has to see.
//!
//! What the eBPF programs take is not the agent's but of whoever makes the calls: `call` and `hooks` have it.

#[path = "../../blkkin/tests/support/metrics.rs"]
#[allow(
    clippy::unwrap_used,
    reason = "shared with the tests: an agent that does not answer cannot be measured"
)]
#[allow(dead_code, reason = "the tests look at labels too")]
mod metrics;

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_bus::kafka::{EVENTS, Settings};

use crate::Setting;
use crate::broker::Broker;
use crate::disk::Looped;
use crate::fio;
use crate::frame::number::{count, number, with_spread};
use crate::frame::{Figure, Found, Goal, Rounds, Table};
use crate::process;

/// Requests a second that fio asks for; 0: nothing asks.
const RATES: &[u64] = &[0, 1_000, 10_000, 30_000];
/// The one that the goal is for.
const RATE: u64 = 10_000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(6);
const ROUND_QUICK: Duration = Duration::from_secs(2);
/// Before each round: fio comes up, and what lay in batches goes.
const SETTLE: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(60);
/// % of one CPU.
const PROCESSOR_MAX: f64 = 3.0;
/// MiB.
const RESIDENT_MAX: f64 = 64.0;
const MIB: f64 = (1 << 20) as f64;

/// One round at one rate.
struct Round {
    /// % of one CPU.
    processor: f64,
    /// MiB, at its end.
    resident: f64,
    /// Records a second that the agent's programs were to write, of fio and of everybody else.
    events: f64,
    /// Requests a second that the device ended, by the kernel's own count.
    requests: f64,
}

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let (rounds, round) = if setting.extent.is_quick() { (1, ROUND_QUICK) } else { (ROUNDS, ROUND) };
    let disk = Looped::make("agent")?;
    let broker = Broker::start().map_err(anyhow::Error::msg)?;
    let mut agent = Agent::start(setting, &broker.settings())?;
    let mut seen: Vec<Vec<Round>> = RATES.iter().map(|_| Vec::new()).collect();
    // In turns: what the machine does besides then falls on all rates alike.
    for _ in 0..rounds {
        for (rate, seen) in RATES.iter().zip(&mut seen) {
            seen.push(one(*rate, round, &disk, &agent, &setting.folder)?);
        }
    }
    let most = agent.resident_max()?;
    agent.end()?;
    Ok(found(&seen, most, round))
}

fn one(rate: u64, length: Duration, disk: &Looped, agent: &Agent, folder: &Path) -> Result<Round> {
    let mut fio = (rate > 0).then(|| load(rate, length, disk, folder)).transpose()?;
    std::thread::sleep(SETTLE);
    let before = Seen::of(agent, disk)?;
    std::thread::sleep(length);
    let after = Seen::of(agent, disk)?;
    if let Some(fio) = &mut fio
        && !fio.wait()?.success()
    {
        bail!("fio failed: see {}", folder.join("agent.fio").display());
    }
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let a_second = |of: fn(&Seen) -> u64| (of(&after) - of(&before)) as f64 / seconds;
    Ok(Round {
        processor: 100.0 * (after.processor - before.processor).as_secs_f64() / seconds,
        resident: after.resident as f64 / MIB,
        events: a_second(|seen| seen.events),
        requests: a_second(|seen| seen.requests),
    })
}

/// What there was at a moment.
struct Seen {
    at: Instant,
    processor: Duration,
    resident: u64,
    events: u64,
    requests: u64,
}

impl Seen {
    fn of(agent: &Agent, disk: &Looped) -> Result<Seen> {
        let stat = format!("/sys/block/{}/stat", disk.device.trim_start_matches("/dev/"));
        let stat = std::fs::read_to_string(&stat).with_context(|| format!("cannot read {stat}"))?;
        let requests = stat.split_whitespace().next().and_then(|reads| reads.parse().ok());
        let (processor, resident) = process::now(agent.child.id())?;
        Ok(Seen {
            at: Instant::now(),
            processor,
            resident: resident.last,
            events: agent.fired()?,
            requests: requests.context("/sys/block/*/stat cannot be understood")?,
        })
    }
}

/// Direct reads of 4 KiB, by as many threads as keep the rate, for the settling and the round.
fn load(rate: u64, length: Duration, disk: &Looped, folder: &Path) -> Result<Child> {
    const JOBS: u64 = 2;
    let length = SETTLE + length + Duration::from_secs(1);
    let mut command = fio::steady(&disk.device, rate / JOBS, length, &folder.join("agent.fio"));
    command.args(["--rw=randread", "--thread"]).arg(format!("--numjobs={JOBS}"));
    command.spawn().context("cannot start fio")
}

/// `blkkin agent`; it ends with us.
struct Agent {
    child: Child,
    metrics: String,
}

impl Agent {
    fn start(setting: &Setting, settings: &Settings) -> Result<Agent> {
        let said = setting.folder.join("agent.said");
        let spool = setting.folder.join("agent.spool");
        std::fs::create_dir_all(&spool).with_context(|| format!("cannot make {}", spool.display()))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let metrics = format!("127.0.0.1:{port}");
        let mut command = Command::new(&setting.blkkin);
        command.args(["agent", "--brokers", settings.brokers.as_str(), "--metrics", &metrics, "--spool"]);
        command.arg(&spool).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&said)?);
        let agent = Agent { child: command.spawn().context("cannot start blkkin")?, metrics };
        let begun = Instant::now();
        while settings.partitions(EVENTS).is_err() || TcpStream::connect(&agent.metrics).is_err() {
            if begun.elapsed() > PATIENCE {
                bail!("the agent does not send: see {}", said.display());
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(agent)
    }

    /// Records that were due, of all kinds, by its own metrics.
    fn fired(&self) -> Result<u64> {
        let text = metrics::get(&self.metrics, "/metrics");
        let lines = text.lines().filter(|line| line.starts_with("blkkin_records_fired_total"));
        let values: Option<Vec<u64>> = lines
            .map(|line| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok()))
            .map(|value| value.map(|value| value as u64))
            .collect();
        match values {
            Some(values) if !values.is_empty() => Ok(values.iter().sum()),
            _ => bail!("the agent's metrics do not say what fired"),
        }
    }

    /// MiB.
    fn resident_max(&self) -> Result<f64> {
        Ok(process::now(self.child.id())?.1.most as f64 / MIB)
    }

    /// As its service manager ends it.
    fn end(&mut self) -> Result<()> {
        let pid = libc::pid_t::try_from(self.child.id()).context("invariant: a pid is positive")?;
        // SAFETY: no memory is passed; the child has not been waited for, so its pid is nobody else's.
        unsafe { libc::kill(pid, libc::SIGTERM) };
        if !self.child.wait()?.success() {
            bail!("the agent failed: see agent.said beside this bench's result");
        }
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn found(seen: &[Vec<Round>], most: f64, round: Duration) -> Found {
    let columns =
        ["asked for, requests/s", "ended by the device", "events/s", "of one CPU, %", "resident, MiB"];
    let mut table = Table::new("The agent, by load", &columns);
    let mut figures = Vec::new();
    for (rate, rounds) in RATES.iter().zip(seen) {
        let of = |of: fn(&Round) -> f64| rounds.iter().map(of).collect::<Rounds>();
        let processor = of(|round| round.processor);
        table.row([
            count(*rate),
            number(of(|round| round.requests).median()),
            number(of(|round| round.events).median()),
            with_spread(processor.median(), processor.spread()),
            number(of(|round| round.resident).median()),
        ]);
        if *rate == RATE {
            let name = format!("the agent at {} requests/s", count(*rate));
            figures.push(Figure::of(name, &processor, "% of one CPU").goal(Goal::AtMost(PROCESSOR_MAX)));
        }
    }
    figures.push(
        Figure::new("resident at most", most, 0.0, "MiB")
            .goal(Goal::AtMost(RESIDENT_MAX))
            .note("VmHWM, from its start"),
    );
    let how = format!(
        "fio reads 4 KiB directly from a loop device over tmpfs at each rate in turns, {} rounds of {} s; `blkkin agent` with its defaults \
         and a spool on the machine's disk follows everything, also the broker beside it.",
        seen.first().map_or(0, Vec::len),
        round.as_secs()
    );
    Found { how, figures, tables: vec![table], ..Found::default() }
}
