//! Destinations of spans, such as `zipkin=http://localhost:9411` on the command line and in the
//! configuration.
//!
//! *In*: a kind and a value. *Out*: a file path, or a server and its protocol. A value that begins
//! with `http://` or `https://` is a URL, any other value is a path. Ambiguous values are errors:
//! otherwise `zipkin=localhost:9411` would create a file of that name.

use std::fmt;
use std::path::PathBuf;

use crate::destination_error::DestinationError;
use crate::url::ServerUrl;
use blkkin_span_encoding::Format;

/// Path of Zipkin's HTTP API for spans.
const ZIPKIN_PATH: &str = "/api/v2/spans";
/// Path of an OTLP receiver (opentelemetry-proto, docs/specification.md, OTLP/HTTP request).
const OTLP_PATH: &str = "/v1/traces";
/// gRPC method of an OTLP receiver (trace_service.proto).
const OTLP_METHOD: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";
/// Topic of Zipkin's collector (KAFKA_TOPIC).
const ZIPKIN_TOPIC: &str = "zipkin";

/// Destination of spans.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// File of Zipkin v2 JSON.
    File(PathBuf),
    /// Server that accepts spans by HTTP.
    Http(ServerUrl, Format),
    /// OTLP receiver, by gRPC; with TLS for the scheme `grpcs`.
    Grpc(ServerUrl),
    /// Kafka topic that Zipkin reads.
    Kafka {
        /// `HOST:PORT`, comma-separated.
        brokers: String,
        /// Topic.
        topic: String,
        /// Format of its records.
        format: Format,
    },
}

impl Destination {
    /// Parses `kind=value`; none for an unknown kind.
    pub fn read(kind: &str, value: &str) -> Option<Result<Destination, DestinationError>> {
        match kind {
            "zipkin" => Some(Destination::parse(value)),
            "zipkin-kafka" => Some(kafka(value)),
            "otlp" => Some(otlp(value)),
            _ => None,
        }
    }

    /// Parses the value of `zipkin=…`: a URL or a path.
    pub fn parse(value: &str) -> Result<Destination, DestinationError> {
        match value.split_once("://") {
            _ if value.is_empty() => Err(DestinationError::Empty),
            Some((scheme, _)) if is_http(scheme) => {
                let (url, format) = with_format(value)?;
                Ok(Destination::Http(ServerUrl::parse(&url, ZIPKIN_PATH)?, format))
            }
            Some((scheme, _)) if is_scheme(scheme) => Err(DestinationError::Scheme(scheme.to_owned())),
            _ if is_host_and_port(value) => Err(DestinationError::NoScheme(value.to_owned())),
            _ if value.ends_with('/') => Err(DestinationError::Directory(value.to_owned())),
            _ => Ok(Destination::File(PathBuf::from(value))),
        }
    }

    /// Returns whether the destination is an OTLP receiver.
    pub fn is_otlp(&self) -> bool {
        matches!(self, Destination::Http(_, Format::Otlp) | Destination::Grpc(_))
    }

    /// Returns a name for consumer groups and similar uses: letters, digits, `.`, `_` and `-`. It
    /// is stable, and differs between destinations. The format does not affect it.
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
            Destination::Http(url, _) | Destination::Grpc(url) => match url.identity_hash() {
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
        Some(("grpc" | "grpcs", _)) => Ok(Destination::Grpc(ServerUrl::parse(value, OTLP_METHOD)?)),
        _ => Err(DestinationError::Otlp(value.to_owned())),
    }
}

fn kafka(value: &str) -> Result<Destination, DestinationError> {
    let (target, format) = with_format(value)?;
    let (brokers, topic) = target.split_once('/').unwrap_or((&target, ZIPKIN_TOPIC));
    if !brokers.split(',').all(is_host_and_port) || topic.is_empty() {
        return Err(DestinationError::Brokers(value.to_owned()));
    }
    Ok(Destination::Kafka { brokers: brokers.to_owned(), topic: topic.to_owned(), format })
}

/// Removes `format=…` from the query.
fn with_format(value: &str) -> Result<(String, Format), DestinationError> {
    let Some((target, query)) = value.split_once('?') else { return Ok((value.to_owned(), Format::Proto3)) };
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
    Ok((format!("{target}{query}"), format))
}

fn is_http(scheme: &str) -> bool {
    scheme.eq_ignore_ascii_case("http") || scheme.eq_ignore_ascii_case("https")
}

fn is_scheme(scheme: &str) -> bool {
    !scheme.is_empty() && scheme.bytes().all(|b| b.is_ascii_alphanumeric() || b"+-.".contains(&b))
}

fn is_host_and_port(value: &str) -> bool {
    let host = value.split('/').next().unwrap_or_default();
    host.rsplit_once(':').is_some_and(|(name, port)| !name.is_empty() && port.parse::<u16>().is_ok())
}

#[cfg(test)]
#[path = "destination_tests.rs"]
mod tests;
