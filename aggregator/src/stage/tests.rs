//! A stage that is saved and restored at any record gives the same output; and the properties of
//! each stage.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{ContextSource, LayerEvent, TraceContext};
use blkkin_wire::fragment::{
    FragmentBatch, FragmentKind, FragmentOrigin, Incarnation, StageId, TraceFragment,
};
use blkkin_wire::ids::{NodeId, Source, SpanId, TraceId};
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::span::Span;
use blkkin_wire::stage::{InputRecord, LogTime, Stage, StageOutput};
use blkkin_wire::v1;
use proptest::prelude::*;

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::fragments::fragments;
use super::join::{JoinStage, JoinStageConfig};
use super::sampling::SamplingRules;
use super::snapshot::{SnapshotError, VERSION};
use crate::fixtures::{self, SOURCE, batch};
use crate::join::tests::property::cut;
use crate::join::tests::world::{World, acts};
use crate::join::{JoinConfig, Joiner};
use crate::trace::Trace;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Output {
    fragments: Vec<(u32, u64, TraceFragment)>,
    side_output: Vec<(u32, u64, TraceFragment)>,
    dead_letter: Vec<String>,
}

impl StageOutput for Output {
    fn side_output(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.side_output.push((partition, number, fragment));
    }
    fn fragment(&mut self, partition: u32, number: u64, fragment: TraceFragment) {
        self.fragments.push((partition, number, fragment));
    }
    fn dead_letter(&mut self, why: String) {
        self.dead_letter.push(why);
    }
}

fn config(quiet: u64, open_max: usize) -> JoinStageConfig {
    let bounds = JoinConfig { quiet_after: DurationNs(quiet), open_max, ..JoinConfig::default() };
    JoinStageConfig { join: bounds, idle_after: 1_000, forget_after: 5_000, ..JoinStageConfig::new(3) }
}

/// A partition's log: batches of several nodes, duplicates, ticks, gaps in time, and unreadable
/// records.
fn log(worlds: &[(Vec<LayerEvent>, Vec<u64>)], keys: &[u32]) -> Vec<(LogTime, Vec<u8>)> {
    let mut log = Vec::new();
    for (node, (events, cuts)) in worlds.iter().enumerate() {
        let source = Source { node: NodeId(7 + node as u128), ..SOURCE };
        for (n, (events, watermark)) in cut(events, keys, cuts).into_iter().enumerate() {
            let key = keys[n % keys.len()];
            // Some batches never arrive. A timeout closes the traces that wait for them, or nothing
            // does.
            if key.is_multiple_of(7) {
                continue;
            }
            let bytes = v1::encode(&EventBatch { source, ..batch(n as u64, events, watermark) });
            log.push((key, bytes.clone()));
            if key.is_multiple_of(5) {
                log.push((key.rotate_left(9), bytes));
            }
            match key % 11 {
                0 => log.push((key, v1::encode(&EventBatch::tick()))),
                1 => log.push((key, b"no batch".to_vec())),
                _ => {}
            }
        }
    }
    let mut now = 1_000_000;
    let timed = log.into_iter().map(|(key, bytes)| {
        now += u64::from(key % 4 / 3) * 1_500 + u64::from(key % 64 / 63) * 6_000;
        (LogTime(now - u64::from(key % 3)), bytes)
    });
    timed.collect()
}

