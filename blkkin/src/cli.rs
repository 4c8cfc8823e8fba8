//! The command line, as typed. [`crate::filter`] and [`crate::destination`] resolve the values,
//! where an error can name the valid ones.

mod after_help;
mod config_file;
#[cfg(test)]
mod documentation;
pub(crate) mod listen;
pub(crate) mod shell_files;
pub(crate) mod topics;
pub(crate) mod units;

use std::convert::Infallible;
use std::ffi::OsString;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, Subcommand, ValueEnum};

use blkkin_report::{ReportConfig, Section};

use crate::cli::listen::ListenAddr;
use crate::error::{CliError, Status};
use crate::log::LogFormat;

/// Maximum width of help text, for readability; narrower terminals wrap earlier.
const HELP_WIDTH_MAX: usize = 100;

#[derive(Debug, Parser)]
#[command(name = "blkkin", version, max_term_width = HELP_WIDTH_MAX, disable_help_subcommand = true)]
#[command(
    about = "Traces storage operations through every layer: system call, file system, bio, block request"
)]
struct Cli {
    #[command(subcommand)]
    task: CliCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum CliCommand {
    /// Trace one command and its descendants until it ends
    Run(RunArgs),
    /// Trace this machine until Ctrl-C
    Trace(TraceArgs),
    /// Show which programs use the disks, live, from totals that the kernel counts
    Top(TopArgs),
    /// Send the events of this machine to a Kafka cluster until Ctrl-C
    Agent(Box<AgentArgs>),
    /// Ask the agent of this machine for a dump of its flight recorder
    Dump(DumpArgs),
    /// Show or change what the agent of this machine records, while it runs
    Ctl(CtlArgs),
    /// Join the events of many machines into traces, from Kafka to Kafka, until Ctrl-C
    Aggregator(AggregatorArgs),
    /// Deliver traces from a Kafka cluster to tracing backends until Ctrl-C
    Exporter(ExporterArgs),
    /// Report on a recording: of `blkkin agent --record`, or a dump of its flight recorder
    Report(ReportArgs),
    /// Report what can be traced here, what cannot, and why
    Doctor(DoctorArgs),
    /// Print a page of the documentation, or list the pages
    Help(topics::HelpArgs),
    /// Print the completions for a shell
    Completions(shell_files::CompletionsArgs),
    /// Write the manual pages into a folder
    #[command(hide = true)]
    ManualPages(shell_files::ManualPagesArgs),
}

impl CliCommand {
    /// Returns the format of log lines; only services have the option.
    pub(crate) fn log_format(&self) -> LogFormat {
        match self {
            CliCommand::Agent(args) => args.service.log_format,
            CliCommand::Aggregator(args) => args.service.log_format,
            CliCommand::Exporter(args) => args.service.log_format,
            _ => LogFormat::Text,
        }
    }
}

#[derive(Debug, Args)]
#[command(override_usage = "blkkin run [WHAT] [--to DEST]... -- CMD [ARGS]...")]
#[command(after_help = after_help::RUN)]
pub(crate) struct RunArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) tracer: TracerArgs,
    #[command(flatten)]
    pub(crate) lttng: LttngArgs,
    #[command(flatten)]
    pub(crate) usdt: UsdtArgs,
    #[command(flatten)]
    pub(crate) guests: GuestArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// Trace on after CMD has exited, until what it wrote is on the disks, for up to this time (40s)
    #[arg(long, value_name = "TIME")]
    pub(crate) await_writeback: Option<String>,
    /// The command to trace, and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

#[derive(Debug, Args)]
#[command(override_usage = "blkkin trace [WHAT] [--to DEST]... [--for TIME]")]
#[command(after_help = after_help::TRACE)]
pub(crate) struct TraceArgs {
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) tracer: TracerArgs,
    #[command(flatten)]
    pub(crate) lttng: LttngArgs,
    #[command(flatten)]
    pub(crate) usdt: UsdtArgs,
    #[command(flatten)]
    pub(crate) guests: GuestArgs,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
    /// End after this time (30s, 5m) instead of at Ctrl-C
    #[arg(long = "for", value_name = "TIME")]
    pub(crate) duration: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = after_help::TOP)]
