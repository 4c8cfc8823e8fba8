//! Traces for the topic, an exporter, and what of them arrived.

#![allow(dead_code, reason = "each test file uses a part of it")]

use std::collections::BTreeMap;
use std::path::Path;

use blkkin_bus::kafka::{Settings, SingleProducer, TRACES};
use blkkin_wire::clock::{DurationNs, WallclockNs};
use blkkin_wire::fragment::{
    FragmentBatch, FragmentKind, FragmentOrigin, Incarnation, Sampled, Stage, TraceFragment,
};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::span::{Span, SpanKind, SpanLink, TagValue};
use blkkin_wire::v1;
use blkkin_zipkin_export::json;
use serde_json::Value;

use crate::support::live::eventually;
use crate::support::service::Service;

/// Spans of a trace here.
pub(crate) const SPANS: u64 = 40;
/// 2026-09-21.
const START: u64 = 1_790_000_000_000_000_000;

/// A trace with something of everything, different from each other one.
pub(crate) fn piece(n: u64) -> TraceFragment {
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
        trace,
        spans: (0..SPANS).map(span).collect(),
        kind: FragmentKind::First,
        complete: true,
        sampled: n.is_multiple_of(3).then(|| Sampled { rule: "one in 3".into(), one_in: 3 }),
        sampled_by_application: false,
        remote_link: Default::default(),
    }
}

/// Whoever writes pieces: each has a key of its own, so all it writes lies in one partition.
pub(crate) struct Writer {
    producer: SingleProducer,
    from: FragmentOrigin,
    pub(crate) next: u64,
}

impl Writer {
    pub(crate) fn new(settings: &Settings, partition: u32) -> Writer {
        let from = FragmentOrigin { stage: Stage::Assemble, partition, incarnation: Incarnation(0x5eed) };
        Writer { producer: SingleProducer::new(settings, TRACES).unwrap(), from, next: 0 }
    }

    /// As one record, behind what was written.
    pub(crate) fn write(&mut self, pieces: Vec<TraceFragment>) {
        let count = pieces.len() as u64;
        self.write_again(self.next, pieces);
        self.next += count;
    }

    /// As one record, under these numbers.
    pub(crate) fn write_again(&self, first: u64, pieces: Vec<TraceFragment>) {
        self.raw(&v1::encode_fragments(&FragmentBatch { origin: self.from, first, fragments: pieces }));
    }

    /// Bytes as they are; while no broker is there it goes on.
    pub(crate) fn raw(&self, bytes: &[u8]) {
        let key = self.from.partition.to_be_bytes();
        assert!(eventually(|| self.producer.send(&key, &[], bytes).is_ok()));
    }
}

/// How often each span is meant to be there, as Zipkin shows it.
pub(crate) fn meant(pieces: impl IntoIterator<Item = TraceFragment>) -> BTreeMap<String, usize> {
    let mut meant = BTreeMap::new();
    for TraceFragment { trace, mut spans, sampled, .. } in pieces {
        if let (Some(sampled), Some(root)) = (sampled, spans.iter_mut().find(|span| span.parent.is_none())) {
            assert_eq!(root.trace, trace);
            let rule = TagValue::Text(sampled.rule.clone());
            root.tags.push(("blkkin.sampled.rule".into(), rule));
            root.tags.push(("blkkin.sampled.one_in".into(), TagValue::Number(sampled.one_in.into())));
        }
        for span in spans {
            let mut bytes = Vec::new();
            json::encode(&span, &mut bytes);
            *meant.entry(canonical(serde_json::from_slice(&bytes).unwrap())).or_default() += 1;
        }
    }
    meant
}

/// How often each span is there.
pub(crate) fn shown(spans: impl IntoIterator<Item = Value>) -> BTreeMap<String, usize> {
    let mut shown = BTreeMap::new();
    for span in spans {
        *shown.entry(canonical(span)).or_default() += 1;
    }
    shown
}

/// Trace, id, parent, kind, name, services, time, duration, annotations and tags. Zipkin adds addresses.
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

/// An exporter, with its words in a file of this folder; those before it in the same folder have theirs there too.
pub(crate) fn start(settings: &Settings, folder: &Path, words: &[&str]) -> Service {
    let words = [&["exporter", "--brokers", &settings.brokers], words].concat();
    Service::start(folder, "exporter", &words)
}
