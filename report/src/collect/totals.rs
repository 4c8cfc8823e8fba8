//! Totals of the headline.

use std::sync::Arc;

use blkkin_aggregator::latency::io_kind::is_storage;
use blkkin_aggregator::trace::async_io::AsyncIo;
use blkkin_aggregator::trace::interned_file::InternedFile;
use blkkin_aggregator::trace::stacked::Stacked;
use blkkin_aggregator::trace::{FragmentKind, Root, Trace};
use blkkin_wire::async_io::AsyncDirection;
use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{Captured, ContextSource, RequestEvent, SyscallEvent, SyscallOutcome, TraceContext};
use blkkin_wire::syscalls::{SyscallClass, SyscallId};

use super::calls::{IoKind, moved_bytes};
use super::classified::ClassifiedTrace;

/// Bytes transferred, by direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ByteCounts {
    /// Bytes read.
    pub read: u64,
    /// Bytes written.
    pub written: u64,
}

impl ByteCounts {
    /// Adds other counts. The sums saturate, because a call can return any number.
    pub fn add(&mut self, other: ByteCounts) {
        self.read = self.read.saturating_add(other.read);
        self.written = self.written.saturating_add(other.written);
    }
}

/// Counters of parts that are known to be missing from traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IncompleteStats {
    /// Incomplete traces.
    pub traces: u64,
    /// Incomplete traces without the root's record: it was lost, or the root was in flight when
    /// tracing ended.
    pub roots: u64,
    /// Missing bios that a root counted.
    pub bios: u64,
    /// Missing requests that a bio named.
    pub requests: u64,
    /// Missing commits that a call waited for.
    pub commits: u64,
    /// Missing origins of bios' pages.
    pub page_origins: u64,
    /// Parts that arrived after their trace had been closed.
    pub late_parts: u64,
}

/// Totals over all traces.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Traces of any root, also of calls on pipes and sockets.
    pub traces: u64,
    /// System calls.
    pub calls: u64,
    /// System calls on pipes, sockets and other objects that are not storage.
    pub stream_calls: u64,
    /// System calls without an exit record.
    pub calls_without_exit: u64,
    /// System calls with a truncated or unreadable path argument.
    pub calls_with_path_truncated: u64,
    /// System calls with a thread context.
    pub calls_with_context: u64,
    /// System calls with a thread context that the program samples.
    pub calls_sampled_by_program: u64,
    /// Submissions of asynchronous I/O.
    pub async_ios: u64,
    /// Journal commits.
    pub commits: u64,
    /// Page faults that read or waited for a read.
    pub faults: u64,
    /// Traces of kernel I/O other than commits.
    pub kernel: u64,
    /// Daemon spans.
    pub daemon_spans: u64,
    /// Bios.
    pub bios: u64,
    /// Block requests.
    pub requests: u64,
    /// Block requests that are flushes.
    pub flushes: u64,
    /// Bytes transferred by calls on files.
    pub by_calls: ByteCounts,
    /// Bytes transferred by block requests.
    pub by_devices: ByteCounts,
    /// Bytes discarded by block requests.
    pub discarded: u64,
    /// Missing parts.
    pub incomplete: IncompleteStats,
    /// The slowest call on a file.
    pub slowest: Option<(SyscallId, DurationNs)>,
    /// End of the last part of any trace.
    pub last_end: MonotonicNs,
}

impl Totals {
    /// Returns the number of storage operations.
    pub fn storage_requests(&self) -> u64 {
        // A daemon span's I/O is that of its calls, which are counted.
        self.traces.saturating_sub(self.stream_calls + self.daemon_spans)
    }

    /// Returns the number of storage calls.
    pub fn storage_calls(&self) -> u64 {
        self.calls - self.stream_calls
    }

