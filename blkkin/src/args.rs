//! The command line's words, as they were typed. What they mean is decided in [`crate::what`] and
//! [`crate::destination`], where an error can say what there is instead.

mod file;

use std::convert::Infallible;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use crate::failure::{Failure, Status};
use crate::service::Where;

/// Help is made for narrow terminals too, and no wider than can be read.
const HELP_WIDTH_MAX: usize = 100;

#[derive(Debug, Parser)]
#[command(name = "blkkin", version, max_term_width = HELP_WIDTH_MAX, disable_help_subcommand = true)]
#[command(
    about = "Follows storage requests through every layer: system call, file system, bio, block request"
)]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Task {
    /// Trace one command and its descendants until it ends
    Run(RunArgs),
    /// Trace this machine until Ctrl-C
    Trace(TraceArgs),
    /// Send what happens on this machine to a Kafka cluster until Ctrl-C
    Agent(AgentArgs),
    /// Join the events of many machines, out of Kafka into Kafka, until Ctrl-C
    Aggregator(AggregatorArgs),
    /// Bring traces from a Kafka cluster to where they are looked at, until Ctrl-C
    Exporter(ExporterArgs),
    /// Say what can be traced here, what not, why, and what to do
    Doctor(DoctorArgs),
}

#[derive(Debug, Args)]
#[command(override_usage = "blkkin run [WHAT] [--to DEST]... -- CMD [ARGS]...")]
#[command(after_help = "Exit status: CMD's own (128+n when signal n killed it); 125 when tracing could not \
    start, 126 when CMD cannot be executed, 127 when it was not found.")]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) ust: UstArgs,
    #[command(flatten)]
    pub(crate) probes: ProbesArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// The command to trace, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(override_usage = "blkkin trace [WHAT] [--to DEST]... [--for TIME]")]
#[command(after_help = "The first Ctrl-C ends the trace and shows the report, the second leaves at once.")]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) ust: UstArgs,
    #[command(flatten)]
    pub(crate) probes: ProbesArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// End after this time (30s, 5m) instead of at Ctrl-C
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<String>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "blkkin agent --brokers HOST:PORT [WHAT] [--set NAME=VALUE]...\n       blkkin agent --record FOLDER [WHAT]\n       blkkin agent --brokers HOST:PORT --replay FOLDER"
)]
#[command(
    after_help = "The topic is blkkin.events, the schema of its records wire/blkkin.proto. The cluster need not be \
    there yet."
)]
pub(crate) struct AgentArgs {
    #[command(flatten)]
    pub(crate) what: WhatArgs,
    #[command(flatten)]
    pub(crate) how: HowArgs,
    #[command(flatten)]
    pub(crate) ust: UstArgs,
    #[command(flatten)]
    pub(crate) probes: ProbesArgs,
    /// Where the cluster is: HOST:PORT, several with commas between
    #[arg(long, value_name = "HOST:PORT", help_heading = "Where to", required_unless_present = "record")]
    pub(crate) brokers: Option<String>,
    /// Into files in this folder instead, to be sent later by --replay
    #[arg(long, value_name = "FOLDER", help_heading = "Where to", conflicts_with_all = ["brokers", "replay"])]
    pub(crate) record: Option<PathBuf>,
    /// Trace nothing: send what was recorded in this folder; killed, it goes on where it was
    #[arg(long, value_name = "FOLDER", help_heading = "Where to", requires = "brokers")]
    pub(crate) replay: Option<PathBuf>,
    /// With --replay: no more events a second than this, instead of as many as the cluster takes
    #[arg(long, value_name = "N", help_heading = "Where to", requires = "replay",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
    /// A setting of librdkafka (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Where to")]
    pub(crate) set: Vec<String>,
    /// Partitions of the topic, where it has to be made
    #[arg(long, value_name = "N", default_value_t = 12, help_heading = "Where to",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) partitions: u32,
    /// With whose events its own are joined: a guest takes its host's machine id [default: this machine's]
    #[arg(long, value_name = "MACHINE-ID", help_heading = "Where to")]
    pub(crate) domain: Option<String>,
    /// What the cluster does not take yet waits in this folder, also while no agent runs; or off [default: `spool` in
    /// $STATE_DIRECTORY, which systemd sets; without it, off]
    #[arg(long, value_name = "FOLDER", help_heading = "While the cluster is away", conflicts_with_all = ["record", "replay"])]
    pub(crate) spool: Option<SpoolChoice>,
    /// Bytes of it at the most (512M, 4G); when it is full the rings fill, and what they have no room for is counted
    #[arg(long, value_name = "SIZE", default_value = "1G", help_heading = "While the cluster is away")]
    pub(crate) spool_max: String,
    /// Where a BPF file system is mounted: counters lie there, so that the next start can tell what one that was killed has lost
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/sys/fs/bpf",
        help_heading = "While the cluster is away"
    )]
    pub(crate) bpffs: PathBuf,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

