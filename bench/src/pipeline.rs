//! Every stage between a ring and a Zipkin server, one function each, over made-up input of any size.
//!
//! ```text
//! ring entries → decode → translate → join → report
//!                                       └──→ spans → encode
//! ```
//!
//! *In*: a number of calls. *Out*: what the stage gives, so that no compiler can leave it out. *Invariant*: the same
//! input gives the same work: no clock, no random number, one thread. So its instructions can be counted.
//!
//! Stages are never inlined: a profiler finds them by name. `decode_translate` is both, because the tracer does both
//! at one entry and the compiler makes one loop of them; translate alone is the difference.
//!
//! *Rejected*: a stage timed inside of a real run. It says what the machine did that day, not what the stage costs.

use std::hint::black_box;

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::trace::Trace;
use blkkin_aggregator::translate::spans;
use blkkin_report::{Report, ReportConfig};
use blkkin_tracer::attach::req_op::ReqOpTable;
use blkkin_tracer::read::decode::decode;
use blkkin_tracer::read::translate::append;
use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use blkkin_wire::span::Span;
use blkkin_zipkin_export::json;

use crate::records::{Entries, STEP};

/// Events in a batch: what a tracer that drains every 5 ms sends at 800,000 events/s.
pub const BATCH: usize = 4_096;

/// A part of the way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stage {
    /// Bytes to records.
    Decode,
    /// Bytes to events: decode and translate.
    DecodeTranslate,
    /// Events to traces.
    Join,
    /// Traces to the report's tables.
    Report,
    /// Traces to spans.
    Spans,
    /// Spans to Zipkin's JSON.
    Encode,
}

impl Stage {
    /// In the order in which an event meets them.
    pub const ALL: [Stage; 6] =
        [Stage::Decode, Stage::DecodeTranslate, Stage::Join, Stage::Report, Stage::Spans, Stage::Encode];

    /// As on a command line.
    pub fn name(self) -> &'static str {
        match self {
            Stage::Decode => "decode",
            Stage::DecodeTranslate => "decode_translate",
            Stage::Join => "join",
            Stage::Report => "report",
            Stage::Spans => "spans",
            Stage::Encode => "encode",
        }
    }

    /// From a command line.
    pub fn by_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// What one pass came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Events, names included.
    pub events: u64,
    /// Traces that the join completed.
    pub traces: u64,
    /// Spans made of them.
    pub spans: u64,
    /// Bytes in the rings.
    pub ring_bytes: u64,
    /// Bytes of Zipkin's JSON, without the list's commas.
    pub json_bytes: u64,
}

/// Who measures: told when a stage begins and when it has ended.
pub trait Meter {
    /// Runs `work`, which is nothing but that stage.
    fn stage<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T;
}

/// Measures nothing: for who measures from outside, as valgrind does.
pub struct Outside;

