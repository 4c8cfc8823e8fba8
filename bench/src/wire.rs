//! `wire`: bytes and ns per event of encoded batches, from events that a tracer recorded of real
//! loads.
//!
//! ```text
//! fio under a tracer → events → batches of 256, 1024, 4096 → encode → zstd level 1 (as Kafka would) → decode
//! ```
//!
//! Synthetic events would compress arbitrarily well. *An event* is what the accounting counts: a
//! pair is two, a bio and its request.

use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};
use blkkin_bus::{CAPACITY_DEFAULT, Next};
use blkkin_tracer::{StopSignal, Tracer};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::v1;

use crate::disk::{DiskTarget, Looped, Mounted};
use crate::fio::{Job, Length, Op};
use crate::frame::number::{count, number, with_spread};
use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds, Table};
use crate::harness;
use crate::{Setting, affinity};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 9, time_limit: Duration::from_secs(120) };
const BATCHES: [usize; 3] = [256, 1_024, 4_096];
/// Producer's compression.level in Kafka.
const LEVEL: i32 = 1;
const BYTES_MAX: f64 = 14.0;
/// Maximum number of events of each load.
const EVENTS_MAX: usize = 200_000;

const LOADS: [Job; 3] = [
    Job { engine: "psync", op: Op::RandomRead, jobs: 2, depth: 1 },
    Job { engine: "io_uring", op: Op::RandomWrite, jobs: 1, depth: 32 },
    Job { engine: "psync", op: Op::WriteFsync, jobs: 2, depth: 1 },
];

/// Cost of one batch size.
#[derive(Clone, Copy, Default)]
struct Cost {
    encode: Duration,
    decode: Duration,
    plain: usize,
    compressed: usize,
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let (raw, mounted) = (Looped::make("raw")?, Mounted::make("ext4")?);
    let columns = ["load", "events a batch", "bytes an event", "with zstd", "encode, ns", "decode, ns"];
    let (mut table, mut figures) = (Table::new("", &columns), Vec::new());
    for job in LOADS {
        let place = if job.op == Op::WriteFsync { mounted.place("fio.dat")? } else { raw.place()? };
        let recorded = record(job, &place, setting)?;
        let events: u64 = recorded.events.iter().map(event_count).sum();
        let policy = POLICY.quick(setting.extent.is_quick());
        affinity::pin(&[affinity::load_cpu()])?;
        let costs = policy.run(&BATCHES, |most| cost(&recorded, most), |_| true)?;
        for (most, costs) in BATCHES.iter().zip(costs) {
            let an_event = |of: &dyn Fn(&Cost) -> f64| {
                costs.iter().map(|cost| of(cost) / events as f64).collect::<Rounds>()
            };
            let compressed = an_event(&|cost| cost.compressed as f64);
            let ns = |of: fn(&Cost) -> Duration| {
                let rounds = an_event(&|cost| of(cost).as_nanos() as f64);
                with_spread(rounds.median(), rounds.spread())
            };
            table.row([
                format!("fio, {} ({} events)", job.name(), count(events)),
                count(*most as u64),
                number(an_event(&|cost| cost.plain as f64).median()),
                number(compressed.median()),
                ns(|cost| cost.encode),
                ns(|cost| cost.decode),
            ]);
            if most == &BATCHES[0] {
                let name = format!("{}, {most} a batch, compressed", job.name());
                figures.push(Figure::of(name, &compressed, "bytes an event").goal(Goal::AtMost(BYTES_MAX)));
            }
        }
    }
    let how = format!(
        "Events of fio, recorded by a tracer (random reads and writes of a loop device, write + fsync on ext4), encoded again in batches \
         of each size; zstd level {LEVEL} over each batch separately, as in a Kafka record with one batch. An event is a \
         call, a bio, a request, a commit or a name; names are in it."
    );
    Ok(BenchReport { how, figures, tables: vec![table], ..BenchReport::default() })
}

