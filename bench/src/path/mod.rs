//! `path`: from the kernel's event to Zipkin, with each part of the way, while the bus is busy.
//!
//! ```text
//! fio → kernel → blkkin agent ┐                                                            ┌ between (notes what goes by)
//! made-up nodes ──────────────┴→ Kafka → blkkin aggregator → Kafka → blkkin exporter ──────┴→ Zipkin ← asked all the time
//!                                  └ witness       └ witness   └ witness
//! ```
//!
//! *What is measured* is real: calls that fio makes on this machine, followed to where Zipkin shows them. *What it is measured
//! under* is made up: other nodes, so that the bus carries 50,000 events a second, of which one trace in ten is kept. Everything
//! runs on this one machine, broker and Zipkin too, so that all clocks are one; and takes CPUs from each other.
//!
//! *Rejected*: times that the services say of themselves (who is late says it late, and parts between services belong to nobody).

mod ids;
mod journey;
mod load;
mod witness;

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_bus::kafka::{STATE, Settings};

use crate::broker::Broker;
use crate::disk::Looped;
use crate::fio;
use crate::frame::number::{count, number, with_spread};
use crate::frame::rounds::quantile;
use crate::frame::{Figure, Found, Goal, Rounds, Table};
use crate::process::{Running, now_us};
use crate::zipkin::Zipkin;
use crate::{Setting, between};
use journey::{Journey, Journeys, PARTS, Point, WHOLE};
use load::{EVENTS_A_REQUEST, Nodes};
use witness::{LOOKED_AT, Witnesses};

const PARTITIONS: i32 = 12;
/// Events a second on the bus.
const RATE: u64 = 50_000;
/// Of them calls of this machine's, each with its bio and its request.
const LIVE_CALLS: u64 = 500;
const NODES: u64 = 3;
/// Of traces one in so many is kept: 5,000 spans a second, three a trace.
const ONE_IN: u64 = 10;
const ROUNDS: u32 = 5;
const ROUND: Duration = Duration::from_secs(20);
/// Not counted: JVMs compile.
const WARM_UP: Duration = Duration::from_secs(20);
/// For the last traces of a round to come.
const LATE: Duration = Duration::from_secs(10);
/// Room in Zipkin, for twice of what comes.
const SPANS_MAX: u32 = 1_200_000;
const P99_MAX_MS: f64 = 1_000.0;
/// For a service or its topics to be there.
const PATIENCE: Duration = Duration::from_secs(120);

/// Measures.
pub(crate) fn run(setting: &Setting) -> Result<Found> {
    let quick = setting.extent.is_quick();
    let (rounds, round, warm_up) = match quick {
        true => (1, Duration::from_secs(5), Duration::from_secs(5)),
        false => (ROUNDS, ROUND, WARM_UP),
    };
    let disk = Looped::make("path")?;
    let broker = Broker::start().map_err(anyhow::Error::msg)?;
    let zipkin = Arc::new(Zipkin::holding(SPANS_MAX).map_err(anyhow::Error::msg)?);
    let settings = broker.settings();
    let journeys = Arc::new(Journeys::default());
    let address = zipkin.url().trim_start_matches("http://").to_owned();
    let noted = Arc::clone(&journeys);
    let between = between::listen(address, move || ids::noting(Arc::clone(&noted)))?;
    let _services = services(setting, &settings, &disk.device, &format!("zipkin=http://{between}"))?;
    let witnesses = Witnesses::start(&settings, PARTITIONS, &zipkin, &journeys);
    let made_up = Nodes::start(&settings, NODES, RATE / EVENTS_A_REQUEST - LIVE_CALLS);
    let whole = warm_up + round * rounds + Duration::from_secs(2);
    let mut fio = fio::steady(&disk.device, LIVE_CALLS, whole, &setting.folder.join("path.fio"));
    let mut fio = Running(fio.arg("--rw=randwrite").spawn().context("cannot start fio")?);
    std::thread::sleep(warm_up);
    let (begun, before) = (now_us(), Seen::of(&witnesses, &made_up)?);
    std::thread::sleep(round * rounds);
    let ended = now_us();
    let after = Seen::of(&witnesses, &made_up)?;
    if !fio.0.wait()?.success() {
        bail!("fio failed");
    }
    std::thread::sleep(LATE);
    made_up.finish()?;
    witnesses.finish()?;
    let each = (ended - begun) / u64::from(rounds);
    let rounds: Vec<Vec<Journey>> =
        (0..u64::from(rounds)).map(|n| journeys.ended_in(begun + n * each, begun + (n + 1) * each)).collect();
    found(&rounds, &before, &after)
}

/// What was there at a moment.
struct Seen {
    at: Instant,
    spans: u64,
    /// Processor time of all, and of the machine.
    busy: Duration,
    /// Events of the made-up nodes.
    events: u64,
}

impl Seen {
    fn of(witnesses: &Witnesses, made_up: &Nodes) -> Result<Seen> {
        let spans = witnesses.spans.load(Relaxed) * PARTITIONS as u64 / LOOKED_AT as u64;
        let stat = std::fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        let busy = busy(&stat).context("/proc/stat cannot be understood")?;
        Ok(Seen { at: Instant::now(), spans, busy, events: made_up.delivered() })
    }
}

