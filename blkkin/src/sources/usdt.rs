//! `--probes`: daemon spans from USDT probes of other programs, correlated with the kernel's
//! events.
//!
//! ```text
//! thread "drain"                 thread "usdt"                          thread "join"
//! Tracer::run ──── bus ────────── UsdtCorrelation ┬─ Correlator ── bus ── Joiner
//!              └── USDT events, one set per batch ── UsdtMapping ── DaemonSpans
//! ```
//!
//! *In*: files that name programs, their probes and the meaning of these; then the tracer's
//! batches, and the USDT events before each. *Out*: batches with daemon spans, and system calls as
//! their children. *Invariant*: nothing waits. USDT events come from the tracer's own rings and
//! clock, in order, so a batch brings all events and losses before its watermark.
//!
//! blkkin validates everything before it attaches a probe, and reports the cost of an event first.
//! [`blkkin_ust_bridge::daemon_spans`] decides which span a system call belongs to, as for LTTng
//! daemons.

mod built_in;
mod correlation;
mod metrics;

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc::Receiver;
use std::thread::{Builder, JoinHandle};

use blkkin_bus::{Publisher, Subscription};
use blkkin_tracer::enrich::usdt::events::{UsdtBatch, UsdtStats};
use blkkin_tracer::enrich::usdt::{self, UsdtError, UsdtProbe};
use blkkin_tracer::{Tracer, TracerConfig};
use blkkin_ust_bridge::mapping::config::Rule;
use blkkin_ust_bridge::mapping::usdt_mapping::{ProbeSignature, UsdtMapping, UsdtMappingFile};
use blkkin_wire::batch::EventBatch;
use tracing::info;

use crate::cli::UsdtArgs;
use crate::error::CliError;
use crate::suggest::suggest;
use correlation::{UsdtCorrelation, UsdtOutcome};
pub(crate) use metrics::{UsdtMetrics, UsdtSourceStats};

/// Resolved probes and their mapping rules.
pub(crate) struct UsdtProbes {
    probes: Vec<UsdtProbe>,
    rules: Vec<Rule>,
}

fn several_programs(what: String, programs: &[PathBuf]) -> CliError {
    let listed: Vec<String> = programs.iter().map(|program| program.display().to_string()).collect();
    CliError::usage(
        what,
        format!("several programs of this name run: {}", listed.join(", ")),
        "copy the mapping from configs/mappings, name one of them as its `program`, and give the file to --probes",
    )
}

/// Attached probes.
pub(crate) struct UsdtSource {
    mapping: UsdtMapping,
    events: Receiver<UsdtBatch>,
}

/// A running USDT source.
pub(crate) struct RunningUsdt {
    correlation: JoinHandle<UsdtOutcome>,
}

impl UsdtProbes {
    /// Reads the files and resolves the probes; none without `--probes`.
    pub(crate) fn resolve(args: &UsdtArgs) -> Result<UsdtProbes, CliError> {
        let mut probes = UsdtProbes { probes: Vec::new(), rules: Vec::new() };
        for path in &args.probes {
            probes.add_file(path)?;
        }
        Ok(probes)
    }

    fn add_file(&mut self, path: &Path) -> Result<(), CliError> {
        let what = || format!("cannot use the probes of {}", path.display());
        let remedy =
            format!("configs/mappings/postgresql.toml explains the format; built in: {}", built_in::names());
        let built_in = built_in::text(path);
        let text = match built_in {
            Some(text) => text.to_owned(),
            None => fs::read_to_string(path).map_err(|error| CliError::usage(what(), error, &remedy))?,
        };
        let mut file =
            UsdtMappingFile::read(&text).map_err(|error| CliError::usage(what(), error, &remedy))?;
        if built_in.is_some() {
            match &built_in::running(&file.program)[..] {
                [] => {}
                [one] => file.program.clone_from(one),
                several => return Err(several_programs(what(), several)),
            }
        }
        if let Some(event) = file.unused_rules().next() {
            let why = format!("a rule is about {event}, and no `probe` has this name");
            return Err(CliError::usage(what(), why, "name the probe in the file, or remove the rule"));
        }
        if let Some(twice) =
            file.probe.iter().find(|probe| self.probes.iter().any(|known| known.name == probe.name))
        {
            let why = format!(
                "an earlier file also names {}, and its rules would apply to both programs",
                twice.name
            );
            return Err(CliError::usage(what(), why, "trace one of the two programs at a time"));
        }
        let requested: Vec<_> =
            file.probe.iter().map(|probe| (probe.name.clone(), probe.text_argument())).collect();
        let found = usdt::find(&file.program, &requested);
        self.probes.extend(found.map_err(|error| CliError::usage(what(), &error, remedy_for(&error)))?);
        self.rules.extend(file.rule);
        // Checks the rules here, so that the error names the file.
        UsdtMapping::new(self.shapes(), self.rules.clone())
            .map_err(|error| CliError::usage(what(), error, &remedy))?;
        Ok(())
    }

