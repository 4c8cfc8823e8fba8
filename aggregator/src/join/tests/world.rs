//! A small random machine: the truth, and events of which some are lost and none is in order.
//!
//! The plan of a world is a list of [`Act`]s. [`World::build`] turns it into events that follow the
//! contract of `wire::event`: a request's record before those of its bios, a commit's bios before
//! its end, and so on.

use std::collections::HashMap;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BioEvent, FaultEvent, LayerEvent, RequestEvent, Submitter, SyscallEvent};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use crate::fixtures;

/// An activity that starts at `start`.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    start: u64,
    kind: Kind,
    /// Bios, and what the block layer makes of each.
    bios: Vec<BlockOutcome>,
    /// Bit n: the n-th event of this act is lost.
    lost: u16,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A call that waits for its bios.
    Sync,
    /// A call that returns before its bios end.
    Async,
    /// A page fault, whose record is written when it ends or long after.
    Fault { late: bool },
    /// A commit, and the number of calls that wait for it.
    Commit { waiters: u8, late: bool },
    /// A bio of the kernel's own.
    Kernel,
    /// A request that no traced task submitted.
    Untraced,
    /// A daemon span.
    DaemonSpan,
}

#[derive(Clone, Copy, Debug)]
enum BlockOutcome {
    /// A request of its own.
    OwnRequest,
    /// Merged into the last request, of whichever call.
    Merged,
    /// Two requests.
    Split,
    /// No request.
    NoRequest,
    /// A request of a device on a file. Its worker submits a lower bio.
    FileBacked,
    /// No request: the device has two lower devices, and each gets a bio.
    TwoLowerDevices,
    /// No bio: a passthrough request.
    Passthrough,
}

/// The truth, and the events of it that arrive.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// Events that arrive.
    pub(crate) events: Vec<LayerEvent>,
    /// Root of each span, lost or not.
    pub(crate) roots: HashMap<SpanId, SpanId>,
    /// Parent of each lower bio.
    pub(crate) parents: HashMap<SpanId, SpanId>,
    next: u64,
    last_request: Option<usize>,
    recorded: Vec<(LayerEvent, bool)>,
}

pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let outcome = prop_oneof![
        4 => Just(BlockOutcome::OwnRequest), 3 => Just(BlockOutcome::Merged), 1 => Just(BlockOutcome::Split), 1 => Just(BlockOutcome::NoRequest),
        2 => Just(BlockOutcome::FileBacked), 2 => Just(BlockOutcome::TwoLowerDevices), 1 => Just(BlockOutcome::Passthrough),
    ];
    let kind = prop_oneof![
        5 => Just(Kind::Sync),
        2 => Just(Kind::Async),
        2 => any::<bool>().prop_map(|late| Kind::Fault { late }),
        2 => (0_u8..4, any::<bool>()).prop_map(|(waiters, late)| Kind::Commit { waiters, late }),
        1 => Just(Kind::Kernel),
        1 => Just(Kind::Untraced),
        1 => Just(Kind::DaemonSpan),
    ];
    let lost = prop_oneof![3 => Just(0), 1 => any::<u16>()];
    let act = (0_u64..2_000, kind, prop::collection::vec(outcome, 0..4), lost)
        .prop_map(|(start, kind, bios, lost)| Act { start: 10 + start, kind, bios, lost });
    prop::collection::vec(act, 1..12)
}

impl Act {
    /// Returns the act with no event lost.
    pub(crate) fn complete(self) -> Act {
        Act { lost: 0, ..self }
    }
}

impl World {
    pub(crate) fn build(acts: &[Act]) -> World {
        let mut world = World::default();
        for (tid, act) in acts.iter().enumerate() {
            let first = world.recorded.len();
            world.act(act, tid as u32);
            for (n, (_, lost)) in world.recorded[first..].iter_mut().enumerate() {
                *lost = act.lost >> (n % 16) & 1 != 0;
            }
        }
        let recorded = std::mem::take(&mut world.recorded);
        world.events = recorded.into_iter().filter(|(_, lost)| !lost).map(|(event, _)| event).collect();
        world
    }

    fn act(&mut self, act: &Act, tid: u32) {
        let (start, bios) = (act.start, act.bios.len() as u32);
        match act.kind {
            Kind::Sync | Kind::Async => {
                let root = self.span();
                let end = self.bios(root, start, &act.bios);
                let exit = if matches!(act.kind, Kind::Sync) { end + 1 } else { start + 1 };
                self.record(
                    root,
                    root,
                    LayerEvent::Syscall(fixtures::call_with(root.0, (start, exit), bios)),
                );
            }
            Kind::Fault { late } => {
                let root = self.span();
                let end = self.bios(root, start, &act.bios) + 1;
                let fault = fixtures::fault(root.0, (start, end), bios);
                let time = if late { MonotonicNs(end + 5_000) } else { fault.end };
                self.record(root, root, LayerEvent::Fault(FaultEvent { time, ..fault }));
            }
            Kind::Commit { waiters, late } => {
                let root = self.span();
                let end = self.bios(root, start, &act.bios) + 1;
                self.record(
                    root,
                    root,
                    LayerEvent::Commit(fixtures::commit(root.0, (start, end), tid, bios)),
                );
                for n in 0..u64::from(waiters) {
                    let delay = if late { n * 80_000_000 } else { n };
                    self.waiter(tid, (start.saturating_sub(n), end + 1 + delay));
                }
                // A call that began when the commit had ended.
                self.waiter(tid, (end, end + 5));
            }
            Kind::Kernel => {
                let (bio, request) = (self.span(), self.span());
                let (bio, request) = fixtures::kernel_bio(bio.0, request.0, (start, start + 20));
                self.last_request = Some(self.recorded.len());
                self.record(request.span, bio.span, LayerEvent::Request(request));
                self.record(bio.span, bio.span, LayerEvent::Bio(bio));
            }
            Kind::DaemonSpan => self.daemon_span(start),
            Kind::Untraced => {
                let request = self.span();
                let (_, event) = fixtures::kernel_bio(request.0, request.0, (start, start + 9));
                let event = RequestEvent { parent: None, ..event };
                self.record(request, request, LayerEvent::Request(event));
            }
        }
    }