/// user, nice, system, irq, softirq of all CPUs, in ticks of 10 ms.
fn busy(stat: &str) -> Option<Duration> {
    let words = stat.lines().next()?.strip_prefix("cpu ")?;
    let ticks: Vec<u64> = words.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    let busy: u64 = [0, 1, 2, 5, 6].iter().filter_map(|at| ticks.get(*at)).sum();
    Some(Duration::from_millis(10 * busy))
}

fn services(setting: &Setting, settings: &Settings, device: &str, to: &str) -> Result<Vec<Running>> {
    let brokers = ["--brokers", settings.brokers.as_str()];
    let sample = format!("1/{ONE_IN}");
    let start = |words: &[&str]| -> Result<Running> {
        let said = std::fs::File::create(setting.folder.join(format!("path.{}", words[0])))?;
        let mut command = Command::new(&setting.blkkin);
        command.args(words).args(brokers).stdin(Stdio::null()).stdout(Stdio::null()).stderr(said);
        Ok(Running(command.spawn().context("cannot start blkkin")?))
    };
    let aggregator = start(&["aggregator", "--metrics", "off", "--sample", &sample])?;
    let begun = Instant::now();
    // The last of its topics.
    while settings.partitions(STATE).is_err() {
        if begun.elapsed() > PATIENCE {
            bail!("the aggregator made no topics: see {}", setting.folder.join("path.aggregator").display());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let exporter = start(&["exporter", "--to", to])?;
    let agent = start(&["agent", "--metrics", "off", "--device", device])?;
    Ok(vec![agent, aggregator, exporter])
}

fn found(rounds: &[Vec<Journey>], before: &Seen, after: &Seen) -> Result<Found> {
    let whole: Vec<Vec<Journey>> = rounds
        .iter()
        .map(|journeys| journeys.iter().filter(|journey| journey.is_whole()).copied().collect())
        .collect();
    let kept = rounds.iter().flatten().filter(|journey| journey.at(Point::TraceRead).is_some()).count();
    let seen = whole.iter().map(Vec::len).sum::<usize>();
    if seen == 0 {
        bail!("no trace came through: see what the services said beside this bench's results");
    }
    let of = |(_, from, to): (&str, Point, Point), part: f64| -> Rounds {
        let one = |journeys: &Vec<Journey>| {
            quantile(&mut journeys.iter().map(|journey| journey.ms(from, to)).collect::<Vec<_>>(), part)
        };
        whole.iter().map(one).collect()
    };
    let mut table = Table::new("Parts of the way, ms", &["part", "median", "p99"]);
    for part in PARTS.into_iter().chain([WHOLE]) {
        let shown = |of: &Rounds| with_spread(of.median(), of.spread());
        table.row([part.0.to_owned(), shown(&of(part, 0.5)), shown(&of(part, 0.99))]);
    }
    let seconds = after.at.duration_since(before.at).as_secs_f64();
    let spans = (after.spans - before.spans) as f64 / seconds;
    let events = (after.events - before.events) as f64 / seconds + (LIVE_CALLS * EVENTS_A_REQUEST) as f64;
    let cpus = (after.busy.saturating_sub(before.busy)).as_secs_f64() / seconds;
    let figures = vec![
        Figure::of("kernel event to visible in Zipkin, p99", &of(WHOLE, 0.99), "ms").goal(Goal::AtMost(P99_MAX_MS)),
        Figure::of("kernel event to visible in Zipkin, median", &of(WHOLE, 0.5), "ms"),
        Figure::new("spans kept", spans, 0.0, "a second").note("by those in half of the partitions of traces"),
        Figure::new("events on the bus", events, 0.0, "a second").note("acknowledged by the broker"),
        Figure::new("processors busy", cpus, 0.0, "CPUs").note(
            "of the whole machine, with everything on it: agent, aggregator, exporter, broker, Zipkin, fio, the made-up \
             nodes and the witnesses",
        ),
    ];
    let notes = vec![
        format!("{} traces of this machine were kept and looked at; {} of them were followed through all parts.", count(kept as u64), count(seen as u64)),
        "The parts of one trace add up to its whole; medians and percentiles do not. Kafka's times are in ms, Zipkin is asked \
         each 10 ms."
            .to_owned(),
    ];
    let how = format!(
        "fio writes {LIVE_CALLS} times a second to a loop device over tmpfs; `blkkin agent` sends what the kernel saw. {NODES} \
         made-up nodes beside it bring the bus to {} events a second; of all traces one in {ONE_IN} is kept. One aggregator, one exporter, \
         one broker, one Zipkin, {PARTITIONS} partitions, all on this machine; {} rounds of {} s.",
        number(RATE as f64),
        rounds.len(),
        (seconds / rounds.len() as f64).round()
    );
    Ok(Found { how, figures, tables: vec![table], notes, ..Found::default() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_busy_is_neither_idle_nor_stolen() {
        assert_eq!(busy("cpu  1 2 3 100 50 4 5 7 0 0\ncpu0 9 9 9"), Some(Duration::from_millis(150)));
        assert_eq!(busy("cpus"), None);
    }
}
