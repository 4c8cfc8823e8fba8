use super::*;
use crate::format::Format;
use crate::queue::{Hand, Queue, WhenFull};
use crate::testing::spans;
use std::sync::Arc;
use std::time::Duration;

const POSTS_MAX: u32 = 256;
const AT_ONCE: Patience =
    Patience { backoff: Backoff { first: Duration::ZERO, most: Duration::ZERO }, posts_max: POSTS_MAX };

/// Numbers in place of spans.
fn batch(numbers: impl Iterator<Item = usize>) -> Batch {
    let mut batch = Batch::new(Format::Json);
    numbers.for_each(|n| batch.push(n.to_string().as_bytes(), &Arc::from("s")));
    batch
}

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
            return Err(Away { reason: Reason::NotReached, why: "away".into() });
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
    Delivery::new(server, AT_ONCE).deliver(&batch(0..n), 0, &mut Hand(&queue));
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
    let mut delivery = Delivery::new(Denies, AT_ONCE);
    delivery.probe(&batch(0..0), &mut Hand(&queue));
    assert_eq!(queue.trouble().as_deref(), Some("404"));
    delivery.deliver(&batch(1..3), 0, &mut Hand(&queue));
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
        Err(Away { reason: Reason::NotReached, why: "away".into() })
    }
}

#[test]
fn an_abandoned_queue_ends_the_attempts() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(4));
    queue.take(3).unwrap();
    Delivery::new(AbandonsAfter(4, &queue), AT_ONCE).deliver(&batch(1..2), 0, &mut Hand(&queue));
    assert_eq!(queue.take(1), None);
    let books = queue.accounts();
    assert_eq!((books.dropped_undeliverable, books.retries, books.pending), (4, 3, 0));
    assert!(books.balances());
}

/// What is told of each span.
#[derive(Default)]
struct Told(Vec<(Range<usize>, Verdict)>, Vec<Attempt>);

impl Ledger for Told {
    fn settle(&mut self, range: Range<usize>, verdict: Verdict) {
        self.0.push((range, verdict));
    }
    fn recant(&mut self, _: u64, _: String) {}
    fn attempted(&mut self, attempt: Attempt) {
        self.1.push(attempt);
    }
    fn outage(&mut self, _: Option<String>) {}
    fn asks_again_when_denied(&self) -> bool {
        true
    }
    fn is_over(&self) -> bool {
        false
    }
    fn pause(&mut self, _: Duration) -> AfterPause {
        AfterPause::GoOn
    }
}

#[test]
fn a_verdict_names_the_span_by_its_place_among_all() {
    let (mut server, mut told) = (Server::refusing(&[2]), Told::default());
    Delivery::new(&mut server, AT_ONCE).deliver(&batch(0..4), 100, &mut told);
    let refused = Verdict::Rejected("bad span".into());
    let expected = [(100..102, Verdict::Sent), (102..103, refused), (103..104, Verdict::Sent)];
    assert_eq!(told.0, expected);
}

#[test]
fn each_attempt_is_told_with_what_it_came_to() {
    let (mut server, mut told) = (Server { away: 2, ..Server::refusing(&[1]) }, Told::default());
    Delivery::new(&mut server, AT_ONCE).deliver(&batch(0..2), 0, &mut told);
    let attempt = |spans, bytes, again, answer| Attempt { spans, bytes, again, answer };
    let away = Answer::Without(Reason::NotReached);
    // [0,\n1], three times, then each by itself.
    let expected = [
        attempt(2, 6, false, away),
        attempt(2, 6, true, away),
        attempt(2, 6, true, Answer::Refused),
        attempt(1, 3, true, Answer::Accepted),
        attempt(1, 3, true, Answer::Refused),
    ];
    assert_eq!(told.1, expected);
}

#[test]
fn a_probe_says_who_is_away_and_who_is_back() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    let mut server = Server { away: 1, ..Server::refusing(&[]) };
    let mut delivery = Delivery::new(&mut server, AT_ONCE);
    delivery.probe(&batch(0..0), &mut Hand(&queue));
    assert_eq!(queue.trouble().as_deref(), Some("away"));
    delivery.probe(&batch(0..0), &mut Hand(&queue));
    assert_eq!(queue.trouble(), None);
}

