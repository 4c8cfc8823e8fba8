//! Spans to something that takes requests: encoded once, cut to what it takes, delivered.
//!
//! *In*: spans, some at a time. *Out*: requests, and a verdict on each span. *Invariant*: no request is longer than the bound
//! on bytes; a span that alone is longer is refused, and said so.
//!
//! Where the destination finds a request too long the bound becomes half of it, so that the next is not cut by trial.

use blkkin_wire::span::Span;

use crate::batch::Batch;
use crate::config::ExportConfig;
use crate::delivery::{AfterPause, Delivery, Ledger, Patience, Post, Verdict};
use crate::format::Format;

/// A bound below this is not made smaller: a single span with long paths is of that size.
const BYTES_MIN: usize = 16 << 10;

/// Sends spans as requests of one format.
pub struct Sender<P> {
    delivery: Delivery<P>,
    batch: Batch,
    one: Vec<u8>,
    spans_max: usize,
    bytes_max: usize,
}

impl<P: Post> Sender<P> {
    /// To `post`.
    pub fn new(post: P, format: Format, config: &ExportConfig) -> Sender<P> {
        let patience = Patience { backoff: config.backoff, posts_max: config.posts_max };
        Sender {
            delivery: Delivery::new(post, patience),
            batch: Batch::new(format),
            one: Vec::new(),
            spans_max: config.batch_spans_max,
            bytes_max: config.batch_bytes_max,
        }
    }

    /// Asks whether somebody is there; tells the ledger if not.
    pub fn probe(&mut self, ledger: &mut impl Ledger) {
        self.delivery.probe(&self.batch, ledger);
    }

    /// Tells the ledger what became of each of `spans`, by its place; whether it is to go on after that.
    pub fn send(&mut self, spans: &[Span], ledger: &mut impl Ledger) -> AfterPause {
        let mut first = 0;
        for (at, span) in spans.iter().enumerate() {
            self.one.clear();
            self.batch.format().encode(span, &mut self.one);
            let full = self.batch.len() >= self.spans_max
                || self.batch.bytes_with(&self.one, &span.service) > self.bytes_max;
            if full && self.flush(&mut first, ledger) == AfterPause::GiveUp {
                return AfterPause::GiveUp;
            }
            match self.batch.bytes_with(&self.one, &span.service) {
                bytes if bytes > self.bytes_max => {
                    let why = format!(
                        "span {} of trace {} is {bytes} bytes: too long to post",
                        span.id, span.trace
                    );
                    ledger.settle(at..at + 1, Verdict::Rejected(why));
                    first = at + 1;
                }
                _ => self.batch.push(&self.one, &span.service),
            }
        }
        self.flush(&mut first, ledger)
    }

    fn flush(&mut self, first: &mut usize, ledger: &mut impl Ledger) -> AfterPause {
        let mut after = AfterPause::GoOn;
        if !self.batch.is_empty() {
            after = self.delivery.deliver(&self.batch, *first, ledger);
            *first += self.batch.len();
            self.batch.clear();
        }
        if let Some(bytes) = self.delivery.too_long() {
            self.bytes_max = (bytes / 2).clamp(BYTES_MIN.min(self.bytes_max), self.bytes_max);
        }
        after
    }
}
