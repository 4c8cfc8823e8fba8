//! Joins the events of one source into traces.
//!
//! *In*: [`EventBatch`]es. *Out*: [`Trace`]s to a [`TraceSink`].
//!
//! *Invariant*: each event leaves once, and received = joined + late + orphaned + pending for each
//! kind ([`JoinStats`]). The order and the content of the traces are functions of the events alone.
//! Neither the order of arrival within the window that the watermarks leave, nor the cut into
//! batches changes anything ([`window`]). No event becomes a child of a span that its own record
//! does not name.
//!
//! *Rejected*: inference of a parent from resemblance, such as equal sectors or near times. Each
//! section below names the look-alike that it rejects.
//!
//! # Identity by layer
//!
//! A storage operation changes its shape in every layer. The sections below state, layer by layer,
//! what identifies it there, and why the obvious identifiers fail. One rule is behind all of them:
//! *an id is created in the kernel, where the thing begins, and its record carries the id*. User
//! space looks ids up and never infers one.
//!
//! ## System call: a span id created at entry
//!
//! Between sys_enter and sys_exit a task is inside exactly one call, and task storage remembers
//! which. Each call is the root of a trace.
//!
//! - *Not (tid, time)*. A tid is reused as soon as its task has ended. A thread that is not the
//!   leader and calls execve takes over the leader's tid while it stays the same task. Hence
//!   [`TaskId`], created once for each task, and versions of its names.
//! - *Not entry and exit paired in user space*. exit_group has no exit. A child's first event is
//!   the exit of a clone that it never entered. The kernel side pairs them where no mistake is
//!   possible, and reports a missing exit ([`SyscallOutcome::NoExit`]).
//! - *Not a table from fd to path in user space*. To follow descriptors through open, dup, fork,
//!   SCM_RIGHTS and close_range, a reader must see every one of them, in order, from before the
//!   program began. A call's record names the inode to which its descriptor referred at entry, and
//!   inodes have paths ([`FileEvent`]).
//!
//! *The parent of the call* is the span that its thread publishes in its thread context
//! ([`TraceContext`]), if any. The trace id is then the application's, and many calls share it. In
//! the join each call stays a trace of its own, with that id: the join of one call needs no data of
//! another. Bios and requests name their call as before, and through it their trace.
//!
//! - *Not the trace id in every record*. A bio's and a request's record would be half as long
//!   again, also for programs that publish nothing. The price: if a call's own record was lost, its
//!   application's trace id is unknown, and its I/O is in a trace of blkkin's own.
//!
//! ## Bio: pointer and time of first sight, as a span id
//!
//! A bio that a task queues inside a call was *submitted by* that call. This is exact, since the
//! same task cannot be inside two calls. The kernel side counts these bios, and the call's record
//! has their number: `bios`.
//!
//! - *Not (device, sector)*. Sectors repeat: a journal rewrites its own blocks, a database its
//!   log's head, and two reads of one sector may be in flight together. The sector also changes on
//!   the way. A partition remaps it, a split request continues in two places, and merged requests
//!   share one.
//! - *Not the pointer alone*. Bios come from pools, and the same address is another bio
//!   microseconds later. The pointer identifies a bio only while the bio lives, so the kernel side
//!   maps it to a span id at queue time.
//! - *Not "the next bio after the call began"*. Rings are per CPU and are drained one after
//!   another, so the order of arrival is not the order of events. Nothing here depends on it.
//!
//! ## Request: its own span id, a child of its first bio
//!
//! The block layer allocates a request for one bio, the first, and that is its parent. This is
//! exact: at `block_io_start` the request holds that bio and no other. Later the block layer may
//! merge more bios into it, also of other tasks and other calls. *One request then serves several
//! roots*, which a tree cannot show. The request stays a child of its first bio. Every other bio
//! stays a child of its own call and names the request that it was merged into. It is linked to
//! that request: in the same trace by its span id, in another by a [`MergeLink`]. The request is
//! not copied: a request seen twice would double the device's traffic in every sum.
//!
//! - *Not request ↔ bio by sector range*: see above, and a flush has no sector.
//! - *A split* turns one bio into several requests. Each names the bio as its parent, and the bio
//!   names the last of them. The earlier ones end before the bio does and have arrived when it
//!   arrives.
//! - *A passthrough request* (SG_IO) has no bio. Its parent is the call that sent it, and the call
//!   counts it among its bios (`kprobe-ebpf/src/block/passthrough.rs`).
//!
//! ## Stacked devices: the lower bio, by the driver's own pointer
//!
//! A driver of a stacked device (device-mapper, md, loop) serves a bio or a request by bios of its
//! own. Each of these is a child of the part that it serves. Its record names that part's span as
//! its submitter, and the root of that part's trace, whichever task submitted it. The kernel side
//! finds both by the pointer that the driver keeps for the completion of its bio
//! (`kprobe-ebpf/src/block/stacked.rs`).
//!
//! - *Not block_bio_remap*. It names the device and sector from which a bio came. Sectors repeat
//!   (see above), and a mirror's two halves come from one place.
//! - *Not "the last bio that the task queued"*. It is true for a linear target and wrong for the
//!   second half of a split. crypt and mirrors submit from workers, for many bios.
//! - The root counts none of the lower bios. [`Trace::queued_by_root`] distinguishes them, and
//!   completeness depends on the counted ones. Lower bios end before their parent, so in the order
//!   of events they have arrived by then.
//!
//! ## Parent and span link
//!
//! Submission and waiting are two relations, and never share a field. Example: SQLite calls
//! fdatasync. The call itself queues one bio, for the database's own pages: submitted by the call.
//! It then waits for ext4's journal, and jbd2's thread writes the transaction: descriptor,
//! metadata, commit block. These bios are *submitted by* the thread's commit. They may carry
//! metadata of ten other processes, and three other fsyncs wait for the same commit.
//!
//! A commit that is a child of one fsync because it lies within its time would be a guess. A commit
//! without any relation would hide where the time went. So a commit is a root with a trace of its
//! own, and calls refer to it by a [`WaitLink`], by number. ext4 states which transaction a call
//! had to see committed (`sync_tid`), and a commit states its number. [`commits`] decides when such
//! a call did wait, and which of several waiters shows the commit.
//!
//! ## Completeness
//!
//! Roots travel in every record, so no layer of a node waits for another to learn its trace id. A
//! trace is complete when its root's record has arrived, with as many bios and passthrough requests
//! as the root counted, and each request that one of its bios names as its child. An async call
//! (io_submit, io_uring_enter) returns before its bios end, and its trace stays open until then. A
//! call without bios is complete at once and touches no table.
//!
//! A bio with pages of a page cache announces a *page origin* ([`BioEvent::has_page_origin`]). The
//! trace stays open until as many origins have arrived as its bios announced. An origin names its
//! bio and its root, so it can precede its bio, or follow it by the duration of a write call. Its
//! writers are links of the bio ("caused by") and never its parent ("submitted by").
//!
//! A trace that does not become complete is closed in *event time*, [`JoinConfig::quiet_after`] its
//! last event, or when too many are open, and lists its missing parts ([`Incomplete`]). Parts that
//! arrive later make a trace of the same id ([`FragmentKind::Late`]), so a consumer that groups by
//! id has all parts.
//!
//! [`Trace`]: crate::trace::Trace
//! [`Trace::queued_by_root`]: crate::trace::Trace::queued_by_root
//! [`Incomplete`]: crate::trace::Incomplete
//! [`FragmentKind::Late`]: crate::trace::FragmentKind::Late
//! [`WaitLink`]: crate::trace::WaitLink
//! [`MergeLink`]: crate::trace::MergeLink
//! [`TraceContext`]: blkkin_wire::event::TraceContext
//! [`BioEvent::has_page_origin`]: blkkin_wire::event::BioEvent::has_page_origin
//! [`TaskId`]: blkkin_wire::ids::TaskId
//! [`FileEvent`]: blkkin_wire::event::FileEvent
//! [`SyscallOutcome::NoExit`]: blkkin_wire::event::SyscallOutcome::NoExit

