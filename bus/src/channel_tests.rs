//! Guarantees of a channel: each item once and in order, at most its capacity, exact counters.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::Count;

/// Timeout that no passing test reaches.
const FOREVER: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Item(u64);

impl EventCount for Item {
    fn event_count(&self) -> u64 {
        self.0
    }
}

#[test]
fn every_item_is_received_once_and_in_order() {
    let (publisher, mut subscription) = channel(2);
    let sent: Vec<_> = (0..1000).map(Item).collect();
    let sender = thread::spawn({
        let sent = sent.clone();
        move || sent.into_iter().for_each(|item| publisher.publish(item).unwrap())
    });
    let mut received = Vec::new();
    while let Next::Item(item) = subscription.next(FOREVER) {
        received.push(item);
    }
    sender.join().unwrap();
    assert_eq!(received, sent);
}

#[test]
fn the_channel_closes_with_its_last_publisher_after_all_items() {
    let (first, mut subscription) = channel(4);
    let second = first.clone();
    first.publish(Item(1)).unwrap();
    drop(first);
    second.publish(Item(2)).unwrap();
    drop(second);
    assert_eq!(subscription.next(FOREVER), Next::Item(Item(1)));
    assert_eq!(subscription.next(FOREVER), Next::Item(Item(2)));
    assert_eq!(subscription.next(FOREVER), Next::Closed);
    assert_eq!(subscription.next(FOREVER), Next::Closed);
}

#[test]
fn an_empty_channel_returns_timeout_and_stays_open() {
    let (publisher, mut subscription) = channel(1);
    assert_eq!(subscription.next(Duration::ZERO), Next::Timeout);
    publisher.publish(Item(7)).unwrap();
    assert_eq!(subscription.next(FOREVER), Next::Item(Item(7)));
}

#[test]
fn a_full_channel_blocks_its_publisher() {
    let (publisher, mut subscription) = channel(1);
    let (passed, passes) = mpsc::channel();
    let sender = thread::spawn(move || {
        for number in 0..3 {
            publisher.publish(Item(number)).unwrap();
            passed.send(number).unwrap();
        }
    });
    assert_eq!(passes.recv(), Ok(0));
    // With one item in the channel the second publish blocks, whatever the scheduler does. So each
    // receive lets exactly one more publish return.
    assert_eq!(passes.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(subscription.next(FOREVER), Next::Item(Item(0)));
    assert_eq!(passes.recv(), Ok(1));
    assert_eq!(passes.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(subscription.next(FOREVER), Next::Item(Item(1)));
    assert_eq!(passes.recv(), Ok(2));
    sender.join().unwrap();
}

#[test]
fn a_blocked_publisher_fails_when_the_subscription_is_dropped() {
    let (publisher, subscription) = channel(1);
    publisher.publish(Item(1)).unwrap();
    let sender = thread::spawn(move || publisher.publish(Item(1)));
    drop(subscription);
    assert_eq!(sender.join().unwrap(), Err(Closed));
}

#[test]
fn the_counters_are_exact_after_either_end_is_dropped() {
    let (publisher, mut subscription) = channel(4);
    let stats = publisher.stats_handle();
    for events in [3, 4, 5] {
        publisher.publish(Item(events)).unwrap();
    }
    assert_eq!(subscription.next(FOREVER), Next::Item(Item(3)));
    let counts = subscription.stats();
    assert_eq!(counts.published, Count { items: 3, events: 12 });
    assert_eq!(counts.consumed, Count { items: 1, events: 3 });
    drop(subscription);
    assert_eq!(publisher.publish(Item(100)), Err(Closed));
    drop(publisher);
    assert_eq!(stats.stats().waiting(), Count { items: 2, events: 9 });
}
