//! How a trace leaves: complete, or closed because its time or its room is up.

use std::sync::Arc;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::SpanId;

use super::Stream;
use crate::join::commits::{Closed, CommitKey, Decision};
use crate::join::names::NameTable;
use crate::join::open::Slot;
use crate::join::sink::Sink;
use crate::trace::{Adoption, Carried, Cause, Names, Root, Trace};

impl Stream {
    pub(super) fn close_if_complete(&mut self, slot: Slot, sink: &mut Sink<'_>) {
        if self.open.get(slot).is_complete() {
            self.close(slot, sink);
        }
    }

    /// Gives a trace out as it is.
    pub(super) fn close(&mut self, slot: Slot, sink: &mut Sink<'_>) {
        self.find_carriers(slot);
        let open = self.open.get(slot);
        if let Some(key) = open.waits {
            self.commits.leave(key, open.trace.root_span);
        }
        open.trace.missing = open.missing();
        // A split's earlier request may outlive the bio, when other bios in it do.
        if !open.trace.missing.nothing() || open.trace.bios.iter().any(|bio| bio.split) {
            self.closed.insert(open.trace.root_span, open.given_out());
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

    /// Calls whose requests carried bios of this trace may have returned meanwhile.
    fn find_carriers(&mut self, slot: Slot) {
        let unknown = |carried: &Carried| carried.trace.is_none();
        if !self.open.peek(slot).trace.carried.iter().any(unknown) {
            return;
        }
        let mut carried = std::mem::take(&mut self.open.get(slot).trace.carried);
        carried.iter_mut().for_each(|carried| carried.trace = self.trace_of(carried.root()));
        self.open.get(slot).trace.carried = carried;
    }

    fn close_commit(&mut self, key: CommitKey, trace: Trace, sink: &mut Sink<'_>) {
        match self.commits.close(key, trace) {
            Closed::Due => self.decide(key, sink),
            Closed::Early => {}
            Closed::Unknown(mut trace) => sink.emit(&mut trace),
        }
    }

    /// Chooses a commit's primary, gives the commit to all that waited for it, and lets them go.
    fn decide(&mut self, key: CommitKey, sink: &mut Sink<'_>) {
        let Some(Decision { mut trace, waiters, primary }) = self.commits.decide(key) else {
            return;
        };
        trace.arrange();
        // The call is here, so it is known.
        let adoption = |call: SpanId| Some(Adoption { trace: self.trace_of(call)?, call });
        trace.adopted_by = primary.and_then(|waiter| adoption(waiter.span));
        let trace = Arc::new(trace);
        for waiter in waiters {
            let Some(slot) = self.open.find(waiter.span) else { continue };
            let open = self.open.get(slot);
            open.waits = None;
            open.trace.causes.push(Cause { trace: trace.clone(), primary: primary == Some(waiter) });
            self.close_if_complete(slot, sink);
        }
        sink.emit(&mut Trace::clone(&trace));
        self.commits.decided(key, trace);
    }

    /// Decides a commit now, whatever its trace has.
    pub(super) fn settle(&mut self, key: CommitKey, sink: &mut Sink<'_>) {
        if let Some(slot) = self.commits.open_span(key).and_then(|span| self.open.find(span)) {
            self.close(slot, sink);
        }
        self.decide(key, sink);
    }

    /// Does what is due until `until`, in the order of its times.
    pub(super) fn expire(&mut self, until: MonotonicNs, sink: &mut Sink<'_>) {
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
    bio.or_else(request).map(|task| names.of_task(task)).unwrap_or_default()
}
