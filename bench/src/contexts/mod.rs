//! `contexts`: additional cost of a traced system call whose thread publishes its context
//! (OpenTelemetry's thread context).
//!
//! The call is `msync(0, 0, 0)`, the cheapest traced call. Each round measures it in a traced
//! process under six tracers: with `--contexts off`; in a process that publishes nothing; with a
//! library whose variable has a static offset from the thread pointer; with attributes in addition,
//! in a record of one cache line; with a variable behind the thread's dynamic thread vector (DTV),
//! which is walked once per thread; and in a thread of such a process that has not published yet,
//! where the DTV is walked at each call because nothing can be cached. The benchmark compiles the
//! library, so it needs a C compiler.
//!
//! *Invariant*: a run counts only if the tracer's events have the expected parents: the published
//! span, or none.

use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_tracer::{ContextPolicy, TracerConfig};

use crate::calls::{Call, Target};
use crate::frame::{BenchReport, Figure, Goal, RoundPolicy, Rounds, Table};
use crate::harness::{self, RunningTracer};
use crate::{Setting, affinity, library};

const POLICY: RoundPolicy =
    RoundPolicy { warm_up: 1, min_rounds: 9, max_rounds: 15, time_limit: Duration::from_secs(180) };
/// Chunks of 1,000 calls.
const CHUNKS: &str = "400";
const CHUNKS_QUICK: &str = "40";
/// Spread in ns that ends the rounds: a tenth of the goals.
const SPREAD_ENOUGH: f64 = 13.0;
/// Time limit until the tracer finds the variable: some ms after the library is mapped, on a quiet
/// machine. Calls before are not measured.
const DISCOVERY_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ContextMode {
    Off,
    Unpublished,
    StaticOffset,
    Attributes,
    Dtv,
    DtvUnset,
}

impl ContextMode {
    const ALL: [ContextMode; 6] = [
        ContextMode::Off,
        ContextMode::Unpublished,
        ContextMode::StaticOffset,
        ContextMode::Attributes,
        ContextMode::Dtv,
        ContextMode::DtvUnset,
    ];

    fn name(self) -> &'static str {
        match self {
            ContextMode::Off => "contexts are not read",
            ContextMode::Unpublished => "the process publishes nothing",
            ContextMode::StaticOffset => "published, at a distance from the thread pointer",
            ContextMode::Attributes => "the same with two attributes (36 bytes)",
            ContextMode::Dtv => "published, behind the thread's vector (walked once)",
            ContextMode::DtvUnset => "not published yet by this thread, the vector walked at each call",
        }
    }

    /// Returns the mode to compare with, and the maximum additional ns.
    fn base_and_goal(self) -> Option<(ContextMode, f64)> {
        match self {
            ContextMode::Off => None,
            ContextMode::Unpublished => Some((ContextMode::Off, 10.0)),
            ContextMode::StaticOffset | ContextMode::Dtv => Some((ContextMode::Unpublished, 130.0)),
            // Another read of the process's memory (57), and a record of variable size (10).
            ContextMode::Attributes => Some((ContextMode::StaticOffset, 90.0)),
            ContextMode::DtvUnset => Some((ContextMode::Unpublished, 250.0)),
        }
    }

    fn publishes(self) -> bool {
        self.record_kind() != "keep"
    }

    /// Returns the record that the load publishes.
    fn record_kind(self) -> &'static str {
        match self {
            ContextMode::Off | ContextMode::Unpublished | ContextMode::DtvUnset => "keep",
            ContextMode::StaticOffset | ContextMode::Dtv => "publish",
            ContextMode::Attributes => "attributes",
        }
    }

    /// Returns the compiler flag of the library.
    fn model(self) -> Option<&'static str> {
        match self {
            ContextMode::Off | ContextMode::Unpublished => None,
            ContextMode::StaticOffset | ContextMode::Attributes => Some("-ftls-model=initial-exec"),
            // On other architectures the compilers support TLS descriptors only, which lead to an
            // offset.
            ContextMode::Dtv | ContextMode::DtvUnset => Some("-mtls-dialect=gnu"),
        }
    }
}

/// Runs the benchmark.
pub(crate) fn run(setting: &Setting) -> Result<BenchReport> {
    let quick = setting.extent.is_quick();
    let chunks = if quick { CHUNKS_QUICK } else { CHUNKS };
    let folder = tempfile::tempdir()?;
    let libraries =
        ContextMode::ALL.map(|mode| mode.model().map(|model| library(folder.path(), model)).transpose());
    let libraries = libraries.into_iter().collect::<Result<Vec<_>>>()?;
    let mut lost = 0;
    let measure = |mode: ContextMode| {
        let index = ContextMode::ALL.iter().position(|other| *other == mode).unwrap_or_default();
        measured(mode, libraries[index].as_deref(), chunks, &mut lost)
    };
    let enough = |rounds: &[Vec<f64>]| {
        let overhead = ContextMode::ALL.into_iter().filter_map(|mode| overhead(rounds, mode));
        overhead.map(|rounds| rounds.spread()).all(|spread| spread < SPREAD_ENOUGH)
    };
    let rounds = POLICY.quick(quick).run(&ContextMode::ALL, measure, enough)?;
    Ok(build_report(&rounds, lost))
}

fn library(folder: &Path, model: &str) -> Result<PathBuf> {
    library::compile(folder, &format!("slot{model}"), include_str!("slot.c"), model)
}

