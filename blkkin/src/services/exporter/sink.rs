//! An open destination of the exporter.

use std::time::Duration;

use blkkin_bus::kafka::Settings;
use blkkin_wire::span::Span;
use blkkin_zipkin_export::backoff::{Backoff, Jitter};
use blkkin_zipkin_export::{
    Attempt, AttemptResult, DeliveryObserver, Destination, ExportConfig, FailureReason, RetryDecision,
    Sender, SpanFile, Transport, transport,
};

use super::config::Route;
use crate::destination::KafkaTransport;
use crate::destination::cannot_open;
use crate::error::CliError;

/// Maximum number of spans in a request. A byte limit also applies, so most requests carry 1,000 to
/// 2,000.
pub(super) const SPANS_MAX: usize = 5_000;

/// A destination.
pub(super) enum Sink {
    /// A server that accepts requests.
    Server(Box<Sender<Box<dyn Transport + Send>>>),
    /// A file to append to.
    File(Box<SpanFile>),
}

impl Sink {
    /// Opens the destination. A file that cannot be written is an error; an unreachable server is
    /// not.
    pub(super) fn open(route: &Route, settings: &Settings, config: &ExportConfig) -> Result<Sink, CliError> {
        let config = ExportConfig {
            batch_spans_max: SPANS_MAX,
            // A refused span goes to `blkkin.dead`, so the request is bisected until that span is
            // alone.
            posts_max: u32::MAX,
            ..config.clone()
        };
        let refused = |error: &dyn std::error::Error| cannot_open(&route.argument, error);
        let (post, format): (Box<dyn Transport + Send>, _) = match &route.destination {
            Destination::File(path) => {
                let file = SpanFile::resume(path).map_err(|error| refused(&error))?;
                return Ok(Sink::File(Box::new(file)));
            }
            Destination::Kafka { brokers, topic, format } => {
                // The same cluster is reached with the same settings.
                let own = Settings::new(brokers);
                let settings = if settings.brokers == *brokers { settings } else { &own };
                let post = KafkaTransport::new(settings, topic).map_err(|error| refused(&error))?;
                (Box::new(post), *format)
            }
            destination => transport(destination, &config).map_err(|error| refused(&error))?,
        };
        Ok(Sink::Server(Box::new(Sender::new(post, format, &config))))
    }

    /// Checks whether a server is reachable.
    pub(super) fn probe(&mut self, observer: &mut impl DeliveryObserver) {
        if let Sink::Server(server) = self {
            server.probe(observer);
        }
    }

    /// Sends the spans and reports the verdict of each to the observer; returns whether to
    /// continue.
    pub(super) fn send(&mut self, spans: &[Span], observer: &mut impl DeliveryObserver) -> RetryDecision {
        match self {
            Sink::Server(server) => server.send(spans, observer),
            Sink::File(file) => append(file, spans, observer),
        }
    }

    /// Finishes the destination: a file gets its final name.
    pub(super) fn finish(self) -> Result<(), String> {
        match self {
            Sink::Server(_) => Ok(()),
            Sink::File(file) => {
                let path = file.path().display().to_string();
                file.publish().map_err(|error| format!("cannot give {path} its final name: {error}"))
            }
        }
    }
}

/// Appends to the file, with retries: a full disk counts as an unreachable destination, since space
/// may become free.
fn append(file: &mut SpanFile, spans: &[Span], observer: &mut impl DeliveryObserver) -> RetryDecision {
    let backoff = Backoff { first: Duration::from_secs(1), ..Backoff::default() };
    let mut failures = 0;
    while !observer.is_cancelled() {
        let attempt =
            |bytes, answer| Attempt { spans: spans.len(), bytes, retry: failures > 0, result: answer };
        match file.append(spans, observer) {
            Ok(bytes) => {
                observer.on_attempt(attempt(bytes, AttemptResult::Accepted));
                observer.on_outage(None);
                return RetryDecision::Continue;
            }
            Err(error) => {
                observer.on_attempt(attempt(0, AttemptResult::Failed(FailureReason::WriteFailed)));
                observer.on_outage(Some(format!("cannot write {}: {error}", file.path().display())));
            }
        }
        failures += 1;
        if observer.pause(backoff.delay(failures, Jitter::random())) == RetryDecision::GiveUp {
            return RetryDecision::GiveUp;
        }
    }
    RetryDecision::GiveUp
}
