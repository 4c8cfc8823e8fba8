//! A small random machine: what truly happened, told by events of which some are lost and none is in order.
//!
//! The plan of a world is a list of [`Act`]s; [`World::build`] turns it into events that keep the contract of
//! `wire::event` (a request's record before those of its bios, a commit's bios before its end, and so on).

use std::collections::HashMap;

use blkkin_wire::event::{BioEvent, LayerEvent, RequestEvent, Submitter, SyscallEvent};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use super::make;

/// One thing that happens, starting at `start`.
#[derive(Clone, Debug)]
pub(crate) struct Act {
    start: u64,
    kind: Kind,
    /// Bios and, of each, what the block layer made of it.
    bios: Vec<Fate>,
    /// Bit n: the n-th event of this act is lost.
    lost: u16,
}

#[derive(Clone, Copy, Debug)]
enum Kind {
    /// A call that waits for its bios.
    Sync,
    /// A call that returns before its bios end.
    Async,
    /// A commit, and so many calls that wait for it.
    Commit { waiters: u8, late: bool },
    /// A bio of the kernel's own.
    Kernel,
    /// A request that nobody followed asked for.
    Foreign,
    /// A daemon's operation.
    Operation,
}

#[derive(Clone, Copy, Debug)]
enum Fate {
    /// A request of its own.
    Alone,
    /// Merged into the last request made, whosoever that is.
    Merged,
    /// Two requests.
    Split,
    /// No request.
    Bare,
    /// A request of a device on a file: its worker's bio does its work on a device below.
    OnFile,
    /// No request: the device is made of two others, and each gets a bio.
    OnTwo,
    /// No bio: a driver's command.
    Command,
}

/// What happened, and what was heard of it.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// What arrives.
    pub(crate) events: Vec<LayerEvent>,
    /// The root of each span that happened, lost or not.
    pub(crate) roots: HashMap<SpanId, SpanId>,
    /// What each bio does the work of, where that is not its root.
    pub(crate) above: HashMap<SpanId, SpanId>,
    next: u64,
    last_request: Option<usize>,
    heard: Vec<(LayerEvent, bool)>,
}

pub(crate) fn acts() -> impl Strategy<Value = Vec<Act>> {
    let fate = prop_oneof![
        4 => Just(Fate::Alone), 3 => Just(Fate::Merged), 1 => Just(Fate::Split), 1 => Just(Fate::Bare),
        2 => Just(Fate::OnFile), 2 => Just(Fate::OnTwo), 1 => Just(Fate::Command),
    ];
    let kind = prop_oneof![
        5 => Just(Kind::Sync),
        2 => Just(Kind::Async),
        2 => (0_u8..4, any::<bool>()).prop_map(|(waiters, late)| Kind::Commit { waiters, late }),
        1 => Just(Kind::Kernel),
        1 => Just(Kind::Foreign),
        1 => Just(Kind::Operation),
    ];
    let lost = prop_oneof![3 => Just(0), 1 => any::<u16>()];
    let act = (0_u64..2_000, kind, prop::collection::vec(fate, 0..4), lost)
        .prop_map(|(start, kind, bios, lost)| Act { start: 10 + start, kind, bios, lost });
    prop::collection::vec(act, 1..12)
}

impl Act {
    /// The same with nothing lost.
    pub(crate) fn complete(self) -> Act {
        Act { lost: 0, ..self }
    }
}

impl World {
    pub(crate) fn build(acts: &[Act]) -> World {
        let mut world = World::default();
        for (tid, act) in acts.iter().enumerate() {
            let first = world.heard.len();
            world.act(act, tid as u32);
            for (n, (_, lost)) in world.heard[first..].iter_mut().enumerate() {
                *lost = act.lost >> (n % 16) & 1 != 0;
            }
        }
        let heard = std::mem::take(&mut world.heard);
        world.events = heard.into_iter().filter(|(_, lost)| !lost).map(|(event, _)| event).collect();
        world
    }

    fn act(&mut self, act: &Act, tid: u32) {
        let (start, bios) = (act.start, act.bios.len() as u32);
        match act.kind {
            Kind::Sync | Kind::Async => {
                let root = self.span();
                let end = self.bios(root, start, &act.bios);
                let exit = if matches!(act.kind, Kind::Sync) { end + 1 } else { start + 1 };
                self.say(root, root, LayerEvent::Syscall(make::call_with(root.0, (start, exit), bios)));
            }
            Kind::Commit { waiters, late } => {
                let root = self.span();
                let end = self.bios(root, start, &act.bios) + 1;
                self.say(root, root, LayerEvent::Commit(make::commit(root.0, (start, end), tid, bios)));
                for n in 0..u64::from(waiters) {
                    let delay = if late { n * 80_000_000 } else { n };
                    self.waiter(tid, (start.saturating_sub(n), end + 1 + delay));
                }
                // One that came when all was done.
                self.waiter(tid, (end, end + 5));
            }
            Kind::Kernel => {
                let (bio, request) = (self.span(), self.span());
                let (bio, request) = make::kernel(bio.0, request.0, (start, start + 20));
                self.last_request = Some(self.heard.len());
                self.say(request.span, bio.span, LayerEvent::Request(request));
                self.say(bio.span, bio.span, LayerEvent::Bio(bio));
            }
            Kind::Operation => self.operation(start),
            Kind::Foreign => {
                let request = self.span();
                let (_, event) = make::kernel(request.0, request.0, (start, start + 9));
                let event = RequestEvent { parent: None, ..event };
                self.say(request, request, LayerEvent::Request(event));
            }
        }
    }

