//! Latencies of daemon spans until they are posted to Zipkin, and until Zipkin shows their traces.
//!
//! *In*: the posts. *Out*: for each daemon span the ms from its end until it was posted, and until
//! its trace is visible. A post follows the response to the previous one. So Zipkin is polled for
//! one trace of the newest post (rotating through the post: first, second …) until it is visible;
//! by then everything in that post and earlier ones is visible. *Invariant*: a time is taken after
//! the response of Zipkin arrived, so no latency is too short.
//!
//! *Rejected*: polling for all traces, which would be Zipkin's main load; and using only the times
//! of polled traces: a pause delays many spans, but is one post, or none that is polled.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::posts::Posted;
use crate::process::now_us;
use crate::zipkin::Zipkin;

/// Name prefix of daemon spans.
const SPAN_PREFIX: &str = "nbd ";
/// Interval between two polls for a trace.
const POLL_INTERVAL: Duration = Duration::from_millis(1);
/// Time limit for a trace to become visible.
const VISIBLE_TIMEOUT: Duration = Duration::from_secs(10);

/// End of a daemon span in µs since the Unix epoch, and the ms from then on.
pub(super) type Delay = (u64, f64);

#[derive(Default)]
struct State {
    posted: Vec<Delay>,
    shown: Vec<Delay>,
    /// Trace of the newest post, unless it is already polled.
    polled: Option<String>,
    /// Ends of the spans posted since the last polled one.
    waiting: Vec<u64>,
    post_count: usize,
    error: Option<String>,
}

#[derive(Default)]
pub(super) struct VisibilityTracker {
    state: Mutex<State>,
    more: Condvar,
}

impl VisibilityTracker {
    /// Notes the spans of a post.
    pub(super) fn note_post(&self, spans: Result<Vec<Posted>>) {
        let at = now_us();
        let mut state = self.lock();
        match spans {
            Ok(spans) => {
                let server_spans: Vec<_> =
                    spans.iter().filter(|span| span.name.starts_with(SPAN_PREFIX)).collect();
                state.posted.extend(server_spans.iter().map(|span| delay(span.end(), at)));
                state.post_count += 1;
                let index = state.post_count % server_spans.len().max(1);
                state.waiting.extend(server_spans.iter().map(|span| span.end()));
                if let Some(span) = server_spans.get(index) {
                    state.polled = Some(format!("{:032x}", span.trace_id()));
                    self.more.notify_one();
                }
            }
            Err(error) => state.error = Some(error.to_string()),
        }
    }

    /// Polls Zipkin in a thread until `end` is set.
    pub(super) fn poll(self: &Arc<Self>, zipkin: Arc<Zipkin>, end: Arc<AtomicBool>) -> JoinHandle<()> {
        let tracker = Arc::clone(self);
        std::thread::spawn(move || {
            while !end.load(Relaxed) {
                let Some((trace, ended)) = tracker.next_trace() else { continue };
                let started = Instant::now();
                while zipkin.get(&format!("/api/v2/trace/{trace}")).is_none() {
                    if end.load(Relaxed) {
                        return;
                    }
                    if started.elapsed() > VISIBLE_TIMEOUT {
                        tracker.lock().error = Some(format!("trace {trace} was posted and is not shown"));
                        break;
                    }
                    std::thread::sleep(POLL_INTERVAL);
                }
                let at = now_us();
                tracker.lock().shown.extend(ended.into_iter().map(|ended| delay(ended, at)));
            }
        })
    }

    /// Returns the latencies of spans that ended in this time: until posted, and until visible.
    pub(super) fn ended_in(&self, from: u64, to: u64) -> [Vec<f64>; 2] {
        let state = self.lock();
        [&state.posted, &state.shown].map(|all| {
            let within = all.iter().filter(|(ended, _)| (from..to).contains(ended));
            within.map(|(_, ms)| *ms).collect()
        })
    }

    /// Returns the first error.
    pub(super) fn error(&self) -> Option<String> {
        self.lock().error.clone()
    }

    /// Waits for a trace of the newest post, and returns it with the ends of all spans up to it.
    fn next_trace(&self) -> Option<(String, Vec<u64>)> {
        let waited = self
            .more
            .wait_timeout_while(self.lock(), Duration::from_millis(100), |state| state.polled.is_none());
        let mut state = waited.unwrap_or_else(PoisonError::into_inner).0;
        Some((state.polled.take()?, std::mem::take(&mut state.waiting)))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn delay(ended: u64, at: u64) -> Delay {
    (ended, at.saturating_sub(ended) as f64 / 1e3)
}
