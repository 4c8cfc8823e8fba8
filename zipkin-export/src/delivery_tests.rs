use super::*;
use crate::queue::{Queue, QueueObserver, WhenFull};
use crate::testing::spans;
use blkkin_span_encoding::Format;
use std::sync::Arc;
use std::time::Duration;

const POSTS_MAX: u32 = 256;
const AT_ONCE: RetryPolicy =
    RetryPolicy { backoff: Backoff { first: Duration::ZERO, most: Duration::ZERO }, posts_max: POSTS_MAX };

/// Returns a batch with numbers in place of spans.
fn batch(numbers: impl Iterator<Item = usize>) -> Batch {
    let mut batch = Batch::new(Format::Json);
    numbers.for_each(|n| batch.push(n.to_string().as_bytes(), &Arc::from("s")));
    batch
}

/// Server that rejects every list with a bad span, and is unreachable for the first posts.
struct Server {
    bad: Vec<usize>,
    away: usize,
    posts: usize,
    lists: Vec<Vec<usize>>,
}

impl Server {
    fn rejecting(bad: &[usize]) -> Server {
        Server { bad: bad.to_vec(), away: 0, posts: 0, lists: Vec::new() }
    }
}

impl Transport for &mut Server {
    fn post(&mut self, list: &[u8]) -> Result<ServerReply, Unreachable> {
        self.posts += 1;
        if self.away > 0 {
            self.away -= 1;
            return Err(Unreachable { reason: FailureReason::ConnectFailed, why: "away".into() });
        }
        let list: Vec<usize> = serde_json::from_slice(list).unwrap();
        if list.iter().any(|n| self.bad.contains(n)) {
            return Ok(ServerReply::Refused("bad span".into()));
        }
        self.lists.push(list);
        Ok(ServerReply::Accepted)
    }
}

/// Delivers the spans 0 to `n` and returns the queue with its counters.
fn deliver(server: &mut Server, n: usize) -> Queue {
    let queue = Queue::new(n, WhenFull::DropNewest);
    queue.offer(spans(n as u64));
    queue.take(n).unwrap();
    Delivery::new(server, AT_ONCE).deliver(&batch(0..n), 0, &mut QueueObserver(&queue));
    queue
}

#[test]
fn valid_batch_is_one_post() {
    let mut server = Server::rejecting(&[]);
    let stats = deliver(&mut server, 1000).stats();
    assert_eq!((server.posts, stats.sent, stats.retries, stats.pending), (1, 1000, 0, 0));
}

#[test]
fn only_bad_spans_are_rejected_and_others_arrive_once_in_order() {
    for bad in [&[0][..], &[999], &[500], &[0, 1, 499, 500, 998, 999]] {
        let mut server = Server::rejecting(bad);
        let queue = deliver(&mut server, 1000);
        let stats = queue.stats();
        assert_eq!((stats.sent as usize, stats.dropped_rejected as usize), (1000 - bad.len(), bad.len()));
        assert!(stats.balances() && stats.pending == 0);
        let expected: Vec<_> = (0..1000).filter(|n| !bad.contains(n)).collect();
        assert_eq!(server.lists.concat(), expected);
        assert!(server.posts <= 1 + 20 * bad.len(), "{} posts for {bad:?}", server.posts);
        assert_eq!(queue.last_error().as_deref(), Some("bad span"));
    }
}

#[test]
fn rejecting_server_gets_a_bounded_number_of_posts() {
    let mut server = Server::rejecting(&(0..1000).collect::<Vec<_>>());
    let stats = deliver(&mut server, 1000).stats();
    assert_eq!((stats.dropped_rejected, stats.pending), (1000, 0));
    // Halving stops at the maximum. Parts on the stack, up to one per level, are posted once more.
    assert!(server.posts <= POSTS_MAX as usize + 11, "{}", server.posts);
}

#[test]
fn recovered_server_gets_each_span_once() {
    let mut server = Server { away: 7, ..Server::rejecting(&[3]) };
    let queue = deliver(&mut server, 10);
    let stats = queue.stats();
    assert_eq!((stats.sent, stats.dropped_rejected, stats.retries), (9, 1, 7));
    assert_eq!(server.lists.concat(), [0, 1, 2, 4, 5, 6, 7, 8, 9]);
    assert_eq!(queue.last_error().as_deref(), Some("bad span"), "the outage is over");
}

