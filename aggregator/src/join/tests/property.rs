//! What holds of every world: no wrong parent, nothing lost uncounted, no dependence on the order of arrival.

use std::collections::{HashMap, HashSet};

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, PairEvent, Submitter};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use super::make::{self, batch};
use super::world::{World, acts};
use crate::join::{JoinAccount, JoinAccounts, JoinConfig, Joiner};
use crate::trace::{Root, Trace};

/// Runs batches through a joiner to the end; checks the books after every step.
pub(crate) fn run(config: &JoinConfig, batches: Vec<(Vec<LayerEvent>, u64)>) -> (Vec<Trace>, JoinAccounts) {
    let (mut joiner, mut out) = (Joiner::new(config.clone()), Vec::new());
    for (sequence, (events, watermark)) in batches.into_iter().enumerate() {
        joiner.apply(batch(sequence as u64, events, watermark), &mut out);
        assert!(joiner.accounts().balances(), "{:?}", joiner.accounts());
    }
    joiner.finish(&mut out);
    (out, joiner.accounts().clone())
}

/// Cuts events into batches as rings would: shuffled within windows that the watermarks leave open.
pub(crate) fn cut(events: &[LayerEvent], keys: &[u32], cuts: &[u64]) -> Vec<(Vec<LayerEvent>, u64)> {
    let mut cuts = cuts.to_vec();
    cuts.sort_unstable();
    cuts.push(u64::MAX);
    let key = |n: usize| keys[n % keys.len()];
    let mut batches = vec![Vec::new(); cuts.len()];
    for (n, event) in events.iter().enumerate() {
        // At the latest in the batch whose watermark is the first after it; up to two batches earlier.
        let latest = cuts.partition_point(|&cut| cut <= event.time().0);
        let index = latest.saturating_sub(key(n) as usize % 3);
        batches[index].push((key(n), event.clone()));
    }
    let shuffled = |mut batch: Vec<(u32, LayerEvent)>| {
        batch.sort_by_key(|(key, _)| *key);
        batch.into_iter().map(|(_, event)| event).collect()
    };
    batches.into_iter().zip(cuts).map(|(batch, cut)| (shuffled(batch), cut)).collect()
}

/// Every way in which `out` may lie about `world`, as words.
fn lies(world: &World, out: &[Trace]) -> Vec<String> {
    let mut lies = Vec::new();
    let mut seen = HashSet::new();
    let mut say = |what: String| lies.push(what);
    for trace in out {
        let spans = trace.bios.iter().map(|bio| bio.span).chain(trace.requests.iter().map(|r| r.span));
        let root = match &trace.root {
            Root::Call(call) => Some(call.span),
            Root::Commit(commit) => Some(commit.span),
            Root::Operation(operation) => {
                if operation.trace != trace.id || trace.id == make::SOURCE.trace_id(operation.span) {
                    say(format!("{} in another trace than its own", operation.span));
                }
                Some(operation.span)
            }
            Root::Kernel | Root::Missing => None,
        };
        for span in spans.chain(root) {
            if !seen.insert(span) {
                say(format!("{span} twice"));
            }
            if world.roots[&span] != trace.root_span {
                say(format!("{span} below {}", trace.root_span));
            }
        }
        for bio in &trace.bios {
            if let Submitter::Span(submitter) = bio.submitter
                && submitter != *world.above.get(&bio.span).unwrap_or(&trace.root_span)
            {
                say(format!("{} submitted by another", bio.span));
            }
        }
        for request in &trace.requests {
            if request.op.is_passthrough() && request.parent.is_some_and(|parent| parent != trace.root_span) {
                say(format!("{} sent by another", request.span));
            }
        }
        for carried in &trace.carried {
            if !trace
                .bios
                .iter()
                .any(|bio| bio.span == carried.bio && bio.request == Some(carried.request.span))
                || carried.trace != Some(make::SOURCE.trace_id(world.roots[&carried.request.span]))
            {
                say(format!("{} carried by another", carried.bio));
            }
        }
    }
    for event in &world.events {
        let span = match event {
            LayerEvent::Syscall(e) => e.span,
            LayerEvent::Bio(e) => e.span,
            LayerEvent::Request(e) => e.span,
            LayerEvent::Commit(e) => e.span,
            LayerEvent::DaemonSpan(e) => e.span,
            _ => continue,
        };
        if !seen.contains(&span) {
            say(format!("{span} vanished"));
        }
    }
    lies
}