/// Where an agent spools.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpoolChoice {
    /// There.
    In(PathBuf),
    /// Nowhere.
    Off,
}

impl FromStr for SpoolChoice {
    type Err = Infallible;

    fn from_str(word: &str) -> Result<SpoolChoice, Infallible> {
        Ok(if word == "off" { SpoolChoice::Off } else { SpoolChoice::In(word.into()) })
    }
}

/// What all services have.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub(crate) struct ServiceArgs {
    /// A file that says what options say: brokers = "HOST:PORT". Options win over it; repeatable, the later one wins
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Where metrics and health are asked for, ADDRESS:PORT or off [default: 127.0.0.1, if it is free: port 9899
    /// of an agent, 9900 of an aggregator, 9901 of an exporter]
    #[arg(long, value_name = "WHERE")]
    pub(crate) metrics: Option<Where>,
    /// Who asks for metrics has to say `Authorization: Bearer` and the first line of this file; health stays open
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_token: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "blkkin exporter --brokers HOST:PORT --to DEST [--to DEST]... [--set NAME=VALUE]...\n       \
    blkkin exporter replay --from TIME --brokers HOST:PORT --to DEST [--to DEST]..."
)]
#[command(
    after_help = "The topic is blkkin.traces. Each destination is a group of consumers of its own, so one that is away \
    holds no other; what it has not acknowledged stays in the topic. What it refuses goes to the topic blkkin.dead."
)]
pub(crate) struct ExporterArgs {
    /// `replay`: set the destinations' groups back to --from, and end; the next exporter delivers from there
    #[arg(value_enum, value_name = "replay", hide_possible_values = true)]
    pub(crate) action: Option<ExporterAction>,
    /// Where the cluster is: HOST:PORT, several with commas between
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: String,
    /// Where spans go, repeatable: zipkin=URL, zipkin=FILE.json, zipkin-kafka=HOST:PORT/TOPIC, otlp=URL; with
    /// ?format=json in place of proto3 for Zipkin
    #[arg(long, value_name = "DEST", required = true)]
    pub(crate) to: Vec<String>,
    /// With what the groups' names begin; behind it stands the destination
    #[arg(long, value_name = "NAME", default_value = "blkkin-export")]
    pub(crate) group: String,
    /// A name of this exporter's own that outlives it: its partitions wait for it while it restarts
    #[arg(long, value_name = "NAME")]
    pub(crate) instance: Option<String>,
    /// A setting of librdkafka (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Since when to deliver again: 2026-11-22T10:00:00Z, or -10m
    #[arg(long, value_name = "TIME", required_if_eq("action", "replay"), allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExporterAction {
    Replay,
}

