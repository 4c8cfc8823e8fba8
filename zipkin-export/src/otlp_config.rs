//! Options of OTLP requests, from OpenTelemetry's environment variables (OpenTelemetry
//! specification, "OpenTelemetry Protocol Exporter", configuration options).
//!
//! *In*: values of the variables. *Out*: [`OtlpConfig`], or an error with a remedy. *Invariant*: no
//! value of a header is in an error text, in `Debug` output or in a log line, because it can be a
//! token.
//!
//! | variable | value |
//! |---|---|
//! | `OTEL_EXPORTER_OTLP_HEADERS` | `name=value,name=value`, values percent-encoded |
//! | `OTEL_EXPORTER_OTLP_COMPRESSION` | `gzip` or `none` |
//! | `OTEL_EXPORTER_OTLP_CERTIFICATE` | PEM file of the trusted certificate authorities |
//! | `OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE` | PEM file of the client's certificate |
//! | `OTEL_EXPORTER_OTLP_CLIENT_KEY` | PEM file of its key |
//!
//! `OTEL_EXPORTER_OTLP_TRACES_…` replaces the general variable. An empty variable counts as unset.
//!
//! *Rejected*: the other variables of the specification. The destination already states endpoint
//! and protocol, and [`crate::ExportConfig`] has the timeouts.
//!
//! [`OtlpConfig::read_headers`] reads headers from a file instead, with one `Name: value` a line, as
//! `curl --header @FILE` does.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use ureq::http::{HeaderMap, HeaderName, HeaderValue};

use crate::secret_file;
use crate::tls::{self, TlsFiles};
use crate::url::ServerUrl;

/// Prefixes of the variables, in order of precedence.
const PREFIXES: [&str; 2] = ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"];
/// Headers that the transports set.
const RESERVED: [&str; 9] = [
    "connection",
    "content-encoding",
    "content-length",
    "content-type",
    "host",
    "te",
    "trailer",
    "transfer-encoding",
    "user-agent",
];
/// Prefix of gRPC's own headers (grpc/doc/PROTOCOL-HTTP2.md).
const RESERVED_PREFIX: &str = "grpc-";
/// Minimum length of a word that [`redact`] removes: a shorter one is no token, and can be part of
/// any text.
const REDACTED_BYTES_MIN: usize = 8;

/// Options of requests to OTLP receivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OtlpConfig {
    /// Headers of each request. Their values are marked as sensitive.
    pub headers: HeaderMap,
    /// Compression of requests.
    pub compression: Compression,
    /// Files of TLS connections.
    pub tls: TlsFiles,
}

/// Compression of requests. On loopback, it costs the sender more than it saves.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    /// No compression.
    #[default]
    None,
    /// gzip.
    Gzip,
}

/// Malformed value of an environment variable, or malformed file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {why}; {remedy}")]
pub struct OtlpConfigError {
    /// Name of the variable or the file.
    pub variable: String,
    /// Violated rule.
    pub why: String,
    /// Suggested remedy.
    pub remedy: &'static str,
}

impl OtlpConfig {
    /// Parses the variables; `get` returns the value of a variable.
    pub fn from_variables(get: impl Fn(&str) -> Option<OsString>) -> Result<OtlpConfig, OtlpConfigError> {
        let find = |option: &str| {
            let names = PREFIXES.iter().map(|prefix| format!("{prefix}{option}"));
            names.filter_map(|name| get(&name).filter(|value| !value.is_empty()).map(|v| (name, v))).next()
        };
        let mut config = OtlpConfig::default();
        if let Some((variable, value)) = find("HEADERS") {
            let text = text(&variable, value)?;
            config.headers =
                headers(&text).map_err(|(why, remedy)| OtlpConfigError { variable, why, remedy })?;
        }
        if let Some((variable, value)) = find("COMPRESSION") {
            config.compression = match &*text(&variable, value)? {
                "gzip" => Compression::Gzip,
                "none" => Compression::None,
                other => {
                    let why = format!("unknown compression `{other}`");
                    return Err(OtlpConfigError { variable, why, remedy: "write gzip or none" });
                }
            };
        }
        config.tls.authorities = find("CERTIFICATE").map(|(_, path)| PathBuf::from(path));
        config.tls.identity = match (find("CLIENT_CERTIFICATE"), find("CLIENT_KEY")) {
            (Some((_, certificate)), Some((_, key))) => Some((certificate.into(), key.into())),
            (None, None) => None,
            (Some((variable, _)), None) | (None, Some((variable, _))) => {
                let why = "a client certificate needs both a certificate and a key".to_owned();
                let remedy =
                    "set both OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE and OTEL_EXPORTER_OTLP_CLIENT_KEY";
                return Err(OtlpConfigError { variable, why, remedy });
            }
        };
        Ok(config)
    }

