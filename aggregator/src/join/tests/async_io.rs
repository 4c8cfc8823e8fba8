//! Asynchronous I/O: submissions with their bios, below a call or as roots.

use blkkin_wire::async_io::AsyncIoEvent;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, LayerEvent, RequestEvent, Submitter};
use blkkin_wire::ids::SpanId;

use crate::fixtures::{self, batch};
use crate::join::{JoinConfig, Joiner};
use crate::spans;
use crate::trace::{Root, Trace};

/// Returns a submission with `bios` bios.
fn submission(span: u64, call: Option<u64>, (start, end): (u64, u64), bios: u32) -> AsyncIoEvent {
    let times = [MonotonicNs(start), MonotonicNs(end)];
    let task = fixtures::call(1, 0, 0).task;
    AsyncIoEvent { bios, ..AsyncIoEvent::bare(SpanId(span), call.map(SpanId), task, times) }
}

/// Returns the bio of a submission, in the trace of `root`, with its request.
fn bio_of(submission: u64, root: u64, bio: u64, times: (u64, u64)) -> [LayerEvent; 2] {
    let (event, request): (BioEvent, RequestEvent) = fixtures::bio_and_request(root, bio, bio + 1, times);
    let event = BioEvent { submitter: Submitter::Span(SpanId(submission)), ..event };
    [LayerEvent::Request(request), LayerEvent::Bio(event)]
}

fn join(events: Vec<LayerEvent>, watermark: u64) -> (Joiner, Vec<Trace>) {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(1, events, watermark), &mut out);
    (joiner, out)
}

#[test]
fn a_call_is_complete_with_its_submissions_and_their_bios() {
    let call = LayerEvent::Syscall(fixtures::call_with(1, (0, 10), 2));
    let mut events = vec![call];
    events.extend(bio_of(100, 1, 20, (5, 40)));
    events.extend(bio_of(101, 1, 30, (6, 50)));
    events.push(LayerEvent::AsyncIo(submission(100, Some(1), (4, 45), 1)));
    assert!(join(events.clone(), 100).1.is_empty(), "the second submission is awaited");
    events.push(LayerEvent::AsyncIo(submission(101, Some(1), (5, 55), 1)));
    let (joiner, out) = join(events, 100);
    let [trace] = &out[..] else { panic!("{out:?}") };
    assert_eq!((trace.bios.len(), trace.requests.len(), trace.async_ios.len()), (2, 2, 2));
    assert!(trace.incomplete.is_empty() && trace.submitted_by_root() == 2);
    assert!(joiner.stats().balances() && joiner.stats().async_ios.joined == 2);
    let spans = spans::spans_of(trace);
    let parent = |id: u64| spans.iter().find(|span| span.id.0 == id).unwrap().parent.unwrap().0;
    assert_eq!([100, 101, 20, 30, 21].map(parent), [1, 1, 100, 101, 20]);
}

/// A read-ahead goes on after the read that started it.
#[test]
fn a_bio_that_ends_after_its_submission_is_awaited() {
    let mut events = vec![LayerEvent::Syscall(fixtures::call_with(1, (0, 90), 1))];
    events.push(LayerEvent::AsyncIo(submission(100, Some(1), (4, 30), 1)));
    assert!(join(events.clone(), 100).1.is_empty());
    events.extend(bio_of(100, 1, 20, (5, 95)));
    let (_, out) = join(events, 100);
    assert!(out.len() == 1 && out[0].incomplete.is_empty(), "{out:?}");
}

#[test]
fn a_submission_without_a_call_is_a_root() {
    let mut events = bio_of(100, 100, 20, (5, 40)).to_vec();
    events.push(LayerEvent::AsyncIo(submission(100, None, (4, 45), 1)));
    let (_, out) = join(events, 100);
    let [trace] = &out[..] else { panic!("{out:?}") };
    assert!(matches!(trace.root, Root::AsyncIo) && trace.incomplete.is_empty());
    assert_eq!((trace.start().0, trace.end().0), (4, 45));
    let spans = spans::spans_of(trace);
    assert_eq!((&*spans[0].name, spans[0].parent), ("io_uring read", None));
    assert_eq!(spans[1].parent, Some(SpanId(100)));
}

#[test]
fn a_lost_submission_is_missing_from_its_call() {
    let mut events = vec![LayerEvent::Syscall(fixtures::call_with(1, (0, 10), 1))];
    events.extend(bio_of(100, 1, 20, (5, 40)));
    let (mut joiner, mut out) = join(events, 100);
    joiner.finish(&mut out);
    let [trace] = &out[..] else { panic!("{out:?}") };
    assert_eq!((trace.incomplete.bios, trace.bios.len()), (1, 1));
    let bio = spans::spans_of(trace).into_iter().find(|span| span.id.0 == 20).unwrap();
    assert_eq!(bio.parent, Some(SpanId(100)));
    assert!(bio.tags.iter().any(|(key, _)| key == "blkkin.missing.parent"));
}