#[derive(Debug, Args)]
#[command(override_usage = "blkkin aggregator --brokers HOST:PORT [--sample 1/N]")]
#[command(
    after_help = "Reads blkkin.events, writes blkkin.spans and, from these, blkkin.traces; what goes between nodes meets in \
    blkkin.links; keeps its state in blkkin.state. Any number of them share the work; each may be killed at any moment."
)]
pub(crate) struct AggregatorArgs {
    /// Where the cluster is: HOST:PORT, several with commas between
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: String,
    /// A setting of librdkafka (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// What to do: join (events to spans), meet (requests between nodes), assemble (spans to traces), or all
    #[arg(long, value_enum, default_value_t, value_name = "STAGE", hide_possible_values = true)]
    pub(crate) stage: StageChoice,
    /// A name of this one's own: its partitions wait for it while it restarts
    #[arg(long, value_name = "NAME")]
    pub(crate) instance: Option<String>,
    /// Partitions of each topic that has to be made
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) partitions: u32,
    /// Keep one trace in N, drawn by its id
    #[arg(long, value_name = "1/N", help_heading = "What is kept")]
    pub(crate) sample: Option<String>,
    /// And those that took longer than this: 1ms, 500us
    #[arg(long, value_name = "TIME", help_heading = "What is kept")]
    pub(crate) slower_than: Option<String>,
    /// And those in which something failed
    #[arg(long, help_heading = "What is kept")]
    pub(crate) errors: bool,
    /// on: and those that the application samples in whose trace they are (OpenTelemetry's sampled flag)
    #[arg(
        long,
        value_enum,
        default_value = "on",
        value_name = "on|off",
        hide_possible_values = true,
        help_heading = "What is kept"
    )]
    pub(crate) sampled_by_program: Switch,
    /// A node of which the log has held nothing for so long is finished
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "State")]
    pub(crate) idle_after: String,
    /// A trace that answered another node waits so long for the one that asked, and that for it
    #[arg(long, value_name = "TIME", default_value = "10s", help_heading = "State")]
    pub(crate) await_asker: String,
    /// Save the state no more often
    #[arg(long, value_name = "TIME", default_value = "5s", help_heading = "State")]
    pub(crate) save_every: String,
    /// Begin anew where a saved state is gone or cannot be read: open traces and names are lost
    #[arg(long, help_heading = "State")]
    pub(crate) forget: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StageChoice {
    Join,
    Meet,
    Assemble,
    #[default]
    All,
}

/// Yes or no, where either may be the default.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    #[default]
    Off,
}

impl Switch {
    pub(crate) fn is_on(self) -> bool {
        self == Switch::On
    }
}

#[derive(Debug, Args)]
pub(crate) struct DoctorArgs {
    /// One JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Colours: auto (on a terminal), always or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Color,
}

/// Filters of one kind widen (any may match), filters of different kinds narrow (all must).
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "WHAT: repeated filters widen, different ones narrow")]
pub(crate) struct WhatArgs {
    /// Tasks of this name (their comm, at most 15 bytes)
    #[arg(long, value_name = "NAME")]
    pub(crate) comm: Vec<String>,
    /// Processes of these ids
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) pid: Vec<String>,
    /// Threads of these ids
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    pub(crate) tid: Vec<String>,
    /// These processes and whatever they fork from now on
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) tree: Vec<String>,
    /// Tasks in this cgroup: its path below /sys/fs/cgroup, or its id
    #[arg(long, value_name = "CGROUP")]
    pub(crate) cgroup: Vec<String>,
    /// Requests to this block device: sda1, /dev/sda1 or 8:1
    #[arg(long, value_name = "DEVICE")]
    pub(crate) device: Vec<String>,
    /// These system calls: pread64,fsync
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) syscall: Vec<String>,
    /// Files at or below this path; * and ? stand for parts of a name, ** for any directories, and without a
    /// leading / the path may begin anywhere
    #[arg(long, value_name = "PATTERN")]
    pub(crate) path: Vec<String>,
    /// Only requests that took longer than this: 1ms, 500us
    #[arg(long, value_name = "TIME")]
    pub(crate) slower_than: Option<String>,
    /// Only requests that failed in any layer
    #[arg(long)]
    pub(crate) errors_only: bool,
    /// on: whatever these two say, keep the requests of traces that their program samples (OpenTelemetry's
    /// sampled flag)
    #[arg(long, value_enum, default_value = "off", value_name = "on|off", hide_possible_values = true)]
    pub(crate) sampled_by_program: Switch,
    /// 0: only calls that reached the block layer; 1: every call, with paths; 2: raw arguments too
    #[arg(long, value_name = "LEVEL", default_value = "1")]
    pub(crate) detail: String,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "How to trace")]
