use super::*;
use crate::testing::spans;
use std::thread;

const NO_TIME: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);

fn taken(queue: &Queue, most: usize) -> usize {
    queue.take(most).unwrap().len()
}

#[test]
fn spans_beyond_the_limit_are_dropped_and_counted_exactly() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(7));
    queue.offer(spans(7));
    queue.offer(spans(7));
    let stats = queue.stats();
    assert_eq!((stats.offered, stats.pending, stats.dropped_queue_full), (21, 10, 11));
    assert!(stats.balances());
}

#[test]
fn in_flight_spans_count_against_the_limit_until_settled() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(10));
    assert_eq!(taken(&queue, 6), 6);
    queue.offer(spans(1));
    assert_eq!(queue.stats().dropped_queue_full, 1);
    queue.settle(SpanOutcome::Sent, 4);
    queue.offer(spans(5));
    let stats = queue.stats();
    assert_eq!((stats.sent, stats.pending, stats.dropped_queue_full), (4, 10, 2));
    assert!(stats.balances());
}

#[test]
fn order_is_kept() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    let offered = spans(5);
    queue.offer(offered[..2].to_vec());
    queue.offer(offered[2..].to_vec());
    let mut got = queue.take(3).unwrap();
    queue.settle(SpanOutcome::Sent, 3);
    got.extend(queue.take(3).unwrap());
    assert_eq!(got, offered);
}

#[test]
fn unsettled_spans_are_undeliverable() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(5));
    assert_eq!(taken(&queue, 3), 3);
    queue.settle(SpanOutcome::Rejected, 1);
    assert_eq!(taken(&queue, 3), 2);
    queue.consumer_gone();
    let stats = queue.stats();
    assert_eq!((stats.dropped_rejected, stats.dropped_undeliverable, stats.pending), (1, 4, 0));
    assert!(stats.balances());
}

#[test]
fn settling_is_limited_to_spans_in_flight() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(5));
    assert_eq!(taken(&queue, 3), 3);
    queue.abandon();
    queue.seal();
    queue.settle(SpanOutcome::Sent, 3);
    let stats = queue.stats();
    assert_eq!((stats.sent, stats.dropped_undeliverable), (0, 5));
    assert!(stats.balances());
}

#[test]
fn draining_returns_remaining_spans_and_accepts_none() {
    let queue = Queue::new(10, WhenFull::Block);
    queue.offer(spans(2));
    queue.drain();
    queue.offer(spans(3));
    assert_eq!(taken(&queue, 10), 2);
    queue.settle(SpanOutcome::Sent, 2);
    assert_eq!(queue.take(10), None);
    assert_eq!(queue.stats().dropped_undeliverable, 3);
    assert!(queue.stats().balances());
}

#[test]
fn blocked_producer_loses_nothing() {
    let queue = Queue::new(4, WhenFull::Block);
    let got = thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..50 {
                queue.offer(spans(7));
            }
            queue.drain();
        });
        let mut got = 0;
        while let Some(some) = queue.take(3) {
            assert!(queue.stats().pending <= 4 && queue.stats().balances());
            queue.settle(SpanOutcome::Sent, some.len());
            got += some.len();
        }
        got
    });
    assert_eq!(got, 350);
    assert_eq!(queue.stats().sent, 350);
}

#[test]
fn blocked_producer_returns_when_the_consumer_is_gone() {
    let queue = Queue::new(4, WhenFull::Block);
    queue.offer(spans(4));
    thread::scope(|scope| {
        scope.spawn(|| queue.offer(spans(6)));
        queue.consumer_gone();
    });
    let stats = queue.stats();
    assert_eq!((stats.offered, stats.dropped_undeliverable, stats.pending), (10, 10, 0));
    assert!(queue.wait_gone(NO_TIME));
}

#[test]
fn pause_ends_when_draining_begins_or_ends() {
    let queue = Queue::new(4, WhenFull::DropNewest);
    thread::scope(|scope| {
        let paused = scope.spawn(|| queue.pause(LONG));
        queue.drain();
        // The pause sees this change, or it begins later and sees the next one.
        queue.abandon();
        paused.join().unwrap();
    });
    assert_eq!(queue.pause(LONG), RetryDecision::GiveUp);
    assert!(!queue.wait_gone(NO_TIME));
}

#[test]
fn outage_is_cleared_and_fault_stays() {
    let queue = Queue::new(4, WhenFull::DropNewest);
    queue.set_fault("refused".into());
    queue.set_outage(Some("away".into()));
    assert_eq!(queue.last_error().as_deref(), Some("away"));
    queue.set_outage(None);
    assert_eq!(queue.last_error().as_deref(), Some("refused"));
}
