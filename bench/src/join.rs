//! `join`: events a second on one core from ring entries to traces, and where the time goes.
//!
//! The stages run one after another on one thread over batches of the size that the tracer sends, each timed by
//! itself; making the entries and dropping the traces is outside. Not in it: reading the ring and merging CPUs,
//! which `loss` shows as part of the whole.

use std::hint::black_box;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::decode::decode;
use blkkin_tracer::translate::translate;
use blkkin_wire::batch::{Accounts, EventBatch};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};

use crate::Setting;
use crate::affinity;
use crate::figure::{Figure, Goal, Rounds};
use blkkin_bench::records::{Entries, STEP};

const EVENTS: usize = 1_000_000;
/// What a tracer that drains every 5 ms sends at 800,000 events/s.
const BATCH: usize = 4_096;
const ROUNDS: usize = 9;
/// M events/s.
const RATE_MIN: f64 = 1.5;

/// ns an event, by stage.
#[derive(Default)]
struct Stages {
    decode: Rounds,
    translate: Rounds,
    join: Rounds,
    sum: Rounds,
    report: Rounds,
}

/// Measures.
pub(crate) fn run(_setting: &Setting) -> Result<Vec<Figure>> {
    affinity::pin(&[affinity::load_cpu()])?;
    let mut stages = Stages::default();
    for _ in 0..ROUNDS {
        round(&mut stages)?;
    }
    let rate = 1e3 / stages.sum.fastest();
    let spread = rate - 1e3 / stages.sum.at(0.25);
    let stage = |name, rounds: &Rounds| {
        Figure::new(name, rounds.fastest(), rounds.spread_of_fastest(), "ns an event")
    };
    let mix = "60 % calls alone, 40 % call + bio + request; on one core";
    let size = format!("an event is {} B in memory", size_of::<LayerEvent>());
    Ok(vec![
        Figure::new("decode + translate + join", rate, spread, "M events/s")
            .goal(Goal::AtLeast(RATE_MIN))
            .note(mix),
        stage("  decode", &stages.decode),
        stage("  translate", &stages.translate).note(size),
        stage("  join", &stages.join),
        stage("beside: report", &stages.report),
    ])
}

fn round(stages: &mut Stages) -> Result<()> {
    let mut spent = [Duration::ZERO; 4];
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut report = Report::new(ReportConfig::new(MonotonicNs(0)));
    let (mut traces, mut complete): (Vec<Trace>, u64) = (Vec::new(), 0);
    let (mut entries, mut n, mut made, mut sequence) = (Entries::names(), 0, 0, 0);
    while made < EVENTS {
        while entries.len() < BATCH {
            n += 1;
            entries.add_call(n);
        }
        let decoded = || entries.iter().filter(|bytes| black_box(decode(black_box(bytes))).is_ok()).count();
        spent[0] += timed(decoded).1;
        let translated =
            || entries.iter().filter_map(|bytes| translate(decode(bytes).ok()?)).collect::<Vec<_>>();
        let (events, both) = timed(translated);
        spent[1] += both;
        made += events.len();
        let batch = batch(sequence, events, MonotonicNs((n + 1) * STEP));
        sequence += 1;
        spent[2] += timed(|| joiner.apply(batch, &mut traces)).1;
        spent[3] += timed(|| traces.iter().for_each(|trace| report.add(trace))).1;
        complete += traces.len() as u64;
        traces.clear();
        entries = Entries::default();
    }
    joiner.finish(&mut traces);
    complete += traces.len() as u64;
    if complete != n || joiner.accounts().traces_complete != n {
        bail!("{n} calls made {complete} traces: the join is wrong, and its speed says nothing");
    }
    let [decode, decode_and_translate, join, report] = spent.map(|time| time.as_nanos() as f64 / made as f64);
    stages.decode.push(decode);
    stages.translate.push(decode_and_translate - decode);
    stages.join.push(join);
    stages.sum.push(decode_and_translate + join);
    stages.report.push(report);
    Ok(())
}

fn timed<T>(what: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let result = what();
    (result, start.elapsed())
}

fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: MonotonicNs) -> EventBatch {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let (monotonic, wallclock) = (MonotonicNs(0), WallclockNs(1_700_000_000_000_000_000));
    let anchor = ClockAnchor { monotonic, wallclock, uncertainty: DurationNs(100) };
    EventBatch { source, sequence, anchor, events, watermark, accounts: Accounts::default() }
}