impl Meter for Outside {
    fn stage<T>(&mut self, _stage: Stage, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Sends `calls` calls and what they caused through the stages up to `last`, a batch at a time.
pub fn run(calls: u64, last: Stage, meter: &mut impl Meter) -> Sizes {
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut report = Report::new(ReportConfig::new(MonotonicNs(0)));
    let mut sizes = Sizes::default();
    let (mut entries, mut n, mut sequence) = (Entries::names(), 0, 0);
    let (mut traces, mut json) = (Vec::new(), Vec::new());
    while n < calls {
        while entries.len() < BATCH && n < calls {
            n += 1;
            entries.add_call(n);
        }
        sizes.ring_bytes += entries.bytes() as u64;
        black_box(meter.stage(Stage::Decode, || stage_decode(&entries)));
        if last >= Stage::DecodeTranslate {
            let events = meter.stage(Stage::DecodeTranslate, || stage_decode_translate(&entries));
            sizes.events += events.len() as u64;
            let batch = batch(sequence, events, MonotonicNs((n + 1) * STEP));
            if last >= Stage::Join {
                let kept = (last > Stage::Join).then_some(&mut traces);
                sizes.traces += meter.stage(Stage::Join, || stage_join(&mut joiner, batch, kept));
            }
        }
        after_join(last, meter, &mut report, &traces, &mut json, &mut sizes);
        traces.clear();
        entries = Entries::default();
        sequence += 1;
    }
    joiner.finish(&mut traces);
    sizes.traces += traces.len() as u64;
    after_join(last, meter, &mut report, &traces, &mut json, &mut sizes);
    sizes
}

fn after_join(
    last: Stage,
    meter: &mut impl Meter,
    report: &mut Report,
    traces: &[Trace],
    json: &mut Vec<u8>,
    sizes: &mut Sizes,
) {
    if last >= Stage::Report {
        meter.stage(Stage::Report, || stage_report(report, traces));
    }
    if last >= Stage::Spans {
        let spans = meter.stage(Stage::Spans, || stage_spans(traces));
        sizes.spans += spans.len() as u64;
        if last >= Stage::Encode {
            json.clear();
            meter.stage(Stage::Encode, || stage_encode(&spans, json));
            sizes.json_bytes += json.len() as u64;
        }
    }
}

/// How many entries are whole.
#[inline(never)]
pub fn stage_decode(entries: &Entries) -> usize {
    entries.iter().filter(|bytes| black_box(decode(black_box(bytes))).is_ok()).count()
}

/// The events of whole entries.
#[inline(never)]
pub fn stage_decode_translate(entries: &Entries) -> Vec<LayerEvent> {
    let (operations, mut events) = (ReqOpTable::default(), Vec::with_capacity(entries.len()));
    for bytes in entries.iter() {
        if let Ok(record) = decode(bytes) {
            append(record, &operations, &mut events);
        }
    }
    events
}

/// How many traces the batch completes. A trace is lent to whoever takes it; for the stages behind, here, they are kept,
/// and what the clones take then counts with the join: a figure for the join is that of a run which ends with it.
#[inline(never)]
pub fn stage_join(joiner: &mut Joiner, batch: EventBatch, mut kept: Option<&mut Vec<Trace>>) -> u64 {
    let mut traces = 0;
    joiner.apply(batch, &mut |trace: &Trace| {
        traces += 1;
        if let Some(kept) = &mut kept {
            kept.push(trace.clone());
        }
    });
    traces
}

/// Adds traces to a report.
#[inline(never)]
pub fn stage_report(report: &mut Report, traces: &[Trace]) {
    traces.iter().for_each(|trace| report.add(trace));
}

/// The spans of traces.
#[inline(never)]
pub fn stage_spans(traces: &[Trace]) -> Vec<Span> {
    traces.iter().flat_map(spans).collect()
}

/// Appends spans as JSON.
#[inline(never)]
pub fn stage_encode(spans: &[Span], out: &mut Vec<u8>) {
    spans.iter().for_each(|span| json::encode(span, out));
}

/// Events as the tracer sends them.
pub fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: MonotonicNs) -> EventBatch {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let (monotonic, wallclock) = (MonotonicNs(0), WallclockNs(1_700_000_000_000_000_000));
    let anchor = ClockAnchor { monotonic, wallclock, uncertainty: DurationNs(100), ..ClockAnchor::NONE };
    EventBatch {
        source,
        sequence,
        anchor,
        events,
        watermark,
        stats: SourceStats::default(),
        crashed_runs: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_comes_out_as_a_trace_and_every_layer_as_a_span() {
        let sizes = run(11_000, Stage::Encode, &mut Outside);
        assert_eq!(sizes.traces, 11_000);
        // 16 tasks, 256 files; 11,000 calls; 1,000 of them with a bio and a request, 1,000 with a pair of them.
        assert_eq!(sizes.events, 16 + 256 + 11_000 + 2 * 1_000 + 1_000);
        // A call that reached the disk has the file system's span too where its file lies on one, a call alone has not.
        assert!(sizes.spans >= 11_000 + 2 * 2_000, "{sizes:?}");
        assert!(sizes.json_bytes > 100 * sizes.spans, "{sizes:?}");
        assert_eq!(sizes, run(11_000, Stage::Encode, &mut Outside), "the same input is the same work");
    }

    #[test]
    fn a_stage_is_left_out_only_behind_the_last() {
        #[derive(Default)]
        struct Seen(Vec<Stage>);
        impl Meter for Seen {
            fn stage<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
                self.0.push(stage);
                work()
            }
        }
        for (index, last) in Stage::ALL.into_iter().enumerate() {
            let mut seen = Seen::default();
            run(10, last, &mut seen);
            seen.0.sort_unstable();
            seen.0.dedup();
            assert_eq!(seen.0, Stage::ALL[..=index]);
        }
    }

    #[test]
    fn stages_are_known_by_their_names() {
        assert!(Stage::ALL.into_iter().all(|stage| Stage::by_name(stage.name()) == Some(stage)));
        assert_eq!(Stage::by_name("parse"), None);
    }
}