pub(crate) struct TopArgs {
    /// Requests to this disk: sda, /dev/sda or 8:0; repeatable
    #[arg(short, long, value_name = "DISK")]
    pub(crate) device: Vec<String>,
    /// Group requests by program, cgroup, operation, or all of them
    #[arg(long, value_enum, default_value_t, value_name = "GROUP", hide_possible_values = true)]
    pub(crate) by: Group,
    /// Time between two looks at the totals: 1s, 500ms
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(crate) interval: String,
    /// Print this number of intervals as text instead of a screen
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) count: Option<u32>,
    /// Print one JSON object an interval
    #[arg(long)]
    pub(crate) json: bool,
    /// Colours: auto (on a terminal), always or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Color,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "blkkin agent --brokers HOST:PORT [WHAT] [--set NAME=VALUE]...\n       blkkin agent --record FOLDER [WHAT]\n       blkkin agent --brokers HOST:PORT --replay FOLDER"
)]
#[command(after_help = after_help::AGENT)]
pub(crate) struct AgentArgs {
    /// Share of this machine's CPUs that tracing may take (1%): the agent records fewer operations, one in
    /// N, where it would take more
    #[arg(long, value_name = "SHARE", help_heading = "How to trace", conflicts_with = "replay")]
    pub(crate) budget: Option<String>,
    /// Count every block request in the kernel, also those that are not recorded, and export histograms by disk and
    /// operation as metrics (--metrics)
    #[arg(long, help_heading = "How to trace", conflicts_with = "replay")]
    pub(crate) totals: bool,
    /// Let `blkkin ctl` change --sample, --keep and --budget while the agent runs, by this Unix socket; without
    /// PATH by /run/blkkin-agent/ctl.sock
    #[arg(long, value_name = "PATH", help_heading = "How to trace", num_args = 0..=1, conflicts_with = "replay",
        default_missing_value = crate::ctl::protocol::SOCKET)]
    pub(crate) ctl: Option<PathBuf>,
    /// Group of users with access to that socket, as root has it: a name of /etc/group, or a number
    #[arg(long, value_name = "GROUP", help_heading = "How to trace", requires = "ctl")]
    pub(crate) ctl_group: Option<String>,
    /// Let `blkkin ctl --brokers` change them too, for a fleet, by this topic; without TOPIC by blkkin.control
    #[arg(long, value_name = "TOPIC", help_heading = "How to trace", num_args = 0..=1, requires = "brokers",
        conflicts_with = "replay", default_missing_value = blkkin_bus::kafka::CONTROL)]
    pub(crate) ctl_topic: Option<String>,
    #[command(flatten)]
    pub(crate) filter: FilterArgs,
    #[command(flatten)]
    pub(crate) tracer: TracerArgs,
    #[command(flatten)]
    pub(crate) lttng: LttngArgs,
    #[command(flatten)]
    pub(crate) usdt: UsdtArgs,
    /// Kafka brokers: HOST:PORT, several separated by commas
    #[arg(long, value_name = "HOST:PORT", help_heading = "Target", required_unless_present_any = ["record", "port"])]
    pub(crate) brokers: Option<String>,
    /// Record events to files in this folder instead of Kafka; --replay sends them later
    #[arg(long, value_name = "FOLDER", help_heading = "Target", conflicts_with_all = ["brokers", "replay"])]
    pub(crate) record: Option<PathBuf>,
    /// In a guest: send events to the agent of the host, by this virtio-serial port; without PATH by
    /// /dev/virtio-ports/org.blkkin.0
    #[arg(long, value_name = "PATH", help_heading = "Target", num_args = 0..=1, default_missing_value = GUEST_PORT,
        conflicts_with_all = ["brokers", "record", "replay", "domain", "spool", "guests"])]
    pub(crate) port: Option<PathBuf>,
    /// On a host: send the events of its guests too; the folder has a Unix socket for each, on which QEMU
    /// listens
    #[arg(long, value_name = "FOLDER", help_heading = "Target", conflicts_with = "replay")]
    pub(crate) guests: Option<PathBuf>,
    /// Trace nothing: send the recording in this folder; after a crash, a replay continues where it
    /// stopped
    #[arg(long, value_name = "FOLDER", help_heading = "Target", requires = "brokers")]
    pub(crate) replay: Option<PathBuf>,
    /// With --replay: maximum events per second [default: as fast as the cluster accepts]
    #[arg(long, value_name = "N", help_heading = "Target", requires = "replay",
        value_parser = clap::value_parser!(u32).range(1..))]
    pub(crate) rate: Option<u32>,
    /// librdkafka property (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Target")]
    pub(crate) set: Vec<String>,
    /// Partitions of the topic, if blkkin creates it
    #[arg(long, value_name = "N", default_value_t = 12, help_heading = "Target",
        value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) partitions: u32,
    /// Machine id whose events these are joined with; a guest takes its host's [default: this
    /// machine's]
    #[arg(long, value_name = "MACHINE-ID", help_heading = "Target")]
    pub(crate) domain: Option<String>,
    /// Folder that buffers events while the cluster is unreachable, also across restarts; or off
    /// [default: `spool` in $STATE_DIRECTORY, which systemd sets; without it, off]
    #[arg(long, value_name = "FOLDER", help_heading = "While the cluster is unreachable", conflicts_with_all = ["record", "replay"])]
    pub(crate) spool: Option<SpoolChoice>,
    /// Maximum size of the spool (512M, 4G). Once it is full, the rings fill; what they drop is
    /// counted
    #[arg(
        long,
        value_name = "SIZE",
        default_value = "1G",
        help_heading = "While the cluster is unreachable"
    )]
    pub(crate) spool_max: String,
    /// Mount point of a BPF file system for counters that survive a crash, so that the next start
    /// can report the losses
    #[arg(
        long,
        value_name = "FOLDER",
        default_value = "/sys/fs/bpf",
        help_heading = "While the cluster is unreachable"
    )]
    pub(crate) bpffs: PathBuf,
    #[command(flatten)]
    pub(crate) flight: FlightArgs,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