    /// Adds a trace.
    pub(crate) fn add<'a>(&mut self, classified: impl Into<ClassifiedTrace<'a>>) {
        let classified = classified.into();
        let trace = classified.trace;
        // A late fragment belongs to a trace that has been counted.
        self.traces += u64::from(trace.kind == FragmentKind::First);
        self.last_end = self.last_end.max(trace.last_end());
        match &trace.root {
            Root::Call(call) => {
                let is_thread_context =
                    |context: &TraceContext| context.source == ContextSource::ThreadContext;
                self.calls_with_context += u64::from(trace.context().is_some_and(is_thread_context));
                self.calls_sampled_by_program += u64::from(trace.is_sampled_by_application());
                self.add_call(call, classified);
            }
            Root::AsyncIo => {}
            Root::Commit(_) => self.commits += 1,
            Root::Kernel => self.kernel += 1,
            Root::Fault(_) => self.faults += 1,
            Root::DaemonSpan(_) => self.daemon_spans += u64::from(trace.kind == FragmentKind::First),
            Root::Missing => {}
        }
        trace.async_ios.iter().for_each(|io| self.add_async_io(io));
        self.bios += trace.bios.len() as u64;
        let stacked = Stacked::of(trace);
        trace.requests.iter().for_each(|request| self.add_request(request, &stacked));
        self.add_incomplete(trace);
    }

    fn add_call(&mut self, call: &SyscallEvent, classified: ClassifiedTrace<'_>) {
        self.calls += 1;
        self.calls_without_exit += u64::from(call.outcome == SyscallOutcome::NoExit);
        self.calls_with_path_truncated += u64::from(call.paths_captured != Captured::Full);
        if classified.subject == IoKind::NotStorage {
            self.stream_calls += 1;
            return;
        }
        let bytes = moved_bytes(call);
        let class = call.call.spec().class;
        // A transfer reads from one file and writes to another; either can be a pipe or a socket.
        let on_storage =
            |file: &Option<Arc<InternedFile>>| file.as_deref().is_none_or(|file| is_storage(file));
        let transfer = class == SyscallClass::Transfer;
        let names = &classified.trace.names;
        let reads = class != SyscallClass::Write && (!transfer || on_storage(&names.file));
        let writes = class != SyscallClass::Read && (!transfer || on_storage(&names.second_file));
        let count = |applies: bool| if applies { bytes } else { 0 };
        self.by_calls.add(ByteCounts { read: count(reads), written: count(writes) });
        if self.slowest.is_none_or(|(_, slowest)| classified.time > slowest) {
            self.slowest = Some((call.call, classified.time));
        }
    }

    fn add_async_io(&mut self, io: &AsyncIo) {
        self.async_ios += 1;
        let bytes = u64::from(io.event.bytes().unwrap_or(0));
        match io
            .event
            .operation()
            .direction
            .filter(|_| io.file.as_deref().is_none_or(|file| is_storage(file)))
        {
            Some(AsyncDirection::Read) => self.by_calls.add(ByteCounts { read: bytes, written: 0 }),
            Some(AsyncDirection::Write) => self.by_calls.add(ByteCounts { read: 0, written: bytes }),
            None => {}
        }
    }

    fn add_request(&mut self, request: &RequestEvent, stacked: &Stacked) {
        self.requests += 1;
        if stacked.is_above(request) {
            // The requests on the lower device carry the same bytes.
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

    fn add_incomplete(&mut self, trace: &Trace) {
        let missing = &trace.incomplete;
        let late = trace.kind == FragmentKind::Late;
        let root = !late && (missing.root || matches!(trace.root, Root::Missing));
        self.incomplete.late_parts += u64::from(late);
        self.incomplete.traces += u64::from(!late && (root || !missing.is_empty()));
        self.incomplete.roots += u64::from(root);
        self.incomplete.commits += u64::from(missing.commits);
        self.incomplete.page_origins += u64::from(missing.page_origins);
        self.incomplete.bios += u64::from(missing.bios);
        self.incomplete.requests += u64::from(missing.requests);
    }
}
