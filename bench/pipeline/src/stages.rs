//! Stages between a ring and a Zipkin server, one function each, over synthetic input of any size.
//!
//! ```text
//! ring entries → decode → translate → join → report
//!                                       └──→ spans → encode
//! ```
//!
//! *In*: a number of system calls. *Out*: the result of the stage, so that the compiler cannot
//! remove it. *Invariant*: the same input is the same work: no clock, no random numbers, one
//! thread. So its instructions can be counted.
//!
//! Stages are never inlined, so that a profiler finds them by name. `decode_translate` contains
//! both, because the tracer does both per entry and the compiler merges them into one loop;
//! translate alone is the difference.
//!
//! *Rejected*: timing a stage inside a real run, which measures the machine of that day and not the
//! stage.

use std::hint::black_box;

use blkkin_aggregator::join::{JoinConfig, Joiner};
use blkkin_aggregator::spans::spans_of;
use blkkin_aggregator::trace::Trace;
use blkkin_report::{Report, ReportConfig};
use blkkin_span_encoding::json;
use blkkin_tracer::attach::req_op::ReqOpTable;
use blkkin_tracer::read::decode::decode;
use blkkin_tracer::read::translate::append;
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::{BootId, NodeId, Source, StartEpoch};
use blkkin_wire::span::Span;

use crate::records::{Entries, STEP};

/// Events per batch: the batch size of a tracer that polls every 5 ms at 800,000 events/s.
pub const BATCH: usize = 4_096;

/// Stage of the pipeline.
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
    /// Every stage, in the order of the pipeline.
    pub const ALL: [Stage; 6] =
        [Stage::Decode, Stage::DecodeTranslate, Stage::Join, Stage::Report, Stage::Spans, Stage::Encode];

    /// Returns the name on a command line.
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

    /// Parses a name from a command line.
    pub fn by_name(name: &str) -> Option<Stage> {
        Stage::ALL.into_iter().find(|stage| stage.name() == name)
    }
}

/// Counters of one pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sizes {
    /// Events, including names.
    pub events: u64,
    /// Completed traces.
    pub traces: u64,
    /// Spans of the traces.
    pub spans: u64,
    /// Bytes in the rings.
    pub ring_bytes: u64,
    /// Bytes of Zipkin's JSON, without the commas of the list.
    pub json_bytes: u64,
}

/// Instrument that measures the stages.
pub trait Meter {
    /// Runs `work`, which contains only that stage.
    fn stage<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T;
}

/// Meter that measures nothing, for measurements from outside (valgrind).
pub struct NoMeter;

impl Meter for NoMeter {
    fn stage<T>(&mut self, _stage: Stage, work: impl FnOnce() -> T) -> T {
        work()
    }
}

/// Sends `calls` system calls with their block I/O through the stages up to `last`, in batches.
pub fn run(calls: u64, last: Stage, meter: &mut impl Meter) -> Sizes {
    let mut joiner = Joiner::new(JoinConfig::default());
    let mut report = Report::new(ReportConfig::new(MonotonicNs(0)));
    let mut sizes = Sizes::default();
    let (mut entries, mut n, mut sequence) = (Entries::names(), 0, 0);
    let (mut traces, mut exported) = (Vec::new(), Exported::default());
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
                let collected = (last > Stage::Join).then_some(&mut traces);
                sizes.traces += meter.stage(Stage::Join, || stage_join(&mut joiner, batch, collected));
            }
        }
        after_join(last, meter, &mut report, &traces, &mut exported, &mut sizes);
        traces.clear();
        entries = Entries::default();
        sequence += 1;
    }
    joiner.finish(&mut traces);
    sizes.traces += traces.len() as u64;
    after_join(last, meter, &mut report, &traces, &mut exported, &mut sizes);
    sizes
}

/// Output of the last stages for one batch. Its memory is used again for the next batch: no stage is
/// charged for a list that grows.
#[derive(Default)]
struct Exported {
    spans: Vec<Span>,
    json: Vec<u8>,
}