impl AgentArgs {
    /// Returns whether settings may change while the agent runs.
    pub(crate) fn is_controlled(&self) -> bool {
        self.ctl.is_some() || self.ctl_topic.is_some()
    }
}

/// Options of the agent's flight recorder.
#[derive(Debug, Args)]
#[command(next_help_heading = "Flight recorder")]
pub(crate) struct FlightArgs {
    /// Keep the events of the last TIME (30s) in memory and send them only when something asks for a dump:
    /// `blkkin dump`, SIGUSR1, POST /dump at the metrics' address, or --dump-on
    #[arg(long, value_name = "TIME", conflicts_with = "replay")]
    pub(crate) flight_recorder: Option<String>,
    /// Most memory for these events (64M, 1G), about 40 bytes each; the oldest ones make room
    #[arg(long, value_name = "SIZE", default_value = "256M", requires = "flight_recorder")]
    pub(crate) memory: String,
    /// Dump at an operation, repeatable: `>TIME` (a storage operation that took longer), `OPERATION>TIME`
    /// (fsync>100ms), or error (a request or call that failed with an I/O error)
    #[arg(long, value_name = "TRIGGER", requires = "flight_recorder")]
    pub(crate) dump_on: Vec<String>,
    /// Least time between the begins of two dumps of triggers and signals, and of two of clients
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "flight_recorder")]
    pub(crate) dump_every: String,
}

#[derive(Debug, Args)]
#[command(after_help = after_help::REPORT)]
pub(crate) struct ReportArgs {
    /// Folder of the recording
    #[arg(value_name = "FOLDER")]
    pub(crate) recording: PathBuf,
    /// Files at or below this path, repeatable; * and ? match parts of a name, ** any folders
    #[arg(long, value_name = "PATTERN", help_heading = "What to report")]
    pub(crate) path: Vec<String>,
    /// Storage operations of tasks with this name, repeatable
    #[arg(short = 'n', long, value_name = "NAME", help_heading = "What to report")]
    pub(crate) comm: Vec<String>,
    /// Only storage operations that took longer than this: 1ms, 500us
    #[arg(long, value_name = "TIME", help_heading = "What to report")]
    pub(crate) slower_than: Option<String>,
    /// Only storage operations that failed in any layer
    #[arg(long, help_heading = "What to report")]
    pub(crate) errors_only: bool,
    #[command(flatten)]
    pub(crate) output: OutputArgs,
}

