//! Latency breakdown: splits the duration of a trace's root by layer.
//!
//! *In*: a [`Trace`]. *Out*: a [`Breakdown`].
//!
//! *Invariant*: each nanosecond between the root's begin and end belongs to exactly one class, and
//! the sum of the classes is the root's duration.
//!
//! # Classes
//!
//! Several things happen at a time: one request waits while another is at the device. At each
//! moment the class is the *deepest* layer in which the trace is active:
//!
//! 1. **device**: a request of the trace is with the device, issued and not complete
//!    ([`at_device`]). A request in the flush machinery is with the device from the issue of the
//!    flush that serves it, which is its `issue` field. *Rejected*: flush time as `block` because
//!    the request itself is not issued. It would blame the scheduler for the disk's slowest
//!    operation. *Rejected*: flush time from the request's start. It would blame the disk for the
//!    wait until another flush has ended.
//! 2. **block**: no request is with the device, and a bio or request of the trace is in the block
//!    layer. It waits for a tag, is plugged, is in the scheduler, is throttled, or is between its
//!    last completion and its end. A requeued request counts as with the device from its first
//!    issue on: the time of its return is not recorded.
//! 3. **journal**: none of these, and a commit for which the call waited is running. It is the
//!    journal's own work, or its wait for writers that hold the transaction open.
//! 4. **locks** and **throttled**: the part of the rest for which the call waited for locks that
//!    others held, and for which the kernel paused it because too many pages were dirty
//!    ([`CallWaits`]). Of a wait only its length is used, so a
//!    call that waits during its own I/O has no more of it than the rest.
//! 5. **cpu**: the part of the rest for which the call's task was runnable and no CPU ran it, by
//!    the kernel's count (`sched_info.run_delay`). Its position within the call is not recorded.
//!    After a sleep it follows the event that ended the sleep, so it belongs to the rest. If a call
//!    continues while its I/O runs, it may have overlapped with that I/O, so no more than the rest
//!    is taken.
//! 6. The remaining time is the root's **own**. The only record of it is how often the task slept,
//!    without the sleeps in the waits of 4:
//!    - A call that is not storage ([`IoKind`]: plain memory, a pipe, a file of `proc`) has no file
//!      system to which the time could belong: **unaccounted**, asleep or not.
//!    - A call that never slept spent it computing, in the file system, in the page cache or in the
//!      call's own code. This is proved for every call on storage: **file_system**.
//!    - A call that slept and has I/O, all of it present: the I/O explains the sleeps, and the time
//!      around it is the file system's way down and up: **file_system**. *Not proved*: a wait for a
//!      folio or for room in the journal counts here too, as no record distinguishes the sleeps.
//!    - A call that slept and has no I/O waited for something that is not in the trace (a file lock, data
//!      in a pipe, another task's read of the same page): **unaccounted**. *Counter-example*:
//!      `sync()` sleeps while kernel threads write. As `file_system` it would show that ext4
//!      computed for a second.
//!    - A page fault with I/O, all of it present, is the same: **file_system**. A page fault without
//!      I/O waited for another task's read: **unaccounted**.
//!    - A call with a part of its I/O missing may have slept for the missing part: **unaccounted**.
//!    - A commit's own time is **journal**. The own time of a root without a record is unknown:
//!      **unaccounted**.
//!
//! The requests of a trace are its own, those of the commits for which it waited, and those of
//! other traces into which its bios were merged. I/O that outlives the root (bios of an async call)
//! counts up to the root's end: the breakdown is of the caller's time.

use blkkin_wire::call_waits::CallWaits;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{RequestEvent, SyscallEvent};

use self::interval_set::IntervalSet;
use self::io_kind::IoKind;
use crate::latency::phases::at_device;
use crate::trace::{Root, Trace};

pub mod async_io;
pub mod daemon_span;
mod interval_set;
pub mod io_kind;
pub mod phases;

/// Duration of a trace's root by class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Breakdown {
    /// A request was with the device.
    pub device: DurationNs,
    /// A bio or request was in the block layer above the device.
    pub block: DurationNs,
    /// A commit was running that had nothing in the block layer, or the call waited for the log of xfs.
    pub journal: DurationNs,
    /// The call waited for a lock that another task held.
    pub locks: DurationNs,
    /// The kernel paused the call because too many pages were dirty.
    pub throttled: DurationNs,
    /// The call's task was runnable, and no CPU ran it.
    pub cpu: DurationNs,
    /// The call's own work above the block layer.
    pub file_system: DurationNs,
    /// A wait for something that is not in the trace, or the work of a call that is not storage.
    pub unaccounted: DurationNs,
}

