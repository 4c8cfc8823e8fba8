//! Bounds of an exporter, each with its reason.

use std::time::Duration;

use crate::backoff::Backoff;
use crate::queue;

/// How an exporter behaves. The defaults are right for one node and a Zipkin nearby.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExportConfig {
    /// Spans that wait while the destination is away or slow; see [`queue::SPANS_MAX`].
    pub queue_spans_max: usize,
    /// Spans a POST, or a write to the file.
    pub batch_spans_max: usize,
    /// Bytes a POST.
    pub batch_bytes_max: usize,
    /// Time for a connection to be made.
    pub connect_timeout: Duration,
    /// Time for one POST with its answer.
    pub post_timeout: Duration,
    /// Delays between repeats of one POST.
    pub backoff: Backoff,
    /// Posts after which a refused batch is not halved any further: what is left of it is refused as a whole.
    pub posts_max: u32,
}

impl Default for ExportConfig {
    fn default() -> Self {
        ExportConfig {
            queue_spans_max: queue::SPANS_MAX,
            // The cost of a POST is spread over hundreds of spans; a thousand are halved ten times to find a
            // bad one.
            batch_spans_max: 1000,
            // What proxies take unless told otherwise (nginx: 1 MiB); Zipkin itself takes 10 MiB, and answers
            // a longer body with 500, which says nothing about the list.
            batch_bytes_max: 1 << 20,
            // Two repeats of a SYN (after 1 s and 3 s) are too many to wait for in one attempt; one is not.
            connect_timeout: Duration::from_secs(3),
            // Zipkin answers in milliseconds, a JVM that collects garbage in seconds.
            post_timeout: Duration::from_secs(10),
            backoff: Backoff::default(),
            // Enough to find a dozen bad spans of 1000. A server that refuses everything would else get 2000 posts
            // a batch.
            posts_max: 256,
        }
    }
}
