//! `path`: latency from the kernel's event to Zipkin, by part of the pipeline, while Kafka is under
//! load.
//!
//! ```text
//! fio → kernel → blkkin agent ┐                                                            ┌ proxy (records the time)
//! simulated nodes ────────────┴→ Kafka → blkkin aggregator → Kafka → blkkin exporter ──────┴→ Zipkin ← polled
//!                                  └ observer      └ observer  └ observer
//! ```
//!
//! *Measured*: system calls of fio on this machine, traced until Zipkin shows them. *Load*:
//! simulated nodes, so that Kafka carries 50,000 events per second, of which one trace in ten is
//! sampled. All processes run on this machine, including the broker and Zipkin, so that they share
//! one clock; they also compete for its CPUs.
//!
//! *Rejected*: times that the services report themselves (a late service reports late, and no
//! service measures the parts between services).

mod load;
mod observers;
mod timeline;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_bus::kafka::{STATE, Settings};

use crate::broker::Broker;
use crate::broker::child::KillOnDrop;
use crate::disk::Looped;
use crate::fio;
use crate::frame::number::{count, number, with_spread};
use crate::frame::rounds::quantile;
use crate::frame::{BenchReport, Figure, Goal, Rounds, Table};
use crate::posts::Posted;
use crate::process::{self, now_us};
use crate::zipkin::Zipkin;
use crate::{Setting, proxy};
use load::{EVENTS_PER_REQUEST, Nodes};
use observers::{Observers, PARTITIONS_OBSERVED};
use timeline::{Checkpoint, PARTS, TraceTimeline, TraceTimelines, WHOLE};

const PARTITIONS: i32 = 12;
/// Events per second in Kafka.
const RATE: u64 = 50_000;
/// System calls of this machine per second, each with a bio and a request.
const LIVE_CALLS: u64 = 500;
const NODES: u64 = 3;
/// Sampling rate, one trace in ten: 5,000 spans per second, three per trace.
const ONE_IN: u64 = 10;
const ROUNDS: u32 = 5;
const ROUND: Duration = Duration::from_secs(20);
/// Time that is not counted, in which JVMs compile.
const WARM_UP: Duration = Duration::from_secs(20);
/// Time for the last traces of a round to arrive.
const SETTLE: Duration = Duration::from_secs(10);
/// Capacity of Zipkin, for twice the expected spans.
const SPANS_MAX: u32 = 1_200_000;
const P99_MAX_MS: f64 = 1_000.0;
/// Time limit for a service or its topics to start.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let quick = setting.extent.is_quick();
    let (rounds, round, warm_up) = match quick {
        true => (1, Duration::from_secs(5), Duration::from_secs(5)),
        false => (ROUNDS, ROUND, WARM_UP),
    };
    let disk = Looped::make("path")?;
    let broker = Broker::start().map_err(anyhow::Error::msg)?;
    let zipkin = Arc::new(Zipkin::with_capacity(SPANS_MAX).map_err(anyhow::Error::msg)?);
    let settings = broker.settings();
    let timelines = Arc::new(TraceTimelines::default());
    let address = zipkin.url().trim_start_matches("http://").to_owned();
    let noted = Arc::clone(&timelines);
    let proxy = proxy::listen(address, move |spans| note_post(spans, &noted))?;
    let _services = services(setting, &settings, &disk.device, &format!("zipkin=http://{proxy}"))?;
    let observers = Observers::start(&settings, PARTITIONS, &zipkin, &timelines);
    let simulated = Nodes::start(&settings, NODES, RATE / EVENTS_PER_REQUEST - LIVE_CALLS);
    let run_time = warm_up + round * rounds + Duration::from_secs(2);
    let mut fio = fio::steady(&disk.device, LIVE_CALLS, run_time, &setting.folder.join("path.fio"));
    let mut fio = KillOnDrop(fio.arg("--rw=randwrite").spawn().context("cannot start fio")?);
    std::thread::sleep(warm_up);
    let (started, before) = (now_us(), Snapshot::take(&observers, &simulated)?);
    std::thread::sleep(round * rounds);
    let ended = now_us();
    let after = Snapshot::take(&observers, &simulated)?;
    if !fio.0.wait()?.success() {
        bail!("fio failed");
    }
    std::thread::sleep(SETTLE);
    simulated.finish()?;
    observers.finish()?;
    let each = (ended - started) / u64::from(rounds);
    let rounds: Vec<Vec<TraceTimeline>> = (0..u64::from(rounds))
        .map(|n| timelines.ended_in(started + n * each, started + (n + 1) * each))
        .collect();
    build_report(&rounds, &before, &after)
}

/// Notes the traces of a post. After a failure no trace is complete, which ends the benchmark.
fn note_post(spans: Result<Vec<Posted>>, timelines: &TraceTimelines) {
    let now = now_us();
    match spans {
        Ok(spans) => {
            spans.iter().for_each(|span| timelines.note(span.trace_id(), Checkpoint::Posted, now));
        }
        Err(error) => eprintln!("a post to Zipkin cannot be parsed: {error:#}"),
    }
}

/// Counters at one time.
struct Snapshot {
    at: Instant,
    spans: u64,
    /// Processor time of the whole machine.
    busy: Duration,
    /// Events of the simulated nodes.
    events: u64,
}