impl Breakdown {
    /// Returns the sum, which is the root's duration.
    pub fn total(&self) -> DurationNs {
        let Breakdown { device, block, journal, locks, throttled, cpu, file_system, unaccounted } = self;
        let all = [device, block, journal, locks, throttled, cpu, file_system, unaccounted];
        DurationNs(all.iter().map(|part| part.0).sum())
    }
}

/// Returns the breakdown of `trace`'s root.
pub fn breakdown(trace: &Trace) -> Breakdown {
    breakdown_of(trace, IoKind::of(trace))
}

/// Returns the breakdown for a known kind of I/O.
pub fn breakdown_of(trace: &Trace, io_kind: IoKind) -> Breakdown {
    let mut intervals = IntervalSet::new(trace.start(), trace.end());
    all_requests(trace).for_each(|request| intervals.add(at_device(request), request.complete));
    let device = intervals.take_growth();
    all_requests(trace).for_each(|request| intervals.add(request.start, request.complete));
    all_bios(trace).for_each(|(queue, end)| intervals.add(queue, end));
    let block = intervals.take_growth();
    trace.waited_for.iter().for_each(|wait| intervals.add(wait.trace.start(), wait.trace.end()));
    let journal = intervals.take_growth();

    let mut rest = intervals.uncovered();
    let mut take = |wanted: DurationNs| {
        let taken = wanted.min(rest);
        rest.0 -= taken.0;
        taken
    };
    let waits = trace.call().and_then(|call| call.waits.as_deref());
    let locks = take(waits.map(CallWaits::locks).unwrap_or_default());
    let throttled = take(waits.map(CallWaits::paused).unwrap_or_default());
    let journal = DurationNs(journal.0 + take(waits.map(CallWaits::log).unwrap_or_default()).0);
    let cpu = take(trace.call().and_then(|call| call.cpu_wait.get()).unwrap_or_default());
    let mut breakdown = Breakdown { device, block, journal, locks, throttled, cpu, ..Breakdown::default() };
    match root_time(trace, io_kind) {
        RootTime::FileSystem => breakdown.file_system = rest,
        RootTime::Journal => breakdown.journal.0 += rest.0,
        RootTime::Unknown => breakdown.unaccounted = rest,
    }
    breakdown
}

fn all_requests(trace: &Trace) -> impl Iterator<Item = &RequestEvent> {
    with_commits(trace).flat_map(|trace| {
        let merged = trace.merged_into.iter().map(|link| &link.request);
        trace.requests.iter().chain(merged)
    })
}

fn all_bios(trace: &Trace) -> impl Iterator<Item = (MonotonicNs, MonotonicNs)> + '_ {
    with_commits(trace).flat_map(|trace| trace.bios.iter().map(|bio| (bio.queue, bio.end)))
}

fn with_commits(trace: &Trace) -> impl Iterator<Item = &Trace> {
    std::iter::once(trace).chain(trace.waited_for.iter().map(|wait| &*wait.trace))
}

enum RootTime {
    FileSystem,
    Journal,
    Unknown,
}

fn root_time(trace: &Trace, io_kind: IoKind) -> RootTime {
    match &trace.root {
        Root::Call(_) if io_kind == IoKind::NotStorage => RootTime::Unknown,
        Root::Call(call) if slept_only_in_waits(call) || is_explained(call, trace) => RootTime::FileSystem,
        Root::Commit(_) => RootTime::Journal,
        Root::AsyncIo if is_explained_submission(trace) => RootTime::FileSystem,
        Root::Fault(fault) if fault.bios > 0 && trace.incomplete.is_empty() => RootTime::FileSystem,
        Root::Call(_)
        | Root::AsyncIo
        | Root::DaemonSpan(_)
        | Root::Fault(_)
        | Root::Kernel
        | Root::Missing => RootTime::Unknown,
    }
}

/// Returns whether the call never slept but in its recorded waits.
fn slept_only_in_waits(call: &SyscallEvent) -> bool {
    call.sleeps <= call.waits.as_ref().map_or(0, |waits| waits.sleeps)
}

/// Returns whether the call has I/O and none of it is missing, including that of its commits.
fn is_explained(call: &SyscallEvent, trace: &Trace) -> bool {
    let all = trace.submitted_by_root() == call.bios as usize;
    let some = call.bios > 0 || !trace.waited_for.is_empty();
    some && all && with_commits(trace).all(|trace| trace.incomplete.is_empty())
}

/// Returns whether a submission at the root has I/O and none of it is missing.
fn is_explained_submission(trace: &Trace) -> bool {
    trace.incomplete.is_empty() && trace.root_async_io().is_some_and(|io| io.event.bios > 0)
}

#[cfg(test)]
mod tests;
