//! Calls that wait for a journal commit.

use blkkin_wire::event::{LayerEvent, SyscallEvent};
use blkkin_wire::ids::SpanId;

use super::local::join;
use crate::fixtures::{self, batch};
use crate::join::{JoinConfig, Joiner};
use crate::trace::{Root, ShownIn, Trace};

const MS: u64 = 1_000_000;

/// Commit 50 of transaction 7, from 20 to 80, with a bio.
fn commit() -> Vec<LayerEvent> {
    let (bio, request) = fixtures::bio_and_request(50, 51, 52, (30, 70));
    vec![
        LayerEvent::Request(request),
        LayerEvent::Bio(bio),
        LayerEvent::Commit(fixtures::commit(50, (20, 80), 7, 1)),
    ]
}

fn with(calls: &[SyscallEvent]) -> Vec<LayerEvent> {
    commit().into_iter().chain(calls.iter().cloned().map(LayerEvent::Syscall)).collect()
}

fn of(out: &[Trace], root: u64) -> &Trace {
    let mut found = out.iter().filter(|trace| trace.root_span == SpanId(root));
    let trace = found.next().unwrap();
    assert!(found.next().is_none(), "{root} was emitted twice");
    trace
}

fn primaries(out: &[Trace]) -> Vec<u64> {
    let primary = |trace: &&Trace| trace.waited_for.iter().any(|link| link.primary);
    out.iter().filter(primary).map(|trace| trace.root_span.0).collect()
}

#[test]
fn the_call_that_began_first_shows_the_commit_and_the_others_are_linked() {
    let out = join(with(&[
        fixtures::fsync_call(2, (15, 90), 7),
        fixtures::fsync_call(1, (10, 95), 7),
        fixtures::fsync_call(3, (30, 91), 7),
    ]));
    assert_eq!((out.len(), primaries(&out)), (4, vec![1]));
    assert!([1, 2, 3].iter().all(|&root| of(&out, root).waited_for.len() == 1));
    let commit = of(&out, 50);
    assert!(matches!(commit.root, Root::Commit(_)));
    assert_eq!(commit.shown_in, Some(ShownIn { trace: of(&out, 1).id, call: SpanId(1) }));
    assert_eq!(of(&out, 3).waited_for[0].trace.shown_in, commit.shown_in);
    assert_eq!(of(&out, 3).waited_for[0].trace.bios.len(), 1);
}

#[test]
fn a_transaction_committed_before_the_call_is_not_linked() {
    let out = join(with(&[fixtures::fsync_call(1, (80, 90), 7)]));
    assert!(of(&out, 1).waited_for.is_empty());
    assert_eq!(of(&out, 50).shown_in, None);
}

#[test]
fn another_transaction_or_file_system_is_not_linked() {
    let mut other_file_system = fixtures::fsync_call(2, (10, 90), 7);
    if let Some(open) = &mut other_file_system.file {
        open.file.device.minor = 1;
    }
    let out = join(with(&[fixtures::fsync_call(1, (10, 90), 8), other_file_system]));
    assert!(of(&out, 1).waited_for.is_empty() && of(&out, 2).waited_for.is_empty());
}

#[test]
fn a_call_that_returned_before_the_commits_end_did_not_wait() {
    let out = join(with(&[fixtures::fsync_call(1, (10, 79), 7)]));
    assert!(of(&out, 1).waited_for.is_empty());
}

#[test]
fn calls_wait_until_the_primary_is_certain() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, with(&[fixtures::fsync_call(1, (10, 90), 7)]), 100 * MS), &mut out);
    assert!(out.is_empty());
    joiner.apply(batch(1, vec![], 100 * MS + 80), &mut out);
    assert_eq!(out.len(), 2);
}

#[test]
fn a_call_that_returns_late_is_linked_even_if_it_began_first() {
    let out = join(with(&[fixtures::fsync_call(1, (5, 300 * MS), 7), fixtures::fsync_call(2, (10, 90), 7)]));
    assert_eq!(primaries(&out), [2]);
    assert_eq!((of(&out, 1).waited_for.len(), of(&out, 1).waited_for[0].primary), (1, false));
}

#[test]
fn a_commit_with_a_lost_record_is_awaited_until_its_timeout() {
    let mut events = with(&[fixtures::fsync_call(1, (10, 90), 7)]);
    events.remove(0);
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, events, 30_000 * MS), &mut out);
    assert!(out.is_empty());
    joiner.apply(batch(1, vec![], 30_000 * MS + 80), &mut out);
    assert_eq!((out.len(), primaries(&out)), (2, vec![1]));
    assert_eq!(of(&out, 50).incomplete.requests, 1);
    assert!(of(&out, 1).incomplete.is_empty());
}

#[test]
fn a_waiting_call_may_have_bios_of_its_own() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 15));
    let mut events = with(&[SyscallEvent { bios: 1, ..fixtures::fsync_call(1, (10, 90), 7) }]);
    events.extend([LayerEvent::Bio(bio), LayerEvent::Request(request)]);
    let out = join(events);
    assert_eq!((of(&out, 1).bios.len(), of(&out, 1).waited_for.len()), (1, 1));
}

#[test]
fn a_lost_commit_record_makes_no_call_wait() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    joiner.apply(batch(0, vec![LayerEvent::Syscall(fixtures::fsync_call(1, (10, 90), 7))], 91), &mut out);
    assert_eq!((out.len(), out[0].waited_for.len()), (1, 0));
}
