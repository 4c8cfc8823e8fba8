//! `--to`: the destinations of spans, and the result of each delivery.
//!
//! *In*: destination arguments, then spans. *Out*: spans at each destination, and a summary line or
//! an error for each at the end. blkkin refuses a destination that cannot be written before it
//! traces anything. An unreachable server is accepted, because it may come back while tracing runs.
//!
//! OpenTelemetry's environment variables apply to OTLP receivers. blkkin reads them only if there
//! is such a destination.

mod kafka;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blkkin_bus::kafka::Settings;
use blkkin_wire::span::Span;
use blkkin_zipkin_export::{Destination, ExportConfig, ExportStats, Exporter, OtlpConfig, TlsFiles};

use crate::cli::ServerArgs;
pub(crate) use crate::destination::kafka::KafkaTransport;
use crate::error::{CliError, Status};
use crate::privileges;

/// Time for a server to accept the queued spans after tracing ended. It accepts a full queue in
/// seconds; an unreachable one must not delay the user for longer.
const SERVER_DEADLINE: Duration = Duration::from_secs(10);
/// Time for a disk to do so. Some disks are slow, and tracing the spans again is expensive.
const FILE_DEADLINE: Duration = Duration::from_secs(60);

/// Time that a reachable server needs for the rest; a longer wait is reported.
const DRAIN_TIME_EXPECTED: Duration = Duration::from_millis(500);

/// Destination kinds of a later version. Their error is "not supported yet" instead of "unknown".
const LATER: [&str; 4] = ["perfetto", "html", "events", "kafka"];
const AVAILABLE: &str =
    "zipkin=http://HOST:9411, zipkin=FILE.json, zipkin-kafka=HOST:9092 or otlp=http://HOST:4318";

/// An open destination.
pub(crate) struct SpanSink {
    /// The argument of `--to`, without a password.
    name: String,
    exporter: Arc<Exporter>,
    kind: SinkKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SinkKind {
    Server,
    File,
}

/// The result of a delivery to one destination.
#[derive(Clone, Debug)]
pub(crate) struct DeliveryReport {
    /// The argument of `--to`, without a password.
    pub(crate) name: String,
    kind: SinkKind,
    /// The incomplete file that exists in place of the named one.
    partial_path: Option<PathBuf>,
    /// The exporter's counters; nothing is pending.
    pub(crate) stats: ExportStats,
    /// The last error, if there was one.
    pub(crate) last_error: Option<String>,
}

/// Opens all destinations, or none.
pub(crate) fn open_all(arguments: &[String], servers: &ServerArgs) -> Result<Vec<SpanSink>, CliError> {
    // All arguments are parsed before one is opened: an error in the second leaves no file of the
    // first.
    let parsed = arguments.iter().map(|argument| parse(argument)).collect::<Result<Vec<_>, _>>()?;
    let config = export_config(&parsed, servers)?;
    let open = |(argument, destination): (&String, _)| open(argument, destination, config.clone());
    // Their threads write files and connect.
    privileges::with_only(privileges::FILES, || arguments.iter().zip(parsed).map(open).collect())
}

/// Builds the configuration of servers from options and, if one of the destinations is an OTLP
/// receiver, from OpenTelemetry's environment variables. An option replaces its variable.
pub(crate) fn export_config<'a>(
    destinations: impl IntoIterator<Item = &'a Destination>,
    servers: &ServerArgs,
) -> Result<ExportConfig, CliError> {
    let identity = servers.tls_certificate.clone().zip(servers.tls_key.clone());
    let tls = TlsFiles { authorities: servers.tls_ca.clone(), identity };
    let config = ExportConfig { tls, ..ExportConfig::default() };
    if !destinations.into_iter().any(Destination::is_otlp) {
        return Ok(config);
    }
    let mut otlp = OtlpConfig::from_variables(|name| std::env::var_os(name)).map_err(|error| {
        CliError::usage(format!("bad value of {}", error.variable), error.why, error.remedy)
    })?;
    if let Some(file) = &servers.otlp_headers {
        otlp.read_headers(file).map_err(|error| {
            CliError::usage(format!("cannot use the headers in {}", error.variable), error.why, error.remedy)
        })?;
    }
    Ok(ExportConfig { otlp, ..config })
}

impl SpanSink {
    /// Queues spans, without blocking.
    pub(crate) fn offer(&self, spans: Vec<Span>) {
        self.exporter.offer(spans);
    }

    /// Returns the exporter of a server destination, so that the user can abort the wait for it.
    pub(crate) fn server(&self) -> Option<Arc<Exporter>> {
        (self.kind == SinkKind::Server).then(|| Arc::clone(&self.exporter))
    }

    /// Delivers the queued spans within the deadline; reports a long wait through `notify`.
    pub(crate) fn finish(self, notify: impl FnOnce(String)) -> DeliveryReport {
        if self.kind == SinkKind::Server && !self.exporter.drains_within(DRAIN_TIME_EXPECTED) {
            let seconds = SERVER_DEADLINE.as_secs();
            notify(format!("waiting up to {seconds} s for {}; Ctrl-C aborts the wait", self.name));
        }
        let stats = self.exporter.finish(match self.kind {
            SinkKind::Server => SERVER_DEADLINE,
            SinkKind::File => FILE_DEADLINE,
        });
        let (partial_path, last_error) = (self.exporter.partial_path(), self.exporter.last_error());
        DeliveryReport { name: self.name, kind: self.kind, partial_path, stats, last_error }
    }
}

