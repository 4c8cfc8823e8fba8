//! Properties of every world: no wrong parent, every loss counted, no dependence on the order of
//! arrival.

use std::collections::{HashMap, HashSet};

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, PairEvent, Submitter};
use blkkin_wire::ids::SpanId;
use proptest::prelude::*;

use super::world::{World, acts};
use crate::fixtures::{self, batch};
use crate::join::{EventStats, JoinConfig, JoinStats, Joiner};
use crate::trace::{Root, Trace};

/// Runs batches through a joiner to the end. Checks the counters after every step.
pub(crate) fn run(config: &JoinConfig, batches: Vec<(Vec<LayerEvent>, u64)>) -> (Vec<Trace>, JoinStats) {
    let (mut joiner, mut out) = (Joiner::new(config.clone()), Vec::new());
    for (sequence, (events, watermark)) in batches.into_iter().enumerate() {
        joiner.apply(batch(sequence as u64, events, watermark), &mut out);
        assert!(joiner.stats().balances(), "{:?}", joiner.stats());
    }
    joiner.finish(&mut out);
    (out, joiner.stats().clone())
}

/// Cuts events into batches as rings would: shuffled within the windows that the watermarks leave
/// open.
pub(crate) fn cut(events: &[LayerEvent], keys: &[u32], cuts: &[u64]) -> Vec<(Vec<LayerEvent>, u64)> {
    let mut cuts = cuts.to_vec();
    cuts.sort_unstable();
    cuts.push(u64::MAX);
    let key = |n: usize| keys[n % keys.len()];
    let mut batches = vec![Vec::new(); cuts.len()];
    for (n, event) in events.iter().enumerate() {
        // At the latest in the batch whose watermark is the first after it; up to two batches
        // earlier.
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

/// Returns every contradiction between `out` and `world`, as text.
fn faults(world: &World, out: &[Trace]) -> Vec<String> {
    let mut faults = Vec::new();
    let mut seen = HashSet::new();
    let mut report = |what: String| faults.push(what);
    for trace in out {
        let spans = trace.bios.iter().map(|bio| bio.span).chain(trace.requests.iter().map(|r| r.span));
        let root = match &trace.root {
            Root::Call(call) => Some(call.span),
            Root::Commit(commit) => Some(commit.span),
            Root::Fault(fault) => Some(fault.span),
            Root::DaemonSpan(operation) => {
                if operation.trace != trace.id || trace.id == fixtures::SOURCE.trace_id(operation.span) {
                    report(format!("{} is not in its own trace", operation.span));
                }
                Some(operation.span)
            }
            Root::AsyncIo | Root::Kernel | Root::Missing => None,
        };
        for span in spans.chain(root) {
            if !seen.insert(span) {
                report(format!("{span} appears twice"));
            }
            if world.roots[&span] != trace.root_span {
                report(format!("{span} is in the trace of {}", trace.root_span));
            }
        }
        for bio in &trace.bios {
            if let Submitter::Span(submitter) = bio.submitter
                && submitter != *world.parents.get(&bio.span).unwrap_or(&trace.root_span)
            {
                report(format!("{} has a wrong submitter", bio.span));
            }
        }
        for request in &trace.requests {
            if request.op.is_passthrough() && request.parent.is_some_and(|parent| parent != trace.root_span) {
                report(format!("{} has a wrong sender", request.span));
            }
        }
        for link in &trace.merged_into {
            if !trace.bios.iter().any(|bio| bio.span == link.bio && bio.request == Some(link.request.span))
                || link.trace != Some(fixtures::SOURCE.trace_id(world.roots[&link.request.span]))
            {
                report(format!("{} has a wrong merge link", link.bio));
            }
        }
    }
    for event in &world.events {
        let span = match event {
            LayerEvent::Syscall(e) => e.span,
            LayerEvent::Bio(e) => e.span,
            LayerEvent::Request(e) => e.span,
            LayerEvent::Commit(e) => e.span,
            LayerEvent::Fault(e) => e.span,
            LayerEvent::DaemonSpan(e) => e.span,
            _ => continue,
        };
        if !seen.contains(&span) {
            report(format!("{span} vanished"));
        }
    }
    faults
}

/// Checks that every call that waited has its commit, that no other has, and that a commit has at
/// most one primary.
fn commit_faults(world: &World, out: &[Trace]) -> Vec<String> {
    let ends: HashMap<u32, MonotonicNs> = world
        .events
        .iter()
        .filter_map(|event| if let LayerEvent::Commit(e) = event { Some((e.tid, e.end)) } else { None })
        .collect();
    let mut faults = Vec::new();
    let mut primaries: HashMap<SpanId, SpanId> = HashMap::new();
    for call in world.calls() {
        let waited = call.sync_tid.and_then(|tid| ends.get(&tid)).is_some_and(|end| *end > call.enter);
        let trace = out.iter().find(|trace| trace.root_span == call.span && trace.call().is_some());
        let waited_for = trace.map(|trace| &trace.waited_for[..]).unwrap_or_default();
        if waited_for.len() != usize::from(waited) {
            faults.push(format!("{}: {} commits, waited: {waited}", call.span, waited_for.len()));
        }
        for link in waited_for.iter().filter(|link| link.primary) {
            let shown_in = link.trace.shown_in.map(|position| position.call);
            if primaries.insert(link.trace.root_span, call.span).is_some() || shown_in != Some(call.span) {
                faults.push(format!("{} has another primary", link.trace.root_span));
            }
        }
    }
    for trace in out.iter().filter(|trace| trace.shown_in.is_some()) {
        if primaries.get(&trace.root_span).copied() != trace.shown_in.map(|position| position.call) {
            faults.push(format!("{} is shown in no trace", trace.root_span));
        }
    }
    faults
}

fn none_vanished(stats: &JoinStats, out: &[Trace]) -> bool {
    let settled = |a: &EventStats| a.joined + a.late + a.orphaned;
    let bios = out.iter().map(|trace| trace.bios.len() as u64).sum::<u64>();
    let requests = out.iter().map(|trace| trace.requests.len() as u64).sum::<u64>();
    let all = [&stats.calls, &stats.bios, &stats.requests, &stats.commits];
    settled(&stats.bios) == bios && settled(&stats.requests) == requests && all.iter().all(|a| a.pending == 0)
}

/// Combines some of the bios that are alone in their request with it, into pairs.
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

/// The generator must produce pairs, or the property below checks nothing.
#[test]
fn some_bios_are_paired() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (10, 20));
    let events = [LayerEvent::Request(request), LayerEvent::Bio(bio)];
    assert_eq!(paired(&events, u64::MAX), [LayerEvent::Pair(PairEvent { bio, request })]);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn every_event_has_its_parent_and_none_vanishes(acts in acts(), small in any::<bool>()) {
        let world = World::build(&acts);
        let open_max = if small { 2 } else { 1000 };
        let config = JoinConfig { open_max, ..JoinConfig::default() };
        let (out, stats) = run(&config, vec![(world.events.clone(), u64::MAX)]);
        prop_assert_eq!(faults(&world, &out), Vec::<String>::new());
        prop_assert!(none_vanished(&stats, &out), "{:?}", stats);
        if !small {
            prop_assert_eq!(commit_faults(&world, &out), Vec::<String>::new());
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
        let (whole, stats) = run(&config, vec![(world.events.clone(), u64::MAX)]);
        let (cut, cut_stats) = run(&config, cut(&world.events, &keys, &cuts));
        prop_assert_eq!(format!("{whole:#?}"), format!("{cut:#?}"));
        prop_assert_eq!(stats, cut_stats);
    }

    #[test]
    fn a_pair_joins_as_its_bio_and_its_request_do(acts in acts(), which in any::<u64>()) {
        let world = World::build(&acts);
        let whole = |events| {
            let (mut out, stats) = run(&JoinConfig::default(), vec![(events, u64::MAX)]);
            out.sort_by_key(|trace| (trace.root_span, trace.start()));
            (format!("{out:#?}"), stats)
        };
        prop_assert_eq!(whole(paired(&world.events, which)), whole(world.events.clone()));
    }

    #[test]
    fn a_world_without_loss_is_complete(acts in acts()) {
        let acts: Vec<_> = acts.into_iter().map(|act| act.complete()).collect();
        let world = World::build(&acts);
        let (out, stats) = run(&JoinConfig::default(), vec![(world.events.clone(), u64::MAX)]);
        prop_assert!(out.iter().all(|trace| trace.incomplete.is_empty()), "{:#?}", out);
        prop_assert_eq!(stats.traces_incomplete, 0);
    }
}

/// The checks above can fail: a planted wrong parent is found.
#[test]
fn a_planted_wrong_parent_is_found() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let events = vec![
        LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1)),
        LayerEvent::Syscall(fixtures::call(4, 10, 20)),
        LayerEvent::Bio(bio),
        LayerEvent::Request(request),
    ];
    let world = World::from_events(events, &[(1, 1), (2, 1), (3, 1), (4, 4)]);
    let (mut out, _) = run(&JoinConfig::default(), vec![(world.events.clone(), u64::MAX)]);
    assert!(faults(&world, &out).is_empty());
    let (from, to) = if out[0].bios.is_empty() { (1, 0) } else { (0, 1) };
    let moved = out[from].bios.remove(0);
    assert_eq!(faults(&world, &out).len(), 1, "a bio vanished");
    out[to].bios.push(moved);
    assert_eq!(faults(&world, &out).len(), 2, "a bio is a child of a call that did not submit it");
}
