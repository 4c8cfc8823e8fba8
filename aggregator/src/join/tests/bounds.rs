//! What happens at each bound, and to input that breaks its word.

use std::collections::HashSet;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::{BioEvent, LayerEvent};
use blkkin_wire::ids::{Source, SpanId, StartEpoch};

use super::make::{self, batch};
use crate::join::{JoinConfig, Joiner, SOURCES_MAX};
use crate::trace::Trace;

#[test]
fn too_many_open_traces_close_the_one_silent_for_longest() {
    let config = JoinConfig { open_max: 2, ..JoinConfig::default() };
    let (mut joiner, mut out) = (Joiner::new(config), Vec::new());
    let calls = (1..=3).map(|span| LayerEvent::Syscall(make::call_with(span, (span, span + 10), 1)));
    joiner.apply(batch(0, calls.collect(), 100), &mut out);
    assert_eq!((out.len(), out[0].root_span, out[0].missing.bios), (1, SpanId(1), 1));
    assert_eq!((joiner.accounts().closed_for_room, joiner.accounts().calls.pending), (1, 2));
}

#[test]
fn a_call_closed_for_room_is_not_chosen_to_show_its_commit() {
    let config = JoinConfig { open_max: 1, ..JoinConfig::default() };
    let (mut joiner, mut out) = (Joiner::new(config), Vec::new());
    let events = vec![
        LayerEvent::Commit(make::commit(50, (20, 80), 7, 0)),
        LayerEvent::Syscall(make::sync(1, (10, 90), 7)),
        LayerEvent::Syscall(make::sync(2, (11, 91), 7)),
    ];
    joiner.apply(batch(0, events, 100), &mut out);
    assert_eq!((out[0].root_span, out[0].missing.commits, out[0].causes.len()), (SpanId(1), 1, 0));
    joiner.finish(&mut out);
    let commit = out.iter().find(|trace| trace.root_span == SpanId(50)).unwrap();
    assert_eq!(commit.adopted_by.unwrap().call, SpanId(2));
    assert!(joiner.accounts().balances());
}

#[test]
fn forgotten_commits_are_given_out_first() {
    let config = JoinConfig { commits_max: 2, ..JoinConfig::default() };
    let (mut joiner, mut out) = (Joiner::new(config), Vec::new());
    let commits = (0..5).map(|n| LayerEvent::Commit(make::commit(50 + n, (n, n + 1), n as u32, 0)));
    joiner.apply(batch(0, commits.collect(), 100), &mut out);
    assert_eq!(out.len(), 3);
    joiner.finish(&mut out);
    assert_eq!((out.len(), joiner.accounts().commits.joined), (5, 5));
}

#[test]
fn a_batch_seen_before_is_left_out_and_a_gap_is_counted() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    for sequence in [4, 4, 5, 8, 3] {
        joiner.apply(batch(sequence, vec![LayerEvent::Syscall(make::call(sequence, 1, 2))], 3), &mut out);
    }
    let accounts = joiner.accounts();
    assert_eq!((out.len(), accounts.batches_repeated, accounts.batches_missed), (3, 2, 2));
    assert_eq!(accounts.calls.received, 3);
}

#[test]
fn an_event_behind_the_watermark_is_joined_all_the_same_and_counted() {
    let (bio, request) = make::direct(1, 2, 3, (11, 19));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(make::call_with(1, (10, 20), 1))], 50), &mut out);
    joiner.apply(batch(1, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], 60), &mut out);
    assert_eq!((out.len(), out[0].missing.nothing(), joiner.accounts().behind_watermark), (1, true, 2));
}

#[test]
fn sources_do_not_mix_and_the_one_heard_of_longest_ago_makes_room() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let (bio, _) = make::direct(1, 2, 3, (11, 19));
    let mut call = batch(0, vec![LayerEvent::Syscall(make::call_with(1, (10, 20), 1))], 100);
    call.source = Source { epoch: StartEpoch(77), ..make::SOURCE };
    joiner.apply(call, &mut out);
    joiner.apply(batch(0, vec![LayerEvent::Bio(bio)], 100), &mut out);
    assert!(out.is_empty(), "the same span of another start is another call");
    for epoch in 0..SOURCES_MAX as u64 {
        let mut empty = batch(0, vec![], 100);
        empty.source = Source { epoch: StartEpoch(1000 + epoch), ..make::SOURCE };
        joiner.apply(empty, &mut out);
    }
    assert_eq!(out.len(), 2);
    assert!(joiner.streams.len() <= SOURCES_MAX);
}