/// Takes requests up to a length.
struct Narrow(usize);

impl Post for Narrow {
    fn post(&mut self, request: &[u8]) -> Result<Reply, Away> {
        let long = request.len() > self.0;
        Ok(if long { Reply::TooLong("413".into()) } else { Reply::Accepted })
    }
}

#[test]
fn what_is_too_long_is_halved_and_its_length_is_known() {
    let (batch, mut told) = (batch(0..100), Told::default());
    let mut delivery = Delivery::new(Narrow(150), AT_ONCE);
    assert_eq!(delivery.deliver(&batch, 0, &mut told), AfterPause::GoOn);
    assert!(told.0.iter().all(|(_, verdict)| *verdict == Verdict::Sent));
    assert_eq!(told.0.iter().map(|(range, _)| range.len()).sum::<usize>(), 100);
    let shortest = delivery.too_long().unwrap();
    assert!((151..=300).contains(&shortest), "{shortest}");
    assert_eq!(delivery.too_long(), None);
}

/// Fails over every list with such a span in it, and over all for the first posts.
struct Fails {
    over: Vec<usize>,
    broken: usize,
    posts: usize,
    lists: Vec<Vec<usize>>,
}

impl Fails {
    fn over(bad: &[usize]) -> Fails {
        Fails { over: bad.to_vec(), broken: 0, posts: 0, lists: Vec::new() }
    }
}

impl Post for &mut Fails {
    fn post(&mut self, list: &[u8]) -> Result<Reply, Away> {
        self.posts += 1;
        let list: Vec<usize> = serde_json::from_slice(list).unwrap();
        self.broken = self.broken.saturating_sub(1);
        if self.broken > 0 || list.iter().any(|n| self.over.contains(n)) {
            return Ok(Reply::Failed("500".into()));
        }
        self.lists.push(list);
        Ok(Reply::Accepted)
    }
}

fn verdicts(server: &mut Fails, n: usize) -> (Vec<usize>, Vec<usize>) {
    let mut told = Told::default();
    assert_eq!(Delivery::new(server, AT_ONCE).deliver(&batch(0..n), 0, &mut told), AfterPause::GoOn);
    let of = |sent: bool| {
        let ranges = told.0.iter().filter(|(_, verdict)| (*verdict == Verdict::Sent) == sent);
        let mut spans: Vec<usize> = ranges.flat_map(|(range, _)| range.clone()).collect();
        spans.sort_unstable();
        spans
    };
    (of(true), of(false))
}

#[test]
fn spans_over_which_a_server_fails_are_refused_alone_once_it_has_accepted_others() {
    for bad in [&[0][..], &[999], &[500], &[0, 1, 2, 3], &[499, 500, 998, 999]] {
        let mut server = Fails::over(bad);
        let (sent, refused) = verdicts(&mut server, 1000);
        assert_eq!(refused, bad);
        assert_eq!(sent.len(), 1000 - bad.len());
        assert_eq!(server.lists.iter().map(Vec::len).sum::<usize>(), sent.len(), "each once");
        let posts = FAILURES_MAX as usize + (20 + FAILURES_MAX as usize) * bad.len();
        assert!(server.posts <= posts, "{} posts for {bad:?}", server.posts);
    }
}

#[test]
fn a_server_that_fails_over_everything_is_waited_for_and_nothing_is_refused() {
    for broken in [1, 7, 8, 9, 20, 50, 500, 5_000] {
        let mut server = Fails { broken, ..Fails::over(&[]) };
        let (sent, refused) = verdicts(&mut server, 100);
        assert_eq!((sent.len(), refused.len()), (100, 0), "{broken}");
        let mut server = Fails { broken, ..Fails::over(&[42]) };
        assert_eq!(verdicts(&mut server, 100).1, [42], "{broken}");
    }
}

#[test]
fn a_span_that_comes_alone_cannot_be_judged_and_is_repeated() {
    let mut server = Fails { broken: 1_000, ..Fails::over(&[]) };
    assert_eq!(verdicts(&mut server, 1), (vec![0], vec![]));
    assert_eq!(server.posts, 1_000);
}
