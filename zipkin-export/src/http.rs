//! Spans to a server that takes them by HTTP: Zipkin's API, or OpenTelemetry's.
//!
//! *In*: requests. *Out*: posts, and what the answer means. *Invariant*: no answer is taken for a yes that is not
//! one. Redirects are not followed: a POST that is redirected becomes a GET, which a Zipkin answers with 200 and
//! its start page.
//!
//! | answer | meaning |
//! |---|---|
//! | 2xx | accepted (Zipkin says 202); from OpenTelemetry perhaps all but some |
//! | 413 | it is too long: halved |
//! | 400, 422 | something in the list is wrong: halved |
//! | 408, 429, 502, 503, 504, no connection, no answer | nobody looked at the list: repeated |
//! | other 5xx | it failed over the list: repeated, then halved where it accepts others |
//! | other 4xx, 3xx | not a place for spans |
//!
//! Bodies are not compressed: on loopback that costs the sender more than it saves.

use std::time::Duration;

use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, Error, Proxy};

use crate::config::ExportConfig;
use crate::delivery::{Away, Post, Reason, Reply};
use crate::format::Format;
use crate::otlp;
use crate::url::ServerUrl;

/// Bytes of an answer that are read: a server says in one sentence what is wrong.
const ANSWER_BYTES_MAX: u64 = 4096;
/// Characters of it that are shown.
const ANSWER_CHARS_MAX: usize = 200;

/// Posts requests of one format to a URL.
pub struct HttpPost {
    agent: Agent,
    url: ServerUrl,
    format: Format,
}

impl HttpPost {
    /// Nothing is connected yet.
    pub fn new(url: ServerUrl, format: Format, config: &ExportConfig) -> HttpPost {
        let proxy = if url.is_loopback() { None } else { Proxy::try_from_env() };
        let agent = Agent::config_builder()
            .http_status_as_error(false)
            .max_redirects(0)
            .proxy(proxy)
            .timeout_connect(Some(config.connect_timeout))
            .timeout_global(Some(config.post_timeout))
            // A server closes idle connections without a word; a post on one of those would be a retry.
            .max_idle_age(Duration::from_secs(5))
            .user_agent(concat!("blkkin/", env!("CARGO_PKG_VERSION")))
            .build();
        HttpPost { agent: agent.into(), url, format }
    }

    /// What is expected there.
    fn server(&self) -> &'static str {
        match self.format {
            Format::Json | Format::Proto3 => "Zipkin",
            Format::Otlp => "an OTLP receiver",
        }
    }

    fn judge(&self, mut response: Response<Body>) -> Result<Reply, Away> {
        let status = response.status();
        // Read to its end, so that the connection can be used again.
        let answer = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let answer = answer.unwrap_or_default();
        let words: String = String::from_utf8_lossy(&answer).trim().chars().take(ANSWER_CHARS_MAX).collect();
        let said = format!("{} answered {status}: {words}", self.url);
        match status {
            _ if status.is_success() => {
                let refused = if self.format == Format::Otlp { otlp::refused(&answer) } else { None };
                Ok(refused.map_or(Reply::Accepted, |(spans, why)| Reply::AcceptedBut(spans, why)))
            }
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => {
                Err(Away { reason: Reason::Busy, why: said })
            }
            // Of a gateway before it, or of itself while it is no server yet or any more.
            StatusCode::BAD_GATEWAY | StatusCode::GATEWAY_TIMEOUT => {
                Err(Away { reason: Reason::Failed, why: said })
            }
            _ if status.is_server_error() => Ok(Reply::Failed(said)),
            StatusCode::PAYLOAD_TOO_LARGE => Ok(Reply::TooLong(said)),
            StatusCode::BAD_REQUEST | StatusCode::UNPROCESSABLE_ENTITY => Ok(Reply::Refused(said)),
            _ => Ok(Reply::Denied(format!("{said} (is this the address of {}?)", self.server()))),
        }
    }
}

impl Post for HttpPost {
    fn post(&mut self, request: &[u8]) -> Result<Reply, Away> {
        let post = self.agent.post(self.url.uri()).content_type(self.format.content_type());
        match post.send(request) {
            Ok(response) => self.judge(response),
            Err(error) => {
                let late = matches!(error, Error::Timeout(_));
                let why = format!(
                    "cannot reach {}: {error}; start {} there or correct the address",
                    self.url,
                    self.server()
                );
                Err(Away { reason: if late { Reason::NoAnswer } else { Reason::NotReached }, why })
            }
        }
    }
}
