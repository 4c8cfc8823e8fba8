//! What a topic promises: everything once, in order, never more than its capacity, and books that balance.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use super::*;
use crate::Count;

/// Long enough never to pass in a test that works, and no test waits for it to pass.
const FOREVER: Duration = Duration::from_secs(600);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Parcel(u64);

impl EventCount for Parcel {
    fn event_count(&self) -> u64 {
        self.0
    }
}

#[test]
fn everything_comes_out_once_and_in_order() {
    let (publisher, mut subscription) = channel(2);
    let sent: Vec<_> = (0..1000).map(Parcel).collect();
    let sender = thread::spawn({
        let sent = sent.clone();
        move || sent.into_iter().for_each(|parcel| publisher.publish(parcel).unwrap())
    });
    let mut got = Vec::new();
    while let Next::Item(parcel) = subscription.next(FOREVER) {
        got.push(parcel);
    }
    sender.join().unwrap();
    assert_eq!(got, sent);
}

#[test]
fn closes_with_the_last_publisher_and_gives_what_is_left() {
    let (first, mut subscription) = channel(4);
    let second = first.clone();
    first.publish(Parcel(1)).unwrap();
    drop(first);
    second.publish(Parcel(2)).unwrap();
    drop(second);
    assert_eq!(subscription.next(FOREVER), Next::Item(Parcel(1)));
    assert_eq!(subscription.next(FOREVER), Next::Item(Parcel(2)));
    assert_eq!(subscription.next(FOREVER), Next::Closed);
    assert_eq!(subscription.next(FOREVER), Next::Closed);
}

#[test]
fn an_idle_topic_says_timeout_and_stays_open() {
    let (publisher, mut subscription) = channel(1);
    assert_eq!(subscription.next(Duration::ZERO), Next::Timeout);
    publisher.publish(Parcel(7)).unwrap();
    assert_eq!(subscription.next(FOREVER), Next::Item(Parcel(7)));
}

#[test]
fn a_full_topic_makes_its_publisher_wait() {
    let (publisher, mut subscription) = channel(1);
    let (passed, passes) = mpsc::channel();
    let sender = thread::spawn(move || {
        for number in 0..3 {
            publisher.publish(Parcel(number)).unwrap();
            passed.send(number).unwrap();
        }
    });
    assert_eq!(passes.recv(), Ok(0));
    // The second cannot pass before one was taken, whatever the scheduler does; so with one in the topic and
    // one waiting, taking one lets exactly one more pass.
    assert_eq!(passes.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(subscription.next(FOREVER), Next::Item(Parcel(0)));
    assert_eq!(passes.recv(), Ok(1));
    assert_eq!(passes.try_recv(), Err(mpsc::TryRecvError::Empty));
    assert_eq!(subscription.next(FOREVER), Next::Item(Parcel(1)));
    assert_eq!(passes.recv(), Ok(2));
    sender.join().unwrap();
}

#[test]
fn a_waiting_publisher_learns_at_once_that_the_reader_is_gone() {
    let (publisher, subscription) = channel(1);
    publisher.publish(Parcel(1)).unwrap();
    let sender = thread::spawn(move || publisher.publish(Parcel(1)));
    drop(subscription);
    assert_eq!(sender.join().unwrap(), Err(Closed));
}

#[test]
fn the_books_balance_at_every_end() {
    let (publisher, mut subscription) = channel(4);
    let meter = publisher.stats_handle();
    for weight in [3, 4, 5] {
        publisher.publish(Parcel(weight)).unwrap();
    }
    assert_eq!(subscription.next(FOREVER), Next::Item(Parcel(3)));
    let counts = subscription.stats();
    assert_eq!(counts.published, Count { items: 3, events: 12 });
    assert_eq!(counts.consumed, Count { items: 1, events: 3 });
    drop(subscription);
    assert_eq!(publisher.publish(Parcel(100)), Err(Closed));
    drop(publisher);
    assert_eq!(meter.stats().waiting(), Count { items: 2, events: 9 });
}
