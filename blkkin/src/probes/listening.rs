//! The thread that puts hits and batches together.
//!
//! *In*: each batch, and what threads said before its watermark. *Out*: the batch, woven. *Invariant*: of hits that were lost nobody
//! knows whose they were. So from the last moment that is known to be whole until the loss is known nobody works for anything; what
//! was open is given out there without an end, since its end may be among them; and what was said meanwhile is not believed, since the
//! answer to it may be.

use std::collections::VecDeque;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use blkkin_bus::{Next, Publisher, Subscription};
use blkkin_tracer::usdt::hits::{Hits, LostHits};
use blkkin_ust_bridge::mapping::probed::{Hit, Probed};
use blkkin_ust_bridge::operations::{Books, Operations, Thread};
use blkkin_ust_bridge::weave::{Weave, Word};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, TaskChange};

use super::shown::{Shown, Told};
use crate::clock;

/// Between two looks while nothing comes.
const WAIT: Duration = Duration::from_millis(20);

/// What it did.
#[derive(Debug)]
pub(super) struct Heard {
    pub(super) operations: Books,
    pub(super) told: Told,
}

pub(super) struct Listening {
    probed: Probed,
    hits: Receiver<Hits>,
    operations: Operations,
    weave: Weave,
    /// Threads that have ended, until all is known that they said.
    exits: VecDeque<(Thread, MonotonicNs)>,
    /// Nothing that was said before is believed.
    doubtful_until: MonotonicNs,
    told: Told,
    shown: Shown,
}

impl Listening {
    pub(super) fn new(probed: Probed, hits: Receiver<Hits>, shown: Shown) -> Listening {
        Listening {
            probed,
            hits,
            operations: Operations::default(),
            weave: Weave::default(),
            exits: VecDeque::new(),
            doubtful_until: MonotonicNs(0),
            told: Told::default(),
            shown,
        }
    }

    /// Works until `batches` ends.
    pub(super) fn run(mut self, mut batches: Subscription<EventBatch>, out: Publisher<EventBatch>) -> Heard {
        let begun = Instant::now();
        let now = || u64::try_from(begun.elapsed().as_nanos()).unwrap_or(u64::MAX);
        loop {
            match batches.next(WAIT) {
                Next::Item(batch) => {
                    // Given before the batch was.
                    let hits = self.hits.try_recv().unwrap_or_default();
                    let words = self.hear(&batch, hits);
                    self.weave.hear(words, batch.watermark);
                    self.weave.take(batch, now());
                    while let Some(batch) = self.weave.next(now()) {
                        // The join is gone only when this process breaks.
                        let _ = out.publish(batch);
                    }
                    // Whose they were is known already: see `ended`.
                    self.weave.take_exits().for_each(drop);
                    self.tell();
                }
                Next::Timeout => {}
                Next::Closed => break,
            }
        }
        let mut words = Vec::new();
        self.operations.finish(clock::now().0, &mut words);
        self.weave.hear(words, MonotonicNs(u64::MAX));
        for batch in self.weave.finish() {
            let _ = out.publish(batch);
        }
        self.tell();
        Heard { operations: *self.operations.books(), told: self.told }
    }

    fn tell(&mut self) {
        (self.told.woven, self.told.unread) = (*self.weave.books(), self.probed.unread);
        self.shown.tell(self.told);
    }

    /// What a batch's hits mean, in the order in which they and its tasks' ends came.
    fn hear(&mut self, batch: &EventBatch, hits: Hits) -> Vec<Word> {
        let mut words = Vec::new();
        if let Some(lost) = hits.lost {
            self.told.lost += lost.count;
            self.lost(lost, &mut words);
        }
        self.told.hits += hits.hits.len() as u64;
        self.exits.extend(batch.events.iter().filter_map(|event| match event {
            LayerEvent::Task(task) if task.change == TaskChange::Exited => {
                Some((Thread::initial(task.pid.0, task.tid.0), task.time))
            }
            // Another program is there now, in the first thread: what the one before it had begun ends.
            LayerEvent::Task(task) if task.change == TaskChange::Execed => {
                Some((Thread::initial(task.pid.0, task.pid.0), task.time))
            }
            _ => None,
        }));
        for hit in hits.hits {
            self.ended(hit.time, &mut words);
            if hit.time < self.doubtful_until {
                self.told.unbelieved += 1;
                continue;
            }
            let said = Hit {
                probe: hit.probe,
                time_ns: hit.time.0,
                pid: hit.pid,
                tid: hit.tid,
                comm: &hit.comm,
                arguments: &hit.arguments,
                text: hit.text.as_deref(),
            };
            let (probed, operations) = (&mut self.probed, &mut self.operations);
            if !probed.map(&said, &mut |at, fact| operations.take(at, &fact, &mut words)) {
                let until = MonotonicNs(hit.time.0 + 1);
                self.lost(LostHits { from: hit.time, until, count: 1 }, &mut words);
            }
        }
        self.ended(batch.watermark, &mut words);
        words
    }

    fn lost(&mut self, lost: LostHits, words: &mut Vec<Word>) {
        self.operations.interrupted(lost.from.0, words);
        self.operations.lost(lost.from.0, lost.until.0, lost.count, words);
        self.probed.forget();
        self.doubtful_until = self.doubtful_until.max(lost.until);
    }

    /// Threads that have ended by then; with the first of a process the process has.
    fn ended(&mut self, until: MonotonicNs, words: &mut Vec<Word>) {
        while let Some((thread, at)) = self.exits.pop_front_if(|(_, at)| *at <= until) {
            self.probed.gone(thread.pid, thread.tid);
            if thread.pid == thread.tid {
                self.operations.gone(thread.process(), at.0, words);
            } else {
                self.operations.ended(thread, at.0, words);
            }
        }
    }
}
