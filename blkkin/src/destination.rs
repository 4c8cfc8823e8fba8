//! `--to`: where spans go, and what became of them.
//!
//! *In*: words, then traces. *Out*: spans at each destination, and a line or an error for each at the end. A
//! destination that cannot be written is refused before anything is traced; a server that is away is not, since
//! it may come back while tracing.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use blkkin_bus::kafka::Settings;
use blkkin_wire::span::Span;
use blkkin_zipkin_export::{Destination, ExportAccounts, ExportConfig, Exporter};

use crate::exporter::KafkaPost;
use crate::failure::{Failure, Status};

/// Time for a server to take what waits, after tracing ended. It takes a queue's worth in some seconds; one that
/// is away is not waited for longer than a person is willing to.
const SERVER_DEADLINE: Duration = Duration::from_secs(10);
/// Time for a disk to do so: slow ones exist, and what is lost here was traced at some cost.
const FILE_DEADLINE: Duration = Duration::from_secs(60);

/// What a server that is there needs for the rest; a person is told of a longer wait.
const PATIENCE: Duration = Duration::from_millis(500);

/// What `--to` will understand one day, so that it is not called unknown (DESIGN: the command line).
const LATER: [&str; 4] = ["perfetto", "html", "events", "kafka"];
const AVAILABLE: &str =
    "zipkin=http://HOST:9411, zipkin=FILE.json, zipkin-kafka=HOST:9092 or otlp=http://HOST:4318";

/// An open destination.
pub(crate) struct Outlet {
    /// As it was named.
    name: String,
    exporter: Arc<Exporter>,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Server,
    File,
}

/// What became of the spans for one destination.
#[derive(Clone, Debug)]
pub(crate) struct Delivery {
    /// As it was named.
    pub(crate) name: String,
    kind: Kind,
    /// The file that there is in place of the one that was named, which is not whole.
    left_at: Option<PathBuf>,
    /// The books; nothing is pending.
    pub(crate) accounts: ExportAccounts,
    /// What went wrong, if something did.
    pub(crate) trouble: Option<String>,
}

/// Opens every destination, or none.
pub(crate) fn open_all(words: &[String]) -> Result<Vec<Outlet>, Failure> {
    // All are read before one is opened: a slip in the second leaves no file of the first.
    let parsed = words.iter().map(|word| parse(word)).collect::<Result<Vec<_>, _>>()?;
    words.iter().zip(parsed).map(|(word, destination)| open(word, destination)).collect()
}

impl Outlet {
    /// Takes spans. Never waits for a server.
    pub(crate) fn offer(&self, spans: Vec<Span>) {
        self.exporter.offer(spans);
    }

    /// Its server, if it is one: not to be waited for when the person would not.
    pub(crate) fn server(&self) -> Option<Arc<Exporter>> {
        (self.kind == Kind::Server).then(|| Arc::clone(&self.exporter))
    }

    /// Sends what waits, within bounds; says so through `tell` where that takes long.
    pub(crate) fn finish(self, tell: impl FnOnce(String)) -> Delivery {
        if self.kind == Kind::Server && !self.exporter.settles_within(PATIENCE) {
            let seconds = SERVER_DEADLINE.as_secs();
            tell(format!("waiting up to {seconds} s for {}; Ctrl-C breaks that off", self.name));
        }
        let accounts = self.exporter.finish(match self.kind {
            Kind::Server => SERVER_DEADLINE,
            Kind::File => FILE_DEADLINE,
        });
        let (left_at, trouble) = (self.exporter.left_at(), self.exporter.last_error());
        Delivery { name: self.name, kind: self.kind, left_at, accounts, trouble }
    }
}

impl Delivery {
    /// An error, if not everything arrived.
    pub(crate) fn failure(&self) -> Option<Failure> {
        let (dropped, offered) = (self.accounts.dropped(), self.accounts.offered);
        if dropped == 0 && self.trouble.is_none() {
            return None;
        }
        Some(Failure {
            what: match &self.left_at {
                Some(_) if dropped == 0 => format!("{} is not whole", self.name),
                _ => format!("{dropped} of {offered} spans did not arrive at {}", self.name),
            },
            why: self.trouble.clone().unwrap_or_else(|| self.causes()),
            remedy: match self.kind {
                Kind::Server => "check that it runs, or send to a file: --to zipkin=trace.json",
                Kind::File => "a file on a disk that has room: --to zipkin=FILE.json",
            }
            .into(),
            status: Status::Failed,
        })
    }