    /// Adds the probes to the tracer's configuration.
    pub(crate) fn tracer_config(&self, config: TracerConfig) -> TracerConfig {
        TracerConfig { usdt_probes: self.probes.clone(), ..config }
    }

    fn shapes(&self) -> Vec<ProbeSignature> {
        let shape = |probe: &UsdtProbe| ProbeSignature {
            name: probe.name.clone(),
            signed: probe
                .arguments
                .iter()
                .map(|argument| argument.is_readable().then_some(argument.signed))
                .collect(),
            text: probe.text.is_some(),
        };
        self.probes.iter().map(shape).collect()
    }

    /// Reports the cost of an event, and attaches the probes.
    pub(crate) fn attach(self, tracer: &mut Tracer) -> Result<Option<UsdtSource>, CliError> {
        let shapes = self.shapes();
        let UsdtProbes { probes, rules } = self;
        let Some(ns) = tracer.usdt_overhead_ns() else { return Ok(None) };
        for probe in &probes {
            info!(
                "{} in {}: each event costs about {:.1} µs here, in every process of that program",
                probe.name,
                probe.file.display(),
                ns / 1_000.0
            );
        }
        let events = tracer.attach_usdt()?;
        let mapping =
            UsdtMapping::new(shapes, rules).expect("invariant: resolve has validated the same rules");
        Ok(events.map(|events| UsdtSource { mapping, events }))
    }
}

impl UsdtSource {
    /// Starts to correlate `batches` with USDT events, into `out`.
    pub(crate) fn start(
        self,
        batches: Subscription<EventBatch>,
        out: Publisher<EventBatch>,
        metrics: &UsdtMetrics,
    ) -> io::Result<RunningUsdt> {
        let UsdtSource { mapping, events } = self;
        let correlation = UsdtCorrelation::new(mapping, events, metrics.clone());
        let correlation = Builder::new().name("usdt".into()).spawn(move || correlation.run(batches, out))?;
        Ok(RunningUsdt { correlation })
    }
}

impl RunningUsdt {
    /// Waits for the end; returns summary lines and statistics.
    pub(crate) fn collect(
        self,
        event_stats: Option<UsdtStats>,
    ) -> Result<(Vec<String>, UsdtSourceStats), CliError> {
        let outcome = self.correlation.join();
        let outcome = outcome.map_err(|panic| crate::error::panicked("the USDT source", &*panic))?;
        Ok((notes(&outcome, event_stats.unwrap_or_default()), outcome.stats))
    }
}

fn remedy_for(error: &UsdtError) -> String {
    match error {
        UsdtError::Unknown { name, known, .. } => match suggest(name, known.iter().map(String::as_str)) {
            Some(nearest) => format!("`{nearest}` is the nearest; `readelf -n` lists all {}", known.len()),
            None => format!("`readelf -n` lists all {}: {}, …", known.len(), known[0]),
        },
        UsdtError::File { .. } => {
            "name in `program` the file that the processes run, of a build with probes (PostgreSQL: --enable-dtrace)"
                .to_owned()
        }
        UsdtError::Arguments { .. } => "use another probe".to_owned(),
        UsdtError::NoText { .. } => "name an existing argument, or omit `text`".to_owned(),
        UsdtError::TooMany { .. } => "use fewer".to_owned(),
    }
}

/// Returns the lines of the shutdown summary.
fn notes(outcome: &UsdtOutcome, event_stats: UsdtStats) -> Vec<String> {
    let UsdtOutcome { daemon_spans, stats: UsdtSourceStats { correlation, unread, discarded, .. } } = outcome;
    let mut all = vec![format!(
        "usdt: {} events, {} spans ({} without an end), {} system calls as their children",
        event_stats.recorded, correlation.spans, correlation.spans_unfinished, correlation.calls_correlated
    )];
    let mut add = |count: u64, words: &str| {
        if count > 0 {
            all.push(format!("usdt: {count} {words}"));
        }
    };
    add(
        event_stats.dropped,
        "events were lost because the rings were full; system calls meanwhile have no parent",
    );
    add(*discarded, "events were discarded because others were lost meanwhile");
    add(*unread, "events had an unreadable argument; system calls until the next have no parent");
    add(daemon_spans.evicted, "spans were emitted without an end because too many were open");
    let missing = event_stats.fired.saturating_sub(event_stats.recorded + event_stats.dropped);
    add(missing, "records of events were written and never read");
    all
}