#[derive(Debug, Args)]
#[command(after_help = after_help::DUMP)]
pub(crate) struct DumpArgs {
    /// Address of the agent's metrics endpoint
    #[arg(value_name = "ADDRESS:PORT", default_value = "127.0.0.1:9899")]
    pub(crate) agent: SocketAddr,
    /// File whose first line is the endpoint's bearer token (the agent's --metrics-token)
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "blkkin ctl\n       blkkin ctl [on|off] [--sample 1/N] [--keep RULES] [--budget SHARE] [--for TIME]\n       blkkin ctl reset\n       blkkin ctl --brokers HOST:PORT [--nodes PATTERN] ..."
)]
#[command(after_help = after_help::CTL)]
pub(crate) struct CtlArgs {
    /// on or off: record, or no operation that begins from now on; reset: return to the options that the agent was
    /// started with. Without an action and a change: show what is recorded
    #[arg(value_enum, value_name = "on|off|reset", hide_possible_values = true)]
    pub(crate) action: Option<CtlAction>,
    /// Record one storage operation in N, a power of two
    #[arg(long, value_name = "1/N", help_heading = "What to change")]
    pub(crate) sample: Option<String>,
    /// Record these operations too, separated by commas: TIME, p99.9, OPERATION>TIME, OPERATION@DISK>TIME,
    /// OPERATION>p99.9, failed; or none
    #[arg(long, value_name = "RULES", value_delimiter = ',', help_heading = "What to change")]
    pub(crate) keep: Vec<String>,
    /// Share of this machine's CPUs that tracing may take (1%), of an agent that was started with --budget
    #[arg(long, value_name = "SHARE", help_heading = "What to change")]
    pub(crate) budget: Option<String>,
    /// Return to the lasting settings after this time: 10m, 90s
    #[arg(long = "for", value_name = "TIME", help_heading = "What to change")]
    pub(crate) time: Option<String>,
    /// The agent's socket (its --ctl)
    #[arg(long, value_name = "PATH", default_value = crate::ctl::protocol::SOCKET, conflicts_with = "brokers")]
    pub(crate) socket: PathBuf,
    /// Kafka brokers: change all agents that follow a topic (their --ctl-topic); without a change show its records
    #[arg(long, value_name = "HOST:PORT", help_heading = "Which fleet")]
    pub(crate) brokers: Option<String>,
    /// Host names or node ids of these agents, with `*` and `?`
    #[arg(
        long,
        value_name = "PATTERN",
        default_value = "*",
        help_heading = "Which fleet",
        requires = "brokers"
    )]
    pub(crate) nodes: String,
    /// The topic
    #[arg(long, value_name = "TOPIC", default_value = blkkin_bus::kafka::CONTROL, help_heading = "Which fleet",
        requires = "brokers")]
    pub(crate) topic: String,
    /// librdkafka property (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE", help_heading = "Which fleet", requires = "brokers")]
    pub(crate) set: Vec<String>,
    /// Print the state as JSON
    #[arg(long)]
    pub(crate) json: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum CtlAction {
    On,
    Off,
    Reset,
}

/// Port by which a guest sends its events.
const GUEST_PORT: &str = "/dev/virtio-ports/org.blkkin.0";

/// The spool of an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum SpoolChoice {
    /// In this folder.
    Folder(PathBuf),
    /// No spool.
    Off,
}

impl FromStr for SpoolChoice {
    type Err = Infallible;

    fn from_str(word: &str) -> Result<SpoolChoice, Infallible> {
        Ok(if word == "off" { SpoolChoice::Off } else { SpoolChoice::Folder(word.into()) })
    }
}

