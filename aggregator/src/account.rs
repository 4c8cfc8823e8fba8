//! Where a trace's time went: each nanosecond between its root's begin and end belongs to exactly one class.
//!
//! *In*: a [`Trace`]. *Out*: a [`Breakdown`] whose sum is the root's duration, to the nanosecond.
//!
//! Several things go on at once (one request waits while another is at the device), so a class is chosen
//! by *how deep* the trace is in the machine at that moment; the deepest wins:
//!
//! 1. **device**: a request of the trace is with the device: issued and not complete ([`at_device`]). A request that
//!    the flush machinery keeps is with the device from the issue of the flush that serves it, which is what its
//!    `issue` says. *Counter-example*: to call a flush's time `block`, as the request itself is not issued, would
//!    blame the scheduler for the disk's slowest operation; to count it from the request's start would blame the
//!    disk for the wait until another's flush has ended.
//! 2. **block**: none is, and a bio or request of the trace is in the block layer: waiting for a tag, plugged,
//!    in the scheduler, throttled, or between its last completion and its end. A request that was put back
//!    counts as with the device from its first issue on: when it came back is not recorded.
//! 3. **journal**: none is, and a commit that the call waited for is running: the journal's own work, or its wait
//!    for writers that hold the transaction open.
//! 4. **cpu**: of the rest, as much as the call's task was ready to run and no CPU ran it, by the kernel's own count
//!    (`sched_info.run_delay`). When in the call that was is not recorded. After a sleep it comes behind what the task slept for,
//!    so it is the rest's; where a call goes on beside its I/O it may have lain beside that, and no more than the rest is taken.
//! 5. What then remains is the root's **own** time, and here care is due, since nothing is recorded of it but how often
//!    the task slept:
//!    - A call that asked no storage ([`Subject`]: plain memory, a pipe, a file of `proc`) has no file system whose
//!      time it could be: **unaccounted**, asleep or not.
//!    - A call that never slept spent it computing: in the file system, the page cache or
//!      whatever the call does. This is proved, whatever call on storage it is: **file_system**.
//!    - A call that slept and has I/O, all of it here: the sleeps are explained by the I/O, the time
//!      around it is the file system's way down and up: **file_system**. *Not proved*: a lock waited for
//!      besides counts here too, as no record tells the two sleeps apart.
//!    - A call that slept and has no I/O at all waited for something that is not in the trace (a lock, data in a
//!      pipe, another task's read of the same page): **unaccounted**. *Counter-example*: `sync()` sleeps while
//!      kernel threads write; to call this `file_system` would say that ext4 computed for a second.
//!    - A call whose I/O is partly missing may have slept for what is missing: **unaccounted**.
//!    - A commit's own time is the **journal**'s; a root without a record has no own time that anybody knows:
//!      **unaccounted**.
//!
//! The trace's requests are its own, those of the commits that it waited for, and those of others that carry its
//! bios. What outlives the root (bios of an async call) counts up to the root's end only: this is about the
//! time of the one who called.

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{RequestEvent, SyscallEvent};

use self::covered::Covered;
use self::subject::Subject;
use crate::phases::at_device;
use crate::trace::{Root, Trace};

mod covered;
pub mod operation;
pub mod subject;

/// The root's duration by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// A request was with the device.
    pub device: DurationNs,
    /// A bio or request was in the block layer above the device.
    pub block: DurationNs,
    /// A commit was running that had nothing in the block layer.
    pub journal: DurationNs,
    /// The call's task was ready to run, and no CPU ran it.
    pub cpu: DurationNs,
    /// The call's own work above the block layer.
    pub file_system: DurationNs,
    /// Waiting for something that is not in the trace, or the work of what is no storage.
    pub unaccounted: DurationNs,
}

impl Breakdown {
    /// The sum: the root's duration.
    pub fn total(&self) -> DurationNs {
        let all = [self.device, self.block, self.journal, self.cpu, self.file_system, self.unaccounted];
        DurationNs(all.iter().map(|part| part.0).sum())
    }
}

/// Where the time of `trace`'s root went.
pub fn breakdown(trace: &Trace) -> Breakdown {
    breakdown_of(trace, Subject::of(trace))
}

/// The same for who knows already what it was about.
pub fn breakdown_of(trace: &Trace, subject: Subject) -> Breakdown {
    let mut covered = Covered::new(trace.start(), trace.end());
    all_requests(trace).for_each(|request| covered.add(at_device(request), request.complete));
    let device = covered.grow();
    all_requests(trace).for_each(|request| covered.add(request.start, request.complete));
    all_bios(trace).for_each(|(queue, end)| covered.add(queue, end));
    let block = covered.grow();
    trace.causes.iter().for_each(|cause| covered.add(cause.trace.start(), cause.trace.end()));
    let journal = covered.grow();

    let rest = covered.rest();
    let waited = trace.call().and_then(|call| call.cpu_wait).unwrap_or_default();
    let cpu = waited.min(rest);
    let rest = DurationNs(rest.0 - cpu.0);
    let mut breakdown = Breakdown { device, block, journal, cpu, ..Breakdown::default() };
    match own(trace, subject) {
        Own::FileSystem => breakdown.file_system = rest,
        Own::Journal => breakdown.journal.0 += rest.0,
        Own::Unknown => breakdown.unaccounted = rest,
    }
    breakdown
}

fn all_requests(trace: &Trace) -> impl Iterator<Item = &RequestEvent> {
    with_causes(trace).flat_map(|trace| {
        let carriers = trace.carried.iter().map(|carried| &carried.request);
        trace.requests.iter().chain(carriers)
    })
}

fn all_bios(trace: &Trace) -> impl Iterator<Item = (MonotonicNs, MonotonicNs)> + '_ {
    with_causes(trace).flat_map(|trace| trace.bios.iter().map(|bio| (bio.queue, bio.end)))
}

fn with_causes(trace: &Trace) -> impl Iterator<Item = &Trace> {
    std::iter::once(trace).chain(trace.causes.iter().map(|cause| &*cause.trace))
}

enum Own {
    FileSystem,
    Journal,
    Unknown,
}

fn own(trace: &Trace, subject: Subject) -> Own {
    match &trace.root {
        Root::Call(_) if subject == Subject::NotStorage => Own::Unknown,
        Root::Call(call) if call.sleeps == 0 || is_explained(call, trace) => Own::FileSystem,
        Root::Commit(_) => Own::Journal,
        Root::Call(_) | Root::Operation(_) | Root::Kernel | Root::Missing => Own::Unknown,
    }
}

/// Whether the call has I/O and none of it is missing: from its commits neither.
fn is_explained(call: &SyscallEvent, trace: &Trace) -> bool {
    let all = trace.asked_by_root() == call.bios as usize;
    let some = call.bios > 0 || !trace.causes.is_empty();
    some && all && with_causes(trace).all(|trace| trace.missing.nothing())
}

#[cfg(test)]
mod tests;
