//! A compact multiset of spans for millions of spans: for each span, as Zipkin shows it, a hash,
//! its number of occurrences and its trace.
//!
//! *In*: fragments of a stage, or Zipkin's responses. *Out*: whether two multisets are equal, and
//! otherwise the traces that differ.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::stage::StageOutput;
use blkkin_zipkin_export::json;
use serde_json::Value;

use crate::exporting::canonical;
use crate::zipkin::Zipkin;

/// Time span of a query in µs: 1,500 traces of three nodes that make 100 calls a second each.
const WINDOW_US: u64 = 5_000_000;
/// Limit for spans to appear after Zipkin has acknowledged them.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Limit of traces in a response, which is never reached.
const LIMIT: usize = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanMultiset {
    spans: HashMap<u64, (u32, String)>,
    pub(crate) fragments: u64,
    /// Begin of the first and of the last span, in µs since the Unix epoch.
    times: Option<(u64, u64)>,
}

impl SpanMultiset {
    fn add(&mut self, span: Value) {
        let at = span["timestamp"].as_u64().unwrap();
        let (first, last) = self.times.unwrap_or((at, at));
        self.times = Some((first.min(at), last.max(at)));
        let trace = span["traceId"].as_str().unwrap().to_owned();
        let mut hasher = DefaultHasher::new();
        canonical(span).hash(&mut hasher);
        self.spans.entry(hasher.finish()).or_insert((0, trace)).0 += 1;
    }

    /// Returns the number of spans.
    pub(crate) fn total(&self) -> u64 {
        self.spans.values().map(|(times, _)| u64::from(*times)).sum()
    }

    /// Reads all spans of Zipkin. The times of `expected` divide the queries; spans outside of them
    /// are read too.
    pub(crate) fn in_zipkin(zipkin: &Zipkin, expected: &SpanMultiset) -> SpanMultiset {
        let mut all = HashMap::<String, Value>::new();
        let (first, last) = expected.times.unwrap_or((1_000, 1_000));
        let mut query = |from: u64, to: u64| {
            // In ms, with both ends included: a trace may be in two responses, and is complete in
            // each.
            let (from, to) = (from / 1_000, to.div_ceil(1_000));
            let path = format!("/api/v2/traces?endTs={to}&lookback={}&limit={LIMIT}", (to - from).max(1));
            let found = zipkin.wait_for("it returns its traces", || zipkin.get(&path));
            let Value::Array(traces) = found else { panic!("{path}: no list") };
            assert!(traces.len() < LIMIT);
            for trace in traces {
                all.insert(trace[0]["traceId"].as_str().unwrap().to_owned(), trace);
            }
        };
        query(0, first.saturating_sub(1));
        let mut from = first;
        while from <= last {
            query(from, from + WINDOW_US);
            from += WINDOW_US;
        }
        query(from, from + 100 * 365 * 86_400 * 1_000_000);
        let mut multiset = SpanMultiset::default();
        for spans in all.into_values() {
            let Value::Array(spans) = spans else { panic!("no trace") };
            spans.into_iter().for_each(|span| multiset.add(span));
        }
        multiset
    }

    /// Describes how `found` differs: the number of spans, and some of the traces.
    pub(crate) fn difference(&self, found: &SpanMultiset) -> Option<String> {
        let times = |multiset: &SpanMultiset, hash| multiset.spans.get(hash).map_or(0, |(times, _)| *times);
        let (mut missing, mut extra, mut traces) = (0, 0, Vec::new());
        for (hash, (_, trace)) in self.spans.iter().chain(&found.spans) {
            let (expected, actual) = (times(self, hash), times(found, hash));
            // Spans that both have are visited twice.
            match expected.cmp(&actual) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Greater => missing += 1,
                std::cmp::Ordering::Less => extra += 1,
            }
            traces.push(trace.clone());
        }
        traces.sort();
        traces.dedup();
        let count = traces.len();
        traces.truncate(5);
        (count > 0).then(|| {
            let (expected, actual) = (self.total(), found.total());
            format!("{actual} spans, not {expected}; {missing} are missing, {extra} are too many, in {count} traces: {traces:?}")
        })
    }
}

/// Waits until Zipkin shows the expected spans, which it stores a moment after it acknowledges
/// them. Otherwise panics with `context`.
pub(crate) fn assert_in_zipkin(
    zipkin: &Zipkin,
    expected: &SpanMultiset,
    context: impl Fn() -> String,
) -> SpanMultiset {
    let started = Instant::now();
    loop {
        let found = SpanMultiset::in_zipkin(zipkin, expected);
        match expected.difference(&found) {
            None => return found,
            Some(difference) if started.elapsed() > TIME_LIMIT => panic!("{difference}\n{}", context()),
            Some(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// Fragments of a stage, translated and encoded as for Zipkin.
impl StageOutput for SpanMultiset {
    fn fragment(&mut self, _: u32, _: u64, piece: TraceFragment) {
        self.fragments += 1;
        assert!(piece.sampled.is_none(), "all are sampled");
        let mut bytes = Vec::new();
        for span in &piece.spans {
            bytes.clear();
            json::encode(span, &mut bytes);
            self.add(serde_json::from_slice(&bytes).unwrap());
        }
    }

    fn side_output(&mut self, _: u32, _: u64, piece: TraceFragment) {
        panic!("it has no remote links: {piece:?}");
    }

    fn dead_letter(&mut self, why: String) {
        panic!("{why}");
    }
}