/// Options of all services.
#[derive(Debug, Args)]
#[command(next_help_heading = "Service")]
pub(crate) struct ServiceArgs {
    /// Configuration file with options as keys: brokers = "HOST:PORT". The command line overrides
    /// it; repeatable, a later file overrides an earlier one
    #[arg(short, long, value_name = "FILE")]
    pub(crate) config: Vec<PathBuf>,
    /// Address of the metrics and health endpoint, ADDRESS:PORT or off [default: 127.0.0.1 with
    /// port 9899 (agent), 9900 (aggregator) or 9901 (exporter), if it is free]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub(crate) metrics: Option<ListenAddr>,
    /// Format of log lines: text, or json (one object a line)
    #[arg(long, value_enum, default_value_t, value_name = "FORMAT", hide_possible_values = true)]
    pub(crate) log_format: LogFormat,
    /// File whose first line is the bearer token that a client of /metrics must send
    /// (`Authorization: Bearer TOKEN`); /health needs none
    #[arg(long, value_name = "FILE")]
    pub(crate) metrics_token: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    override_usage = "blkkin exporter --brokers HOST:PORT --to DEST [--to DEST]...\n       blkkin exporter replay --from TIME --brokers HOST:PORT --to DEST"
)]
#[command(after_help = after_help::EXPORTER)]
pub(crate) struct ExporterArgs {
    /// `replay`: rewind the destinations' consumer groups to --from and exit; the next exporter
    /// delivers from there
    #[arg(value_enum, value_name = "replay", hide_possible_values = true)]
    pub(crate) action: Option<ExporterAction>,
    /// Kafka brokers: HOST:PORT, several separated by commas
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: String,
    /// Destinations of spans, repeatable: zipkin=URL, zipkin=FILE.json,
    /// zipkin-kafka=HOST:PORT/TOPIC, otlp=URL; ?format=json replaces proto3 for Zipkin
    #[arg(long, value_name = "DEST", required = true)]
    pub(crate) to: Vec<String>,
    /// Prefix of the consumer groups' names; the destination follows it
    #[arg(long, value_name = "NAME", default_value = "blkkin-export")]
    pub(crate) group: String,
    /// Instance name that stays the same across restarts: the exporter's partitions wait for it
    /// while it restarts
    #[arg(long, value_name = "NAME")]
    pub(crate) instance: Option<String>,
    /// librdkafka property (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Start time of the replay: 2026-11-22T10:00:00Z, or -10m
    #[arg(long, value_name = "TIME", required_if_eq("action", "replay"), allow_hyphen_values = true)]
    pub(crate) from: Option<String>,
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum ExporterAction {
    Replay,
}

#[derive(Debug, Args)]
#[command(override_usage = "blkkin aggregator --brokers HOST:PORT [--sample 1/N]")]
#[command(after_help = after_help::AGGREGATOR)]
pub(crate) struct AggregatorArgs {
    /// Kafka brokers: HOST:PORT, several separated by commas
    #[arg(long, value_name = "HOST:PORT")]
    pub(crate) brokers: String,
    /// librdkafka property (TLS, SASL), repeatable: security.protocol=SSL
    #[arg(long, value_name = "NAME=VALUE")]
    pub(crate) set: Vec<String>,
    /// Stages to run: join (events to spans), link (requests between nodes), assemble (spans to
    /// traces), or all
    #[arg(long, value_enum, default_value_t, value_name = "STAGE", hide_possible_values = true)]
    pub(crate) stage: StageChoice,
    /// Instance name that stays the same across restarts: the aggregator's partitions wait for it
    /// while it restarts
    #[arg(long, value_name = "NAME")]
    pub(crate) instance: Option<String>,
    /// Partitions of each topic that blkkin creates
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) partitions: u32,
    /// Keep one trace in N, chosen by trace id
    #[arg(long, value_name = "1/N", help_heading = "Sampling")]
    pub(crate) sample: Option<String>,
    /// Keep traces that took longer than this too: 1ms, 500us
    #[arg(long, value_name = "TIME", help_heading = "Sampling")]
    pub(crate) slower_than: Option<String>,
    /// Keep traces with an error too
    #[arg(long, help_heading = "Sampling")]
    pub(crate) errors: bool,
    /// on: also keep traces that their application samples (OpenTelemetry's sampled flag)
    #[arg(
        long,
        value_enum,
        default_value = "on",
        value_name = "on|off",
        hide_possible_values = true,
        help_heading = "Sampling"
    )]
    pub(crate) sampled_by_program: Switch,
    /// Time without records after which a node counts as inactive
    #[arg(long, value_name = "TIME", default_value = "30s", help_heading = "State")]
    pub(crate) idle_after: String,
    /// Time for which a server's trace waits for its client's, and the reverse
    #[arg(long, alias = "await-asker", value_name = "TIME", default_value = "10s", help_heading = "State")]
    pub(crate) await_client: String,
    /// Time for which a server's trace waits while the link stage is down: as long as
    /// blkkin.links retains its records
    #[arg(long, value_name = "TIME", default_value = "168h", help_heading = "State")]
    pub(crate) await_link: String,
    /// Minimum time between two snapshots of the state
    #[arg(long, value_name = "TIME", default_value = "5s", help_heading = "State")]
    pub(crate) save_every: String,
    /// Start empty if the saved state is missing or unreadable: open traces and names are lost
    #[arg(long, help_heading = "State")]
    pub(crate) forget: bool,
    #[command(flatten)]
    pub(crate) service: ServiceArgs,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum StageChoice {
    Join,
    #[value(alias = "meet")]
    Link,
    Assemble,
    #[default]
    All,
}

/// Requests that share a row of `blkkin top`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Group {
    #[default]
    Program,
    Cgroup,
    Operation,
    /// Program, cgroup, disk and operation
    All,
}

