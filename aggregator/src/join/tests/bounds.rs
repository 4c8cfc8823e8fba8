//! Behaviour at each limit, and with input that violates its contract.

use std::collections::HashSet;

use blkkin_wire::batch::EventBatch;
use blkkin_wire::event::{BioEvent, LayerEvent};
use blkkin_wire::ids::{Source, SpanId, StartEpoch};

use crate::fixtures::{self, batch};
use crate::join::{JoinConfig, Joiner, SOURCES_MAX};
use crate::trace::Trace;

#[test]
fn too_many_open_traces_close_the_longest_inactive_one() {
    let config = JoinConfig { open_max: 2, ..JoinConfig::default() };
    let (mut joiner, mut out) = (Joiner::new(config), Vec::new());
    let calls = (1..=3).map(|span| LayerEvent::Syscall(fixtures::call_with(span, (span, span + 10), 1)));
    joiner.apply(batch(0, calls.collect(), 100), &mut out);
    assert_eq!((out.len(), out[0].root_span, out[0].incomplete.bios), (1, SpanId(1), 1));
    assert_eq!((joiner.stats().closed_for_room, joiner.stats().calls.pending), (1, 2));
}

#[test]
fn a_call_closed_for_room_does_not_become_the_primary() {
    let config = JoinConfig { open_max: 1, ..JoinConfig::default() };
    let (mut joiner, mut out) = (Joiner::new(config), Vec::new());
    let events = vec![
        LayerEvent::Commit(fixtures::commit(50, (20, 80), 7, 0)),
        LayerEvent::Syscall(fixtures::fsync_call(1, (10, 90), 7)),
        LayerEvent::Syscall(fixtures::fsync_call(2, (11, 91), 7)),
    ];
    joiner.apply(batch(0, events, 100), &mut out);
    assert_eq!((out[0].root_span, out[0].incomplete.commits, out[0].waited_for.len()), (SpanId(1), 1, 0));
    joiner.finish(&mut out);
    let commit = out.iter().find(|trace| trace.root_span == SpanId(50)).unwrap();
    assert_eq!(commit.shown_in.unwrap().call, SpanId(2));
    assert!(joiner.stats().balances());
}

#[test]
fn commits_are_emitted_before_they_are_forgotten() {
    let config = JoinConfig { commits_max: 2, ..JoinConfig::default() };
    let (mut joiner, mut out) = (Joiner::new(config), Vec::new());
    let commits = (0..5).map(|n| LayerEvent::Commit(fixtures::commit(50 + n, (n, n + 1), n as u32, 0)));
    joiner.apply(batch(0, commits.collect(), 100), &mut out);
    assert_eq!(out.len(), 3);
    joiner.finish(&mut out);
    assert_eq!((out.len(), joiner.stats().commits.joined), (5, 5));
}

#[test]
fn a_duplicate_batch_is_dropped_and_a_gap_is_counted() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    for sequence in [4, 4, 5, 8, 3] {
        joiner.apply(batch(sequence, vec![LayerEvent::Syscall(fixtures::call(sequence, 1, 2))], 3), &mut out);
    }
    let stats = joiner.stats();
    assert_eq!((out.len(), stats.batches_repeated, stats.batches_missed), (3, 2, 2));
    assert_eq!(stats.calls.received, 3);
}

#[test]
fn an_event_behind_the_watermark_is_joined_and_counted() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1))], 50), &mut out);
    joiner.apply(batch(1, vec![LayerEvent::Request(request), LayerEvent::Bio(bio)], 60), &mut out);
    assert_eq!((out.len(), out[0].incomplete.is_empty(), joiner.stats().behind_watermark), (1, true, 2));
}

#[test]
fn sources_do_not_mix_and_the_longest_inactive_one_makes_room() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let (bio, _) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let mut call = batch(0, vec![LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1))], 100);
    call.source = Source { epoch: StartEpoch(77), ..fixtures::SOURCE };
    joiner.apply(call, &mut out);
    joiner.apply(batch(0, vec![LayerEvent::Bio(bio)], 100), &mut out);
    assert!(out.is_empty(), "the same span id of another start is another call");
    for epoch in 0..2 * SOURCES_MAX as u64 {
        let mut empty = batch(0, vec![], 100);
        empty.source = Source { epoch: StartEpoch(1000 + epoch), ..fixtures::SOURCE };
        joiner.apply(empty, &mut out);
    }
    assert_eq!(out.len(), 2);
    assert_eq!(joiner.streams.len(), SOURCES_MAX);
    assert_eq!(joiner.stats().sources_evicted, SOURCES_MAX as u64 + 2);
}

