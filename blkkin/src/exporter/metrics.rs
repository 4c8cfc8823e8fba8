//! What an exporter shows of itself: what became of the spans for each destination, how long a delivery takes, how far behind
//! the destination is, who is away.
//!
//! *Bounds*: a series of each family for each destination of the command line, times five answers or six reasons.

use std::sync::Arc;
use std::time::{Duration, UNIX_EPOCH};

use blkkin_zipkin_export::{Answer, Reason};

use super::book::Book;
use super::tally::Tally;
use crate::service::{Family, Figures, Kind, LagGauge, Sample, Search};

const DESTINATION: &str = "destination";

/// Of all destinations.
pub(super) struct Metrics {
    pub(super) books: Vec<Arc<Book>>,
    pub(super) silence_max: Duration,
    /// For the cluster.
    pub(super) search: Search,
}

impl Metrics {
    /// Since the last round of whoever was silent for longest.
    pub(super) fn silence(&self) -> Duration {
        self.books.iter().map(|book| book.pulse.silence()).max().unwrap_or_default()
    }

    /// A round of all: they wait.
    pub(super) fn beat(&self) {
        self.books.iter().for_each(|book| book.pulse.beat());
    }

    fn each<'a>(
        &'a self,
        kind: Kind,
        name: &'static str,
        help: &'static str,
        of: impl Fn(&Book, &Tally) -> Option<Sample> + 'a,
    ) -> Family {
        let sample = |book: &Arc<Book>| {
            let sample = of(book, &book.tally())?;
            Some((vec![(DESTINATION, book.name.clone())], sample))
        };
        Family { name, help, kind, samples: self.books.iter().filter_map(sample).collect() }
    }

    fn counter(&self, name: &'static str, help: &'static str, of: fn(&Tally) -> u64) -> Family {
        self.each(Kind::Counter, name, help, move |_, tally| Some(Sample::Number(of(tally) as f64)))
    }

    fn by(
        &self,
        label: &'static str,
        name: &'static str,
        help: &'static str,
        of: impl Fn(&Tally) -> Vec<(&'static str, u64)>,
    ) -> Family {
        let mut samples = Vec::new();
        for book in &self.books {
            for (value, count) in of(&book.tally()) {
                let labels = vec![(DESTINATION, book.name.clone()), (label, value.to_owned())];
                samples.push((labels, Sample::Number(count as f64)));
            }
        }
        Family { name, help, kind: Kind::Counter, samples }
    }
}

impl Figures for Metrics {
    fn families(&self) -> Vec<Family> {
        let groups = self.books.iter().map(|book| (book.name.as_str(), &book.lag));
        let [lag, partitions] =
            LagGauge::families(DESTINATION, ["exporter_lag_records", "exporter_partitions"], groups);
        vec![
            self.counter("exporter_spans_sent", "Spans in requests, each as often as it was sent", |t| {
                t.sent
            }),
            self.counter(
                "exporter_spans_repeated",
                "Of these spans that had been in a request before",
                |t| t.repeated,
            ),
            // What it takes back it did acknowledge: a counter only grows.
            self.counter("exporter_spans_acknowledged", "Spans that the destination acknowledged", |t| {
                t.delivered + t.not_taken
            }),
            self.counter(
                "exporter_spans_not_taken",
                "Of these spans that the destination did not take, it is not said which",
                |t| t.not_taken,
            ),
            self.counter("exporter_spans_refused", "Spans that the destination refused", |t| t.rejected),
            self.counter("exporter_spans_dead_lettered", "Of these spans that lie in blkkin.dead", |t| {
                t.refused
            }),
            self.counter("exporter_pieces_received", "Pieces of traces that came", |t| t.pieces),
            self.counter("exporter_pieces_missing", "Pieces of traces that never came", |t| t.missing),
            self.counter(
                "exporter_records_again",
                "Records that had been delivered and were left out",
                |t| t.again,
            ),
            self.counter("exporter_records_unreadable", "Records that lie in blkkin.dead unread", |t| {
                t.unreadable
            }),
            self.by("answer", "exporter_requests", "Requests by what they came to", requests),
            self.by("reason", "exporter_retries", "Requests that are sent again, by reason", retries),
            self.counter("exporter_bytes", "Bytes of all requests, before what carries them", |t| t.bytes),
            self.each(
                Kind::Histogram,
                "exporter_delivery_seconds",
                "Time from the first attempt with what was received until all of it has a verdict",
                |_, tally| Some(Sample::Times(tally.deliveries.times())),
            ),
            self.each(
                Kind::Gauge,
                "exporter_last_acknowledgement_timestamp_seconds",
                "When the destination last acknowledged something, since 1970",
                |_, tally| {
                    let since = tally.acknowledged_at?.duration_since(UNIX_EPOCH).ok()?;
                    Some(Sample::Number(since.as_secs_f64()))
                },
            ),
            self.each(
                Kind::Gauge,
                "exporter_destination_up",
                "Whether the destination answers",
                |book, _| Some(Sample::Number(if book.is_up() { 1.0 } else { 0.0 })),
            ),
            lag,
            partitions,
        ]
    }