/// An on/off option of which either value may be the default.
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
    /// Print one JSON object instead of the table
    #[arg(long)]
    pub(crate) json: bool,
    /// Colours: auto (on a terminal), always or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Color,
}

/// Filters of one kind widen (any may match); filters of different kinds narrow (all must match).
#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "WHAT: repeated filters widen, different ones narrow")]
pub(crate) struct FilterArgs {
    /// Tasks of this name (their comm, at most 15 bytes)
    #[arg(short = 'n', long, value_name = "NAME")]
    pub(crate) comm: Vec<String>,
    /// Processes with these ids
    #[arg(short, long, value_name = "PID", value_delimiter = ',')]
    pub(crate) pid: Vec<String>,
    /// Threads with these ids
    #[arg(long, value_name = "TID", value_delimiter = ',')]
    pub(crate) tid: Vec<String>,
    /// Processes with these ids and their descendants from now on
    #[arg(long, value_name = "PID", value_delimiter = ',')]
    pub(crate) tree: Vec<String>,
    /// The QEMU process of this virtual machine, by name or UUID as `blkkin doctor` lists it, also one
    /// that starts later
    #[arg(long, value_name = "VM")]
    pub(crate) vm: Vec<String>,
    /// Tasks in this cgroup: its path below /sys/fs/cgroup, or its id
    #[arg(long, value_name = "CGROUP")]
    pub(crate) cgroup: Vec<String>,
    /// Block requests to this device: sda1, /dev/sda1 or 8:1
    #[arg(short, long, value_name = "DEVICE")]
    pub(crate) device: Vec<String>,
    /// System calls with these names: pread64,fsync
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    pub(crate) syscall: Vec<String>,
    /// Files at or below this path; * and ? match parts of a name, ** any folders; without a
    /// leading / the path may begin anywhere. An agent also sends some operations on other files
    /// (docs/limits.md)
    #[arg(long, value_name = "PATTERN")]
    pub(crate) path: Vec<String>,
    /// Only storage operations that took longer than this: 1ms, 500us
    #[arg(long, value_name = "TIME")]
    pub(crate) slower_than: Option<String>,
    /// Only storage operations that failed in any layer
    #[arg(long)]
    pub(crate) errors_only: bool,
    /// on: also keep storage operations of traces that their application samples (OpenTelemetry's
    /// sampled flag), whatever --slower-than and --errors-only select
    #[arg(long, value_enum, default_value = "off", value_name = "on|off", hide_possible_values = true)]
    pub(crate) sampled_by_program: Switch,
    /// Record one storage operation in N, chosen by its trace id before it begins: a power of two
    #[arg(long, value_name = "1/N")]
    pub(crate) sample: Option<String>,
    /// With --sample or --budget: also keep operations that take this long, longer than a percentile of
    /// the last minute, or fail, decided when they end: 10ms, 'fsync>20ms', 'read@sda>2ms', 'read>p99.9', failed
    #[arg(long, value_name = "RULES", value_delimiter = ',')]
    pub(crate) keep: Vec<String>,
    /// 0: only system calls that reached the block layer; 1: every system call, with paths; 2: raw
    /// arguments too
    #[arg(long, value_name = "LEVEL", default_value = "1")]
    pub(crate) detail: String,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "How to trace")]
