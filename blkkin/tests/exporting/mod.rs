//! Generated traces for the topic, an exporter, and a comparison of the spans that arrived.

use std::collections::BTreeMap;
use std::path::Path;

use blkkin_bus::kafka::{Settings, SingleProducer, TRACES};
use blkkin_wire::clock::{DurationNs, WallclockNs};
use blkkin_wire::fragment::{FragmentBatch, FragmentOrigin, Incarnation, Sampled, StageId, TraceFragment};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind, SpanLink, TagValue};
use blkkin_wire::v1;
use blkkin_zipkin_export::json;
use serde_json::Value;

use crate::support::live::eventually;
use crate::support::service::Service;

/// Spans of each trace here.
pub(crate) const SPANS: u64 = 40;
/// 2026-09-21.
const START: u64 = 1_790_000_000_000_000_000;

/// Returns a trace with a value in every field, distinct from each other trace.
pub(crate) fn fragment(n: u64) -> TraceFragment {
    let trace = TraceId(u128::from(0xb1_0000_0000_u64 + n) << 64 | u128::from(n + 1));
    let span = |at: u64| Span {
        trace,
        id: SpanId(n * 1_000 + at + 1),
        parent: (at > 0).then(|| SpanId(n * 1_000 + at.div_ceil(2))),
        name: ["pwrite", "bio write", "request write"][(at % 3) as usize].into(),
        service: ["postgres", "ext4", "block", "nvme0n1"][(at % 4) as usize].into(),
        remote_service: at.is_multiple_of(4).then(|| "ext4".into()),
        kind: [SpanKind::Client, SpanKind::Server, SpanKind::Local][(at % 3) as usize],
        start: WallclockNs(START + n * 1_000_000 + at * 1_234),
        duration: DurationNs(n * 7 + at * 321),
        annotations: (0..at % 3).map(|m| (WallclockNs(START + m * 5_000), "woken".into())).collect(),
        tags: vec![
            ("process.pid".into(), TagValue::Number(n as i64 - 5)),
            ("file.path".into(), TagValue::Text(format!("/srv/ä/{n}/{at}").into())),
        ],
        error: (at % 13 == 12).then(|| "EIO".into()),
        links: (0..at % 2)
            .map(|m| SpanLink { trace, span: SpanId(m + 1), relation: "waited for it (rule: x)".into() })
            .collect(),
    };
    TraceFragment {
        sampled: n.is_multiple_of(3).then(|| Sampled { rule: "one in 3".into(), one_in: 3 }),
        ..TraceFragment::whole(trace, (0..SPANS).map(span).collect())
    }
}

/// A writer of fragments. Its key is its own, so all its records are in one partition.
pub(crate) struct Writer {
    producer: SingleProducer,
    origin: FragmentOrigin,
    pub(crate) next: u64,
}

impl Writer {
    pub(crate) fn new(settings: &Settings, partition: u32) -> Writer {
        let origin = FragmentOrigin { stage: StageId::Assemble, partition, incarnation: Incarnation(0x5eed) };
        Writer { producer: SingleProducer::new(settings, TRACES).unwrap(), origin, next: 0 }
    }

    /// Writes fragments as one record, numbered after the previous ones.
    pub(crate) fn write(&mut self, fragments: Vec<TraceFragment>) {
        let count = fragments.len() as u64;
        self.write_numbered(self.next, fragments);
        self.next += count;
    }

    /// Writes fragments as one record with these numbers.
    pub(crate) fn write_numbered(&self, first: u64, fragments: Vec<TraceFragment>) {
        self.write_bytes(&v1::encode_fragments(&FragmentBatch { origin: self.origin, first, fragments }));
    }

    /// Writes these bytes unchanged; retries while no broker is reachable.
    pub(crate) fn write_bytes(&self, bytes: &[u8]) {
        let key = self.origin.partition.to_be_bytes();
        assert!(eventually(|| self.producer.send(&key, &[], Some(bytes)).is_ok()));
    }
}

/// Returns the expected number of each span, as Zipkin shows it.
pub(crate) fn expected_spans(fragments: impl IntoIterator<Item = TraceFragment>) -> BTreeMap<String, usize> {
    let mut expected_spans = BTreeMap::new();
    for span in fragments.into_iter().flat_map(exported) {
        let mut bytes = Vec::new();
        json::encode(&span, &mut bytes);
        *expected_spans.entry(canonical(serde_json::from_slice(&bytes).unwrap())).or_default() += 1;
    }
    expected_spans
}

/// Returns the spans that an exporter makes of a fragment: the root has the reason of sampling.
pub(crate) fn exported(fragment: TraceFragment) -> Vec<Span> {
    let TraceFragment { trace, mut spans, sampled, .. } = fragment;
    if let (Some(sampled), Some(root)) = (sampled, spans.iter_mut().find(|span| span.parent.is_none())) {
        assert_eq!(root.trace, trace);
        root.tags.push(("blkkin.sampled.rule".into(), TagValue::Text(sampled.rule)));
        root.tags.push(("blkkin.sampled.one_in".into(), TagValue::Number(sampled.one_in.into())));
    }
    spans
}

/// Returns the number of each span.
pub(crate) fn found_spans(spans: impl IntoIterator<Item = Value>) -> BTreeMap<String, usize> {
    let mut found_spans = BTreeMap::new();
    for span in spans {
        *found_spans.entry(canonical(span)).or_default() += 1;
    }
    found_spans
}

/// Returns a span with trace, id, parent, kind, name, services, times, annotations and tags. The
/// addresses that Zipkin adds are removed.
pub(crate) fn canonical(mut span: Value) -> String {
    for endpoint in ["localEndpoint", "remoteEndpoint"] {
        if let Some(endpoint) = span.get_mut(endpoint).and_then(Value::as_object_mut) {
            endpoint.retain(|key, _| key == "serviceName");
        }
    }
    if let Some(annotations) = span.get_mut("annotations").and_then(Value::as_array_mut) {
        annotations.sort_by_key(Value::to_string);
    }
    span.to_string()
}

/// Starts an exporter. Its output is appended to a file in this folder.
pub(crate) fn start(settings: &Settings, folder: &Path, args: &[&str]) -> Service {
    let args = [&["exporter", "--brokers", &settings.brokers], args].concat();
    Service::start(folder, "exporter", &args)
}