    /// Replaces the headers by those of a file.
    pub fn read_headers(&mut self, path: &Path) -> Result<(), OtlpConfigError> {
        let error = |(why, remedy)| OtlpConfigError { variable: path.display().to_string(), why, remedy };
        let bytes = secret_file::read(path).map_err(error)?;
        let text = String::from_utf8(bytes)
            .map_err(|_| error(("it is not UTF-8".to_owned(), "write `Name: value`, one a line")))?;
        self.headers = header_lines(&text).map_err(error)?;
        Ok(())
    }
}

fn text(variable: &str, value: OsString) -> Result<String, OtlpConfigError> {
    value.into_string().map_err(|_| OtlpConfigError {
        variable: variable.to_owned(),
        why: "the value is not UTF-8".to_owned(),
        remedy: "write other bytes percent-encoded",
    })
}

/// Parses a list of headers. An error is a reason and a remedy.
fn headers(list: &str) -> Result<HeaderMap, (String, &'static str)> {
    let mut headers = HeaderMap::new();
    for (index, entry) in list.split(',').enumerate().filter(|(_, entry)| !entry.trim().is_empty()) {
        // An entry without a name is identified by its position: it can be a part of a token.
        let position = index + 1;
        let form = "write name=value, separated by commas; a comma in a value is %2C";
        let Some((name, value)) = entry.split_once('=') else {
            return Err((format!("entry {position} has no `=`"), form));
        };
        let Some(key) = header_name(name) else {
            return Err((format!("entry {position} has no valid header name before its `=`"), form));
        };
        let Some(value) = percent_decode(value.trim()) else {
            let why = format!("the value of `{key}` has a `%` without two hexadecimal digits");
            return Err((why, "write %25 for a percent sign"));
        };
        insert(&mut headers, key, &value)?;
    }
    Ok(headers)
}

/// Parses the lines of a file of headers. Empty lines and those that begin with `#` are skipped.
fn header_lines(text: &str) -> Result<HeaderMap, (String, &'static str)> {
    let mut headers = HeaderMap::new();
    let lines = text.lines().enumerate().map(|(index, line)| (index + 1, line.trim()));
    for (number, line) in lines.filter(|(_, line)| !line.is_empty() && !line.starts_with('#')) {
        // A line without a name is identified by its number: it can be a part of a token.
        let parts = line.split_once(':').and_then(|(name, value)| Some((header_name(name)?, value)));
        let Some((key, value)) = parts else {
            let why = format!("line {number} has no valid header name before a colon");
            return Err((why, "write `Name: value`, one a line"));
        };
        insert(&mut headers, key, value.trim().as_bytes())?;
    }
    Ok(headers)
}

fn header_name(name: &str) -> Option<HeaderName> {
    HeaderName::from_bytes(name.trim().to_ascii_lowercase().as_bytes()).ok()
}

/// Inserts a header, with its value marked as sensitive.
fn insert(headers: &mut HeaderMap, key: HeaderName, value: &[u8]) -> Result<(), (String, &'static str)> {
    if RESERVED.contains(&key.as_str()) || key.as_str().starts_with(RESERVED_PREFIX) {
        return Err((format!("the header `{key}` is set by blkkin"), "remove it from the list"));
    }
    let text = std::str::from_utf8(value).ok();
    let Some(mut value) = text.and_then(|text| HeaderValue::from_str(text).ok()) else {
        let why = format!("the value of `{key}` has a character that is not printable ASCII");
        return Err((why, "remove line breaks and control characters from it"));
    };
    value.set_sensitive(true);
    headers.insert(key, value);
    Ok(())
}

/// Decodes percent-encoded text; none if a `%` is not followed by two hexadecimal digits.
fn percent_decode(text: &str) -> Option<Vec<u8>> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let mut digit = || char::from(bytes.next()?).to_digit(16);
        decoded.push(match byte {
            b'%' => (digit()? << 4 | digit()?) as u8,
            other => other,
        });
    }
    Some(decoded)
}

/// Replaces values of `headers` in a server's text: a server can quote the token that it rejects.
pub(crate) fn redact(text: &str, headers: &HeaderMap) -> String {
    let values = headers.values().filter_map(|value| value.to_str().ok());
    let words = values.flat_map(str::split_whitespace).filter(|word| word.len() >= REDACTED_BYTES_MIN);
    words.fold(text.to_owned(), |text, word| text.replace(word, "[redacted]"))
}

/// Returns a remedy for a failed connection to an OTLP receiver.
pub(crate) fn remedy(url: &ServerUrl, why: &str) -> &'static str {
    tls::remedy(url, why).unwrap_or("start an OTLP receiver there or correct the address")
}

#[cfg(test)]
#[path = "otlp_config_tests.rs"]
mod tests;