    /// Its span and those of its parts are its own.
    fn operation(&mut self, start: u64) {
        let (span, part) = (self.span(), self.span());
        self.say(part, part, make::operation(part.0, Some(span.0), (start + 1, start + 3)));
        self.say(span, span, make::operation(span.0, None, (start, start + 9)));
    }

    fn waiter(&mut self, tid: u32, times: (u64, u64)) {
        let span = self.span();
        self.say(span, span, LayerEvent::Syscall(make::sync(span.0, times, tid)));
    }

    /// Bios of `root`; when the last of them ended.
    fn bios(&mut self, root: SpanId, start: u64, fates: &[Fate]) -> u64 {
        let ends = fates.iter().enumerate().map(|(n, fate)| self.bio(root, start + n as u64, *fate));
        ends.collect::<Vec<_>>().into_iter().max().unwrap_or(start)
    }

    fn bio(&mut self, root: SpanId, queue: u64, fate: Fate) -> u64 {
        let (bio, request, end) = (self.span(), self.span(), queue + 30);
        let (mut event, made) = make::direct(root.0, bio.0, request.0, (queue, end));
        match fate {
            Fate::Bare => event.request = None,
            Fate::OnFile => {
                self.below(root, request, (queue + 3, end - 3));
                self.carry(made);
            }
            Fate::OnTwo => {
                event.request = None;
                self.below(root, bio, (queue + 1, end - 2));
                self.below(root, bio, (queue + 2, end - 1));
            }
            Fate::Command => {
                self.say(request, root, LayerEvent::Request(make::command(root.0, request.0, (queue, end))));
                return end;
            }
            Fate::Merged if self.merge(&mut event) => {}
            Fate::Split => {
                let front = RequestEvent { span: self.span(), ..made };
                event.split = true;
                self.say(front.span, root, LayerEvent::Request(front));
                self.carry(made);
            }
            Fate::Alone | Fate::Merged => self.carry(made),
        }
        self.say(bio, root, LayerEvent::Bio(event));
        event.end.0
    }

    /// A bio on a device below, with its request, that does the work of `above`.
    fn below(&mut self, root: SpanId, above: SpanId, times: (u64, u64)) {
        let (bio, request) = (self.span(), self.span());
        let (event, made) = make::direct(root.0, bio.0, request.0, times);
        self.above.insert(bio, above);
        self.say(request, root, LayerEvent::Request(made));
        self.say(bio, root, LayerEvent::Bio(BioEvent { submitter: Submitter::Span(above), ..event }));
    }

    fn carry(&mut self, request: RequestEvent) {
        self.last_request = Some(self.heard.len());
        self.say(request.span, request.root, LayerEvent::Request(request));
    }

    /// Lets `bio` travel in the last request, if that is still under way, and end with it.
    fn merge(&mut self, bio: &mut BioEvent) -> bool {
        let last = self.last_request.and_then(|last| self.heard.get_mut(last));
        let Some((LayerEvent::Request(request), _)) = last else { return false };
        if !(request.start..request.complete).contains(&bio.queue) {
            return false;
        }
        request.bios += 1;
        (bio.request, bio.first, bio.end) = (Some(request.span), false, request.complete);
        true
    }

    fn say(&mut self, span: SpanId, root: SpanId, event: LayerEvent) {
        self.roots.insert(span, root);
        self.heard.push((event, false));
    }

    fn span(&mut self) -> SpanId {
        self.next += 1;
        // Spread as the kernel's bijection spreads them.
        SpanId(self.next.wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    /// A world told by hand.
    pub(crate) fn told(events: Vec<LayerEvent>, roots: &[(u64, u64)]) -> World {
        let roots = roots.iter().map(|&(span, root)| (SpanId(span), SpanId(root))).collect();
        World { events, roots, ..World::default() }
    }

    /// Calls of this world that were heard.
    pub(crate) fn calls(&self) -> impl Iterator<Item = &SyscallEvent> {
        self.events.iter().filter_map(|event| match event {
            LayerEvent::Syscall(call) => Some(call),
            _ => None,
        })
    }
}
