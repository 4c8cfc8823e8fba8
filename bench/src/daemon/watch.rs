//! When the spans of operations went by on their way to Zipkin, and when it shows their traces.
//!
//! *In*: what is posted. *Out*: for each operation the ms from its end until it went by, and until Zipkin shows its trace. Posts come one
//! behind the other's answer. So Zipkin is asked for one trace of the newest post (all of a post in turn: the first, the second …) until
//! it shows it, and shows by then whatever was in that post and in those before. *Invariant*: a time is known only after what it says:
//! Zipkin's answer has come. So none is too short.
//!
//! *Rejected*: to ask for all traces, which Zipkin would be busiest with; to take only the times of those that are asked for: a pause makes
//! many late and is one post, or none that is asked for.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::posts::Posts;
use crate::process::now_us;
use crate::zipkin::Zipkin;

/// Operations' spans are called so.
const OPERATION: &str = "nbd ";
/// Between two questions for a trace.
const ASK_EVERY: Duration = Duration::from_millis(1);
/// A trace that is not shown by then is none.
const SHOWN_WITHIN: Duration = Duration::from_secs(10);

/// An operation's end, µs since the Unix epoch, and ms from then on.
pub(super) type Took = (u64, f64);

#[derive(Default)]
struct Seen {
    by: Vec<Took>,
    shown: Vec<Took>,
    /// A trace of the newest post, unless it is asked for already.
    asked: Option<String>,
    /// The ends of what was posted since the last one that was asked for.
    waiting: Vec<u64>,
    posts: usize,
    trouble: Option<String>,
}

#[derive(Default)]
pub(super) struct Watch {
    seen: Mutex<Seen>,
    more: Condvar,
}

impl Watch {
    /// Sees one connection.
    pub(super) fn see(self: &Arc<Self>) -> impl FnMut(&[u8]) + Send + use<> {
        let watch = Arc::clone(self);
        let mut posts = Posts::default();
        move |bytes| {
            posts.take(bytes);
            while let Some(spans) = posts.next() {
                let at = now_us();
                let mut seen = watch.lock();
                match spans {
                    Ok(spans) => {
                        let operations: Vec<_> =
                            spans.iter().filter(|span| span.name.starts_with(OPERATION)).collect();
                        seen.by.extend(operations.iter().map(|span| took(span.end(), at)));
                        seen.posts += 1;
                        let place = seen.posts % operations.len().max(1);
                        seen.waiting.extend(operations.iter().map(|span| span.end()));
                        if let Some(one) = operations.get(place) {
                            seen.asked = Some(one.trace_id());
                            watch.more.notify_one();
                        }
                    }
                    Err(error) => seen.trouble = Some(error.to_string()),
                }
            }
        }
    }

    /// Asks this Zipkin until told to end.
    pub(super) fn ask(self: &Arc<Self>, zipkin: Arc<Zipkin>, end: Arc<AtomicBool>) -> JoinHandle<()> {
        let watch = Arc::clone(self);
        std::thread::spawn(move || {
            while !end.load(Relaxed) {
                let Some((trace, ended)) = watch.newest() else { continue };
                let begun = Instant::now();
                while zipkin.get(&format!("/api/v2/trace/{trace}")).is_none() {
                    if end.load(Relaxed) {
                        return;
                    }
                    if begun.elapsed() > SHOWN_WITHIN {
                        watch.lock().trouble = Some(format!("trace {trace} was posted and is not shown"));
                        break;
                    }
                    std::thread::sleep(ASK_EVERY);
                }
                let at = now_us();
                watch.lock().shown.extend(ended.into_iter().map(|ended| took(ended, at)));
            }
        })
    }

    /// Of operations that ended in this time, until they went by, and until they were shown.
    pub(super) fn ended_in(&self, from: u64, to: u64) -> [Vec<f64>; 2] {
        let seen = self.lock();
        [&seen.by, &seen.shown].map(|all| {
            let within = all.iter().filter(|(ended, _)| (from..to).contains(ended));
            within.map(|(_, ms)| *ms).collect()
        })
    }

    /// What was wrong.
    pub(super) fn trouble(&self) -> Option<String> {
        self.lock().trouble.clone()
    }

    /// A trace of the newest post, and the ends of what it and those before it have.
    fn newest(&self) -> Option<(String, Vec<u64>)> {
        let waited = self
            .more
            .wait_timeout_while(self.lock(), Duration::from_millis(100), |seen| seen.asked.is_none());
        let mut seen = waited.unwrap_or_else(PoisonError::into_inner).0;
        Some((seen.asked.take()?, std::mem::take(&mut seen.waiting)))
    }

    fn lock(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn took(ended: u64, at: u64) -> Took {
    (ended, at.saturating_sub(ended) as f64 / 1e3)
}
