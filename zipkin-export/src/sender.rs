//! Sender of spans over a transport: encodes once, splits into requests, delivers.
//!
//! *In*: spans, in groups. *Out*: requests, and a result for each span. *Invariant*: no request
//! exceeds the size limit. A single span that exceeds it is rejected and reported.
//!
//! If the destination finds a request too large, the limit becomes half of its length, so further
//! requests need no trial.

use blkkin_wire::span::Span;

use crate::batch::Batch;
use crate::config::ExportConfig;
use crate::delivery::{Delivery, DeliveryObserver, DeliveryResult, RetryDecision, RetryPolicy, Transport};
use blkkin_span_encoding::Format;

/// Lower bound of the size limit: a single span with long paths has that size.
const BYTES_MIN: usize = 16 << 10;

/// Sender of spans as requests of one format.
pub struct Sender<P> {
    delivery: Delivery<P>,
    batch: Batch,
    encoded: Vec<u8>,
    spans_max: usize,
    bytes_max: usize,
}

impl<P: Transport> Sender<P> {
    /// Creates a sender over `transport`.
    pub fn new(transport: P, format: Format, config: &ExportConfig) -> Sender<P> {
        let patience = RetryPolicy { backoff: config.backoff, posts_max: config.posts_max };
        Sender {
            delivery: Delivery::new(transport, patience),
            batch: Batch::new(format),
            encoded: Vec::new(),
            spans_max: config.batch_spans_max,
            bytes_max: config.batch_bytes_max,
        }
    }

    /// Probes the server, and reports an outage to the observer.
    pub fn probe(&mut self, observer: &mut impl DeliveryObserver) {
        self.delivery.probe(&self.batch, observer);
    }

    /// Sends `spans` and reports the result of each to the observer, by index. Returns whether to
    /// continue.
    pub fn send(&mut self, spans: &[Span], observer: &mut impl DeliveryObserver) -> RetryDecision {
        let mut first = 0;
        for (at, span) in spans.iter().enumerate() {
            self.encoded.clear();
            self.batch.format().encode(span, &mut self.encoded);
            let full = self.batch.len() >= self.spans_max
                || self.batch.bytes_with(&self.encoded, &span.service) > self.bytes_max;
            if full && self.flush(&mut first, observer) == RetryDecision::GiveUp {
                return RetryDecision::GiveUp;
            }
            match self.batch.bytes_with(&self.encoded, &span.service) {
                bytes if bytes > self.bytes_max => {
                    let why = format!(
                        "span {} of trace {} is {bytes} bytes: too long to post",
                        span.id, span.trace
                    );
                    observer.settle(at..at + 1, DeliveryResult::Rejected(why));
                    first = at + 1;
                }
                _ => self.batch.push(&self.encoded, &span.service),
            }
        }
        self.flush(&mut first, observer)
    }

    fn flush(&mut self, first: &mut usize, observer: &mut impl DeliveryObserver) -> RetryDecision {
        let mut decision = RetryDecision::Continue;
        if !self.batch.is_empty() {
            decision = self.delivery.deliver(&self.batch, *first, observer);
            *first += self.batch.len();
            self.batch.clear();
        }
        if let Some(bytes) = self.delivery.take_shortest_too_large() {
            self.bytes_max = (bytes / 2).clamp(BYTES_MIN.min(self.bytes_max), self.bytes_max);
        }
        decision
    }
}
