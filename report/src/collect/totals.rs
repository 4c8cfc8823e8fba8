//! The sums of the headline.

use std::sync::Arc;

use blkkin_aggregator::account::subject::is_storage;
use blkkin_aggregator::named::NamedFile;
use blkkin_aggregator::stacked::Stacked;
use blkkin_aggregator::trace::{FragmentKind, Root, Trace};
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{Captured, ContextSource, RequestEvent, SyscallEvent, SyscallOutcome, TraceContext};
use blkkin_wire::syscalls::{SyscallClass, SyscallId};

use super::calls::{Subject, moved_bytes};
use super::seen::Seen;

/// Bytes, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Towards the program.
    pub read: u64,
    /// Towards the device.
    pub written: u64,
}

impl Moved {
    /// Adds what else was moved. A call may return anything: sums saturate.
    pub fn add(&mut self, other: Moved) {
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
    }
}

/// Parts that are known to be missing from the traces that came.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gaps {
    /// Traces with a part missing.
    pub traces: u64,
    /// Of these: the root's own record never came, or the root had not ended when tracing did.
    pub roots: u64,
    /// Bios that a root counted and that did not come.
    pub bios: u64,
    /// Requests that a bio named and that did not come.
    pub requests: u64,
    /// Commits that a call waited for and that could not be awaited.
    pub commits: u64,
    /// Parts of traces that came after these had been given out.
    pub late_parts: u64,
}

/// Sums over all traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Traces of any root, those of calls on no storage among them.
    pub traces: u64,
    /// System calls.
    pub calls: u64,
    /// Of these, on pipes, sockets and whatever else is no storage.
    pub stream_calls: u64,
    /// Of the calls, those whose return was not seen.
    pub no_exit: u64,
    /// Of the calls, those with a path argument cut or unreadable.
    pub paths_cut: u64,
    /// Of the calls, those made for a span that their thread published.
    pub in_contexts: u64,
    /// Of these, those in traces that their program samples.
    pub sampled_by_program: u64,
    /// Journal commits.
    pub commits: u64,
    /// The kernel's own work, commits aside.
    pub kernel: u64,
    /// Daemons' own operations.
    pub operations: u64,
    /// Bios.
    pub bios: u64,
    /// Block requests.
    pub requests: u64,
    /// Of these, flushes.
    pub flushes: u64,
    /// Moved by calls on files.
    pub by_calls: Moved,
    /// Moved by block requests.
    pub by_devices: Moved,
    /// Bytes discarded by block requests.
    pub discarded: u64,
    /// What is missing.
    pub gaps: Gaps,
    /// The slowest call on a file.
    pub slowest: Option<(SyscallId, DurationNs)>,
    /// When the last part of any trace ended.
    pub last_end: MonotonicNs,
}

impl Totals {
    /// Traces that have to do with storage.
    pub fn storage_requests(&self) -> u64 {
        // What daemons did is what their calls did.
        self.traces.saturating_sub(self.stream_calls + self.operations)
    }

    /// System calls that have to do with storage.
    pub fn storage_calls(&self) -> u64 {
        self.calls - self.stream_calls
    }

    pub(crate) fn add<'a>(&mut self, seen: impl Into<Seen<'a>>) {
        let seen = seen.into();
        let trace = seen.trace;
        // A later part is of a trace that was counted.
        self.traces += u64::from(trace.part == FragmentKind::First);
        self.last_end = self.last_end.max(trace.last_end());
        match &trace.root {
            Root::Call(call) => {
                let published = |context: &TraceContext| context.source == ContextSource::ThreadContext;
                self.in_contexts += u64::from(trace.context().is_some_and(published));
                self.sampled_by_program += u64::from(trace.is_sampled_by_program());
                self.add_call(call, seen);
            }
            Root::Commit(_) => self.commits += 1,
            Root::Kernel => self.kernel += 1,
            Root::Operation(_) => self.operations += u64::from(trace.part == FragmentKind::First),
            Root::Missing => {}
        }
        self.bios += trace.bios.len() as u64;
        let stacked = Stacked::of(trace);
        trace.requests.iter().for_each(|request| self.add_request(request, &stacked));
        self.add_gaps(trace);
    }

    fn add_call(&mut self, call: &SyscallEvent, seen: Seen<'_>) {
        self.calls += 1;
        self.no_exit += u64::from(call.outcome == SyscallOutcome::NoExit);
        self.paths_cut += u64::from(call.paths_captured != Captured::Full);
        if seen.subject == Subject::NotStorage {
            self.stream_calls += 1;
            return;
        }
        let bytes = moved_bytes(call);
        let class = call.call.spec().class;
        // A transfer reads from one file and writes to another; either may be a pipe or a socket.
        let stored = |file: &Option<Arc<NamedFile>>| file.as_deref().is_none_or(|file| is_storage(file));
        let transfer = class == SyscallClass::Transfer;
        let names = &seen.trace.names;
        let reads = class != SyscallClass::Write && (!transfer || stored(&names.file));
        let writes = class != SyscallClass::Read && (!transfer || stored(&names.second_file));
        let part = |moves: bool| if moves { bytes } else { 0 };
        self.by_calls.add(Moved { read: part(reads), written: part(writes) });
        if self.slowest.is_none_or(|(_, slowest)| seen.time > slowest) {
            self.slowest = Some((call.call, seen.time));
        }
    }

    fn add_request(&mut self, request: &RequestEvent, stacked: &Stacked) {
        self.requests += 1;
        if stacked.is_above(request) {
            // Those below it moved its bytes.
            return;
        }
        let bytes = u64::from(request.bytes);
        match request.op.name_for(request.bytes) {
            "read" => self.by_devices.read += bytes,
            "write" | "zone-append" => self.by_devices.written += bytes,
            "flush" => self.flushes += 1,
            "discard" | "secure-erase" => self.discarded += bytes,
            _ => {}
        }
    }

    fn add_gaps(&mut self, trace: &Trace) {
        let missing = &trace.missing;
        let late = trace.part == FragmentKind::Late;
        let root = !late && (missing.root || matches!(trace.root, Root::Missing));
        self.gaps.late_parts += u64::from(late);
        self.gaps.traces += u64::from(!late && (root || !missing.nothing()));
        self.gaps.roots += u64::from(root);
        self.gaps.commits += u64::from(missing.commits);
        self.gaps.bios += u64::from(missing.bios);
        self.gaps.requests += u64::from(missing.requests);
    }
}
