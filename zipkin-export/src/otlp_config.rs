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
//!
//! `OTEL_EXPORTER_OTLP_TRACES_…` replaces the general variable. An empty variable counts as unset.
//!
//! *Rejected*: the other variables of the specification. The destination already states endpoint
//! and protocol, and [`crate::ExportConfig`] has the timeouts.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use ureq::http::{HeaderMap, HeaderName, HeaderValue};
use ureq::tls::{PemItem, parse_pem};

use crate::open_error::OpenError;

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
    /// PEM file of the trusted certificate authorities. None means the public ones (webpki-roots).
    pub certificate: Option<PathBuf>,
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

/// Malformed value of an environment variable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable}: {why}; {remedy}")]
pub struct OtlpConfigError {
    /// Name of the variable.
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
        config.certificate = find("CERTIFICATE").map(|(_, path)| PathBuf::from(path));
        Ok(config)
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
        let name = name.trim().to_ascii_lowercase();
        let Ok(key) = HeaderName::from_bytes(name.as_bytes()) else {
            return Err((format!("entry {position} has no valid header name before its `=`"), form));
        };
        if RESERVED.contains(&key.as_str()) || key.as_str().starts_with(RESERVED_PREFIX) {
            return Err((format!("the header `{name}` is set by blkkin"), "remove it from the list"));
        }
        let Some(value) = percent_decode(value.trim()) else {
            let why = format!("the value of `{name}` has a `%` without two hexadecimal digits");
            return Err((why, "write %25 for a percent sign"));
        };
        let Some(mut value) = String::from_utf8(value).ok().and_then(|v| HeaderValue::from_str(&v).ok())
        else {
            let why = format!("the value of `{name}` has a character that is not printable ASCII");
            return Err((why, "remove line breaks and control characters from it"));
        };
        value.set_sensitive(true);
        headers.insert(key, value);
    }
    Ok(headers)
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
pub(crate) fn remedy(why: &str) -> &'static str {
    // Text of rustls' InvalidCertificate.
    match why.contains("invalid peer certificate") {
        true => "set OTEL_EXPORTER_OTLP_CERTIFICATE to the PEM file of its certificate authority",
        false => "start an OTLP receiver there or correct the address",
    }
}

/// Reads a PEM file that has at least one certificate.
pub(crate) fn read_certificates(path: &Path) -> Result<Vec<u8>, OpenError> {
    let error = |why: String| OpenError::Certificate { path: path.to_owned(), why };
    let pem = fs::read(path).map_err(|e| error(e.to_string()))?;
    let mut certificates = 0;
    for item in parse_pem(&pem) {
        let item = item.map_err(|e| error(e.to_string()))?;
        certificates += usize::from(matches!(item, PemItem::Certificate(_)));
    }
    if certificates == 0 {
        return Err(error("it has no certificate".to_owned()));
    }
    Ok(pem)
}

#[cfg(test)]
#[path = "otlp_config_tests.rs"]
mod tests;
