//! Joins the events of one source into traces.
//!
//! *In*: [`EventBatch`]es. *Out*: [`Trace`]s, each once, in an order and of a shape that are functions of the
//! events alone: neither the order in which they arrive within the window that the watermarks leave, nor how
//! they are cut into batches, changes anything ([`window`]).
//! *Invariant*: received = joined + late + orphaned + pending, kind by kind ([`JoinAccounts`]); and no event
//! is put below a span that its own record does not name.
//!
//! # How a request keeps its name
//!
//! A storage request changes its shape in every layer. What follows is, layer by layer, the name that it has
//! there, and why the names that first come to mind are not names. The rule behind all of them: *a name is minted
//! where the thing begins, in the kernel, and carried by the record*; user space looks names up and never infers
//! one from resemblance.
//!
//! ## System call: its span, minted at entry
//!
//! Between sys_enter and sys_exit a task is inside exactly one call, and task storage remembers which. Each call
//! is the root of a trace.
//!
//! - *Not (tid, time)*. A tid is given to another task as soon as its owner is gone, and a thread that is not the
//!   leader and calls execve takes over the leader's tid while it stays the same task. Hence [`TaskId`], minted
//!   once per task, and versions of its names.
//! - *Not entry and exit paired in user space*. exit_group has no exit; a child's first event is the exit of a
//!   clone that it never entered. The kernel side pairs them where it cannot go wrong, and says so where there
//!   was no exit ([`SyscallOutcome::NoExit`]).
//! - *Not fd → path by a table in user space*. To follow descriptors through open, dup, fork, SCM_RIGHTS and
//!   close_range one has to see every one of them, in order, from before the program began. A call's record names
//!   the inode that its descriptor named at entry, and inodes have paths ([`FileEvent`]).
//!
//! *Above it* is the span that the thread says it works for ([`TraceContext`]), if it says so: then the trace is the application's,
//! not one of ours, and many calls are of one trace. Here each stays a trace by itself, with that id: nothing about one is known
//! from another. Bios and requests name their call as before, and by that its trace.
//!
//! - *Not the trace id in every record*: a bio's and a request's would be half as long again, for all who publish nothing. The
//!   price: of a call whose own record was lost the application's trace is not known, and what it did is in one of ours.
//!
//! ## Bio: pointer and time of first sight, as a span
//!
//! A bio queued by a task inside a call was *submitted by* that call: exact, since the same task cannot be inside
//! two. The kernel side counts them, so that a call's record says how many belong to it: `bios`.
//!
//! - *Not (device, sector)*. Sectors repeat: a journal rewrites its own blocks, a database its log's head; two
//!   reads of one sector may even be in flight together. And the sector changes on the way: a partition is
//!   remapped, a request that is split goes on in two places, and requests that are merged share one.
//! - *Not the pointer alone*. Bios come from pools; the same address is another bio microseconds later. The
//!   pointer is a name only while the bio lives, so it is turned into a span id at queue time.
//! - *Not "the next bio after the call began"*. Rings are per CPU and are drained one after another: the order of
//!   arrival is not the order of events. Nothing here depends on it.
//!
//! ## Request: its own span, below its first bio
//!
//! A request is allocated for one bio, the first, and that is its parent: exact, since at `block_io_start` the
//! request holds that bio and no other. Later the block layer may merge more bios into it, also of other tasks
//! and other calls: *one request then serves several roots*. A tree cannot show this. The request stays
//! below its first bio; every other bio keeps its place below its own call, names the request that carried it, and
//! is linked to it: in the same trace by its id, in another by a [`Carried`]. It is not copied: a
//! request seen twice would double the device's traffic in every sum.
//!
//! - *Not request ↔ bio by sector range*: see above, and a flush has no sector.
//! - *A split* turns one bio into several requests; each names the bio as its parent, the bio names the last of
//!   them. Earlier ones end before the bio does and are here when it comes.
//!
//! - *A driver's command* (SG_IO) is a request without a bio: its parent is the call that sent it, and the call counts it among
//!   its bios (`kprobe-ebpf/src/block/passthrough.rs`).
//!
//! ## Devices on devices: the bio below, by the driver's own pointer
//!
//! A device that is made of others (device-mapper, md, a loop device's file) answers a bio or a request by bios of its own.
//! Each of these is *below* what it does the work of: its record names that span as its submitter, and the root of the
//! trace that this belongs to, whichever task submitted it. The kernel side finds it by the pointer that the driver keeps for
//! the day on which its bio ends (`kprobe-ebpf/src/block/stacked.rs`).
//!
//! - *Not block_bio_remap*: it names the device and sector that a bio came from. Sectors repeat (see above), and a mirror's
//!   two halves come from one place.
//! - *Not "the last bio that the task queued"*: true for a linear target, and wrong for the second half of a split; and
//!   crypt and a mirror submit from workers, for many.
//! - Of such bios the root has not counted any: [`Trace::queued_by_root`] tells them apart, and *complete* is a matter of
//!   those that it has. They end before what they are below, so in the order of events they are here by then.
//!
//! ## Submitted by, caused by
//!
//! Two relations, never one field. Example: SQLite calls fdatasync. The call itself queues one bio, say, for the
//! database's own pages: submitted by it. It then waits for ext4's journal, and jbd2's thread writes the
//! transaction: descriptor, metadata, commit block. These bios are *submitted by* the thread's commit; they may
//! carry metadata of ten other processes; and three other fsyncs wait for the same commit. To call the commit a
//! child of one fsync because it lies within its time would be a guess; to call it nobody's would hide where the
//! time went. So a commit is a root with a trace of its own, and calls have it as a [`Cause`], by number:
//! ext4 says which transaction a call had to see committed (`sync_tid`), and a commit says its number. See
//! [`commits`] for when such a call did wait, and for which of several waiters shows the commit.
//!
//! ## What is complete
//!
//! Because roots travel in every record, no layer of one node waits for another to learn its trace. A
//! trace is complete when its root's record is there, as many bios and commands as it asked for, and each request that one of its
//! bios names as its child. An async call (io_submit, io_uring_enter) returns before its bios end and waits here.
//! A call without bios is complete at once and touches no table. What never becomes complete is closed, in
//! *event time*, [`JoinConfig::quiet_after`] its last sign of life, or when too many are open, and says what
//! it misses ([`Missing`]). What comes after that makes a trace of the same id ([`Part::Later`]), so
//! that whoever collects by id still has all.
//!
//! [`Trace`]: crate::trace::Trace
//! [`Trace::queued_by_root`]: crate::trace::Trace::queued_by_root
//! [`Missing`]: crate::trace::Missing
//! [`Part::Later`]: crate::trace::Part::Later
//! [`Cause`]: crate::trace::Cause
//! [`Carried`]: crate::trace::Carried
//! [`TraceContext`]: blkkin_wire::event::TraceContext
//! [`TaskId`]: blkkin_wire::ids::TaskId
//! [`FileEvent`]: blkkin_wire::event::FileEvent
//! [`SyscallOutcome::NoExit`]: blkkin_wire::event::SyscallOutcome::NoExit