/// Counts a pair as two events.
fn event_count(event: &LayerEvent) -> u64 {
    if matches!(event, LayerEvent::Pair(_)) { 2 } else { 1 }
}

/// Records the events of `job` as one batch.
fn record(job: Job, place: &DiskTarget, setting: &Setting) -> Result<EventBatch> {
    let length = Length { run_ms: if setting.extent.is_quick() { 200 } else { 1_500 }, ramp_ms: 0 };
    if job.op == Op::WriteFsync && !place.target.exists() {
        std::fs::write(&place.target, []).context("cannot make fio's file")?;
    }
    let tracer = harness::load_tracer()?;
    let output = setting.folder.join("wire.fio");
    let cpus: Vec<String> = affinity::cpus().iter().map(ToString::to_string).collect();
    let words = job.command(place, length, &cpus.join(","), &output);
    let mut fio = {
        let _followed = tracer.trace_children_of_this_thread()?;
        Command::new(&words[0]).args(&words[1..]).stdin(Stdio::null()).spawn().context("cannot start fio")?
    };
    let batches = collect(tracer, || {
        if !fio.wait()?.success() {
            bail!("fio failed");
        }
        Ok(())
    })?;
    let mut batches = batches.into_iter();
    let mut recorded = batches.next().context("the tracer emitted no batch")?;
    for batch in batches {
        recorded.events.extend(batch.events);
        (recorded.stats, recorded.watermark) = (batch.stats, batch.watermark);
    }
    recorded.events.truncate(EVENTS_MAX);
    Ok(recorded)
}

/// Collects all batches that `tracer` emits until `wait` returns.
fn collect(tracer: Tracer, wait: impl FnOnce() -> Result<()>) -> Result<Vec<EventBatch>> {
    let stop = StopSignal::new();
    let signal = stop.clone();
    let (events, mut batches) = blkkin_bus::channel::<EventBatch>(CAPACITY_DEFAULT);
    let tracer_thread = std::thread::spawn(move || tracer.run(events, signal));
    let batches_shared = Arc::new(Mutex::new(Vec::new()));
    let sink = Arc::clone(&batches_shared);
    let consumer = std::thread::spawn(move || {
        loop {
            match batches.next(Duration::from_secs(1)) {
                Next::Item(batch) => sink.lock().unwrap_or_else(|held| held.into_inner()).push(batch),
                Next::Timeout => {}
                Next::Closed => return,
            }
        }
    });
    let waited = wait();
    stop.stop();
    tracer_thread.join().ok().context("the tracer's thread panicked")??;
    consumer.join().ok().context("the consumer's thread panicked")?;
    waited?;
    Ok(std::mem::take(&mut *batches_shared.lock().unwrap_or_else(|held| held.into_inner())))
}

/// Returns the length of these bytes after compression.
fn compressed_len(bytes: &[u8]) -> Result<usize> {
    let mut compressed = vec![0; zstd_safe::compress_bound(bytes.len())];
    zstd_safe::compress(&mut compressed[..], bytes, LEVEL)
        .map_err(|code| anyhow!("zstd: {}", zstd_safe::get_error_name(code)))
}

/// Encodes and decodes `recorded` in batches of `most` events.
fn cost(recorded: &EventBatch, most: usize) -> Result<Cost> {
    let mut cost = Cost::default();
    let frame = EventBatch { events: Vec::new(), ..recorded.clone() };
    for events in recorded.events.chunks(most) {
        let batch = EventBatch { events: events.to_vec(), ..frame.clone() };
        let begun = Instant::now();
        let bytes = v1::encode(&batch);
        cost.encode += begun.elapsed();
        cost.plain += bytes.len();
        cost.compressed += compressed_len(&bytes)?;
        let begun = Instant::now();
        let decoded = v1::decode(&bytes)?;
        cost.decode += begun.elapsed();
        if decoded.batch != batch {
            bail!("the decoded batch differs from the encoded one: its size has no meaning");
        }
    }
    Ok(cost)
}