struct DenyingServer;

impl Transport for DenyingServer {
    fn post(&mut self, _: &[u8]) -> Result<ServerReply, Unreachable> {
        Ok(ServerReply::Denied("404".into()))
    }
}

#[test]
fn denied_batch_is_not_halved() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(2));
    queue.take(2).unwrap();
    let mut delivery = Delivery::new(DenyingServer, AT_ONCE);
    delivery.probe(&batch(0..0), &mut QueueObserver(&queue));
    assert_eq!(queue.last_error().as_deref(), Some("404"));
    delivery.deliver(&batch(1..3), 0, &mut QueueObserver(&queue));
    assert_eq!(queue.stats().dropped_rejected, 2);
}

/// Transport that abandons the queue in the middle of a batch.
struct AbandonsAfter<'a>(u32, &'a Queue);

impl Transport for AbandonsAfter<'_> {
    fn post(&mut self, _: &[u8]) -> Result<ServerReply, Unreachable> {
        self.0 -= 1;
        if self.0 == 0 {
            self.1.abandon();
        }
        Err(Unreachable { reason: FailureReason::ConnectFailed, why: "away".into() })
    }
}

#[test]
fn abandoned_queue_ends_retries() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    queue.offer(spans(4));
    queue.take(3).unwrap();
    Delivery::new(AbandonsAfter(4, &queue), AT_ONCE).deliver(&batch(1..2), 0, &mut QueueObserver(&queue));
    assert_eq!(queue.take(1), None);
    let stats = queue.stats();
    assert_eq!((stats.dropped_undeliverable, stats.retries, stats.pending), (4, 3, 0));
    assert!(stats.balances());
}

/// Recorded results and attempts.
#[derive(Default)]
struct Recorder(Vec<(Range<usize>, DeliveryResult)>, Vec<Attempt>);

impl DeliveryObserver for Recorder {
    fn settle(&mut self, range: Range<usize>, verdict: DeliveryResult) {
        self.0.push((range, verdict));
    }
    fn mark_rejected(&mut self, _: u64, _: String) {}
    fn on_attempt(&mut self, attempt: Attempt) {
        self.1.push(attempt);
    }
    fn on_outage(&mut self, _: Option<String>) {}
    fn retries_when_denied(&self) -> bool {
        true
    }
    fn is_cancelled(&self) -> bool {
        false
    }
    fn pause(&mut self, _: Duration) -> RetryDecision {
        RetryDecision::Continue
    }
}

#[test]
fn result_has_the_index_of_the_span_among_all() {
    let (mut server, mut recorder) = (Server::rejecting(&[2]), Recorder::default());
    Delivery::new(&mut server, AT_ONCE).deliver(&batch(0..4), 100, &mut recorder);
    let refused = DeliveryResult::Rejected("bad span".into());
    let expected = [(100..102, DeliveryResult::Sent), (102..103, refused), (103..104, DeliveryResult::Sent)];
    assert_eq!(recorder.0, expected);
}

#[test]
fn each_attempt_is_reported_with_its_result() {
    let (mut server, mut recorder) = (Server { away: 2, ..Server::rejecting(&[1]) }, Recorder::default());
    Delivery::new(&mut server, AT_ONCE).deliver(&batch(0..2), 0, &mut recorder);
    let attempt = |spans, bytes, again, answer| Attempt { spans, bytes, retry: again, result: answer };
    let away = AttemptResult::Failed(FailureReason::ConnectFailed);
    // [0,\n1], three times, then each alone.
    let expected = [
        attempt(2, 6, false, away),
        attempt(2, 6, true, away),
        attempt(2, 6, true, AttemptResult::Refused),
        attempt(1, 3, true, AttemptResult::Accepted),
        attempt(1, 3, true, AttemptResult::Refused),
    ];
    assert_eq!(recorder.1, expected);
}

#[test]
fn probe_reports_outage_and_recovery() {
    let queue = Queue::new(10, WhenFull::DropNewest);
    let mut server = Server { away: 1, ..Server::rejecting(&[]) };
    let mut delivery = Delivery::new(&mut server, AT_ONCE);
    delivery.probe(&batch(0..0), &mut QueueObserver(&queue));
    assert_eq!(queue.last_error().as_deref(), Some("away"));
    delivery.probe(&batch(0..0), &mut QueueObserver(&queue));
    assert_eq!(queue.last_error(), None);
}