mod accounts;
pub mod commits;
mod config;
pub(crate) mod hash;
mod names;
mod open;
pub(crate) mod recent;
pub(crate) mod saved;
mod sink;
mod stream;
#[cfg(test)]
pub(crate) mod tests;
pub mod window;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::ids::Source;
use serde::{Deserialize, Serialize};

pub use accounts::{JoinAccount, JoinAccounts};
pub use config::JoinConfig;

use sink::Sink;
pub use sink::TraceSink;
use stream::Stream;

/// Most sources followed at once. An aggregator's partition holds the nodes of one join domain, a host and its
/// guests; a source that begins again (a restart) is a new one. Beyond it the one heard of longest ago is
/// finished.
const SOURCES_MAX: usize = 256;

/// Makes traces out of events.
#[derive(Debug, Serialize, Deserialize)]
pub struct Joiner {
    #[serde(skip)]
    config: JoinConfig,
    /// Most recently heard of last. One source is the rule, so this is a list.
    streams: Vec<Stream>,
    accounts: JoinAccounts,
}

impl Joiner {
    /// A joiner that has seen nothing.
    pub fn new(config: JoinConfig) -> Self {
        Joiner { config, streams: Vec::new(), accounts: JoinAccounts::default() }
    }

    /// Lets go of what is set anew before it is used: do so before it is saved.
    pub fn lighten(&mut self) {
        self.streams.iter_mut().for_each(Stream::lighten);
    }

    /// Has these bounds from now on: a joiner that was read back has none.
    pub fn set_bounds(&mut self, config: JoinConfig) {
        self.streams.iter_mut().for_each(|stream| stream.set_bounds(&config));
        self.config = config;
    }

    /// Takes a batch in and gives `out` what it completes.
    pub fn apply(&mut self, batch: EventBatch, out: &mut dyn TraceSink) {
        let index = self.stream(&batch.source, out);
        let mut sink = Sink { out, accounts: &mut self.accounts };
        self.streams[index].apply(batch, &mut sink);
    }

    /// Closes everything: for the end of tracing, when nothing more will come.
    pub fn finish(&mut self, out: &mut dyn TraceSink) {
        let mut sink = Sink { out, accounts: &mut self.accounts };
        for stream in &mut self.streams {
            stream.finish(&mut sink);
        }
        self.streams.clear();
    }

    /// Gives out all that is open of `source`, which has not been heard of for long. Its names and the number of its last
    /// batch are kept: it may come back.
    pub fn close(&mut self, source: &Source, out: &mut dyn TraceSink) {
        let mut sink = Sink { out, accounts: &mut self.accounts };
        if let Some(stream) = self.streams.iter_mut().find(|stream| stream.source() == source) {
            stream.finish(&mut sink);
        }
    }

    /// The same, and keeps nothing.
    pub fn forget(&mut self, source: &Source, out: &mut dyn TraceSink) {
        self.close(source, out);
        self.streams.retain(|stream| stream.source() != source);
    }

    /// How many sources it follows.
    pub fn sources(&self) -> usize {
        self.streams.len()
    }

    /// Whether it follows this source.
    pub fn follows(&self, source: &Source) -> bool {
        self.streams.iter().any(|stream| stream.source() == source)
    }

    /// What became of what came in.
    pub fn accounts(&self) -> &JoinAccounts {
        &self.accounts
    }

    fn stream(&mut self, source: &Source, out: &mut dyn TraceSink) -> usize {
        let last = self.streams.len();
        match self.streams.iter().rposition(|stream| stream.source() == source) {
            Some(index) => {
                let since = self.streams[index + 1..].iter().map(Stream::source);
                let twin =
                    since.filter(|other| (other.node, other.boot) == (source.node, source.boot)).count();
                self.accounts.starts_interleaved += u64::from(twin > 0);
                self.streams[index..].rotate_left(1);
            }
            None => {
                self.make_room(out);
                self.streams.push(Stream::new(*source, self.config.clone()));
                return self.streams.len() - 1;
            }
        }
        last - 1
    }

    fn make_room(&mut self, out: &mut dyn TraceSink) {
        if self.streams.len() < SOURCES_MAX {
            return;
        }
        let mut oldest = self.streams.remove(0);
        oldest.finish(&mut Sink { out, accounts: &mut self.accounts });
    }
}
