//! A multiset of spans, small enough for millions: of each (trace, id, parent, kind, name, services, time, duration,
//! annotations, tags), as Zipkin shows it, a hash, how often it is there, and in which trace.
//!
//! *In*: what the state machine gives out, or what Zipkin answers. *Out*: whether two are equal, and where not, which
//! traces to look at.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::Outlet;
use blkkin_wire::fragment::TraceFragment;
use blkkin_zipkin_export::json;
use serde_json::Value;

use crate::exporting::canonical;
use crate::zipkin::Zipkin;

/// µs of what is asked for in one go: 1,500 traces of three nodes that make 100 calls a second each.
const WINDOW_US: u64 = 5_000_000;
/// For what Zipkin has acknowledged to be seen.
const PATIENCE: Duration = Duration::from_secs(30);
/// Traces of an answer at the most: never so many.
const LIMIT: usize = 1_000_000;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpanBooks {
    spans: HashMap<u64, (u32, String)>,
    pub(crate) pieces: u64,
    /// µs since the Unix epoch: of the first span's begin and the last's.
    times: Option<(u64, u64)>,
}

impl SpanBooks {
    fn add(&mut self, span: Value) {
        let at = span["timestamp"].as_u64().unwrap();
        let (first, last) = self.times.unwrap_or((at, at));
        self.times = Some((first.min(at), last.max(at)));
        let trace = span["traceId"].as_str().unwrap().to_owned();
        let mut hasher = DefaultHasher::new();
        canonical(span).hash(&mut hasher);
        self.spans.entry(hasher.finish()).or_insert((0, trace)).0 += 1;
    }

    /// Spans in all.
    pub(crate) fn total(&self) -> u64 {
        self.spans.values().map(|(times, _)| u64::from(*times)).sum()
    }

    /// What Zipkin has. `meant` says when to look; what lies outside of it is looked for too.
    pub(crate) fn in_zipkin(zipkin: &Zipkin, meant: &SpanBooks) -> SpanBooks {
        let mut all = HashMap::<String, Value>::new();
        let (first, last) = meant.times.unwrap_or((1_000, 1_000));
        let mut ask = |from: u64, to: u64| {
            // ms, both ends belong to it: a trace may be in two answers, and is whole in each.
            let (from, to) = (from / 1_000, to.div_ceil(1_000));
            let path = format!("/api/v2/traces?endTs={to}&lookback={}&limit={LIMIT}", (to - from).max(1));
            let found = zipkin.until("it says what it has", || zipkin.get(&path));
            let Value::Array(traces) = found else { panic!("{path}: no list") };
            assert!(traces.len() < LIMIT);
            for trace in traces {
                all.insert(trace[0]["traceId"].as_str().unwrap().to_owned(), trace);
            }
        };
        ask(0, first.saturating_sub(1));
        let mut from = first;
        while from <= last {
            ask(from, from + WINDOW_US);
            from += WINDOW_US;
        }
        ask(from, from + 100 * 365 * 86_400 * 1_000_000);
        let mut books = SpanBooks::default();
        for spans in all.into_values() {
            let Value::Array(spans) = spans else { panic!("no trace") };
            spans.into_iter().for_each(|span| books.add(span));
        }
        books
    }

    /// How `found` differs: in how many spans, and some of the traces.
    pub(crate) fn difference(&self, found: &SpanBooks) -> Option<String> {
        let times = |books: &SpanBooks, hash| books.spans.get(hash).map_or(0, |(times, _)| *times);
        let (mut missing, mut more, mut traces) = (0, 0, Vec::new());
        for (hash, (_, trace)) in self.spans.iter().chain(&found.spans) {
            let (meant, there) = (times(self, hash), times(found, hash));
            // What both have comes by twice.
            match meant.cmp(&there) {
                std::cmp::Ordering::Equal => continue,
                std::cmp::Ordering::Greater => missing += 1,
                std::cmp::Ordering::Less => more += 1,
            }
            traces.push(trace.clone());
        }
        traces.sort();
        traces.dedup();
        let count = traces.len();
        traces.truncate(5);
        (count > 0).then(|| {
            let (meant, there) = (self.total(), found.total());
            format!("{there} spans, not {meant}; {missing} are missing, {more} are too many, in {count} traces: {traces:?}")
        })
    }
}

/// Waits until Zipkin shows what is meant: it stores what it has acknowledged a moment later. Says `why` if it never does.
pub(crate) fn assert_in_zipkin(zipkin: &Zipkin, meant: &SpanBooks, why: impl Fn() -> String) -> SpanBooks {
    let begun = Instant::now();
    loop {
        let found = SpanBooks::in_zipkin(zipkin, meant);
        match meant.difference(&found) {
            None => return found,
            Some(difference) if begun.elapsed() > PATIENCE => panic!("{difference}\n{}", why()),
            Some(_) => std::thread::sleep(Duration::from_secs(1)),
        }
    }
}

/// What the state machine says, translated and encoded.
impl Outlet for SpanBooks {
    fn piece(&mut self, _: u32, _: u64, piece: TraceFragment) {
        self.pieces += 1;
        assert!(piece.sampled.is_none(), "all are kept");
        let mut bytes = Vec::new();
        for span in &piece.spans {
            bytes.clear();
            json::encode(span, &mut bytes);
            self.add(serde_json::from_slice(&bytes).unwrap());
        }
    }

    fn aside(&mut self, _: u32, _: u64, piece: TraceFragment) {
        panic!("no requests between nodes are in it: {piece:?}");
    }

    fn dead(&mut self, why: String) {
        panic!("{why}");
    }
}