fn record((at, bytes): &(LogTime, Vec<u8>)) -> InputRecord<'_> {
    InputRecord { at: Some(*at), bytes }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_join_stage_restored_at_any_record_emits_the_same_numbered_fragments(
        worlds in prop::collection::vec((acts(), prop::collection::vec(0_u64..2_200, 0..6)), 1..4),
        keys in prop::collection::vec(any::<u32>(), 1..64),
        quiet in prop_oneof![Just(40_u64), Just(30_000_000_000)],
        open_max in prop_oneof![Just(2_usize), Just(1_000)],
        restore_at in any::<u16>(),
    ) {
        let worlds: Vec<_> = worlds.into_iter().map(|(acts, cuts)| (World::build(&acts).events, cuts)).collect();
        let config = config(quiet, open_max);
        let (mut uninterrupted, mut output) = (JoinStage::new(Incarnation(5), config.clone()), Output::default());
        let (mut restored, mut restored_output) = (JoinStage::new(Incarnation(5), config.clone()), Output::default());
        for (n, entry) in log(&worlds, &keys).iter().enumerate() {
            uninterrupted.apply(record(entry), &mut output);
            restored.apply(record(entry), &mut restored_output);
            if restore_at >> (n % 16) & 1 == 1 {
                restored = JoinStage::restore(&restored.save().unwrap(), config.clone(), Incarnation(6)).unwrap();
            }
            prop_assert_eq!(uninterrupted.stats(), restored.stats());
            prop_assert_eq!(uninterrupted.join_stats(), restored.join_stats());
            prop_assert!(uninterrupted.join_stats().balances());
            prop_assert_eq!(uninterrupted.pending(), restored.pending());
        }
        prop_assert_eq!(&output, &restored_output);
        prop_assert!(uninterrupted.save().unwrap() == restored.save().unwrap());
        prop_assert_eq!(restored.incarnation(), Incarnation(5));
        // Numbers count up by one, in each partition.
        let mut next = [0; 3];
        for (partition, number, _) in &output.fragments {
            prop_assert_eq!(std::mem::replace(&mut next[*partition as usize], number + 1), *number);
        }
    }

    #[test]
    fn repeated_fragments_are_assembled_once_by_one_decision(
        traces in prop::collection::vec((any::<u128>(), any::<bool>(), any::<bool>()), 1..60),
        repeats in prop::collection::vec((0_usize..60, 1_usize..9), 0..40),
        restore_at in any::<u16>(),
        rules in (1_u32..4, any::<bool>(), any::<bool>()),
    ) {
        let (one_in, errors, slow) = rules;
        let rules = SamplingRules { one_in, errors, slower_than: slow.then_some(DurationNs(500)), by_application: false };
        let config = AssembleStageConfig::new(2, rules);
        let all: Vec<TraceFragment> =
            traces.iter().enumerate().map(|(n, seed)| fragment(n, seed, traces[n / 2].0)).collect();
        let (mut once, mut output) = (AssembleStage::new(Incarnation(1), config.clone()), Output::default());
        once.apply(InputRecord { at: None, bytes: &bytes(0, &all) }, &mut output);
        // The same fragments, with duplicates that begin and end anywhere before the write
        // position, and with restarts in between.
        let (mut twice, mut repeated_output) = (AssembleStage::new(Incarnation(1), config.clone()), Output::default());
        let (mut written, mut n) = (0, 0);
        for (from, length) in repeats.into_iter().chain([(all.len(), all.len())]) {
            let from = from.min(written);
            written = written.max((from + length).min(all.len()));
            let end = (from + length).min(all.len());
            twice.apply(InputRecord { at: None, bytes: &bytes(from as u64, &all[from..end]) }, &mut repeated_output);
            if restore_at >> (n % 16) & 1 == 1 {
                twice = AssembleStage::restore(&twice.save().unwrap(), config.clone(), Incarnation(2)).unwrap();
            }
            n += 1;
        }
        prop_assert_eq!(output, repeated_output);
        let stats = twice.stats();
        prop_assert_eq!((stats.received, stats.missed), (all.len() as u64, 0));
        prop_assert_eq!(stats.received, stats.sampled + stats.dropped + stats.without_trace_id);
    }
}

/// A fragment. Every second one is a late fragment of the one before.
fn fragment(n: usize, &(id, error, slow): &(u128, bool, bool), first: u128) -> TraceFragment {
    let later = n % 2 == 1;
    let (_, request) = fixtures::bio_and_request(1, 2, 3, (10, 20));
    let mut trace = fixtures::trace(1);
    trace.requests.push(request);
    let span = fragments(&trace).next().unwrap().spans.remove(0);
    let span = Span {
        id: SpanId(n as u64),
        duration: DurationNs(if slow { 1_000 } else { 1 }),
        error: error.then(|| "EIO".into()),
        ..span
    };
    let part = if later { FragmentKind::Late } else { FragmentKind::First };
    let trace = TraceId(if later { first } else { id });
    let (sampled_by_application, remote_link) = (false, RemoteLink::None);
    TraceFragment {
        trace,
        spans: vec![span],
        kind: part,
        complete: true,
        sampled: None,
        sampled_by_application,
        remote_link,
    }
}

fn bytes(first: u64, fragments: &[TraceFragment]) -> Vec<u8> {
    let from = FragmentOrigin { stage: StageId::Join, partition: 3, incarnation: Incarnation(9) };
    v1::encode_fragments(&FragmentBatch { origin: from, first, fragments: fragments.to_vec() })
}

fn one_open() -> Vec<u8> {
    v1::encode(&batch(0, vec![LayerEvent::Syscall(fixtures::call_with(1, (10, 20), 1))], 50))
}