fn after_join(
    last: Stage,
    meter: &mut impl Meter,
    report: &mut Report,
    traces: &[Trace],
    exported: &mut Exported,
    sizes: &mut Sizes,
) {
    if last >= Stage::Report {
        meter.stage(Stage::Report, || stage_report(report, traces));
    }
    if last >= Stage::Spans {
        let Exported { spans, json } = exported;
        spans.clear();
        meter.stage(Stage::Spans, || stage_spans(traces, spans));
        sizes.spans += spans.len() as u64;
        if last >= Stage::Encode {
            json.clear();
            meter.stage(Stage::Encode, || stage_encode(spans, json));
            sizes.json_bytes += json.len() as u64;
        }
    }
}

/// Decodes the entries and returns the number of valid ones.
#[inline(never)]
pub fn stage_decode(entries: &Entries) -> usize {
    entries.iter().filter(|bytes| black_box(decode(black_box(bytes))).is_ok()).count()
}

/// Decodes and translates the entries.
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

/// Joins the batch and returns the number of completed traces. The joiner passes a trace by
/// reference. The later stages need owned traces, and the clones count as time of the join; so the
/// figure of the join is measured in a run that ends with it.
#[inline(never)]
pub fn stage_join(joiner: &mut Joiner, batch: EventBatch, mut collected: Option<&mut Vec<Trace>>) -> u64 {
    let mut traces = 0;
    joiner.apply(batch, &mut |trace: &Trace| {
        traces += 1;
        if let Some(collected) = &mut collected {
            collected.push(trace.clone());
        }
    });
    traces
}

/// Adds traces to a report.
#[inline(never)]
pub fn stage_report(report: &mut Report, traces: &[Trace]) {
    traces.iter().for_each(|trace| report.add(trace));
}

/// Converts traces to spans.
#[inline(never)]
pub fn stage_spans(traces: &[Trace], out: &mut Vec<Span>) {
    traces.iter().for_each(|trace| out.extend(spans_of(trace)))
}

/// Appends spans as JSON.
#[inline(never)]
pub fn stage_encode(spans: &[Span], out: &mut Vec<u8>) {
    spans.iter().for_each(|span| json::encode(span, out));
}

/// Makes a batch like the tracer's.
pub fn batch(sequence: u64, events: Vec<LayerEvent>, watermark: MonotonicNs) -> EventBatch {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let wallclock = WallclockNs(1_700_000_000_000_000_000);
    let anchor = ClockAnchor { wallclock, uncertainty: DurationNs(100), ..ClockAnchor::NONE };
    EventBatch { source, sequence, anchor, events, watermark, ..EventBatch::tick() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_call_is_a_trace_and_every_layer_a_span() {
        let sizes = run(11_000, Stage::Encode, &mut NoMeter);
        assert_eq!(sizes.traces, 11_000);
        // 16 tasks, 256 files; 11,000 system calls; 1,000 of them with a bio and a request, 1,000
        // with a pair of them.
        assert_eq!(sizes.events, 16 + 256 + 11_000 + 2 * 1_000 + 1_000);
        // A system call that reached the disk has a file system span if its file is on one; the
        // others have none.
        assert!(sizes.spans >= 11_000 + 2 * 2_000, "{sizes:?}");
        assert!(sizes.json_bytes > 100 * sizes.spans, "{sizes:?}");
        assert_eq!(sizes, run(11_000, Stage::Encode, &mut NoMeter), "the same input is the same work");
    }

    #[test]
    fn stages_after_the_last_are_skipped() {
        #[derive(Default)]
        struct RecordingMeter(Vec<Stage>);
        impl Meter for RecordingMeter {
            fn stage<T>(&mut self, stage: Stage, work: impl FnOnce() -> T) -> T {
                self.0.push(stage);
                work()
            }
        }
        for (index, last) in Stage::ALL.into_iter().enumerate() {
            let mut meter = RecordingMeter::default();
            run(10, last, &mut meter);
            meter.0.sort_unstable();
            meter.0.dedup();
            assert_eq!(meter.0, Stage::ALL[..=index]);
        }
    }

    #[test]
    fn stages_are_found_by_name() {
        assert!(Stage::ALL.into_iter().all(|stage| Stage::by_name(stage.name()) == Some(stage)));
        assert_eq!(Stage::by_name("parse"), None);
    }
}