/// Measures ns per call.
fn measured(mode: ContextMode, library: Option<&Path>, chunks: &str, lost: &mut u64) -> Result<f64> {
    let contexts = if mode == ContextMode::Off { ContextPolicy::None } else { ContextPolicy::All };
    let tracer = harness::load_tracer_with(&TracerConfig { contexts, ..TracerConfig::default() })?;
    let library = library.map_or("-".into(), Path::to_string_lossy);
    let folder = tempfile::tempdir()?;
    let go = folder.path().join("go");
    let words = ["measure-context", chunks, &library, mode.record_kind(), &go.to_string_lossy()];
    let load = harness::spawn_traced_load(&tracer, &words)?;
    let running = RunningTracer::start(tracer);
    let started = Instant::now();
    while mode.model().is_some() && running.publishing() == 0 && started.elapsed() < DISCOVERY_TIMEOUT {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::fs::write(&go, "")?;
    let answer = harness::wait_for_output(load)?;
    let done = running.finish()?;
    *lost += done.stats.lost();
    let (all, with_context) = (done.stats.calls.recorded, done.with_context);
    let with_attributes = done.with_attributes;
    let matches = if mode.publishes() { with_context > all / 2 } else { with_context == 0 };
    let with = if mode == ContextMode::Attributes { with_attributes > all / 2 } else { with_attributes == 0 };
    if !matches || !with {
        bail!(
            "{}: of {all} calls {with_context} were made for a span, {with_attributes} with attributes",
            mode.name()
        );
    }
    answer.trim().parse().context("a load prints ns")
}

/// Runs the load in the traced process: `measure-context CHUNKS LIBRARY|- publish|attributes|keep
/// GO`. It measures after the file GO exists.
pub(crate) fn load(chunks: usize, library: &str, record_kind: &str, go: &Path) -> Result<()> {
    affinity::pin(&[affinity::load_cpu()])?;
    affinity::prefer_this_process();
    if library != "-" {
        let publish = publisher(library)?;
        let record: Option<&[u8]> = match record_kind {
            "publish" => Some(&RECORD),
            "attributes" => Some(&RECORD_WITH_ATTRIBUTES),
            _ => None,
        };
        if let Some(record) = record {
            // Written by this process, like a program's own record: an untouched page of the file
            // is not in memory and cannot be read.
            let record = record.to_vec().leak();
            // SAFETY: the library's own function, and a record that lives as long as the process.
            unsafe { publish(record.as_ptr().cast()) };
        }
    }
    let target = Target::new(Call::Msync)?;
    while !go.exists() {
        target.measure(1);
    }
    println!("{:.2}", target.measure(chunks));
    Ok(())
}

/// Record with ids of ones, valid, sampled, without attributes.
static RECORD: [u8; 28] = {
    let mut record = [1; 28];
    (record[26], record[27]) = (0, 0);
    record
};

/// Record with two attributes: a number, a length and 16 bytes of text each.
static RECORD_WITH_ATTRIBUTES: [u8; 64] = {
    let mut record = [b'x'; 64];
    let mut at = 0;
    while at < 26 {
        record[at] = 1;
        at += 1;
    }
    let bytes = 36u16.to_ne_bytes();
    (record[26], record[27]) = (bytes[0], bytes[1]);
    (record[28], record[29], record[46], record[47]) = (0, 16, 1, 16);
    record
};

type Publish = unsafe extern "C" fn(*const c_void);

fn publisher(library: &str) -> Result<Publish> {
    let function = library::function(library, "publish")?;
    // SAFETY: the signature in `slot.c`.
    Ok(unsafe { std::mem::transmute::<*mut c_void, Publish>(function) })
}

fn of(rounds: &[Vec<f64>], mode: ContextMode) -> Rounds {
    let index = ContextMode::ALL.iter().position(|other| *other == mode).unwrap_or_default();
    rounds[index].iter().copied().collect()
}

/// Returns the additional ns over the base mode, round by round.
fn overhead(rounds: &[Vec<f64>], mode: ContextMode) -> Option<Rounds> {
    let (base, _) = mode.base_and_goal()?;
    Some(Rounds::differences(&of(rounds, mode), &of(rounds, base)))
}

fn build_report(rounds: &[Vec<f64>], lost: u64) -> BenchReport {
    let mut table = Table::new("", &["a traced msync(0, 0, 0)", "ns", "above", "of"]);
    let mut figures = Vec::new();
    for mode in ContextMode::ALL {
        let shown = |rounds: &Rounds| crate::frame::number::with_spread(rounds.median(), rounds.spread());
        let (time, overhead) = (of(rounds, mode), overhead(rounds, mode));
        let base = mode.base_and_goal().map_or("", |(base, _)| base.name());
        table.row([
            mode.name().to_owned(),
            shown(&time),
            overhead.as_ref().map_or(String::new(), shown),
            base.to_owned(),
        ]);
        if let (Some(overhead), Some((_, goal))) = (overhead, mode.base_and_goal()) {
            figures.push(Figure::of(mode.name(), &overhead, "ns above").goal(Goal::AtMost(goal)));
        }
    }
    let how = format!(
        "ns per traced call; medians of {} rounds of {CHUNKS},000 calls of each, alternating, each under a newly loaded tracer. The load \
         runs on CPU {}, the reader on the others. The parents of the calls were checked.",
        rounds[0].len(),
        affinity::load_cpu()
    );
    let lost = format!("{lost} records were lost meanwhile: a full ring makes a call cheaper.");
    BenchReport { how, figures, tables: vec![table], notes: vec![lost], ..BenchReport::default() }
}
