//! An open destination of an exporter.

use std::time::Duration;

use blkkin_bus::kafka::Settings;
use blkkin_wire::span::Span;
use blkkin_zipkin_export::backoff::{Backoff, Jitter};
use blkkin_zipkin_export::{
    AfterPause, Answer, Attempt, Destination, ExportConfig, Ledger, Post, Reason, Sender, SpanFile, server,
};

use super::{KafkaPost, Route};
use crate::destination::cannot_open;
use crate::failure::Failure;

/// Spans of a request at the most; its bytes are bounded besides, so it mostly holds 1,000 to 2,000.
pub(super) const SPANS_MAX: usize = 5_000;

/// Where spans go.
pub(super) enum Sink {
    /// Something that takes requests.
    Server(Box<Sender<Box<dyn Post + Send>>>),
    /// A file that is gone on with.
    File(Box<SpanFile>),
}

impl Sink {
    /// Opens it. A file that cannot be written is an error; a server that is away is none.
    pub(super) fn open(route: &Route, settings: &Settings) -> Result<Sink, Failure> {
        let config = ExportConfig {
            batch_spans_max: SPANS_MAX,
            // What is refused is kept, so it is looked for until it stands alone.
            posts_max: u32::MAX,
            ..ExportConfig::default()
        };
        let refused = |error: &dyn std::error::Error| cannot_open(&route.word, error);
        let (post, format): (Box<dyn Post + Send>, _) = match &route.destination {
            Destination::File(path) => {
                let file = SpanFile::resume(path).map_err(|error| refused(&error))?;
                return Ok(Sink::File(Box::new(file)));
            }
            Destination::Kafka { brokers, topic, format } => {
                // The same cluster is reached in the same way.
                let own = Settings::new(brokers);
                let settings = if settings.brokers == *brokers { settings } else { &own };
                let post = KafkaPost::new(settings, topic).map_err(|error| refused(&error))?;
                (Box::new(post), *format)
            }
            destination => server(destination, &config).map_err(|error| refused(&error))?,
        };
        Ok(Sink::Server(Box::new(Sender::new(post, format, &config))))
    }

    /// Asks whether somebody is there.
    pub(super) fn probe(&mut self, ledger: &mut impl Ledger) {
        if let Sink::Server(server) = self {
            server.probe(ledger);
        }
    }

    /// Tells the ledger what became of each span; whether to go on.
    pub(super) fn send(&mut self, spans: &[Span], ledger: &mut impl Ledger) -> AfterPause {
        match self {
            Sink::Server(server) => server.send(spans, ledger),
            Sink::File(file) => append(file, spans, ledger),
        }
    }

    /// At the end: a file gets its name.
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

/// A disk that is full is a destination that is away: somebody may make room.
fn append(file: &mut SpanFile, spans: &[Span], ledger: &mut impl Ledger) -> AfterPause {
    let backoff = Backoff { first: Duration::from_secs(1), ..Backoff::default() };
    let mut failures = 0;
    while !ledger.is_over() {
        let attempt = |bytes, answer| Attempt { spans: spans.len(), bytes, again: failures > 0, answer };
        match file.append(spans, ledger) {
            Ok(bytes) => {
                ledger.attempted(attempt(bytes, Answer::Accepted));
                ledger.outage(None);
                return AfterPause::GoOn;
            }
            Err(error) => {
                ledger.attempted(attempt(0, Answer::Without(Reason::NotWritten)));
                ledger.outage(Some(format!("cannot write {}: {error}", file.path().display())));
            }
        }
        failures += 1;
        if ledger.pause(backoff.delay(failures, Jitter::random())) == AfterPause::GiveUp {
            return AfterPause::GiveUp;
        }
    }
    AfterPause::GiveUp
}