pub(crate) struct TracerArgs {
    /// Use this kind of probe (tp_btf, raw_tp, fentry or kprobe) instead of the best that works
    #[arg(long, value_enum, value_name = "KIND", hide_possible_values = true)]
    pub(crate) attach: Option<Attach>,
    /// Size of each CPU's ring (256K, 4M); a power of two of at least a page
    #[arg(long, value_name = "BYTES")]
    pub(crate) ring_size: Option<String>,
    /// Record where in the kernel each system call sleeps: functions, times and numbers. Costs a program at each
    /// context switch
    #[arg(long)]
    pub(crate) sleeps: bool,
    /// Accept OpenTelemetry thread contexts only from these processes, repeatable: user=NAME,
    /// cgroup=CGROUP or exe=PATH; or all, or off [default: all]
    #[arg(long, value_name = "SELECTOR")]
    pub(crate) contexts: Vec<String>,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Instrumented programs")]
pub(crate) struct LttngArgs {
    /// Receive spans of instrumented daemons (LTTng-UST) as parents of their system calls
    #[arg(long)]
    pub(crate) ust: bool,
    /// Mapping file for other instrumentation, repeatable; blkkin's own and blkin's are built in
    #[arg(long, value_name = "FILE.toml", requires = "ust")]
    pub(crate) ust_mapping: Vec<PathBuf>,
    /// Trace NBD requests that programs send over sockets of their own; with --ust the server's
    /// span becomes their child
    #[arg(long)]
    pub(crate) nbd: bool,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Instrumented programs")]
pub(crate) struct UsdtArgs {
    /// Mapping file for USDT probes of a program, or `postgresql`, which is built in; repeatable:
    /// their spans become parents of its system calls
    #[arg(long, value_name = "FILE.toml")]
    pub(crate) probes: Vec<PathBuf>,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Virtual machines")]
pub(crate) struct GuestArgs {
    /// Receive the events of guests (`blkkin agent --port`) too, and link them with QEMU's: the folder has a
    /// Unix socket for each, on which QEMU listens
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["path", "slower_than", "errors_only", "sample", "keep"])]
    pub(crate) guests: Option<PathBuf>,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Output")]
pub(crate) struct OutputArgs {
    /// Destinations of spans, repeatable: zipkin=URL, zipkin=FILE.json or otlp=URL
    #[arg(short = 'o', long, value_name = "DEST")]
    pub(crate) to: Vec<String>,
    /// Print every section of the report, not only the summary
    #[arg(long, conflicts_with = "show")]
    pub(crate) full: bool,
    /// Sections to print instead of the summary's table, separated by commas
    #[arg(long, value_name = "SECTION", value_delimiter = ',', value_parser = sections())]
    pub(crate) show: Vec<Section>,
    /// Number of slowest operations to draw, of storage and of daemons: adds these sections, which have 5 otherwise
    #[arg(long, value_name = "N")]
    pub(crate) slowest: Option<usize>,
    /// Write the report as JSON, to FILE or in place of the text
    #[arg(long, value_name = "FILE", num_args = 0..=1, require_equals = true, default_missing_value = "-")]
    pub(crate) json: Option<PathBuf>,
    /// Colours: auto (on a terminal), always or never
    #[arg(long, value_enum, default_value_t, value_name = "WHEN", hide_possible_values = true)]
    pub(crate) color: Color,
    /// Print no report as text at the end
    #[arg(long)]
    pub(crate) no_report: bool,
    #[command(flatten)]
    pub(crate) servers: ServerArgs,
}

impl OutputArgs {
    /// Returns the sections that the report prints behind its summary.
    pub(crate) fn sections(&self) -> Vec<Section> {
        if self.full {
            return Section::ALL.to_vec();
        }
        let are_drawn = self.slowest.is_some_and(|number| number > 0);
        let slowest = are_drawn.then_some([Section::Operations, Section::Slowest]);
        self.show.iter().copied().chain(slowest.into_iter().flatten()).collect()
    }

