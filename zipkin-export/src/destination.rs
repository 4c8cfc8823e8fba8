//! Where spans go: words as `zipkin=http://localhost:9411` on the command line and in a configuration.
//!
//! *In*: a kind and a value. *Out*: a file's path, or a server and what it is spoken to in. What begins with `http://` or
//! `https://` is a URL, everything else is a path. What looks like a mistake between the two is an error: a
//! user who writes `zipkin=localhost:9411` would otherwise find a file of that name instead of spans.

use std::fmt;
use std::path::PathBuf;

use crate::format::Format;
use crate::url::ServerUrl;

/// Where Zipkin's HTTP API takes spans.
const ZIPKIN_PATH: &str = "/api/v2/spans";
/// Where an OTLP receiver does (opentelemetry-proto, docs/specification.md, OTLP/HTTP request).
const OTLP_PATH: &str = "/v1/traces";
/// Where it does by gRPC: the method of the service (trace_service.proto).
const OTLP_METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// The topic that Zipkin's collector reads (KAFKA_TOPIC).
const ZIPKIN_TOPIC: &str = "zipkin";

/// Where spans go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A file of Zipkin v2 JSON.
    File(PathBuf),
    /// A server that takes spans by HTTP.
    Http(ServerUrl, Format),
    /// An OTLP receiver, by gRPC.
    Grpc(ServerUrl),
    /// A topic that Zipkin reads.
    Kafka {
        /// `HOST:PORT`, several with commas between.
        brokers: String,
        /// The topic.
        topic: String,
        /// What its records hold.
        format: Format,
    },
}

impl Destination {
    /// Reads `kind=value`; none if there is no such kind.
    pub fn read(kind: &str, value: &str) -> Option<Result<Destination, DestinationError>> {
        match kind {
            "zipkin" => Some(Destination::parse(value)),
            "zipkin-kafka" => Some(kafka(value)),
            "otlp" => Some(otlp(value)),
            _ => None,
        }
    }

    /// Reads the value of `zipkin=…`: a URL or a path.
    pub fn parse(value: &str) -> Result<Destination, DestinationError> {
        match value.split_once("://") {
            _ if value.is_empty() => Err(DestinationError::Empty),
            Some((scheme, _)) if is_http(scheme) => {
                let (url, format) = with_format(value)?;
                Ok(Destination::Http(ServerUrl::parse(&url, ZIPKIN_PATH)?, format))
            }
            Some((scheme, _)) if is_word(scheme) => Err(DestinationError::Scheme(scheme.to_owned())),
            _ if is_host_and_port(value) => Err(DestinationError::NoScheme(value.to_owned())),
            _ if value.ends_with('/') => Err(DestinationError::Directory(value.to_owned())),
            _ => Ok(Destination::File(PathBuf::from(value))),
        }
    }

    /// A name for groups of consumers and the like: letters, digits, `.`, `_` and `-`; the same for ever, and another for
    /// each place. The format does not matter to it.
    pub fn name(&self) -> String {
        let mut name = String::new();
        for c in self.to_string().chars().map(|c| c.to_ascii_lowercase()) {
            let plain = c.is_ascii_alphanumeric() || c == '.' || c == '_';
            match plain {
                true => name.push(c),
                false if !name.ends_with('-') => name.push('-'),
                false => {}
            }
        }
        match self {
            Destination::Http(url, _) | Destination::Grpc(url) => match url.hidden() {
                Some(hidden) => format!("{name}-{hidden:016x}"),
                None => name,
            },
            Destination::File(_) | Destination::Kafka { .. } => name,
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::File(path) => write!(f, "zipkin={}", path.display()),
            Destination::Http(url, Format::Otlp) => write!(f, "otlp={url}"),
            Destination::Http(url, _) => write!(f, "zipkin={url}"),
            Destination::Grpc(url) => write!(f, "otlp={}", url.to_string().trim_end_matches(OTLP_METHOD)),
            Destination::Kafka { brokers, topic, .. } => write!(f, "zipkin-kafka={brokers}/{topic}"),
        }
    }
}

fn otlp(value: &str) -> Result<Destination, DestinationError> {
    match value.split_once("://") {
        Some((scheme, _)) if is_http(scheme) => {
            Ok(Destination::Http(ServerUrl::parse(value, OTLP_PATH)?, Format::Otlp))
        }
        Some(("grpc", _)) => Ok(Destination::Grpc(ServerUrl::parse(value, OTLP_METHOD)?)),
        _ => Err(DestinationError::Otlp(value.to_owned())),
    }
}

fn kafka(value: &str) -> Result<Destination, DestinationError> {
    let (place, format) = with_format(value)?;
    let (brokers, topic) = place.split_once('/').unwrap_or((&place, ZIPKIN_TOPIC));
    if !brokers.split(',').all(is_host_and_port) || topic.is_empty() {
        return Err(DestinationError::Brokers(value.to_owned()));
    }
    Ok(Destination::Kafka { brokers: brokers.to_owned(), topic: topic.to_owned(), format })
}

/// Takes `format=…` out of a query.
fn with_format(value: &str) -> Result<(String, Format), DestinationError> {
    let Some((place, query)) = value.split_once('?') else { return Ok((value.to_owned(), Format::Proto3)) };
    let (mut format, mut rest) = (Format::Proto3, Vec::new());
    for part in query.split('&') {
        match part.split_once('=') {
            Some(("format", "json")) => format = Format::Json,
            Some(("format", "proto3")) => format = Format::Proto3,
            Some(("format", other)) => return Err(DestinationError::Format(other.to_owned())),
            _ => rest.push(part),
        }
    }
    let query = if rest.is_empty() { String::new() } else { format!("?{}", rest.join("&")) };
    Ok((format!("{place}{query}"), format))
}

/// Why a word is no destination. Each says what to write instead.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum DestinationError {
    /// Nothing.
    #[error("zipkin= needs a URL or a file: zipkin=http://localhost:9411 or zipkin=trace.json")]
    Empty,
    /// Another protocol.
    #[error("zipkin= does not speak {0}: write http://, https:// or a file's path")]
    Scheme(String),
    /// A host and a port without a protocol.
    #[error("zipkin={0} is neither a URL nor clearly a file: write http://{0} or ./{0}")]
    NoScheme(String),
    /// A directory.
    #[error("zipkin={0} is a directory: name a file in it, such as {0}trace.json")]
    Directory(String),
    /// No place for OpenTelemetry's protocol.
    #[error("otlp={0} is no URL: write otlp=http://HOST:4318, https:// or otlp=grpc://HOST:4317")]
    Otlp(String),
    /// No brokers.
    #[error(
        "zipkin-kafka={0} names no brokers: write zipkin-kafka=HOST:9092, several with commas between, and /TOPIC if it is not zipkin"
    )]
    Brokers(String),
    /// No format of Zipkin's.
    #[error("there is no format {0}: write format=proto3 or format=json")]
    Format(String),
    /// Not a URL.
    #[error("{url} is not a URL: {why}")]
    Url {
        /// What was given.
        url: String,
        /// What is wrong with it.
        why: String,
    },
}

fn is_http(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

fn is_word(scheme: &str) -> bool {
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

fn is_host_and_port(value: &str) -> bool {
    let host = value.split('/').next().unwrap_or_default();
    host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
#[path = "destination_tests.rs"]
mod tests;