    fn ill(&self) -> Option<String> {
        let silent = self.books.iter().find(|book| book.pulse.silence() > self.silence_max)?;
        Some(format!("nothing was done for {} for {} s", silent.name, silent.pulse.silence().as_secs()))
    }

    fn remarks(&self) -> Vec<String> {
        let away = self.books.iter().flat_map(|book| book.remarks());
        self.search.remark().into_iter().chain(away).collect()
    }
}

/// All of them, also those that were not met yet: a rate needs a beginning.
const REASONS: [(Reason, &str); 6] = [
    (Reason::NotReached, "not reached"),
    (Reason::NoAnswer, "no answer"),
    (Reason::Busy, "busy"),
    (Reason::Failed, "failed"),
    (Reason::Denied, "denied"),
    (Reason::NotWritten, "not written"),
];

fn retries(tally: &Tally) -> Vec<(&'static str, u64)> {
    REASONS.map(|(reason, name)| (name, tally.answered(Answer::Without(reason)))).to_vec()
}

fn requests(tally: &Tally) -> Vec<(&'static str, u64)> {
    let without = retries(tally).iter().map(|(_, count)| count).sum();
    let with = [
        (Answer::Accepted, "accepted"),
        (Answer::Partly, "partly"),
        (Answer::Refused, "refused"),
        (Answer::TooLong, "too long"),
    ];
    let with = with.map(|(answer, name)| (name, tally.answered(answer)));
    with.into_iter().chain([("none", without)]).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_zipkin_export::Attempt;

    #[test]
    fn what_is_shown_is_what_was_counted() {
        let book = Arc::new(Book::new("zipkin=x".to_owned()));
        let (books, silence_max) = (vec![Arc::clone(&book)], Duration::from_secs(30));
        let metrics = Metrics { books, silence_max, search: Search::default() };
        let attempt = |spans, again, answer| Attempt { spans, bytes: 100, again, answer };
        book.tally().attempted(attempt(7, false, Answer::Without(Reason::Busy)));
        book.tally().attempted(attempt(7, true, Answer::Accepted));
        book.tally().delivered += 7;
        let families = metrics.families();
        let value = |name: &str, label: Option<&str>| {
            let family = families.iter().find(|family| family.name == name).unwrap();
            let sample =
                family.samples.iter().find(|(labels, _)| labels.get(1).map(|l| l.1.as_str()) == label);
            match &sample.unwrap().1 {
                Sample::Number(number) => *number,
                Sample::Times(_) => panic!("{family:?}"),
            }
        };
        let spans = ["sent", "repeated", "acknowledged", "refused"];
        assert_eq!(spans.map(|fate| value(&format!("exporter_spans_{fate}"), None)), [14.0, 7.0, 7.0, 0.0]);
        assert_eq!(value("exporter_bytes", None), 200.0);
        let answers = ["accepted", "refused", "none"].map(|answer| value("exporter_requests", Some(answer)));
        assert_eq!(answers, [1.0, 0.0, 1.0]);
        let reasons = ["busy", "denied"].map(|reason| value("exporter_retries", Some(reason)));
        assert_eq!(reasons, [1.0, 0.0]);
        assert_eq!(value("exporter_destination_up", None), 1.0);
        let acknowledged = families.iter().find(|family| family.name.contains("last_ack")).unwrap();
        assert!(acknowledged.samples.is_empty(), "nothing was acknowledged yet by a destination's word");
    }

    #[test]
    fn who_is_silent_is_named() {
        let books = vec![Arc::new(Book::new("zipkin=x".to_owned()))];
        let metrics = Metrics { books, silence_max: Duration::ZERO, search: Search::default() };
        std::thread::sleep(Duration::from_millis(2));
        assert!(metrics.ill().unwrap().contains("zipkin=x"));
    }
}