    /// Returns the number of slowest storage operations to keep.
    pub(crate) fn slowest(&self) -> usize {
        self.slowest.unwrap_or(ReportConfig::SLOWEST)
    }
}

/// Parses the name of a section.
fn sections() -> impl TypedValueParser<Value = Section> {
    let of_name = |name: String| Section::ALL.into_iter().find(|section| section.name() == name);
    PossibleValuesParser::new(Section::ALL.map(Section::name))
        .try_map(move |name| of_name(name).ok_or("no section"))
}

#[derive(Clone, Debug, Default, Args)]
#[command(next_help_heading = "Servers of --to")]
pub(crate) struct ServerArgs {
    /// PEM file of the certificate authorities to trust instead of the public ones (https, grpcs)
    #[arg(long, value_name = "FILE.pem")]
    pub(crate) tls_ca: Option<PathBuf>,
    /// PEM file of a client certificate (https, grpcs)
    #[arg(long, value_name = "FILE.pem", requires = "tls_key")]
    pub(crate) tls_certificate: Option<PathBuf>,
    /// PEM file of its key, which other users cannot read
    #[arg(long, value_name = "FILE.pem", requires = "tls_certificate")]
    pub(crate) tls_key: Option<PathBuf>,
    /// File of headers for OTLP, one `Name: value` a line, which other users cannot read
    #[arg(long, value_name = "FILE")]
    pub(crate) otlp_headers: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Attach {
    /// BTF-typed tracepoints
    #[value(name = "tp_btf")]
    TpBtf,
    /// Raw tracepoints
    #[value(name = "raw_tp")]
    RawTp,
    /// Typed function entries; tracepoints where no function is equivalent
    #[value(name = "fentry")]
    Fentry,
    /// Function entries; tracepoints where no function is equivalent
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

/// An invalid command line, or a request for help.
#[derive(Debug)]
pub(crate) enum ParseFailure {
    /// The parser's error.
    Clap(clap::Error, Status),
    /// An error of blkkin, where it helps more.
    Error(CliError),
}

impl ParseFailure {
    /// Prints the error (stderr) or the requested help (stdout).
    pub(crate) fn print(&self) -> ExitCode {
        match self {
            ParseFailure::Clap(error, status) => {
                // A closed stdout or stderr has no reader.
                let _ = error.print();
                status.code()
            }
            ParseFailure::Error(failure) => failure.print(),
        }
    }
}

/// Returns the definition of the command line.
pub(crate) fn definition() -> clap::Command {
    Cli::command()
}

/// Parses the command line. `run` exits with 125 on an error, as env(1) does: lower statuses belong
/// to CMD.
pub(crate) fn parse(args: impl Iterator<Item = OsString>) -> Result<CliCommand, ParseFailure> {
    let args = config_file::expand(args.collect(), &Cli::command()).map_err(ParseFailure::Error)?;
    let error = match Cli::try_parse_from(&args) {
        Ok(cli) => return Ok(cli.task),
        Err(error) => error,
    };
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return Err(ParseFailure::Clap(error, Status::Success));
    }
    if args.get(1).is_none_or(|word| word != "run") {
        return Err(ParseFailure::Clap(error, Status::Usage));
    }
    Err(missing_separator(&args).map_or(ParseFailure::Clap(error, Status::CannotTrace), ParseFailure::Error))
}

/// Suggests `--` for `blkkin run ls`.
fn missing_separator(args: &[OsString]) -> Option<CliError> {
    let first = args.get(2)?;
    let (has_separator, is_option) =
        (args.iter().any(|word| word == "--"), first.to_string_lossy().starts_with('-'));
    (!has_separator && !is_option).then(|| {
        let rest: Vec<_> = args[2..].iter().map(|word| word.to_string_lossy()).collect();
        let why = "the command comes after --, so that its options are not taken for blkkin's";
        CliError::cannot_trace("no command to run", why, format!("blkkin run -- {}", rest.join(" ")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_line_definition_is_valid() {
        Cli::command().debug_assert();
    }

    fn failure(line: &str) -> (Option<String>, Status) {
        match parse(line.split(' ').map(OsString::from)) {
            Err(ParseFailure::Clap(_, status)) => (None, status),
            Err(ParseFailure::Error(failure)) => (Some(failure.remedy), failure.status),
            Ok(task) => panic!("{task:?}"),
        }
    }

    #[test]
    fn command_without_dashes_gets_a_suggestion() {
        let remedy = "blkkin run -- ls -l".to_owned();
        assert_eq!(failure("blkkin run ls -l"), (Some(remedy), Status::CannotTrace));
        assert_eq!(failure("blkkin run"), (None, Status::CannotTrace));
        assert_eq!(failure("blkkin run --what -- ls"), (None, Status::CannotTrace));
        assert_eq!(failure("blkkin trace ls"), (None, Status::Usage));
        assert_eq!(failure("blkkin run --help"), (None, Status::Success));
    }

    /// Returns the stage and `--await-client` of an aggregator.
    fn aggregator(line: &str) -> (StageChoice, String) {
        match parse(line.split(' ').map(OsString::from)) {
            Ok(CliCommand::Aggregator(args)) => (args.stage, args.await_client),
            other => panic!("{line}: {other:?}"),
        }
    }

    #[test]
    fn former_names_have_the_values_of_the_new_ones() {
        let new = (StageChoice::Link, "3s".to_owned());
        let options = ["--stage link --await-client 3s", "--stage meet --await-asker 3s"];
        let lines =
            options.map(|options| aggregator(&format!("blkkin aggregator --brokers a:9092 {options}")));
        assert_eq!(lines, [new.clone(), new.clone()]);
        let keys = ["stage = 'link'\nawait-client = '3s'", "stage = 'meet'\nawait-asker = '3s'"];
        let files = keys.map(|keys| {
            let file = tempfile::NamedTempFile::new().unwrap();
            std::fs::write(&file, format!("brokers = 'a:9092'\n{keys}")).unwrap();
            aggregator(&format!("blkkin aggregator -c {}", file.path().display()))
        });
        assert_eq!(files, [new.clone(), new]);
    }
}