/// A machine that was copied while it ran a tracer has the same ids, and a new start once its
/// tracer restarts.
#[test]
fn a_cloned_machine_has_traces_of_its_own_and_is_counted_and_a_restart_is_not() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let mut apply_batch = |epoch, sequence, out: &mut Vec<Trace>| {
        let source = Source { epoch: StartEpoch(epoch), ..fixtures::SOURCE };
        let events = vec![LayerEvent::Syscall(fixtures::call(1 + sequence, 1, 2))];
        joiner.apply(EventBatch { source, ..batch(sequence, events, 3) }, out);
        joiner.stats().starts_interleaved
    };
    let restarted = [(1, 0), (1, 1), (2, 0), (2, 1)].map(|(epoch, n)| apply_batch(epoch, n, &mut out));
    assert_eq!(restarted, [0; 4]);
    let cloned = [(3, 0), (2, 2), (3, 1), (3, 2)].map(|(epoch, n)| apply_batch(epoch, n, &mut out));
    assert_eq!(cloned, [0, 1, 2, 2]);
    let ids: HashSet<_> = out.iter().map(|trace| trace.id).collect();
    assert_eq!((out.len(), ids.len()), (8, 8), "equal spans of two starts are two traces");
}

#[test]
fn a_wall_clock_set_back_moves_nothing_in_a_trace_and_is_counted() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    let hour = 3_600_000_000_000;
    let mut apply = |sequence, event, watermark, back: u64, out: &mut Vec<Trace>| {
        let mut batch = batch(sequence, vec![event], watermark);
        batch.anchor.wallclock.0 -= back;
        joiner.apply(batch, out);
        joiner.stats().clock_set_back
    };
    // The last one is within the uncertainty of the clock.
    let counted = [
        apply(0, LayerEvent::Request(request), 19, 0, &mut out),
        apply(1, LayerEvent::Bio(bio), 20, hour, &mut out),
        apply(2, LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1)), 30, hour, &mut out),
        apply(3, LayerEvent::Syscall(fixtures::call(9, 31, 32)), 40, hour + 150, &mut out),
    ];
    assert_eq!(counted, [0, 1, 1, 1]);
    let whole = &out[0];
    assert!(whole.incomplete.is_empty() && whole.bios.len() == 1 && whole.requests.len() == 1, "{whole:?}");
    assert_eq!(whole.anchor.wallclock.0, fixtures::ANCHOR.wallclock.0 - hour);
    assert_eq!(joiner.stats().behind_watermark, 0);
}

#[test]
fn large_commits_are_forgotten_early() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let bios = 30_000_u64;
    for n in 0..4_u64 {
        let (start, root) = (1 + n * 1_000_000_000, 1_000_000 * (n + 1));
        let mut events =
            vec![LayerEvent::Commit(fixtures::commit(root, (start, start + 9), n as u32, bios as u32))];
        events.extend((1..=bios).map(|bio| {
            let (bio, _) = fixtures::bio_and_request(root, root + bio, 0, (start, start + 5));
            LayerEvent::Bio(BioEvent { request: None, ..bio })
        }));
        joiner.apply(batch(n, events, start + 500_000_000), &mut out);
    }
    // All four ended inside these calls; the first two are forgotten.
    let end = 4_000_000_000;
    let calls = (0..4).map(|n| LayerEvent::Syscall(fixtures::fsync_call(n + 1, (0, end + n), n as u32)));
    out.clear();
    joiner.apply(batch(4, calls.collect(), end + 10), &mut out);
    let waited_for: Vec<usize> = out.iter().map(|trace| trace.waited_for.len()).collect();
    assert_eq!(waited_for, [0, 0, 1, 1]);
}
