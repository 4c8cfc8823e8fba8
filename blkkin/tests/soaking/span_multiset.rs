//! A compact multiset of spans for millions of spans: for each span, as Zipkin shows it, a hash,
//! its number of occurrences and its trace.
//!
//! *In*: fragments of a stage, of which sampling rules keep some, or Zipkin's responses. *Out*:
//! whether two multisets are equal, and otherwise the traces that differ.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::sampling::SamplingRules;
use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::stage::StageOutput;
use blkkin_zipkin_export::json;
use serde_json::Value;

use crate::exporting::{canonical, exported};
use crate::support::zipkin::Zipkin;

/// Time span of a query in µs: 1,500 traces of three nodes that make 100 calls a second each.
const WINDOW_US: u64 = 5_000_000;
/// Time between two periods in µs. Recordings of nodes are of 2023, live events of today.
const APART_US: u64 = 86_400_000_000;
/// Limit for spans to appear after Zipkin has acknowledged them.
const TIME_LIMIT: Duration = Duration::from_secs(30);
/// Limit of traces in a response, which is never reached.
const LIMIT: usize = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanMultiset {
    spans: HashMap<u64, (u32, String)>,
    /// Fragments of a stage, before sampling.
    pub(crate) fragments: u64,
    /// Rules by which fragments are sampled.
    rules: SamplingRules,
    /// Begins of the first and of the last span of each period, in µs since the Unix epoch. Spans of
    /// one period are less than [`APART_US`] apart.
    periods: Vec<(u64, u64)>,
}

impl SpanMultiset {
    /// Returns an empty multiset for fragments that the rules sample by the trace's id.
    pub(crate) fn sampled_by(rules: SamplingRules) -> SpanMultiset {
        SpanMultiset { rules, ..SpanMultiset::default() }
    }

    /// Adds all spans of another multiset.
    pub(crate) fn extend(&mut self, other: SpanMultiset) {
        for (hash, (times, trace)) in other.spans {
            self.spans.entry(hash).or_insert((0, trace)).0 += times;
        }
        self.fragments += other.fragments;
        for (first, last) in other.periods {
            self.widen(first);
            self.widen(last);
        }
    }

    /// Widens the period that is near this time, or begins one.
    fn widen(&mut self, at: u64) {
        let near = |(first, last): &&mut (u64, u64)| {
            (first.saturating_sub(APART_US)..last.saturating_add(APART_US)).contains(&at)
        };
        match self.periods.iter_mut().find(near) {
            Some((first, last)) => (*first, *last) = ((*first).min(at), (*last).max(at)),
            None => {
                self.periods.push((at, at));
                self.periods.sort_unstable();
            }
        }
    }

    fn add(&mut self, span: Value) {
        self.widen(span["timestamp"].as_u64().unwrap());
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
        let mut from = 0;
        for &(first, last) in &expected.periods {
            assert!(from < first, "periods are days apart");
            query(from, first - 1);
            from = first;
            while from <= last {
                query(from, from + WINDOW_US);
                from += WINDOW_US;
            }
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
    let mut started = None;
    loop {
        let found = SpanMultiset::in_zipkin(zipkin, expected);
        // From the end of the first pass on: with many spans a pass takes longer than the limit.
        let started = *started.get_or_insert_with(Instant::now);
        match expected.difference(&found) {
            None => return found,
            Some(difference) if started.elapsed() > TIME_LIMIT => panic!("{difference}\n{}", context()),
            Some(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// Fragments of a stage, translated and encoded as for Zipkin.
impl StageOutput for SpanMultiset {
    fn fragment(&mut self, _: u32, _: u64, mut piece: TraceFragment) {
        self.fragments += 1;
        assert!(piece.sampled.is_none(), "the stage after this one samples");
        let Some(reason) = self.rules.sample_by_ratio(piece.trace) else { return };
        piece.sampled = self.rules.annotation(reason);
        let mut bytes = Vec::new();
        for span in exported(piece) {
            bytes.clear();
            json::encode(&span, &mut bytes);
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