#[test]
fn an_inactive_source_is_closed_by_the_logs_time_and_ticks_suffice() {
    let (mut stage, mut output) =
        (JoinStage::new(Incarnation(1), config(30_000_000_000, 10)), Output::default());
    stage.apply(InputRecord { at: Some(LogTime(10_000)), bytes: &one_open() }, &mut output);
    assert_eq!((stage.pending(), output.fragments.len()), (1, 0));
    let tick = v1::encode(&EventBatch::tick());
    stage.apply(InputRecord { at: Some(LogTime(11_000)), bytes: &tick }, &mut output);
    assert_eq!(output.fragments.len(), 0);
    stage.apply(InputRecord { at: Some(LogTime(11_001)), bytes: &tick }, &mut output);
    assert_eq!((stage.pending(), output.fragments.len()), (0, 1));
    assert!(!output.fragments[0].2.complete, "its bio never arrived");
    assert_eq!((stage.stats().ticks, stage.stats().idle_closed), (2, 1));
    // The source becomes active again: late events join their trace by id, and a duplicate batch is
    // dropped.
    stage.apply(InputRecord { at: Some(LogTime(12_000)), bytes: &one_open() }, &mut output);
    assert_eq!(stage.join_stats().batches_repeated, 1);
}

#[test]
fn an_unreadable_record_is_counted_and_reported_and_the_next_one_is_read() {
    let (mut stage, mut output) = (JoinStage::new(Incarnation(1), config(1, 10)), Output::default());
    stage.apply(InputRecord { at: None, bytes: b"poison" }, &mut output);
    stage.apply(InputRecord { at: None, bytes: &one_open() }, &mut output);
    assert_eq!(
        (output.dead_letter.len(), stage.stats().poison, stage.join_stats().calls.received),
        (1, 1, 1)
    );
    // Field 1 of a batch: a newer writer's schema version.
    stage.apply(InputRecord { at: None, bytes: &[1 << 3, 2] }, &mut output);
    assert_eq!(stage.stats().poison, 2);
    assert!(output.dead_letter[1].contains("schema version 2"), "{:?}", output.dead_letter);
}