impl DeliveryReport {
    /// Returns an error if spans were lost.
    pub(crate) fn error(&self) -> Option<CliError> {
        let (dropped, offered) = (self.stats.dropped(), self.stats.offered);
        if dropped == 0 && self.last_error.is_none() {
            return None;
        }
        Some(CliError {
            what: match &self.partial_path {
                Some(_) if dropped == 0 => format!("{} is incomplete", self.name),
                _ => format!("{dropped} of {offered} spans were not delivered to {}", self.name),
            },
            why: self.last_error.clone().unwrap_or_else(|| self.causes()),
            remedy: match self.kind {
                SinkKind::Server => "check that it runs, or send to a file: --to zipkin=trace.json",
                SinkKind::File => "a file on a disk that has room: --to zipkin=FILE.json",
            }
            .into(),
            status: Status::Failed,
        })
    }

    /// Returns a note on the delivered spans and the file that holds them.
    pub(crate) fn note(&self) -> Option<String> {
        match (self.stats.sent, &self.partial_path) {
            (0, _) => None,
            (sent, None) => Some(format!("{sent} spans sent to {}", self.name)),
            (sent, Some(file)) => Some(format!("{sent} spans are in {}", file.display())),
        }
    }

    fn causes(&self) -> String {
        let stats = &self.stats;
        format!(
            "{} found the queue full, {} were refused, {} could not be delivered in time",
            stats.dropped_queue_full, stats.dropped_rejected, stats.dropped_undeliverable
        )
    }
}

/// Parses an argument of `--to`.
pub(crate) fn parse(argument: &str) -> Result<Destination, CliError> {
    let known = argument.split_once('=').and_then(|(kind, value)| Destination::read(kind, value));
    if let Some(read) = known {
        return read
            .map_err(|error| CliError::usage(format!("bad destination {argument}"), error, AVAILABLE));
    }
    match argument.split_once('=') {
        Some((kind, _)) if LATER.contains(&kind) => {
            let why = "this version does not support it yet";
            Err(CliError::usage(format!("no destination of kind `{kind}`"), why, AVAILABLE))
        }
        Some((kind, _)) => Err(CliError::usage(
            format!("unknown kind of destination `{kind}`"),
            "there are zipkin, zipkin-kafka and otlp",
            AVAILABLE,
        )),
        None => {
            let why = "the form is KIND=ADDRESS";
            Err(CliError::usage(format!("bad destination `{argument}`"), why, AVAILABLE))
        }
    }
}

fn open(argument: &str, destination: Destination, config: ExportConfig) -> Result<SpanSink, CliError> {
    let kind = match destination {
        Destination::File(_) => SinkKind::File,
        Destination::Http(..) | Destination::Grpc(_) | Destination::Kafka { .. } => SinkKind::Server,
    };
    // The exporter's display form, without a password.
    let name = destination.to_string();
    let exporter = match &destination {
        Destination::Kafka { brokers, topic, format } => {
            let post = KafkaTransport::new(&Settings::new(brokers), topic)
                .map_err(|error| cannot_open(argument, &error))?;
            Exporter::with_transport(Box::new(post), *format, config)
        }
        other => Exporter::open(Destination::clone(other), config),
    };
    let exporter = exporter.map_err(|error| cannot_open(argument, &error))?;
    Ok(SpanSink { name, exporter: Arc::new(exporter), kind })
}

/// Converts the error of a destination that cannot be opened.
pub(crate) fn cannot_open(argument: &str, error: &dyn std::error::Error) -> CliError {
    let error = error.to_string();
    let (why, remedy) = error.split_once("; ").unwrap_or((&error, AVAILABLE));
    CliError { status: Status::Failed, ..CliError::usage(format!("cannot open {argument}"), why, remedy) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn unknown_destination_is_refused_with_a_list() {
        for argument in [
            "otlp=h:4318",
            "zipkin-kafka=h",
            "perfetto=x",
            "mysql=x",
            "trace.json",
            "zipkin=",
            "zipkin=ftp://h",
        ] {
            let error = parse(argument).unwrap_err();
            assert_eq!(error.remedy, AVAILABLE, "{argument}");
        }
        assert!(parse("kafka=h").unwrap_err().why.contains("yet"));
    }

    #[test]
    fn missing_folder_is_refused_at_once() {
        let error =
            open_all(&["zipkin=/no/such/folder/trace.json".into()], &ServerArgs::default()).err().unwrap();
        assert!(error.what.contains("/no/such/folder"), "{error}");
    }

    #[test]
    fn report_names_the_file_and_a_remedy_by_kind() {
        let stats = ExportStats { offered: 50, sent: 42, dropped_undeliverable: 8, ..Default::default() };
        let (name, last_error) = ("zipkin=x.json".to_owned(), Some("No space left".to_owned()));
        let partial_path = Some(PathBuf::from("x.json.partial"));
        let file = DeliveryReport { name, kind: SinkKind::File, partial_path, stats, last_error };
        assert_eq!(file.note().unwrap(), "42 spans are in x.json.partial");
        assert!(file.error().unwrap().remedy.contains("room"));
        let server = DeliveryReport { kind: SinkKind::Server, partial_path: None, ..file };
        assert!(server.note().unwrap().contains("sent to"));
        assert!(server.error().unwrap().remedy.contains("it runs"));
    }

    #[test]
    fn invalid_second_destination_leaves_no_file_of_the_first() {
        let temp = tempfile::tempdir().unwrap();
        let first = format!("zipkin={}", temp.path().join("a.json").display());
        assert!(open_all(&[first, "what".into()], &ServerArgs::default()).is_err());
        assert_eq!(temp.path().read_dir().unwrap().count(), 0);
    }
}
