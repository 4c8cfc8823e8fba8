//! Transport to a server by HTTP: Zipkin's API, or OpenTelemetry's.
//!
//! *In*: requests. *Out*: posts, and the meaning of their responses. *Invariant*: only a response
//! of the API counts as success. Redirects are not followed: a redirected POST becomes a GET, and
//! Zipkin responds to it with 200 and its start page.
//!
//! | response | meaning |
//! |---|---|
//! | 2xx | accepted (Zipkin responds 202); from OpenTelemetry possibly in part |
//! | 413 | too large: halved |
//! | 400, 422 | invalid content: halved |
//! | 408, 429, 502, 503, 504, no connection, no response | not processed: retried |
//! | other 5xx | failed on the list: retried, then halved if it accepts others |
//! | other 4xx, 3xx | not an endpoint for spans |
//!
//! Requests to OTLP receivers have the headers and the compression of [`OtlpConfig`]. Requests to
//! Zipkin have neither: the variables behind them are OpenTelemetry's. TLS files of
//! [`ExportConfig`] apply to both.

use std::io::{self, Write};
use std::time::Duration;

use flate2::write::GzEncoder;
use ureq::http::{Response, StatusCode};
use ureq::tls::TlsConfig;
use ureq::{Agent, Body, Error, Proxy};

use crate::config::ExportConfig;
use crate::delivery::{FailureReason, ServerReply, Transport, Unreachable};
use crate::open_error::OpenError;
use crate::otlp_config::{Compression, OtlpConfig, redact, remedy};
use crate::tls::{self, TlsMaterial};
use crate::url::ServerUrl;
use blkkin_span_encoding::Format;
use blkkin_span_encoding::otlp;

/// Maximum bytes of a response that are read: a server describes an error in one sentence.
const RESPONSE_BYTES_MAX: u64 = 4096;
/// Maximum characters of a response in error texts.
const RESPONSE_CHARS_MAX: usize = 200;

/// HTTP client that posts requests of one format to a URL.
pub struct HttpTransport {
    agent: Agent,
    url: ServerUrl,
    format: Format,
    /// Options of an OTLP receiver; the defaults for Zipkin.
    options: OtlpConfig,
}

impl HttpTransport {
    /// Creates a transport without connecting.
    pub fn new(url: ServerUrl, format: Format, config: &ExportConfig) -> Result<HttpTransport, OpenError> {
        let options = if format == Format::Otlp { config.otlp.clone() } else { OtlpConfig::default() };
        // Unused files are not read: they may belong to another destination.
        let material =
            if url.is_tls() { config.tls.or(&options.tls).read()? } else { TlsMaterial::default() };
        let tls = TlsConfig::builder()
            .root_certs(material.root_certs())
            .client_cert(material.client_cert())
            .build();
        let proxy = if url.is_loopback() { None } else { Proxy::try_from_env() };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .tls_config(tls)
            .proxy(proxy)
            .timeout_connect(Some(config.connect_timeout))
            .timeout_global(Some(config.post_timeout))
            // A server closes idle connections silently; a post on such a connection would be a
            // retry.
            .max_idle_age(Duration::from_secs(5))
            .user_agent(concat!("blkkin/", env!("CARGO_PKG_VERSION")))
            .build();
        Ok(HttpTransport { agent: agent.into(), url, format, options })
    }

    /// Returns the kind of server expected at the URL.
    fn server_kind(&self) -> &'static str {
        match self.format {
            Format::Json | Format::Proto3 => "Zipkin",
            Format::Otlp => "an OTLP receiver",
        }
    }

    fn classify(&self, mut response: Response<Body>) -> Result<ServerReply, Unreachable> {
        let status = response.status();
        // Read to the end, so that the connection can be reused.
        let body = response.body_mut().with_config().limit(RESPONSE_BYTES_MAX).read_to_vec();
        let body = body.unwrap_or_default();
        let excerpt = redact(String::from_utf8_lossy(&body).trim(), &self.options.headers);
        let excerpt: String = excerpt.chars().take(RESPONSE_CHARS_MAX).collect();
        let text = format!("{} responded {status}: {excerpt}", self.url);
        match status {
            _ if status.is_success() => {
                let refused = if self.format == Format::Otlp { otlp::rejected_spans(&body) } else { None };
                Ok(refused.map_or(ServerReply::Accepted, |(spans, why)| {
                    ServerReply::PartlyAccepted(spans, redact(&why, &self.options.headers))
                }))
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(Unreachable { reason: FailureReason::Busy, why: text })
            }
            // From a gateway, or from the server itself during start or shutdown.
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
                Err(Unreachable { reason: FailureReason::ServerError, why: text })
            }
            _ if status.is_server_error() => Ok(ServerReply::ServerError(text)),
            StatusCode::PAYLOAD_TOO_LARGE => Ok(ServerReply::TooLarge(text)),
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Ok(ServerReply::Refused(text)),
            _ => Ok(ServerReply::Denied(format!("{text} (is this the address of {}?)", self.server_kind()))),
        }
    }
}

impl Transport for HttpTransport {
    fn post(&mut self, request: &[u8]) -> Result<ServerReply, Unreachable> {
        let mut post = self.agent.post(self.url.uri()).content_type(self.format.content_type());
        for (name, value) in &self.options.headers {
            post = post.header(name, value);
        }
        let sent = match self.options.compression {
            Compression::None => post.send(request),
            Compression::Gzip => gzip(request)
                .map_err(Error::Io)
                .and_then(|compressed| post.header("content-encoding", "gzip").send(&compressed)),
        };
        match sent {
            Ok(response) => self.classify(response),
            Err(error) => {
                let timed_out = matches!(error, Error::Timeout(_));
                let error = error.to_string();
                let remedy = match self.format {
                    Format::Json | Format::Proto3 => {
                        tls::remedy(&self.url, &error).unwrap_or("start Zipkin there or correct the address")
                    }
                    Format::Otlp => remedy(&self.url, &error),
                };
                let why = format!("cannot reach {}: {error}; {remedy}", self.url);
                Err(Unreachable {
                    reason: if timed_out { FailureReason::Timeout } else { FailureReason::ConnectFailed },
                    why,
                })
            }
        }
    }
}

fn gzip(request: &[u8]) -> io::Result<Vec<u8>> {
    let mut encoder = GzEncoder::new(Vec::new(), flate2::Compression::default());
    encoder.write_all(request)?;
    encoder.finish()
}
