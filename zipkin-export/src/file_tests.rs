use super::*;
use crate::queue::WhenFull;
use crate::testing::{span, spans};
use blkkin_wire::ids::SpanId;
use std::fs::{self, OpenOptions};

/// Returns a file sink on a disk that is full from the first byte.
fn on_a_full_disk(dir: &Path) -> FileSink {
    let mut sink = FileSink::open(&dir.join("x.json")).unwrap();
    sink.file.file.replace_file(OpenOptions::new().write(true).open("/dev/full").unwrap());
    sink
}

fn send(sink: &mut FileSink, spans: Vec<Span>, queue: &Queue) {
    queue.offer(spans);
    sink.send(&queue.take(usize::MAX).unwrap(), queue);
}

#[test]
fn full_disk_is_one_error_and_lost_spans_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    let queue = Queue::new(100, WhenFull::Block);
    let mut sink = on_a_full_disk(dir.path());
    send(&mut sink, spans(3), &queue);
    let error = queue.last_error().unwrap();
    assert!(error.contains("No space left on device") && error.contains("x.json.partial"), "{error}");
    queue.set_fault("error".into());
    send(&mut sink, spans(4), &queue);
    assert_eq!(queue.last_error().as_deref(), Some("error"), "no second error");
    let stats = queue.stats();
    assert_eq!((stats.sent, stats.dropped_undeliverable), (0, 7));
    sink.finish(&queue);
    assert!(!dir.path().join("x.json").exists(), "not whole, so not under its final name");
}

#[test]
fn invalid_span_is_dropped_and_counted() {
    let dir = tempfile::tempdir().unwrap();
    let target = dir.path().join("x.json");
    let queue = Queue::new(100, WhenFull::Block);
    let mut sink = FileSink::open(&target).unwrap();
    send(&mut sink, vec![span(1), Span { id: SpanId(0), ..span(2) }, span(3)], &queue);
    send(&mut sink, vec![Span { id: SpanId(0), ..span(2) }], &queue);
    queue.set_partial_path(Some(sink.path().to_owned()));
    sink.finish(&queue);
    assert_eq!(queue.partial_path(), None, "it has its final name");
    let stats = queue.stats();
    assert_eq!((stats.sent, stats.dropped_rejected, stats.pending), (2, 2, 0));
    let list: Vec<serde_json::Value> = serde_json::from_slice(&fs::read(&target).unwrap()).unwrap();
    assert_eq!(list.len(), 2);
}

#[test]
fn abandoned_file_keeps_its_partial_name() {
    let dir = tempfile::tempdir().unwrap();
    let queue = Queue::new(100, WhenFull::Block);
    let mut sink = FileSink::open(&dir.path().join("x.json")).unwrap();
    send(&mut sink, spans(1), &queue);
    queue.abandon();
    sink.finish(&queue);
    assert!(dir.path().join("x.json.partial").exists() && !dir.path().join("x.json").exists());
}
