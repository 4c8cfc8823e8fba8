//! `agent`: processor time and memory of `blkkin agent`, by requests per second.
//!
//! ```text
//! fio → kernel → blkkin agent → (spool, a file) → Kafka, on the same machine
//! ```
//!
//! *Measured*: the agent's own process, by the kernel's counters, over rounds of steady load: user
//! and system time of all its threads, and its resident memory. *Configuration*: as in its systemd
//! unit, with a spool and defaults. It traces the whole machine, the broker's system calls too, so
//! that the figure covers more than fio; the report states how much. *Rejected*: `--device`, which
//! would exclude records that an agent on a node must process.
//!
//! The cost of the eBPF programs belongs to the traced tasks, not to the agent: `call`
//! measures it.

#[path = "../../blkkin/tests/support/metrics.rs"]
#[allow(
    clippy::unwrap_used,
    reason = "shared with the tests: an agent that does not answer cannot be measured"
)]
#[allow(dead_code, reason = "the tests look at labels too")]
pub(crate) mod metrics;

use std::fs::File;
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_bus::kafka::{EVENTS, Settings};

use crate::Setting;
use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::disk::Looped;
use crate::fio;
use crate::frame::number::{count, number, with_spread};
use crate::frame::{BenchReport, Figure, Goal, Rounds, Table};
use crate::process;

/// Requests per second of fio; 0 without fio.
const RATES: &[u64] = &[0, 1_000, 10_000, 30_000];
/// Rate that the goal applies to.
const RATE: u64 = 10_000;
const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(6);
const ROUND_QUICK: Duration = Duration::from_secs(2);
/// Time before each round in which fio starts and buffered batches are sent.
const SETTLE: Duration = Duration::from_secs(2);
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// Goal in % of one CPU.
const PROCESSOR_MAX: f64 = 3.0;
/// Goal in MiB.
const RESIDENT_MAX: f64 = 64.0;
const MIB: f64 = (1 << 20) as f64;

/// Round at one rate.
struct Round {
    /// Processor time in % of one CPU.
    processor: f64,
    /// Resident memory in MiB at the end.
    resident: f64,
    /// Records per second that the eBPF programs were to write, for fio and all other tasks.
    events: f64,
    /// Requests per second that the device completed, counted by the kernel.
    requests: f64,
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let (rounds, round) = if setting.extent.is_quick() { (1, ROUND_QUICK) } else { (ROUNDS, ROUND) };
    let disk = Looped::make("agent")?;
    let broker = Broker::start().map_err(anyhow::Error::msg)?;
    let mut agent = Agent::start(setting, &broker.settings())?;
    let mut samples: Vec<Vec<Round>> = RATES.iter().map(|_| Vec::new()).collect();
    // Rates alternate, so that other work of the machine affects all rates alike.
    for _ in 0..rounds {
        for (rate, samples) in RATES.iter().zip(&mut samples) {
            samples.push(measure_round(*rate, round, &disk, &agent, &setting.folder)?);
        }
    }
    let most = agent.resident_max()?;
    agent.end()?;
    Ok(build_report(&samples, most, round))
}

fn measure_round(rate: u64, length: Duration, disk: &Looped, agent: &Agent, folder: &Path) -> Result<Round> {
    let mut fio = (rate > 0).then(|| load(rate, length, disk, folder)).transpose()?;
    std::thread::sleep(SETTLE);
    let before = Snapshot::of(agent, disk)?;
    std::thread::sleep(length);
    let after = Snapshot::of(agent, disk)?;
    if let Some(fio) = &mut fio
        && !fio.wait()?.success()
    {
        bail!("fio failed: see {}", folder.join("agent.fio").display());
    }
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let per_second = |of: fn(&Snapshot) -> u64| (of(&after) - of(&before)) as f64 / seconds;
    Ok(Round {
        processor: 100.0 * (after.processor - before.processor).as_secs_f64() / seconds,
        resident: after.resident as f64 / MIB,
        events: per_second(|snapshot| snapshot.events),
        requests: per_second(|snapshot| snapshot.requests),
    })
}

/// Counters at one time.
struct Snapshot {
    at: Instant,
    processor: Duration,
    resident: u64,
    events: u64,
    requests: u64,
}

