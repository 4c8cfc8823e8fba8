use super::*;
use crate::testing::spans;
use std::thread;

const NO_TIME: Duration = Duration::ZERO;
const LONG: Duration = Duration::from_secs(60);

fn taken(queue: &Queue, most: usize) -> usize {
    queue.take(most).unwrap().len()
}

#[test]
fn what_finds_it_full_is_dropped_and_counted_exactly() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(7));
    queue.offer(spans(7));
    queue.offer(spans(7));
    let books = queue.accounts();
    assert_eq!((books.offered, books.pending, books.dropped_queue_full), (21, 10, 11));
    assert!(books.balances());
}

#[test]
fn spans_in_hand_count_against_the_bound_until_settled() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(10));
    assert_eq!(taken(&queue, 6), 6);
    queue.offer(spans(1));
    assert_eq!(queue.accounts().dropped_queue_full, 1);
    queue.settle(Settled::Sent, 4);
    queue.offer(spans(5));
    let books = queue.accounts();
    assert_eq!((books.sent, books.pending, books.dropped_queue_full), (4, 10, 2));
    assert!(books.balances());
}

#[test]
fn order_is_kept() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    let offered = spans(5);
    queue.offer(offered[..2].to_vec());
    queue.offer(offered[2..].to_vec());
    let mut got = queue.take(3).unwrap();
    queue.settle(Settled::Sent, 3);
    got.extend(queue.take(3).unwrap());
    assert_eq!(got, offered);
}

#[test]
fn what_is_not_settled_is_undeliverable() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(5));
    assert_eq!(taken(&queue, 3), 3);
    queue.settle(Settled::Rejected, 1);
    assert_eq!(taken(&queue, 3), 2);
    queue.consumer_gone();
    let books = queue.accounts();
    assert_eq!((books.dropped_rejected, books.dropped_undeliverable, books.pending), (1, 4, 0));
    assert!(books.balances());
}

#[test]
fn nobody_settles_more_than_is_in_hand() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(5));
    assert_eq!(taken(&queue, 3), 3);
    queue.abandon();
    queue.seal();
    queue.settle(Settled::Sent, 3);
    let books = queue.accounts();
    assert_eq!((books.sent, books.dropped_undeliverable), (0, 5));
    assert!(books.balances());
}

#[test]
fn draining_gives_what_is_left_and_takes_nothing_in() {
    let queue = Queue::new(10, WhenFull::Block);
    queue.offer(spans(2));
    queue.drain();
    queue.offer(spans(3));
    assert_eq!(taken(&queue, 10), 2);
    queue.settle(Settled::Sent, 2);
    assert_eq!(queue.take(10), None);
    assert_eq!(queue.accounts().dropped_undeliverable, 3);
    assert!(queue.accounts().balances());
}

#[test]
fn a_producer_that_blocks_loses_nothing() {
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
            assert!(queue.accounts().pending <= 4 && queue.accounts().balances());
            queue.settle(Settled::Sent, some.len());
            got += some.len();
        }
        got
    });
    assert_eq!(got, 350);
    assert_eq!(queue.accounts().sent, 350);
}

#[test]
fn a_producer_that_blocks_is_let_go_when_the_consumer_is_gone() {
    let queue = Queue::new(4, WhenFull::Block);
    queue.offer(spans(4));
    thread::scope(|scope| {
        scope.spawn(|| queue.offer(spans(6)));
        queue.consumer_gone();
    });
    let books = queue.accounts();
    assert_eq!((books.offered, books.dropped_undeliverable, books.pending), (10, 10, 0));
    assert!(queue.wait_gone(NO_TIME));
}

#[test]
fn a_pause_ends_when_draining_begins_and_when_it_is_over() {
    let queue = Queue::new(4, WhenFull::DropNewest);
    thread::scope(|scope| {
        let paused = scope.spawn(|| queue.pause(LONG));
        queue.drain();
        // Either the pause saw the change, or it began after it and sees the next one.
        queue.abandon();
        paused.join().unwrap();
    });
    assert_eq!(queue.pause(LONG), AfterPause::GiveUp);
    assert!(!queue.wait_gone(NO_TIME));
}

#[test]
fn an_outage_passes_and_a_fault_stays() {
    let queue = Queue::new(4, WhenFull::DropNewest);
    queue.set_fault("refused".into());
    queue.set_outage(Some("away".into()));
    assert_eq!(queue.trouble().as_deref(), Some("away"));
    queue.set_outage(None);
    assert_eq!(queue.trouble().as_deref(), Some("refused"));
}
