use super::*;
use crate::queue::WhenFull;
use crate::testing::spans;
use std::time::Duration;

const AT_ONCE: Backoff = Backoff { first: Duration::ZERO, most: Duration::ZERO };

/// A server that refuses every list with a bad span in it, and is away for the first posts.
struct Server {
    bad: Vec<usize>,
    away: usize,
    posts: usize,
    lists: Vec<Vec<usize>>,
}

impl Server {
    fn refusing(bad: &[usize]) -> Server {
        Server { bad: bad.to_vec(), away: 0, posts: 0, lists: Vec::new() }
    }
}

impl Post for &mut Server {
    fn post(&mut self, list: &[u8]) -> Result<Reply, Away> {
        self.posts += 1;
        if self.away > 0 {
            self.away -= 1;
            return Err(Away("away".into()));
        }
        let list: Vec<usize> = serde_json::from_slice(list).unwrap();
        if list.iter().any(|n| self.bad.contains(n)) {
            return Ok(Reply::Refused("bad span".into()));
        }
        self.lists.push(list);
        Ok(Reply::Accepted)
    }
}

/// Delivers the spans 0 to `n` and returns the queue with the books.
fn deliver(server: &mut Server, n: usize) -> Queue {
    let queue = Queue::new(n, WhenFull::DropNewest);
    queue.offer(spans(n as u64));
    queue.take(n).unwrap();
    let mut batch = Batch::default();
    (0..n).for_each(|span| batch.push(span.to_string().as_bytes()));
    Delivery::new(server, AT_ONCE).deliver(&batch, &queue);
    queue
}

#[test]
fn a_good_batch_is_one_post() {
    let mut server = Server::refusing(&[]);
    let books = deliver(&mut server, 1000).accounts();
    assert_eq!((server.posts, books.sent, books.retries, books.pending), (1, 1000, 0, 0));
}

#[test]
fn bad_spans_are_lost_alone_and_the_others_arrive_once_in_order() {
    for bad in [&[0][..], &[999], &[500], &[0, 1, 499, 500, 998, 999]] {
        let mut server = Server::refusing(bad);
        let queue = deliver(&mut server, 1000);
        let books = queue.accounts();
        assert_eq!((books.sent as usize, books.dropped_rejected as usize), (1000 - bad.len(), bad.len()));
        assert!(books.balances() && books.pending == 0);
        let expected: Vec<_> = (0..1000).filter(|n| !bad.contains(n)).collect();
        assert_eq!(server.lists.concat(), expected);
        assert!(server.posts <= 1 + 20 * bad.len(), "{} posts for {bad:?}", server.posts);
        assert_eq!(queue.trouble().as_deref(), Some("bad span"));
    }
}

#[test]
fn a_server_that_refuses_everything_gets_a_bounded_number_of_posts() {
    let mut server = Server::refusing(&(0..1000).collect::<Vec<_>>());
    let books = deliver(&mut server, 1000).accounts();
    assert_eq!((books.dropped_rejected, books.pending), (1000, 0));
    // Halving stops at the maximum; what is on the stack then, at most one part a level, is posted once more.
    assert!(server.posts <= POSTS_MAX as usize + 11, "{}", server.posts);
}

#[test]
fn a_server_that_was_away_gets_everything_once() {
    let mut server = Server { away: 7, ..Server::refusing(&[3]) };
    let queue = deliver(&mut server, 10);
    let books = queue.accounts();
    assert_eq!((books.sent, books.dropped_rejected, books.retries), (9, 1, 7));
    assert_eq!(server.lists.concat(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    assert_eq!(queue.trouble().as_deref(), Some("bad span"), "the outage is over");
}

struct Denies;

impl Post for Denies {
    fn post(&mut self, _: &[u8]) -> Result<Reply, Away> {
        Ok(Reply::Denied("404".into()))
    }
}

#[test]
fn a_server_that_wants_no_lists_is_not_asked_about_halves() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(2));
    queue.take(2).unwrap();
    let mut batch = Batch::default();
    batch.push(b"1");
    batch.push(b"2");
    let mut delivery = Delivery::new(Denies, AT_ONCE);
    delivery.probe(&queue);
    assert_eq!(queue.trouble().as_deref(), Some("404"));
    delivery.deliver(&batch, &queue);
    assert_eq!(queue.accounts().dropped_rejected, 2);
}

/// Gives up in the middle of a batch.
struct AbandonsAfter<'a>(u32, &'a Queue);

impl Post for AbandonsAfter<'_> {
    fn post(&mut self, _: &[u8]) -> Result<Reply, Away> {
        self.0 -= 1;
        if self.0 == 0 {
            self.1.abandon();
        }
        Err(Away("away".into()))
    }
}

#[test]
fn an_abandoned_queue_ends_the_attempts() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(4));
    queue.take(3).unwrap();
    let mut batch = Batch::default();
    batch.push(b"1");
    Delivery::new(AbandonsAfter(4, &queue), AT_ONCE).deliver(&batch, &queue);
    assert_eq!(queue.take(1), None);
    let books = queue.accounts();
    assert_eq!((books.dropped_undeliverable, books.retries, books.pending), (4, 3, 0));
    assert!(books.balances());
}