#[test]
fn a_fragment_without_a_trace_id_is_counted_and_reported_and_others_are_accepted() {
    let config = AssembleStageConfig::new(1, SamplingRules::default());
    let (mut stage, mut output) = (AssembleStage::new(Incarnation(1), config), Output::default());
    let all = [7, 0, 8].map(|id| fragment(0, &(id, false, false), 0));
    stage.apply(InputRecord { at: None, bytes: &bytes(40, &all) }, &mut output);
    stage.apply(InputRecord { at: None, bytes: &bytes(40, &all) }, &mut output);
    let stats = stage.stats();
    assert_eq!((stats.received, stats.sampled, stats.without_trace_id, stats.duplicates), (3, 2, 1, 3));
    assert_eq!(output.fragments.iter().map(|(.., fragment)| fragment.trace.0).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(output.dead_letter, ["fragment 41 has an all-zero trace id"]);
}

#[test]
fn another_configuration_is_another_incarnation_and_another_version_is_refused() {
    let (mut stage, mut output) = (JoinStage::new(Incarnation(1), config(1, 10)), Output::default());
    stage.apply(InputRecord { at: None, bytes: &one_open() }, &mut output);
    let mut saved = stage.save().unwrap();
    assert_eq!(
        JoinStage::restore(&saved, config(1, 10), Incarnation(2)).unwrap().incarnation(),
        Incarnation(1)
    );
    let mut restored = JoinStage::restore(&saved, config(1, 11), Incarnation(2)).unwrap();
    assert_eq!((restored.incarnation(), restored.join_stats().calls.received), (Incarnation(2), 1));
    let again = JoinStage::restore(&restored.save().unwrap(), config(1, 11), Incarnation(3)).unwrap();
    assert_eq!(again.incarnation(), Incarnation(2));
    let rules = AssembleStageConfig::new(1, SamplingRules::default());
    assert_eq!(AssembleStage::restore(&saved, rules, Incarnation(1)).err(), Some(SnapshotError::OtherStage));
    assert!(matches!(
        JoinStage::restore(&saved[..saved.len() - 1], config(1, 10), Incarnation(2)),
        Err(SnapshotError::Corrupt(_))
    ));
    saved[4] = VERSION as u8 + 1;
    assert_eq!(
        JoinStage::restore(&saved, config(1, 10), Incarnation(2)).err(),
        Some(SnapshotError::Version(VERSION + 1))
    );
    assert_eq!(
        JoinStage::restore(b"bk", config(1, 10), Incarnation(2)).err(),
        Some(SnapshotError::NotASnapshot)
    );
}

#[test]
fn a_long_trace_is_cut_and_failed_spans_come_first() {
    let mut trace = fixtures::trace(1);
    trace.bios = (0..2_500)
        .map(|n| {
            let (mut bio, _) = fixtures::bio_and_request(1, 10 + n, 0, (n, n + 5));
            bio.request = None;
            bio.status.0 = if n == 2_400 { 10 } else { 0 };
            bio
        })
        .collect();
    let all: Vec<TraceFragment> = fragments(&trace).collect();
    assert_eq!(all.iter().map(|fragment| fragment.spans.len()).collect::<Vec<_>>(), [1_000, 1_000, 500]);
    assert_eq!(
        all.iter().map(|fragment| fragment.kind).collect::<Vec<_>>(),
        [FragmentKind::First, FragmentKind::Late, FragmentKind::Late]
    );
    assert!(all[0].spans.iter().any(|span| span.error.is_some()));
}

#[test]
fn the_ratio_samples_its_share_and_late_fragments_follow_the_first() {
    let rules = SamplingRules { one_in: 10, errors: true, ..SamplingRules::default() };
    let uninterrupted =
        (0..10_000_u128).filter(|&n| rules.sample_by_ratio(TraceId(n << 64 | 5)).is_some()).count();
    assert!((900..1_100).contains(&uninterrupted), "{uninterrupted}");
    let failed = (0..)
        .map(|n| TraceId(77 + n))
        .find(|trace| rules.sample_by_ratio(*trace).is_none())
        .map(|trace| fragment(0, &(trace.0, true, false), 0))
        .unwrap();
    let config = AssembleStageConfig::new(1, rules);
    let (mut stage, mut output) = (AssembleStage::new(Incarnation(1), config), Output::default());
    let later = TraceFragment { kind: FragmentKind::Late, ..fragment(0, &(failed.trace.0, false, false), 0) };
    stage.apply(InputRecord { at: None, bytes: &bytes(0, &[failed, later]) }, &mut output);
    let rules: Vec<_> =
        output.fragments.iter().map(|(.., fragment)| fragment.sampled.clone().unwrap().rule).collect();
    assert_eq!(rules, ["failed", "failed"]);
    assert_eq!(output.fragments[0].2.sampled.as_ref().unwrap().one_in, 1);
}

/// A hundred calls of one application's trace: all are sampled if the application samples it, and
/// otherwise by the ratio.
#[test]
fn traces_sampled_by_their_application_are_sampled_beyond_the_ratio() {
    let one_in = u32::MAX;
    for (flags, from, by_application, uninterrupted) in [
        (1, ContextSource::ThreadContext, true, true),
        (3, ContextSource::ThreadContext, true, true),
        (0, ContextSource::ThreadContext, true, false),
        (2, ContextSource::ThreadContext, true, false),
        (1, ContextSource::DaemonSpan, true, false),
        (1, ContextSource::ThreadContext, false, false),
    ] {
        let rules = SamplingRules { one_in, by_application, ..SamplingRules::default() };
        let context = TraceContext { trace: TraceId(0x4bf9 << 64 | 7), span: SpanId(9), flags, source: from };
        assert_eq!(rules.sample_by_ratio(context.trace), None);
        let mut stage = AssembleStage::new(Incarnation(1), AssembleStageConfig::new(1, rules));
        let mut output = Output::default();
        let calls = (1..=100).map(|n| {
            let mut call = fixtures::call(n, 10 * n, 10 * n + 5);
            call.context = Some(Box::new(context));
            LayerEvent::Syscall(call)
        });
        let mut traces = Vec::<Trace>::new();
        Joiner::new(JoinConfig::default()).apply(batch(0, calls.collect(), u64::MAX), &mut traces);
        let fragments: Vec<TraceFragment> = traces.iter().flat_map(fragments).collect();
        // A fragment with a derived context waits for the daemon span, which decides.
        let part =
            if from == ContextSource::ThreadContext { FragmentKind::First } else { FragmentKind::Late };
        assert!(fragments.iter().all(|fragment| fragment.trace == context.trace && fragment.kind == part));
        let expected = if uninterrupted { fragments.len() } else { 0 };
        // Encoded, as between two stages.
        stage.apply(InputRecord { at: None, bytes: &bytes(0, &fragments) }, &mut output);
        assert_eq!(
            (fragments.len(), output.fragments.len()),
            (100, expected),
            "flags {flags}, {from:?}, {by_application}"
        );
        let annotation = |(.., fragment): &(u32, u64, TraceFragment)| {
            let sampled = fragment.sampled.clone().unwrap();
            (sampled.rule.into_owned(), sampled.one_in, fragment.sampled_by_application)
        };
        assert!(
            output
                .fragments
                .iter()
                .all(|fragment| annotation(fragment) == ("sampled by the program".into(), 1, false))
        );
        // A late fragment of one of them is sampled with it.
        let later =
            TraceFragment { kind: FragmentKind::Late, sampled_by_application: false, ..fragments[0].clone() };
        stage.apply(InputRecord { at: None, bytes: &bytes(100, &[later]) }, &mut output);
        assert_eq!(output.fragments.len(), expected + usize::from(uninterrupted));
    }
}

/// The log above has what its builder states, and the fragments are those of the join and the span
/// translation.
#[test]
fn without_timeouts_the_fragments_are_those_of_the_join() {
    let events = World::from_events(vec![LayerEvent::Syscall(fixtures::call(1, 10, 20))], &[]).events;
    let (mut joiner, mut traces) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    joiner.apply(batch(0, events.clone(), u64::MAX), &mut traces);
    let (mut stage, mut output) =
        (JoinStage::new(Incarnation(1), JoinStageConfig::new(3)), Output::default());
    stage.apply(InputRecord { at: None, bytes: &v1::encode(&batch(0, events, u64::MAX)) }, &mut output);
    let expected: Vec<TraceFragment> = traces.iter().flat_map(fragments).collect();
    assert_eq!(output.fragments.iter().map(|(.., fragment)| fragment.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), 1);
}

/// The parts of a daemon span end before it and arrive before it.
#[test]
fn parts_are_sampled_or_dropped_with_their_root() {
    for (slower_than, uninterrupted) in [(5, true), (5_000, false)] {
        let slower_than = Some(DurationNs(slower_than));
        let rules = SamplingRules { one_in: u32::MAX, slower_than, ..SamplingRules::default() };
        let mut stage = AssembleStage::new(Incarnation(1), AssembleStageConfig::new(1, rules));
        let mut traces = Vec::<Trace>::new();
        let mut joiner = Joiner::new(JoinConfig::default());
        let parts = [
            fixtures::daemon_span_event(3, Some(2), (120, 121)),
            fixtures::daemon_span_event(2, Some(1), (110, 130)),
        ];
        let root = fixtures::daemon_span_event(1, None, (100, 140));
        let late = fixtures::daemon_span_event(4, Some(1), (135, 141));
        joiner.apply(batch(0, parts.into_iter().chain([root, late]).collect(), u64::MAX), &mut traces);
        let mut output = Output::default();
        for (n, fragment) in traces.iter().flat_map(fragments).enumerate() {
            let from = FragmentOrigin { stage: StageId::Join, partition: 0, incarnation: Incarnation(1) };
            let record = v1::encode_fragments(&FragmentBatch {
                origin: from,
                first: n as u64,
                fragments: vec![fragment],
            });
            stage.apply(InputRecord { at: Some(LogTime(1)), bytes: &record }, &mut output);
            assert_eq!(stage.pending(), [1, 2, 0, 0][n]);
        }
        let spans: Vec<u64> = output
            .fragments
            .iter()
            .flat_map(|(_, _, fragment)| fragment.spans.iter().map(|span| span.id.0))
            .collect();
        assert_eq!(spans, if uninterrupted { vec![1, 3, 2, 4] } else { vec![] });
        assert_eq!(stage.stats().dropped, if uninterrupted { 0 } else { 4 });
    }
}

/// The root was lost, or no source reports it.
#[test]
fn parts_without_a_root_are_emitted_after_the_timeout() {
    let mut stage = AssembleStage::new(Incarnation(1), AssembleStageConfig::new(1, SamplingRules::default()));
    let mut traces = Vec::<Trace>::new();
    Joiner::new(JoinConfig::default())
        .apply(batch(0, vec![fixtures::daemon_span_event(3, Some(2), (1, 2))], u64::MAX), &mut traces);
    let from = FragmentOrigin { stage: StageId::Join, partition: 0, incarnation: Incarnation(1) };
    let fragments = traces.iter().flat_map(fragments).collect();
    let record = v1::encode_fragments(&FragmentBatch { origin: from, first: 0, fragments });
    let mut output = Output::default();
    stage.apply(InputRecord { at: Some(LogTime(1)), bytes: &record }, &mut output);
    assert_eq!((output.fragments.len(), stage.pending()), (0, 1));
    let tick = v1::encode_fragments(&FragmentBatch::tick());
    stage.apply(InputRecord { at: Some(LogTime(20_000)), bytes: &tick }, &mut output);
    assert_eq!((output.fragments.len(), stage.pending()), (1, 0));
    assert_eq!(stage.stats().timed_out, 1);
}