pub mod commits;
mod config;
pub(crate) mod generational_cache;
mod names;
mod open;
mod sink;
pub(crate) mod snapshot;
mod stats;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
pub mod window;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::{Source, StartEpoch};
use serde::{Deserialize, Serialize};

pub use config::JoinConfig;
pub use stats::{EventStats, JoinStats};

use sink::StatsSink;
pub use sink::TraceSink;
use stream::{Arrival, Stream};

/// Maximum number of sources of a partition: nodes, and earlier starts of their tracers within the
/// last hour. A fleet of 1,000 nodes may have a single partition. Beyond the maximum the least
/// recently active source is finished and forgotten, which is counted.
const SOURCES_MAX: usize = 4_096;

/// Outcome of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Joined with the earlier ones of its source.
    Joined,
    /// Dropped: its number had arrived.
    Repeated,
    /// Joined alone: two agents send as its source.
    Contested,
}

/// Joins events into traces.
#[derive(Debug, Serialize, Deserialize)]
pub struct Joiner {
    #[serde(skip)]
    config: JoinConfig,
    /// The most recently active source is last. Most joiners have one source, so this is a list.
    #[allow(clippy::vec_box, reason = "a source moves to the end with each of its batches")]
    streams: Vec<Box<Stream>>,
    /// The source that made room for the last batch's.
    #[serde(skip)]
    evicted: Option<Source>,
    stats: JoinStats,
}