    /// What arrived, and where: what exists is named.
    pub(crate) fn remark(&self) -> Option<String> {
        match (self.accounts.sent, &self.left_at) {
            (0, _) => None,
            (sent, None) => Some(format!("{sent} spans sent to {}", self.name)),
            (sent, Some(file)) => Some(format!("{sent} spans are in {}", file.display())),
        }
    }

    fn causes(&self) -> String {
        let accounts = &self.accounts;
        format!(
            "{} found the queue full, {} were refused, {} could not be delivered in time",
            accounts.dropped_queue_full, accounts.dropped_rejected, accounts.dropped_undeliverable
        )
    }
}

/// What a word of `--to` means.
pub(crate) fn parse(word: &str) -> Result<Destination, Failure> {
    let known = word.split_once('=').and_then(|(kind, value)| Destination::read(kind, value));
    if let Some(read) = known {
        return read.map_err(|error| Failure::usage(format!("bad destination {word}"), error, AVAILABLE));
    }
    match word.split_once('=') {
        Some((kind, _)) if LATER.contains(&kind) => {
            let why = "this version does not have it yet";
            Err(Failure::usage(format!("no destination of kind `{kind}`"), why, AVAILABLE))
        }
        Some((kind, _)) => Err(Failure::usage(
            format!("unknown kind of destination `{kind}`"),
            "there are zipkin, zipkin-kafka and otlp",
            AVAILABLE,
        )),
        None => {
            let why = "it has the form KIND=PLACE";
            Err(Failure::usage(format!("bad destination `{word}`"), why, AVAILABLE))
        }
    }
}

fn open(word: &str, destination: Destination) -> Result<Outlet, Failure> {
    let kind = match destination {
        Destination::File(_) => Kind::File,
        Destination::Http(..) | Destination::Grpc(_) | Destination::Kafka { .. } => Kind::Server,
    };
    // Shown as the exporter shows it: without a password.
    let name = destination.to_string();
    let config = ExportConfig::default();
    let exporter = match &destination {
        Destination::Kafka { brokers, topic, format } => {
            let post =
                KafkaPost::new(&Settings::new(brokers), topic).map_err(|error| cannot_open(word, &error))?;
            Exporter::over(Box::new(post), *format, config)
        }
        other => Exporter::open(Destination::clone(other), config),
    };
    let exporter = exporter.map_err(|error| cannot_open(word, &error))?;
    Ok(Outlet { name, exporter: Arc::new(exporter), kind })
}

/// A destination that is refused before anything goes there.
pub(crate) fn cannot_open(word: &str, error: &dyn std::error::Error) -> Failure {
    let error = error.to_string();
    let (why, remedy) = error.split_once("; ").unwrap_or((&error, AVAILABLE));
    Failure { status: Status::Failed, ..Failure::usage(format!("cannot open {word}"), why, remedy) }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_is_no_destination_is_told_what_there_is() {
        for word in [
            "otlp=h:4318",
            "zipkin-kafka=h",
            "perfetto=x",
            "mysql=x",
            "trace.json",
            "zipkin=",
            "zipkin=ftp://h",
        ] {
            let failure = parse(word).unwrap_err();
            assert_eq!(failure.remedy, AVAILABLE, "{word}");
        }
        assert!(parse("kafka=h").unwrap_err().why.contains("yet"));
    }

    #[test]
    fn a_folder_that_is_not_there_is_refused_at_once() {
        let failure = open_all(&["zipkin=/no/such/folder/trace.json".into()]).err().unwrap();
        assert!(failure.what.contains("/no/such/folder"), "{failure}");
    }

    #[test]
    fn what_exists_is_named_and_the_remedy_is_of_its_kind() {
        let accounts =
            ExportAccounts { offered: 50, sent: 42, dropped_undeliverable: 8, ..Default::default() };
        let (name, trouble) = ("zipkin=x.json".to_owned(), Some("No space left".to_owned()));
        let left_at = Some(PathBuf::from("x.json.partial"));
        let file = Delivery { name, kind: Kind::File, left_at, accounts, trouble };
        assert_eq!(file.remark().unwrap(), "42 spans are in x.json.partial");
        assert!(file.failure().unwrap().remedy.contains("room"));
        let server = Delivery { kind: Kind::Server, left_at: None, ..file };
        assert!(server.remark().unwrap().contains("sent to"));
        assert!(server.failure().unwrap().remedy.contains("it runs"));
    }

    #[test]
    fn nothing_is_made_when_a_later_one_is_wrong() {
        let temp = tempfile::tempdir().unwrap();
        let first = format!("zipkin={}", temp.path().join("a.json").display());
        assert!(open_all(&[first, "what".into()]).is_err());
        assert_eq!(temp.path().read_dir().unwrap().count(), 0);
    }
}