/// Every call that waited has its commit, no other has, and a commit has one primary at most.
fn commit_lies(world: &World, out: &[Trace]) -> Vec<String> {
    let ends: HashMap<u32, MonotonicNs> = world
        .events
        .iter()
        .filter_map(|event| if let LayerEvent::Commit(e) = event { Some((e.tid, e.end)) } else { None })
        .collect();
    let mut lies = Vec::new();
    let mut primaries: HashMap<SpanId, SpanId> = HashMap::new();
    for call in world.calls() {
        let waited = call.sync_tid.and_then(|tid| ends.get(&tid)).is_some_and(|end| *end > call.enter);
        let trace = out.iter().find(|trace| trace.root_span == call.span && trace.call().is_some());
        let causes = trace.map(|trace| &trace.causes[..]).unwrap_or_default();
        if causes.len() != usize::from(waited) {
            lies.push(format!("{}: {} causes, waited: {waited}", call.span, causes.len()));
        }
        for cause in causes.iter().filter(|cause| cause.primary) {
            let adopted = cause.trace.adopted_by.map(|adoption| adoption.call);
            if primaries.insert(cause.trace.root_span, call.span).is_some() || adopted != Some(call.span) {
                lies.push(format!("{} has another primary", cause.trace.root_span));
            }
        }
    }
    for trace in out.iter().filter(|trace| trace.adopted_by.is_some()) {
        if primaries.get(&trace.root_span).copied() != trace.adopted_by.map(|adoption| adoption.call) {
            lies.push(format!("{} is adopted by nobody", trace.root_span));
        }
    }
    lies
}

fn none_vanished(accounts: &JoinAccounts, out: &[Trace]) -> bool {
    let settled = |a: &JoinAccount| a.joined + a.late + a.orphaned;
    let bios = out.iter().map(|trace| trace.bios.len() as u64).sum::<u64>();
    let requests = out.iter().map(|trace| trace.requests.len() as u64).sum::<u64>();
    let all = [&accounts.calls, &accounts.bios, &accounts.requests, &accounts.commits];
    settled(&accounts.bios) == bios
        && settled(&accounts.requests) == requests
        && all.iter().all(|a| a.pending == 0)
}

/// The same, with some of the bios that were alone in their request told together with it.
fn paired(events: &[LayerEvent], which: u64) -> Vec<LayerEvent> {
    let requests = events.iter().filter_map(|event| match event {
        LayerEvent::Request(request) if request.bios == 1 => Some((request.span, *request)),
        _ => None,
    });
    let requests: HashMap<_, _> = requests.collect();
    let pair = |event: &LayerEvent| match event {
        LayerEvent::Bio(bio) if which.rotate_left(bio.span.0 as u32 & 63) & 1 == 1 => {
            let request = *requests.get(&bio.request?)?;
            let alone = request.parent == Some(bio.span) && !bio.split && request.complete == bio.end;
            alone.then_some(PairEvent { bio: *bio, request })
        }
        _ => None,
    };
    let pairs: HashMap<_, _> = events.iter().filter_map(pair).map(|pair| (pair.request.span, pair)).collect();
    let together = |event: &LayerEvent| match event {
        LayerEvent::Bio(bio) if bio.request.is_some_and(|request| pairs.contains_key(&request)) => None,
        LayerEvent::Request(request) => match pairs.get(&request.span) {
            Some(pair) => Some(LayerEvent::Pair(*pair)),
            None => Some(event.clone()),
        },
        _ => Some(event.clone()),
    };
    events.iter().filter_map(together).collect()
}

