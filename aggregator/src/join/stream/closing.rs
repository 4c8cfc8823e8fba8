//! Closing of traces: complete, or incomplete after the inactivity timeout or for room.
//!
//! *In*: open traces and the current event time. *Out*: traces to the sink. *Invariant*: a trace is
//! emitted once; the parts that arrive later form a late fragment of the same trace id.

use std::sync::Arc;

use blkkin_wire::call_waits::LogWrite;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::SpanId;

use super::Stream;
use crate::join::commits::{CloseResult, CommitKey, Decision};
use crate::join::names::NameTable;
use crate::join::open::Slot;
use crate::join::sink::StatsSink;
use crate::trace::{MergeLink, Names, Root, ShownIn, Trace, WaitLink};

impl Stream {
    pub(super) fn close_if_complete(&mut self, slot: Slot, sink: &mut StatsSink<'_>) {
        if self.open.get(slot).is_complete() {
            self.close(slot, sink);
        }
    }

    /// Closes a trace and emits it as it is.
    pub(super) fn close(&mut self, slot: Slot, sink: &mut StatsSink<'_>) {
        self.resolve_merge_links(slot);
        self.resolve_writers(slot);
        self.resolve_log_write(slot);
        let open = self.open.get(slot);
        if let Some(key) = open.awaited_commit {
            self.commits.leave(key, open.trace.root_span);
        }
        open.trace.incomplete = open.incomplete();
        // A split bio's earlier request may outlive the bio, if it carries other bios.
        if !open.trace.incomplete.is_empty() || open.trace.bios.iter().any(|bio| bio.split) {
            self.closed.insert(open.trace.root_span, open.emitted());
        }
        let trace = &mut open.trace;
        if let Root::Missing = trace.root {
            trace.names = names_of_orphan(&mut self.names, trace);
        }
        trace.anchor = self.anchor;
        if !Arc::ptr_eq(&trace.names.devices, self.names.devices()) {
            trace.names.devices = Arc::clone(self.names.devices());
        }
        let root = trace.root_span;
        let Root::Commit(commit) = &trace.root else {
            sink.emit(trace);
            return self.open.end(slot, root);
        };
        let key = CommitKey::of(commit);
        let trace = std::mem::replace(trace, Trace::new(self.source, self.anchor, root));
        self.open.end(slot, root);
        self.close_commit(key, trace, sink);
    }

    /// Looks up traces of merge links again. The calls of these requests may have returned
    /// meanwhile.
    fn resolve_merge_links(&mut self, slot: Slot) {
        let unknown = |link: &MergeLink| link.trace.is_none();
        if !self.open.peek(slot).trace.merged_into.iter().any(unknown) {
            return;
        }
        let mut links = std::mem::take(&mut self.open.get(slot).trace.merged_into);
        links.iter_mut().for_each(|link| link.trace = self.trace_of(link.root()));
        self.open.get(slot).trace.merged_into = links;
    }

    /// Looks up the traces of writers. The origin knows only those that a thread context names.
    fn resolve_writers(&mut self, slot: Slot) {
        if self.open.peek(slot).trace.page_origins.is_empty() {
            return;
        }
        let mut origins = std::mem::take(&mut self.open.get(slot).trace.page_origins);
        let writers = origins.iter_mut().flat_map(|origin| &mut origin.writers);
        for writer in writers.filter(|writer| writer.trace.0 == 0 && writer.span.0 != 0) {
            writer.trace = self.trace_of(writer.span).unwrap_or(writer.trace);
        }
        self.open.get(slot).trace.page_origins = origins;
    }

    /// Looks up the trace of the log write for which the call waited.
    fn resolve_log_write(&mut self, slot: Slot) {
        let of = |trace: &Trace| trace.call()?.waits.as_ref()?.log_write;
        let Some(write) = of(&self.open.peek(slot).trace) else { return };
        let Some(trace) = self.trace_of(write.root) else { return };
        if let Root::Call(call) = &mut self.open.get(slot).trace.root
            && let Some(waits) = &mut call.waits
        {
            waits.log_write = Some(LogWrite { trace, ..write });
        }
    }

    fn close_commit(&mut self, key: CommitKey, trace: Trace, sink: &mut StatsSink<'_>) {
        match self.commits.close(key, trace) {
            CloseResult::Due => self.decide(key, sink),
            CloseResult::Early => {}
            CloseResult::Unknown(mut trace) => sink.emit(&mut trace),
        }
    }

    /// Chooses a commit's primary, adds the commit to each call that waited for it, and closes
    /// these calls.
    fn decide(&mut self, key: CommitKey, sink: &mut StatsSink<'_>) {
        let Some(Decision { mut trace, waiters, primary }) = self.commits.decide(key) else {
            return;
        };
        trace.sort_parts();
        // The call's trace is open, so its trace id is known.
        let shown_in = |call: SpanId| Some(ShownIn { trace: self.trace_of(call)?, call });
        trace.shown_in = primary.and_then(|waiter| shown_in(waiter.span));
        let trace = Arc::new(trace);
        for waiter in waiters {
            let Some(slot) = self.open.find(waiter.span) else { continue };
            let open = self.open.get(slot);
            open.awaited_commit = None;
            open.trace.waited_for.push(WaitLink { trace: trace.clone(), primary: primary == Some(waiter) });
            self.close_if_complete(slot, sink);
        }
        sink.emit(&mut Trace::clone(&trace));
        self.commits.decided(key, trace);
    }

    /// Decides a commit now, with the parts that its trace has.
    pub(super) fn settle(&mut self, key: CommitKey, sink: &mut StatsSink<'_>) {
        if let Some(slot) = self.commits.open_span(key).and_then(|span| self.open.find(span)) {
            self.close(slot, sink);
        }
        self.decide(key, sink);
    }

    /// Runs all timeouts up to `until`, in the order of their times.
    pub(super) fn expire(&mut self, until: MonotonicNs, sink: &mut StatsSink<'_>) {
        loop {
            self.deadline = MonotonicNs(u64::MAX);
            self.update_deadline();
            if self.deadline > until {
                return;
            }
            match (self.commits.next_due(), self.open.oldest()) {
                (Some(due), _) if due <= self.deadline => {
                    if let Some(key) = self.commits.pop_due() {
                        self.decide(key, sink);
                    }
                }
                (_, Some((slot, _))) => self.close(slot, sink),
                (_, None) => return,
            }
        }
    }

    pub(super) fn update_deadline(&mut self) {
        let quiet = |(_, last): (Slot, MonotonicNs)| last.0.saturating_add(self.config.quiet_after.0);
        let quiet = self.open.oldest().map(quiet).map(MonotonicNs);
        let next = [quiet, self.commits.next_due()].into_iter().flatten().min();
        self.deadline = self.deadline.min(next.unwrap_or(MonotonicNs(u64::MAX)));
    }
}

fn names_of_orphan(names: &mut NameTable, trace: &Trace) -> Names {
    let bio = trace.bios.iter().min_by_key(|bio| (bio.queue, bio.span)).map(|bio| bio.task);
    let request = || trace.requests.iter().min_by_key(|r| (r.start, r.span)).map(|r| r.task);
    let async_io =
        || trace.async_ios.iter().min_by_key(|io| (io.event.start, io.event.span)).map(|io| io.event.task);
    bio.or_else(request).or_else(async_io).map(|task| names.of_task(task)).unwrap_or_default()
}