    /// The daemon span and its part are roots of their own traces.
    fn daemon_span(&mut self, start: u64) {
        let (span, part) = (self.span(), self.span());
        self.record(part, part, fixtures::daemon_span_event(part.0, Some(span.0), (start + 1, start + 3)));
        self.record(span, span, fixtures::daemon_span_event(span.0, None, (start, start + 9)));
    }

    fn waiter(&mut self, tid: u32, times: (u64, u64)) {
        let span = self.span();
        self.record(span, span, LayerEvent::Syscall(fixtures::fsync_call(span.0, times, tid)));
    }

    /// Adds bios of `root`. Returns the end of the last one.
    fn bios(&mut self, root: SpanId, start: u64, outcomes: &[BlockOutcome]) -> u64 {
        let ends = outcomes.iter().enumerate().map(|(n, outcome)| self.bio(root, start + n as u64, *outcome));
        ends.collect::<Vec<_>>().into_iter().max().unwrap_or(start)
    }

    fn bio(&mut self, root: SpanId, queue: u64, outcome: BlockOutcome) -> u64 {
        let (bio, request, end) = (self.span(), self.span(), queue + 30);
        let (mut event, made) = fixtures::bio_and_request(root.0, bio.0, request.0, (queue, end));
        match outcome {
            BlockOutcome::NoRequest => event.request = None,
            BlockOutcome::FileBacked => {
                self.lower_bio(root, request, (queue + 3, end - 3));
                self.add_request(made);
            }
            BlockOutcome::TwoLowerDevices => {
                event.request = None;
                self.lower_bio(root, bio, (queue + 1, end - 2));
                self.lower_bio(root, bio, (queue + 2, end - 1));
            }
            BlockOutcome::Passthrough => {
                self.record(
                    request,
                    root,
                    LayerEvent::Request(fixtures::passthrough_request(root.0, request.0, (queue, end))),
                );
                return end;
            }
            BlockOutcome::Merged if self.merge(&mut event) => {}
            BlockOutcome::Split => {
                let front = RequestEvent { span: self.span(), ..made };
                event.split = true;
                self.record(front.span, root, LayerEvent::Request(front));
                self.add_request(made);
            }
            BlockOutcome::OwnRequest | BlockOutcome::Merged => self.add_request(made),
        }
        self.record(bio, root, LayerEvent::Bio(event));
        event.end.0
    }

    /// Adds a lower bio, with its request, that serves `parent`.
    fn lower_bio(&mut self, root: SpanId, parent: SpanId, times: (u64, u64)) {
        let (bio, request) = (self.span(), self.span());
        let (event, made) = fixtures::bio_and_request(root.0, bio.0, request.0, times);
        self.parents.insert(bio, parent);
        self.record(request, root, LayerEvent::Request(made));
        self.record(bio, root, LayerEvent::Bio(BioEvent { submitter: Submitter::Span(parent), ..event }));
    }

    fn add_request(&mut self, request: RequestEvent) {
        self.last_request = Some(self.recorded.len());
        self.record(request.span, request.root, LayerEvent::Request(request));
    }

    /// Merges `bio` into the last request, if that is in flight. The bio ends with it.
    fn merge(&mut self, bio: &mut BioEvent) -> bool {
        let last = self.last_request.and_then(|last| self.recorded.get_mut(last));
        let Some((LayerEvent::Request(request), _)) = last else { return false };
        if !(request.start..request.complete).contains(&bio.queue) {
            return false;
        }
        request.bios += 1;
        (bio.request, bio.first, bio.end) = (Some(request.span), false, request.complete);
        true
    }

    fn record(&mut self, span: SpanId, root: SpanId, event: LayerEvent) {
        self.roots.insert(span, root);
        self.recorded.push((event, false));
    }

    fn span(&mut self) -> SpanId {
        self.next += 1;
        // Spread as the kernel's bijection spreads them.
        SpanId(self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// Creates a world from given events.
    pub(crate) fn from_events(events: Vec<LayerEvent>, roots: &[(u64, u64)]) -> World {
        let roots = roots.iter().map(|&(span, root)| (SpanId(span), SpanId(root))).collect();
        World { events, roots, ..World::default() }
    }

    /// Returns the calls of this world that arrive.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &SyscallEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Syscall(call) => Some(call),
            _ => None,
        })
    }
}