/// A machine that was copied while it ran a tracer has the same ids, and a start of its own once that is started again.
#[test]
fn a_cloned_machine_has_traces_of_its_own_and_is_noticed_and_a_restart_is_none() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let mut say = |epoch, sequence, out: &mut Vec<Trace>| {
        let source = Source { epoch: StartEpoch(epoch), ..make::SOURCE };
        let events = vec![LayerEvent::Syscall(make::call(1 + sequence, 1, 2))];
        joiner.apply(EventBatch { source, ..batch(sequence, events, 3) }, out);
        joiner.accounts().starts_interleaved
    };
    let restarted = [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(epoch, n)| say(epoch, n, &mut out));
    assert_eq!(restarted, [0; 4]);
    let cloned = [(3, 0), (2, 2), (3, 1), (3, 2)].map(|(epoch, n)| say(epoch, n, &mut out));
    assert_eq!(cloned, [0, 1, 2, 2]);
    let ids: HashSet<_> = out.iter().map(|trace| trace.id).collect();
    assert_eq!((out.len(), ids.len()), (8, 8), "equal spans of two starts are two traces");
}

#[test]
fn a_clock_that_is_set_back_between_batches_moves_nothing_in_a_trace_and_is_counted() {
    let (bio, request) = make::direct(1, 2, 3, (11, 19));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    let hour = 3_600_000_000_000;
    let mut apply = |sequence, event, watermark, back: u64, out: &mut Vec<Trace>| {
        let mut batch = batch(sequence, vec![event], watermark);
        batch.anchor.wallclock.0 -= back;
        joiner.apply(batch, out);
        joiner.accounts().clock_set_back
    };
    // The last one is within what the clock is uncertain by.
    let counted = [
        apply(0, LayerEvent::Request(request), 19, 0, &mut out),
        apply(1, LayerEvent::Bio(bio), 20, hour, &mut out),
        apply(2, LayerEvent::Syscall(make::call_with(1, (10, 20), 1)), 30, hour, &mut out),
        apply(3, LayerEvent::Syscall(make::call(9, 31, 32)), 40, hour + 150, &mut out),
    ];
    assert_eq!(counted, [0, 1, 1, 1]);
    let whole = &out[0];
    assert!(whole.missing.nothing() && whole.bios.len() == 1 && whole.requests.len() == 1, "{whole:?}");
    assert_eq!(whole.anchor.wallclock.0, make::ANCHOR.wallclock.0 - hour);
    assert_eq!(joiner.accounts().behind_watermark, 0);
}

#[test]
fn big_commits_are_not_remembered_for_long() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let bios = 30_000_u64;
    for n in 0..4_u64 {
        let (start, root) = (1 + n * 1_000_000_000, 1_000_000 * (n + 1));
        let mut events =
            vec![LayerEvent::Commit(make::commit(root, (start, start + 9), n as u32, bios as u32))];
        events.extend((1..=bios).map(|bio| {
            let (bio, _) = make::direct(root, root + bio, 0, (start, start + 5));
            LayerEvent::Bio(BioEvent { request: None, ..bio })
        }));
        joiner.apply(batch(n, events, start + 500_000_000), &mut out);
    }
    // All four ended inside these calls; the first two are forgotten.
    let end = 4_000_000_000;
    let calls = (0..4).map(|n| LayerEvent::Syscall(make::sync(n + 1, (0, end + n), n as u32)));
    out.clear();
    joiner.apply(batch(4, calls.collect(), end + 10), &mut out);
    let causes: Vec<usize> = out.iter().map(|trace| trace.causes.len()).collect();
    assert_eq!(causes, [0, 0, 1, 1]);
}