impl Snapshot {
    fn of(agent: &Agent, disk: &Looped) -> Result<Snapshot> {
        let stat = format!("/sys/block/{}/stat", disk.device.trim_start_matches("/dev/"));
        let stat = std::fs::read_to_string(&stat).with_context(|| format!("cannot read {stat}"))?;
        let requests = stat.split_whitespace().next().and_then(|reads| reads.parse().ok());
        let (processor, resident) = process::usage_now(agent.child.0.id())?;
        Ok(Snapshot {
            at: Instant::now(),
            processor,
            resident: resident.last,
            events: agent.fired()?,
            requests: requests.context("/sys/block/*/stat cannot be understood")?,
        })
    }
}

/// Starts direct reads of 4 KiB, with enough threads to keep the rate, for the settle time and the
/// round.
fn load(rate: u64, length: Duration, disk: &Looped, folder: &Path) -> Result<Child> {
    const JOBS: u64 = 2;
    let length = SETTLE + length + Duration::from_secs(1);
    let mut command = fio::steady(&disk.device, rate / JOBS, length, &folder.join("agent.fio"));
    command.args(["--rw=randread", "--thread"]).arg(format!("--numjobs={JOBS}"));
    command.spawn().context("cannot start fio")
}

/// Running `blkkin agent`.
struct Agent {
    child: KillOnDrop,
    metrics: String,
}

impl Agent {
    fn start(setting: &Setting, settings: &Settings) -> Result<Agent> {
        let log = setting.folder.join("agent.log");
        let spool = setting.folder.join("agent.spool");
        std::fs::create_dir_all(&spool).with_context(|| format!("cannot make {}", spool.display()))?;
        let port = std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()?.port();
        let metrics = format!("127.0.0.1:{port}");
        let mut command = Command::new(&setting.blkkin);
        command.args(["agent", "--brokers", settings.brokers.as_str(), "--metrics", &metrics, "--spool"]);
        command.arg(&spool).stdin(Stdio::null()).stdout(Stdio::null()).stderr(File::create(&log)?);
        let mut child = KillOnDrop(command.spawn().context("cannot start blkkin")?);
        let failure = format!("the agent does not send: see {}", log.display());
        process::wait_until(&mut child.0, START_TIMEOUT, &failure, || {
            settings.partitions(EVENTS).is_ok() && TcpStream::connect(&metrics).is_ok()
        })?;
        Ok(Agent { child, metrics })
    }

    /// Reads from the agent's metrics how many records of all kinds were due.
    fn fired(&self) -> Result<u64> {
        let text = metrics::get(&self.metrics, "/metrics");
        let lines = text.lines().filter(|line| line.starts_with("blkkin_records_fired_total"));
        let values: Option<Vec<u64>> = lines
            .map(|line| line.rsplit_once(' ').and_then(|(_, value)| value.parse::<f64>().ok()))
            .map(|value| value.map(|value| value as u64))
            .collect();
        match values {
            Some(values) if !values.is_empty() => Ok(values.iter().sum()),
            _ => bail!("the agent's metrics have no blkkin_records_fired_total"),
        }
    }

    /// Returns the maximum resident memory in MiB.
    fn resident_max(&self) -> Result<f64> {
        Ok(process::usage_now(self.child.0.id())?.1.most as f64 / MIB)
    }

    /// Stops the agent with SIGTERM, like its service manager.
    fn end(&mut self) -> Result<()> {
        process::signal(&self.child.0, libc::SIGTERM)?;
        if !self.child.0.wait()?.success() {
            bail!("the agent failed: see agent.log beside this bench's result");
        }
        Ok(())
    }
}

fn build_report(samples: &[Vec<Round>], most: f64, round: Duration) -> BenchReport {
    let columns =
        ["target, requests/s", "completed by the device", "events/s", "of one CPU, %", "resident, MiB"];
    let mut table = Table::new("The agent, by load", &columns);
    let mut figures = Vec::new();
    for (rate, rounds) in RATES.iter().zip(samples) {
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
        "fio reads 4 KiB with direct I/O from a loop device over tmpfs, rates alternating, {} rounds of {} s; `blkkin agent` with its defaults \
         and a spool on the machine's disk follows everything, also the broker beside it.",
        samples.first().map_or(0, Vec::len),
        round.as_secs()
    );
    BenchReport { how, figures, tables: vec![table], ..BenchReport::default() }
}
