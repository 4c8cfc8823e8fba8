//! Spans to a server that speaks Zipkin's HTTP API: lists of JSON by POST.
//!
//! *In*: spans. *Out*: posts, and a verdict on each span. *Invariant*: no answer is taken for a yes that is not
//! one. Redirects are not followed: a POST that is redirected becomes a GET, which a Zipkin answers with 200 and
//! its start page.
//!
//! | answer | meaning |
//! |---|---|
//! | 2xx | accepted (Zipkin says 202) |
//! | 400, 413, 422 | something in the list is wrong, or it is too long: halved |
//! | 408, 429, 5xx, no connection, no answer | nobody looked at the list: repeated |
//! | other 4xx, 3xx | not a place for spans: not repeated |
//!
//! Bodies are not compressed: on loopback that costs the sender more than it saves.

use std::time::Duration;

use blkkin_wire::span::Span;
use ureq::http::{Response, StatusCode};
use ureq::{Agent, Body, Proxy};

use crate::batch::Batch;
use crate::config::ExportConfig;
use crate::delivery::{Away, Delivery, Post, Reply};
use crate::destination::ZipkinUrl;
use crate::json;
use crate::queue::{Queue, Verdict};

/// Bytes of an answer that are read: Zipkin says in one sentence what is wrong.
const ANSWER_BYTES_MAX: u64 = 4096;
/// Characters of it that are shown.
const ANSWER_CHARS_MAX: usize = 200;

pub(crate) struct HttpSink {
    delivery: Delivery<Poster>,
    batch: Batch,
    one: Vec<u8>,
    batch_bytes_max: usize,
}

impl HttpSink {
    pub(crate) fn new(url: ZipkinUrl, config: &ExportConfig) -> HttpSink {
        HttpSink {
            delivery: Delivery::new(Poster::new(url, config), config.backoff),
            batch: Batch::default(),
            one: Vec::new(),
            batch_bytes_max: config.batch_bytes_max,
        }
    }

    pub(crate) fn probe(&mut self, queue: &Queue) {
        self.delivery.probe(queue);
    }

    /// Sends `spans` in lists that keep the bound on bytes.
    pub(crate) fn send(&mut self, spans: &[Span], queue: &Queue) {
        for span in spans {
            self.one.clear();
            json::encode(span, &mut self.one);
            if !self.batch.is_empty() && self.batch.bytes_with(&self.one) > self.batch_bytes_max {
                self.flush(queue);
            }
            match self.batch.bytes_with(&self.one) {
                bytes if bytes > self.batch_bytes_max => reject_too_long(span, bytes, queue),
                _ => self.batch.push(&self.one),
            }
        }
        self.flush(queue);
    }

    fn flush(&mut self, queue: &Queue) {
        if !self.batch.is_empty() {
            self.delivery.deliver(&self.batch, queue);
            self.batch.clear();
        }
    }
}

fn reject_too_long(span: &Span, bytes: usize, queue: &Queue) {
    queue.set_fault(format!("span {} of trace {} is {bytes} bytes: too long to post", span.id, span.trace));
    queue.settle(Verdict::Rejected, 1);
}

struct Poster {
    agent: Agent,
    url: ZipkinUrl,
}

impl Poster {
    fn new(url: ZipkinUrl, config: &ExportConfig) -> Poster {
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
        Poster { agent: agent.into(), url }
    }

    fn judge(&self, mut response: Response<Body>) -> Result<Reply, Away> {
        let status = response.status();
        // Read to its end, so that the connection can be used again.
        let words = response.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_string();
        let words: String = words.unwrap_or_default().trim().chars().take(ANSWER_CHARS_MAX).collect();
        let said = format!("{} answered {status}: {words}", self.url);
        match status {
            _ if status.is_success() => Ok(Reply::Accepted),
            StatusCode::REQUEST_TIMEOUT | StatusCode::TOO_MANY_REQUESTS => Err(Away(said)),
            _ if status.is_server_error() => Err(Away(said)),
            StatusCode::BAD_REQUEST | StatusCode::PAYLOAD_TOO_LARGE | StatusCode::UNPROCESSABLE_ENTITY => {
                Ok(Reply::Refused(said))
            }
            _ => Ok(Reply::Denied(format!("{said} (is this the address of a Zipkin?)"))),
        }
    }
}

impl Post for Poster {
    fn post(&mut self, list: &[u8]) -> Result<Reply, Away> {
        let request = self.agent.post(self.url.uri()).content_type("application/json");
        match request.send(list) {
            Ok(response) => self.judge(response),
            Err(error) => Err(Away(format!(
                "cannot reach {}: {error}; start Zipkin there or correct the address",
                self.url
            ))),
        }
    }
}
