//! Limits of an exporter, with their reasons.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::otlp_config::OtlpConfig;
use crate::queue;
use crate::tls::TlsFiles;

/// Configuration of an exporter. The defaults suit one node and a nearby Zipkin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Maximum number of queued spans while the destination is unreachable or slow; see
    /// [`queue::SPANS_MAX`].
    pub queue_spans_max: usize,
    /// Maximum number of spans in a POST or a file write.
    pub batch_spans_max: usize,
    /// Maximum bytes of a POST.
    pub batch_bytes_max: usize,
    /// Timeout of a connection attempt.
    pub connect_timeout: Duration,
    /// Timeout of one POST with its response.
    pub post_timeout: Duration,
    /// Delays between retries of a POST.
    pub backoff: Backoff,
    /// Maximum number of posts of a rejected batch. After that, the rest is rejected without
    /// halving.
    pub posts_max: u32,
    /// Files of TLS connections to all servers. They replace those of [`OtlpConfig`].
    pub tls: TlsFiles,
    /// Options of requests to OTLP receivers.
    pub otlp: OtlpConfig,
}

impl Default for ExportConfig {
    fn default() -> Self {
        ExportConfig {
            queue_spans_max: queue::SPANS_MAX,
            // The cost of a POST is spread over hundreds of spans. A thousand spans are halved ten
            // times to find a bad one.
            batch_spans_max: 1000,
            // Default limit of proxies (nginx: 1 MiB). Zipkin itself accepts 10 MiB and responds to
            // a longer body with 500, which does not identify the cause.
            batch_bytes_max: 1 << 20,
            // Two SYN retransmissions (after 1 s and 3 s) take too long for one attempt; one does
            // not.
            connect_timeout: Duration::from_secs(3),
            // Zipkin responds in milliseconds, a garbage-collecting JVM in seconds.
            post_timeout: Duration::from_secs(10),
            backoff: Backoff::default(),
            // Enough to find a dozen bad spans of 1000. Without a limit, a server that rejects
            // everything would receive 2000 posts for each batch.
            posts_max: 256,
            tls: TlsFiles::default(),
            otlp: OtlpConfig::default(),
        }
    }
}