impl Snapshot {
    fn take(observers: &Observers, simulated: &Nodes) -> Result<Snapshot> {
        let spans = observers.spans.load(Relaxed) * PARTITIONS as u64 / PARTITIONS_OBSERVED as u64;
        let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let busy = busy(&stat).context("/proc/stat cannot be understood")?;
        Ok(Snapshot { at: Instant::now(), spans, busy, events: simulated.delivered() })
    }
}

/// Parses user, nice, system, irq and softirq of all CPUs, in ticks of 10 ms.
fn busy(stat: &str) -> Option<Duration> {
    let fields = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = fields.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    Some(Duration::from_millis(10 * busy))
}

fn services(setting: &Setting, settings: &Settings, device: &str, to: &str) -> Result<Vec<KillOnDrop>> {
    let brokers = ["--brokers", settings.brokers.as_str()];
    let sample = format!("1/{ONE_IN}");
    let start = |arguments: &[&str]| -> Result<KillOnDrop> {
        let log = std::fs::File::create(setting.folder.join(format!("path.{}", arguments[0])))?;
        let mut command = Command::new(&setting.blkkin);
        command.args(arguments).args(brokers).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(KillOnDrop(command.spawn().context("cannot start blkkin")?))
    };
    let mut aggregator = start(&["aggregator", "--metrics", "off", "--sample", &sample])?;
    let failure =
        format!("the aggregator made no topics: see {}", setting.folder.join("path.aggregator").display());
    // State is the topic that it makes last.
    process::wait_until(&mut aggregator.0, START_TIMEOUT, &failure, || settings.partitions(STATE).is_ok())?;
    let exporter = start(&["exporter", "--to", to])?;
    let agent = start(&["agent", "--metrics", "off", "--device", device])?;
    Ok(vec![agent, aggregator, exporter])
}

fn build_report(rounds: &[Vec<TraceTimeline>], before: &Snapshot, after: &Snapshot) -> Result<BenchReport> {
    let complete_timelines: Vec<Vec<TraceTimeline>> = rounds
        .iter()
        .map(|timelines| timelines.iter().filter(|timeline| timeline.is_whole()).copied().collect())
        .collect();
    let sampled =
        rounds.iter().flatten().filter(|timeline| timeline.at(Checkpoint::TraceRead).is_some()).count();
    let complete = complete_timelines.iter().map(Vec::len).sum::<usize>();
    if complete == 0 {
        bail!("no trace came through: see path.* next to this benchmark's results");
    }
    let of = |(_, from, to): (&str, Checkpoint, Checkpoint), part: f64| -> Rounds {
        let value = |timelines: &Vec<TraceTimeline>| {
            quantile(&mut timelines.iter().map(|timeline| timeline.ms(from, to)).collect::<Vec<_>>(), part)
        };
        complete_timelines.iter().map(value).collect()
    };
    let mut table = Table::new("Parts of the way, ms", &["part", "median", "p99"]);
    for part in PARTS.into_iter().chain([WHOLE]) {
        let shown = |rounds: &Rounds| with_spread(rounds.median(), rounds.spread());
        table.row([part.0.to_owned(), shown(&of(part, 0.5)), shown(&of(part, 0.99))]);
    }
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let spans = (after.spans - before.spans) as f64 / seconds;
    let events = (after.events - before.events) as f64 / seconds + (LIVE_CALLS * EVENTS_PER_REQUEST) as f64;
    let cpus = (after.busy.saturating_sub(before.busy)).as_secs_f64() / seconds;
    let figures = vec![
        Figure::of("kernel event to visible in Zipkin, p99", &of(WHOLE, 0.99), "ms").goal(Goal::AtMost(P99_MAX_MS)),
        Figure::of("kernel event to visible in Zipkin, median", &of(WHOLE, 0.5), "ms"),
        Figure::new("spans sampled", spans, 0.0, "a second").note("extrapolated from half of the partitions of traces"),
        Figure::new("events on the bus", events, 0.0, "a second").note("acknowledged by the broker"),
        Figure::new("processors busy", cpus, 0.0, "CPUs").note(
            "of the whole machine, with everything on it: agent, aggregator, exporter, broker, Zipkin, fio, the simulated \
             nodes and the witnesses",
        ),
    ];
    let notes = vec![
        format!("{} traces of this machine were sampled; {} of them were observed in all parts.", count(sampled as u64), count(complete as u64)),
        "The parts of one trace add up to its whole; medians and percentiles do not. Kafka's times are in ms, Zipkin is polled \
         each 10 ms."
            .to_owned(),
    ];
    let how = format!(
        "fio writes {LIVE_CALLS} times per second to a loop device over tmpfs; `blkkin agent` sends the events. {NODES} \
         simulated nodes raise the load of Kafka to {} events per second; one trace in {ONE_IN} is sampled. One aggregator, one exporter, \
         one broker, one Zipkin, {PARTITIONS} partitions, all on this machine; {} rounds of {} s.",
        number(RATE as f64),
        rounds.len(),
        (seconds / rounds.len() as f64).round()
    );
    Ok(BenchReport { how, figures, tables: vec![table], notes, ..BenchReport::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn busy_time_excludes_idle_and_steal() {
        assert_eq!(busy("cpu  1 2 3 100 50 4 5 7 0 0\ncpu0 9 9 9"), Some(Duration::from_millis(150)));
        assert_eq!(busy("cpus"), None);
    }
}