/// The generator makes such worlds, or the property below says nothing.
#[test]
fn bios_are_paired() {
    let (bio, request) = make::direct(1, 2, 3, (10, 20));
    let events = [LayerEvent::Request(request), LayerEvent::Bio(bio)];
    assert_eq!(paired(&events, u64::MAX), [LayerEvent::Pair(PairEvent { bio, request })]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn nothing_is_misplaced_and_nothing_vanishes(acts in acts(), small in any::<bool>()) {
        let world = World::build(&acts);
        let open_max = if small { 2 } else { 1000 };
        let config = JoinConfig { open_max, ..JoinConfig::default() };
        let (out, accounts) = run(&config, vec![(world.events.clone(), u64::MAX)]);
        prop_assert_eq!(lies(&world, &out), Vec::<String>::new());
        prop_assert!(none_vanished(&accounts, &out), "{:?}", accounts);
        if !small {
            prop_assert_eq!(commit_lies(&world, &out), Vec::<String>::new());
        }
    }

    #[test]
    fn the_result_does_not_depend_on_arrival(
        acts in acts(),
        keys in prop::collection::vec(any::<u32>(), 1..64),
        cuts in prop::collection::vec(0_u64..2_200, 0..6),
        quiet in prop_oneof![Just(40_u64), Just(30_000_000_000)],
    ) {
        let world = World::build(&acts);
        let config = JoinConfig { quiet_after: blkkin_wire::clock::DurationNs(quiet), ..JoinConfig::default() };
        let (whole, books) = run(&config, vec![(world.events.clone(), u64::MAX)]);
        let (cut, cut_books) = run(&config, cut(&world.events, &keys, &cuts));
        prop_assert_eq!(format!("{whole:#?}"), format!("{cut:#?}"));
        prop_assert_eq!(books, cut_books);
    }

    #[test]
    fn a_pair_says_what_its_bio_and_its_request_would(acts in acts(), which in any::<u64>()) {
        let world = World::build(&acts);
        let whole = |events| {
            let (mut out, books) = run(&JoinConfig::default(), vec![(events, u64::MAX)]);
            out.sort_by_key(|trace| (trace.root_span, trace.start()));
            (format!("{out:#?}"), books)
        };
        prop_assert_eq!(whole(paired(&world.events, which)), whole(world.events.clone()));
    }

    #[test]
    fn a_complete_world_misses_nothing(acts in acts()) {
        let acts: Vec<_> = acts.into_iter().map(|act| act.complete()).collect();
        let world = World::build(&acts);
        let (out, accounts) = run(&JoinConfig::default(), vec![(world.events.clone(), u64::MAX)]);
        prop_assert!(out.iter().all(|trace| trace.missing.nothing()), "{:#?}", out);
        prop_assert_eq!(accounts.traces_incomplete, 0);
    }
}

/// The checks above can fail: a link planted wrong is found.
#[test]
fn a_planted_lie_is_caught() {
    let (bio, request) = make::direct(1, 2, 3, (11, 19));
    let events = vec![
        LayerEvent::Syscall(make::call_with(1, (10, 20), 1)),
        LayerEvent::Syscall(make::call(4, 10, 20)),
        LayerEvent::Bio(bio),
        LayerEvent::Request(request),
    ];
    let world = World::told(events, &[(1, 1), (2, 1), (3, 1), (4, 4)]);
    let (mut out, _) = run(&JoinConfig::default(), vec![(world.events.clone(), u64::MAX)]);
    assert!(lies(&world, &out).is_empty());
    let (from, to) = if out[0].bios.is_empty() { (1, 0) } else { (0, 1) };
    let stolen = out[from].bios.remove(0);
    assert_eq!(lies(&world, &out).len(), 1, "a bio vanished");
    out[to].bios.push(stolen);
    assert_eq!(lies(&world, &out).len(), 2, "a bio below another call, which did not submit it");
}