pub(crate) struct HowArgs {
    /// Use this kind of probe, tp_btf, raw_tp, fentry or kprobe, instead of the best that works
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub(crate) attach: Option<Attach>,
    /// Bytes of each CPU's ring (256K, 4M); a power of two of at least a page
    #[arg(long, value_name = "BYTES")]
    pub(crate) ring_size: Option<String>,
    /// Whose word is taken for which span of their own they call (OpenTelemetry's thread context), repeatable:
    /// user=NAME, cgroup=CGROUP or exe=PATH; or all, or off [default: all]
    #[arg(long, value_name = "WHO")]
    pub(crate) contexts: Vec<String>,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Daemons")]
pub(crate) struct UstArgs {
    /// Listen to what daemons say of their own work (LTTng-UST): it stands above their system calls
    #[arg(long)]
    pub(crate) ust: bool,
    /// What events of others' instrumentation mean, repeatable; blkkin's own and blkin's are known
    #[arg(long, value_name = "FILE.toml", requires = "ust")]
    pub(crate) ust_mapping: Vec<PathBuf>,
    /// Follow what programs ask NBD servers by sockets of their own; with --ust the server's operation stands below
    #[arg(long)]
    pub(crate) nbd: bool,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Daemons")]
pub(crate) struct ProbesArgs {
    /// Listen at probes that a program's makers put into it (USDT): what they mean stands above its system calls, repeatable
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) probes: Vec<PathBuf>,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Where spans go, repeatable: zipkin=URL, zipkin=FILE.json or otlp=URL
    #[arg(long, value_name = "DEST")]
    pub(crate) to: Vec<String>,
    /// How many of the slowest requests to draw
    #[arg(long, value_name = "N", default_value_t = 5)]
    pub(crate) slowest: usize,
    /// The report as JSON, to FILE or in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Colours: auto (on a terminal), always or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Color,
    /// No report at the end
    #[arg(long, conflicts_with = "json")]
    pub(crate) no_report: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attach {
    /// BTF-typed tracepoints
    #[value(name = "tp_btf")]
    TpBtf,
    /// Raw tracepoints
    #[value(name = "raw_tp")]
    RawTp,
    /// Entries of functions, typed; tracepoints where no function says the same
    #[value(name = "fentry")]
    Fentry,
    /// Entries of functions; tracepoints where no function says the same
    #[value(name = "kprobe")]
    Kprobe,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Color {
    #[default]
    Auto,
    Always,
    Never,
}

/// Words that make no command line, or that ask for help.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The parser's words for it.
    Words(clap::Error, Status),
    /// Ours, where they help more.
    Failure(Failure),
}

impl Refusal {
    /// Prints the error (stderr) or the help asked for (stdout).
    pub(crate) fn print(&self) -> ExitCode {
        match self {
            Refusal::Words(error, status) => {
                // A closed stdout or stderr leaves nobody to tell.
                let _ = error.print();
                status.code()
            }
            Refusal::Failure(failure) => failure.print(),
        }
    }
}

/// Reads the command line. `run` refuses with 125 as env(1) does: every lower status belongs to CMD.
pub(crate) fn parse(words: impl Iterator<Item = OsString>) -> Result<Task, Refusal> {
    let words = file::expand(words.collect(), &Cli::command()).map_err(Refusal::Failure)?;
    let error = match Cli::try_parse_from(&words) {
        Ok(cli) => return Ok(cli.task),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Err(Refusal::Words(error, Status::Success));
    }
    if words.get(1).is_none_or(|word| word != "run") {
        return Err(Refusal::Words(error, Status::Usage));
    }
    Err(no_command(&words).map_or(Refusal::Words(error, Status::CannotTrace), Refusal::Failure))
}

/// `blkkin run ls` is what everybody tries first.
fn no_command(words: &[OsString]) -> Option<Failure> {
    let first = words.get(2)?;
    let (dashes, option) = (words.iter().any(|word| word == "--"), first.to_string_lossy().starts_with('-'));
    (!dashes && !option).then(|| {
        let rest: Vec<_> = words[2..].iter().map(|word| word.to_string_lossy()).collect();
        let why = "the command comes after --, so that its options are not taken for blkkin's";
        Failure::cannot_trace("no command to run", why, format!("blkkin run -- {}", rest.join(" ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound() {
        Cli::command().debug_assert();
    }

    fn refusal(line: &str) -> (Option<String>, Status) {
        match parse(line.split(' ').map(OsString::from)) {
            Err(Refusal::Words(_, status)) => (None, status),
            Err(Refusal::Failure(failure)) => (Some(failure.remedy), failure.status),
            Ok(task) => panic!("{task:?}"),
        }
    }

    #[test]
    fn a_command_without_dashes_is_told_where_it_belongs() {
        let remedy = "blkkin run -- ls -l".to_owned();
        assert_eq!(refusal("blkkin run ls -l"), (Some(remedy), Status::CannotTrace));
        assert_eq!(refusal("blkkin run"), (None, Status::CannotTrace));
        assert_eq!(refusal("blkkin run --what -- ls"), (None, Status::CannotTrace));
        assert_eq!(refusal("blkkin trace ls"), (None, Status::Usage));
        assert_eq!(refusal("blkkin run --help"), (None, Status::Success));
    }
}