impl Joiner {
    /// Creates a joiner without any state.
    pub fn new(config: JoinConfig) -> Self {
        Joiner { config, streams: Vec::new(), evicted: None, stats: JoinStats::default() }
    }

    /// Drops state that is rebuilt before it is used. Call it before a snapshot.
    pub fn drop_caches(&mut self) {
        self.streams.iter_mut().for_each(|stream| stream.drop_caches());
    }

    /// Sets the limits. A restored joiner has none.
    pub fn set_limits(&mut self, config: JoinConfig) {
        self.streams.iter_mut().for_each(|stream| stream.set_limits(&config));
        self.config = config;
    }

    /// Joins a batch, and emits to `out` the traces that it completes.
    pub fn apply(&mut self, batch: EventBatch, out: &mut dyn TraceSink) -> Applied {
        let index = self.stream(&batch.source, out);
        let mut sink = StatsSink { out, stats: &mut self.stats };
        match self.streams[index].receive(&batch) {
            Arrival::Next(missed) => {
                sink.stats.batches_missed += missed;
                self.streams[index].apply(batch, &mut sink);
                Applied::Joined
            }
            Arrival::Repeated => {
                sink.stats.batches_repeated += 1;
                Applied::Repeated
            }
            Arrival::Contested => {
                sink.stats.batches_contested += 1;
                // What is open is of the time before, or of one of both: nothing is added to it.
                self.streams[index].finish(&mut sink);
                self.apply_alone(batch, out);
                Applied::Contested
            }
        }
    }

    /// Joins a batch without any other, as of a source of its own: its ids collide with no other's.
    fn apply_alone(&mut self, batch: EventBatch, out: &mut dyn TraceSink) {
        let epoch = StartEpoch(batch.source.epoch.0 ^ stream::fingerprint(&batch));
        let source = Source { epoch, ..batch.source };
        let mut stream = Stream::new(source, self.config.clone());
        let mut sink = StatsSink { out, stats: &mut self.stats };
        stream.apply(EventBatch { source, ..batch }, &mut sink);
        stream.finish(&mut sink);
    }

    /// Joins each further batch of `source` alone: two agents send as this source.
    pub fn contest(&mut self, source: &Source) {
        self.streams
            .iter_mut()
            .filter(|stream| stream.source() == source)
            .for_each(|stream| stream.contest());
    }

    /// Emits all open traces, at the end of tracing.
    pub fn finish(&mut self, out: &mut dyn TraceSink) {
        let mut sink = StatsSink { out, stats: &mut self.stats };
        for stream in &mut self.streams {
            stream.finish(&mut sink);
        }
        self.streams.clear();
    }

    /// Emits all open traces of an inactive `source`. Its names and the number of its last batch
    /// are retained, since it may become active again.
    pub fn close(&mut self, source: &Source, out: &mut dyn TraceSink) {
        let mut sink = StatsSink { out, stats: &mut self.stats };
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.source() == source) {
            stream.finish(&mut sink);
        }
    }

    /// Emits all open traces of `source` and forgets it.
    pub fn forget(&mut self, source: &Source, out: &mut dyn TraceSink) {
        self.close(source, out);
        self.streams.retain(|stream| stream.source() != source);
    }

    /// Returns the number of known sources.
    pub fn sources(&self) -> usize {
        self.streams.len()
    }

    /// Takes the source that was forgotten to make room for the last batch's.
    pub fn take_evicted(&mut self) -> Option<Source> {
        self.evicted.take()
    }

    /// Returns the counters.
    pub fn stats(&self) -> &JoinStats {
        &self.stats
    }

    fn stream(&mut self, source: &Source, out: &mut dyn TraceSink) -> usize {
        let last = self.streams.len();
        match self.streams.iter().rposition(|stream| stream.source() == source) {
            Some(index) => {
                let since = self.streams[index + 1..].iter().map(|stream| stream.source());
                let interleaved =
                    since.filter(|other| (other.node, other.boot) == (source.node, source.boot)).count();
                self.stats.starts_interleaved += u64::from(interleaved > 0);
                self.streams[index..].rotate_left(1);
            }
            None => {
                self.make_room(out);
                self.streams.push(Box::new(Stream::new(*source, self.config.clone())));
                return self.streams.len() - 1;
            }
        }
        last - 1
    }

    fn make_room(&mut self, out: &mut dyn TraceSink) {
        if self.streams.len() < SOURCES_MAX {
            return;
        }
        self.stats.sources_evicted += 1;
        let mut oldest = self.streams.remove(0);
        self.evicted = Some(*oldest.source());
        oldest.finish(&mut StatsSink { out, stats: &mut self.stats });
    }
}
