//! The thread that puts both streams together.

use std::sync::mpsc::{Receiver, Sender};
use std::time::{Duration, Instant};

use blkkin_bus::{Next, Publisher, Subscription};
use blkkin_tracer::{Follow, StopSignal};
use blkkin_ust_bridge::weave::{Exit, Weave, WeaveBooks, Word};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;

use super::shown::Shown;

/// Between two looks at what was heard: the tracer's own pace.
const WAIT: Duration = Duration::from_millis(2);

/// Words, and until when all are known.
pub(super) type Words = (Vec<Word>, MonotonicNs);

/// Works until `batches` ends; then tells the reader to stop, and takes what it still has.
pub(super) fn weave(
    mut batches: Subscription<EventBatch>,
    out: Publisher<EventBatch>,
    heard: Receiver<Words>,
    ended: Sender<Exit>,
    stop: &StopSignal,
    follow: Follow,
    shown: &Shown,
) -> WeaveBooks {
    let mut weave = if follow == Follow::Marked { Weave::of_followed() } else { Weave::default() };
    let begun = Instant::now();
    let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
    loop {
        heard.try_iter().for_each(|(words, until)| weave.hear(words, until));
        while let Some(batch) = weave.next(now()) {
            // The join is gone only when this process breaks.
            let _ = out.publish(batch);
        }
        shown.woven(weave.books());
        for exit in weave.take_exits() {
            // Likewise.
            let _ = ended.send(exit);
        }
        match batches.next(WAIT) {
            Next::Item(batch) => weave.take(batch, now()),
            Next::Timeout => {}
            Next::Closed => break,
        }
    }
    stop.stop();
    heard.iter().for_each(|(words, until)| weave.hear(words, until));
    for batch in weave.finish() {
        let _ = out.publish(batch);
    }
    shown.woven(weave.books());
    *weave.books()
}