/// Server that accepts requests up to a length.
struct LimitedServer(usize);

impl Transport for LimitedServer {
    fn post(&mut self, request: &[u8]) -> Result<ServerReply, Unreachable> {
        let long = request.len() > self.0;
        Ok(if long { ServerReply::TooLarge("413".into()) } else { ServerReply::Accepted })
    }
}

#[test]
fn too_large_request_is_halved_and_its_length_recorded() {
    let (batch, mut recorder) = (batch(0..100), Recorder::default());
    let mut delivery = Delivery::new(LimitedServer(150), AT_ONCE);
    assert_eq!(delivery.deliver(&batch, 0, &mut recorder), RetryDecision::Continue);
    assert!(recorder.0.iter().all(|(_, verdict)| *verdict == DeliveryResult::Sent));
    assert_eq!(recorder.0.iter().map(|(range, _)| range.len()).sum::<usize>(), 100);
    let shortest = delivery.take_shortest_too_large().unwrap();
    assert!((151..=300).contains(&shortest), "{shortest}");
    assert_eq!(delivery.take_shortest_too_large(), None);
}

/// Server that fails on every list with a bad span, and on all lists for the first posts.
struct FailingServer {
    over: Vec<usize>,
    broken: usize,
    posts: usize,
    lists: Vec<Vec<usize>>,
}

impl FailingServer {
    fn over(bad: &[usize]) -> FailingServer {
        FailingServer { over: bad.to_vec(), broken: 0, posts: 0, lists: Vec::new() }
    }
}

impl Transport for &mut FailingServer {
    fn post(&mut self, list: &[u8]) -> Result<ServerReply, Unreachable> {
        self.posts += 1;
        let list: Vec<usize> = serde_json::from_slice(list).unwrap();
        self.broken = self.broken.saturating_sub(1);
        if self.broken > 0 || list.iter().any(|n| self.over.contains(n)) {
            return Ok(ServerReply::ServerError("500".into()));
        }
        self.lists.push(list);
        Ok(ServerReply::Accepted)
    }
}

fn results(server: &mut FailingServer, n: usize) -> (Vec<usize>, Vec<usize>) {
    let mut recorder = Recorder::default();
    assert_eq!(
        Delivery::new(server, AT_ONCE).deliver(&batch(0..n), 0, &mut recorder),
        RetryDecision::Continue
    );
    let of = |sent: bool| {
        let ranges = recorder.0.iter().filter(|(_, verdict)| (*verdict == DeliveryResult::Sent) == sent);
        let mut spans: Vec<usize> = ranges.flat_map(|(range, _)| range.clone()).collect();
        spans.sort_unstable();
        spans
    };
    (of(true), of(false))
}

#[test]
fn spans_that_break_the_server_are_rejected_once_it_has_accepted_others() {
    for bad in [&[0][..], &[999], &[500], &[0, 1, 2, 3], &[499, 500, 998, 999]] {
        let mut server = FailingServer::over(bad);
        let (sent, refused) = results(&mut server, 1000);
        assert_eq!(refused, bad);
        assert_eq!(sent.len(), 1000 - bad.len());
        assert_eq!(server.lists.iter().map(Vec::len).sum::<usize>(), sent.len(), "each once");
        let posts = FAILURES_MAX as usize + (20 + FAILURES_MAX as usize) * bad.len();
        assert!(server.posts <= posts, "{} posts for {bad:?}", server.posts);
    }
}

#[test]
fn delivery_waits_for_a_server_that_fails_on_everything() {
    for broken in [1, 7, 8, 9, 20, 50, 500, 5_000] {
        let mut server = FailingServer { broken, ..FailingServer::over(&[]) };
        let (sent, refused) = results(&mut server, 100);
        assert_eq!((sent.len(), refused.len()), (100, 0), "{broken}");
        let mut server = FailingServer { broken, ..FailingServer::over(&[42]) };
        assert_eq!(results(&mut server, 100).1, [42], "{broken}");
    }
}

#[test]
fn single_span_without_others_is_retried() {
    let mut server = FailingServer { broken: 1_000, ..FailingServer::over(&[]) };
    assert_eq!(results(&mut server, 1), (vec![0], vec![]));
    assert_eq!(server.posts, 1_000);
}
