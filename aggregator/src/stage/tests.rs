//! A stage that was saved and read back at any record is the one that it was; and what each stage promises.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{ContextSource, LayerEvent, TraceContext};
use blkkin_wire::fragment::{FragmentBatch, FragmentKind, FragmentOrigin, Incarnation, Stage, TraceFragment};
use blkkin_wire::ids::{NodeId, Source, SpanId, TraceId};
use blkkin_wire::remote_link::RemoteLink;
use blkkin_wire::span::Span;
use blkkin_wire::v1;
use proptest::prelude::*;

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::join::{JoinStage, JoinStageConfig};
use super::pieces::pieces;
use super::rules::Rules;
use super::saved::Unreadable;
use super::{LogTime, Outlet, Record};
use crate::join::tests::make::{self, SOURCE, batch};
use crate::join::tests::property::cut;
use crate::join::tests::world::{World, acts};
use crate::join::{JoinConfig, Joiner};
use crate::trace::Trace;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Said {
    pieces: Vec<(u32, u64, TraceFragment)>,
    aside: Vec<(u32, u64, TraceFragment)>,
    dead: Vec<String>,
}

impl Outlet for Said {
    fn aside(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        self.aside.push((partition, number, piece));
    }
    fn piece(&mut self, partition: u32, number: u64, piece: TraceFragment) {
        self.pieces.push((partition, number, piece));
    }
    fn dead(&mut self, why: String) {
        self.dead.push(why);
    }
}

fn config(quiet: u64, open_max: usize) -> JoinStageConfig {
    let bounds = JoinConfig { quiet_after: DurationNs(quiet), open_max, ..JoinConfig::default() };
    JoinStageConfig { join: bounds, idle_after: 1_000, forget_after: 5_000, ..JoinStageConfig::new(3) }
}

/// What lies in a partition: batches of several nodes, repeats, ticks, gaps in time, and what nobody can read.
fn log(worlds: &[(Vec<LayerEvent>, Vec<u64>)], keys: &[u32]) -> Vec<(LogTime, Vec<u8>)> {
    let mut log = Vec::new();
    for (node, (events, cuts)) in worlds.iter().enumerate() {
        let source = Source { node: NodeId(7 + node as u128), ..SOURCE };
        for (n, (events, watermark)) in cut(events, keys, cuts).into_iter().enumerate() {
            let key = keys[n % keys.len()];
            // Some never get there: who waits for them is closed by silence, or not at all.
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

fn record((at, bytes): &(LogTime, Vec<u8>)) -> Record<'_> {
    Record { at: Some(*at), bytes }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_join_that_is_saved_and_read_back_at_any_record_writes_the_same_pieces_with_the_same_numbers(
        worlds in prop::collection::vec((acts(), prop::collection::vec(0_u64..2_200, 0..6)), 1..4),
        keys in prop::collection::vec(any::<u32>(), 1..64),
        quiet in prop_oneof![Just(40_u64), Just(30_000_000_000)],
        open_max in prop_oneof![Just(2_usize), Just(1_000)],
        restored in any::<u16>(),
    ) {
        let worlds: Vec<_> = worlds.into_iter().map(|(acts, cuts)| (World::build(&acts).events, cuts)).collect();
        let config = config(quiet, open_max);
        let (mut kept, mut said) = (JoinStage::begin(Incarnation(5), config.clone()), Said::default());
        let (mut other, mut said_by_other) = (JoinStage::begin(Incarnation(5), config.clone()), Said::default());
        for (n, entry) in log(&worlds, &keys).iter().enumerate() {
            kept.apply(record(entry), &mut said);
            other.apply(record(entry), &mut said_by_other);
            if restored >> (n % 16) & 1 == 1 {
                other = JoinStage::restore(&other.save().unwrap(), config.clone(), Incarnation(6)).unwrap();
            }
            prop_assert_eq!(kept.books(), other.books());
            prop_assert_eq!(kept.accounts(), other.accounts());
            prop_assert!(kept.accounts().balances());
            prop_assert_eq!(kept.pending(), other.pending());
        }
        prop_assert_eq!(&said, &said_by_other);
        prop_assert!(kept.save().unwrap() == other.save().unwrap());
        prop_assert_eq!(other.epoch(), Incarnation(5));
        // Numbers count up by one, in each partition.
        let mut next = [0; 3];
        for (partition, number, _) in &said.pieces {
            prop_assert_eq!(std::mem::replace(&mut next[*partition as usize], number + 1), *number);
        }
    }

    #[test]
    fn whatever_is_repeated_each_piece_is_assembled_once_by_one_decision(
        traces in prop::collection::vec((any::<u128>(), any::<bool>(), any::<bool>()), 1..60),
        repeats in prop::collection::vec((0_usize..60, 1_usize..9), 0..40),
        restored in any::<u16>(),
        rules in (1_u32..4, any::<bool>(), any::<bool>()),
    ) {
        let (one_in, errors, slow) = rules;
        let rules = Rules { one_in, errors, slower_than: slow.then_some(DurationNs(500)), by_program: false };
        let config = AssembleStageConfig::new(2, rules);
        let all: Vec<TraceFragment> =
            traces.iter().enumerate().map(|(n, seed)| piece(n, seed, traces[n / 2].0)).collect();
        let (mut once, mut said) = (AssembleStage::begin(Incarnation(1), config.clone()), Said::default());
        once.apply(Record { at: None, bytes: &bytes(0, &all) }, &mut said);
        // The same, with repeats that begin and end anywhere behind what was written, and restarts between.
        let (mut twice, mut said_twice) = (AssembleStage::begin(Incarnation(1), config.clone()), Said::default());
        let (mut written, mut n) = (0, 0);
        for (from, length) in repeats.into_iter().chain([(all.len(), all.len())]) {
            let from = from.min(written);
            written = written.max((from + length).min(all.len()));
            let end = (from + length).min(all.len());
            twice.apply(Record { at: None, bytes: &bytes(from as u64, &all[from..end]) }, &mut said_twice);
            if restored >> (n % 16) & 1 == 1 {
                twice = AssembleStage::restore(&twice.save().unwrap(), config.clone(), Incarnation(2)).unwrap();
            }
            n += 1;
        }
        prop_assert_eq!(said, said_twice);
        let books = twice.books();
        prop_assert_eq!((books.received, books.missed), (all.len() as u64, 0));
        prop_assert_eq!(books.received, books.kept + books.left_out + books.nameless);
    }
}

/// Every second one is a later part of the one before.
fn piece(n: usize, &(id, error, slow): &(u128, bool, bool), first: u128) -> TraceFragment {
    let later = n % 2 == 1;
    let (_, request) = make::direct(1, 2, 3, (10, 20));
    let mut trace = make::trace(1);
    trace.requests.push(request);
    let span = pieces(&trace).next().unwrap().spans.remove(0);
    let span = Span {
        id: SpanId(n as u64),
        duration: DurationNs(if slow { 1_000 } else { 1 }),
        error: error.then(|| "EIO".into()),
        ..span
    };
    let part = if later { FragmentKind::Late } else { FragmentKind::First };
    let trace = TraceId(if later { first } else { id });
    let (sampled_by_program, across) = (false, RemoteLink::None);
    TraceFragment {
        trace,
        spans: vec![span],
        kind: part,
        complete: true,
        sampled: None,
        sampled_by_application: sampled_by_program,
        remote_link: across,
    }
}

fn bytes(first: u64, pieces: &[TraceFragment]) -> Vec<u8> {
    let from = FragmentOrigin { stage: Stage::Join, partition: 3, incarnation: Incarnation(9) };
    v1::encode_fragments(&FragmentBatch { origin: from, first, fragments: pieces.to_vec() })
}

fn one_open() -> Vec<u8> {
    v1::encode(&batch(0, vec![LayerEvent::Syscall(make::call_with(1, (10, 20), 1))], 50))
}

#[test]
fn a_source_that_fell_silent_is_closed_by_the_logs_time_and_ticks_are_enough_for_it() {
    let (mut stage, mut said) =
        (JoinStage::begin(Incarnation(1), config(30_000_000_000, 10)), Said::default());
    stage.apply(Record { at: Some(LogTime(10_000)), bytes: &one_open() }, &mut said);
    assert_eq!((stage.pending(), said.pieces.len()), (1, 0));
    let tick = v1::encode(&EventBatch::tick());
    stage.apply(Record { at: Some(LogTime(11_000)), bytes: &tick }, &mut said);
    assert_eq!(said.pieces.len(), 0);
    stage.apply(Record { at: Some(LogTime(11_001)), bytes: &tick }, &mut said);
    assert_eq!((stage.pending(), said.pieces.len()), (0, 1));
    assert!(!said.pieces[0].2.complete, "its bio never came");
    assert_eq!((stage.books().ticks, stage.books().idle_closed), (2, 1));
    // It comes back: what is late joins its trace by id, and a repeat is one.
    stage.apply(Record { at: Some(LogTime(12_000)), bytes: &one_open() }, &mut said);
    assert_eq!(stage.accounts().batches_repeated, 1);
}

#[test]
fn a_record_that_nobody_can_read_is_counted_and_said_and_the_next_one_is_read() {
    let (mut stage, mut said) = (JoinStage::begin(Incarnation(1), config(1, 10)), Said::default());
    stage.apply(Record { at: None, bytes: b"poison" }, &mut said);
    stage.apply(Record { at: None, bytes: &one_open() }, &mut said);
    assert_eq!((said.dead.len(), stage.books().poison, stage.accounts().calls.received), (1, 1, 1));
    // Field 1 of a batch: somebody newer wrote it.
    stage.apply(Record { at: None, bytes: &[1 << 3, 2] }, &mut said);
    assert_eq!(stage.books().poison, 2);
    assert!(said.dead[1].contains("schema version 2"), "{:?}", said.dead);
}

#[test]
fn a_piece_without_a_trace_id_is_counted_and_said_and_its_neighbours_are_taken() {
    let config = AssembleStageConfig::new(1, Rules::default());
    let (mut stage, mut said) = (AssembleStage::begin(Incarnation(1), config), Said::default());
    let all = [7, 0, 8].map(|id| piece(0, &(id, false, false), 0));
    stage.apply(Record { at: None, bytes: &bytes(40, &all) }, &mut said);
    stage.apply(Record { at: None, bytes: &bytes(40, &all) }, &mut said);
    let books = stage.books();
    assert_eq!((books.received, books.kept, books.nameless, books.repeated), (3, 2, 1, 3));
    assert_eq!(said.pieces.iter().map(|(.., piece)| piece.trace.0).collect::<Vec<_>>(), [7, 8]);
    assert_eq!(said.dead, ["the trace id of piece 41 is all zero, which is none"]);
}

#[test]
fn another_configuration_is_another_epoch_and_another_version_is_refused() {
    let (mut stage, mut said) = (JoinStage::begin(Incarnation(1), config(1, 10)), Said::default());
    stage.apply(Record { at: None, bytes: &one_open() }, &mut said);
    let mut saved = stage.save().unwrap();
    assert_eq!(JoinStage::restore(&saved, config(1, 10), Incarnation(2)).unwrap().epoch(), Incarnation(1));
    let mut other = JoinStage::restore(&saved, config(1, 11), Incarnation(2)).unwrap();
    assert_eq!((other.epoch(), other.accounts().calls.received), (Incarnation(2), 1));
    let again = JoinStage::restore(&other.save().unwrap(), config(1, 11), Incarnation(3)).unwrap();
    assert_eq!(again.epoch(), Incarnation(2));
    let rules = AssembleStageConfig::new(1, Rules::default());
    assert_eq!(AssembleStage::restore(&saved, rules, Incarnation(1)).err(), Some(Unreadable::Stage));
    assert!(matches!(
        JoinStage::restore(&saved[..saved.len() - 1], config(1, 10), Incarnation(2)),
        Err(Unreadable::Damaged(_))
    ));
    saved[4] = 9;
    assert_eq!(JoinStage::restore(&saved, config(1, 10), Incarnation(2)).err(), Some(Unreadable::Version(9)));
    assert_eq!(JoinStage::restore(b"bk", config(1, 10), Incarnation(2)).err(), Some(Unreadable::Foreign));
}

#[test]
fn a_trace_too_long_for_a_record_is_cut_and_what_failed_comes_first() {
    let mut trace = make::trace(1);
    trace.bios = (0..2_500)
        .map(|n| {
            let (mut bio, _) = make::direct(1, 10 + n, 0, (n, n + 5));
            bio.request = None;
            bio.status.0 = if n == 2_400 { 10 } else { 0 };
            bio
        })
        .collect();
    let all: Vec<TraceFragment> = pieces(&trace).collect();
    assert_eq!(all.iter().map(|piece| piece.spans.len()).collect::<Vec<_>>(), [1_000, 1_000, 500]);
    assert_eq!(
        all.iter().map(|piece| piece.kind).collect::<Vec<_>>(),
        [FragmentKind::First, FragmentKind::Late, FragmentKind::Late]
    );
    assert!(all[0].spans.iter().any(|span| span.error.is_some()));
}

#[test]
fn a_draw_keeps_about_its_share_and_a_later_part_goes_with_the_first() {
    let rules = Rules { one_in: 10, errors: true, ..Rules::default() };
    let kept = (0..10_000_u128).filter(|&n| rules.draw(TraceId(n << 64 | 5)).is_some()).count();
    assert!((900..1_100).contains(&kept), "{kept}");
    let failed = (0..)
        .map(|n| TraceId(77 + n))
        .find(|trace| rules.draw(*trace).is_none())
        .map(|trace| piece(0, &(trace.0, true, false), 0))
        .unwrap();
    let config = AssembleStageConfig::new(1, rules);
    let (mut stage, mut said) = (AssembleStage::begin(Incarnation(1), config), Said::default());
    let later = TraceFragment { kind: FragmentKind::Late, ..piece(0, &(failed.trace.0, false, false), 0) };
    stage.apply(Record { at: None, bytes: &bytes(0, &[failed, later]) }, &mut said);
    let rules: Vec<_> = said.pieces.iter().map(|(.., piece)| piece.sampled.clone().unwrap().rule).collect();
    assert_eq!(rules, ["failed", "failed"]);
    assert_eq!(said.pieces[0].2.sampled.as_ref().unwrap().one_in, 1);
}

/// A hundred calls for one trace of an application's: all of them, if it samples that one, and by the draw if not.
#[test]
fn what_its_program_samples_is_kept_and_nothing_else_of_what_was_not_drawn() {
    let one_in = u32::MAX;
    for (flags, from, by_program, kept) in [
        (1, ContextSource::ThreadContext, true, true),
        (3, ContextSource::ThreadContext, true, true),
        (0, ContextSource::ThreadContext, true, false),
        (2, ContextSource::ThreadContext, true, false),
        (1, ContextSource::DaemonSpan, true, false),
        (1, ContextSource::ThreadContext, false, false),
    ] {
        let rules = Rules { one_in, by_program, ..Rules::default() };
        let context = TraceContext { trace: TraceId(0x4bf9 << 64 | 7), span: SpanId(9), flags, source: from };
        assert_eq!(rules.draw(context.trace), None);
        let mut stage = AssembleStage::begin(Incarnation(1), AssembleStageConfig::new(1, rules));
        let mut said = Said::default();
        let calls = (1..=100).map(|n| {
            let mut call = make::call(n, 10 * n, 10 * n + 5);
            call.context = Some(Box::new(context));
            LayerEvent::Syscall(call)
        });
        let mut traces = Vec::<Trace>::new();
        Joiner::new(JoinConfig::default()).apply(batch(0, calls.collect(), u64::MAX), &mut traces);
        let pieces: Vec<TraceFragment> = traces.iter().flat_map(pieces).collect();
        // What is known by a daemon's events alone waits for the operation, which decides.
        let part =
            if from == ContextSource::ThreadContext { FragmentKind::First } else { FragmentKind::Late };
        assert!(pieces.iter().all(|piece| piece.trace == context.trace && piece.kind == part));
        let expected = if kept { pieces.len() } else { 0 };
        // As a stage tells the next: in bytes.
        stage.apply(Record { at: None, bytes: &bytes(0, &pieces) }, &mut said);
        assert_eq!(
            (pieces.len(), said.pieces.len()),
            (100, expected),
            "flags {flags}, {from:?}, {by_program}"
        );
        let says = |(.., piece): &(u32, u64, TraceFragment)| {
            let sampled = piece.sampled.clone().unwrap();
            (sampled.rule.into_owned(), sampled.one_in, piece.sampled_by_application)
        };
        assert!(said.pieces.iter().all(|piece| says(piece) == ("sampled by the program".into(), 1, false)));
        // What comes of one of them later is kept with it.
        let later =
            TraceFragment { kind: FragmentKind::Late, sampled_by_application: false, ..pieces[0].clone() };
        stage.apply(Record { at: None, bytes: &bytes(100, &[later]) }, &mut said);
        assert_eq!(said.pieces.len(), expected + usize::from(kept));
    }
}

/// The log above has what it is said to have, and the pieces are what the join and the translation alone make.
#[test]
fn without_silence_the_pieces_are_those_of_the_join() {
    let events = World::told(vec![LayerEvent::Syscall(make::call(1, 10, 20))], &[]).events;
    let (mut joiner, mut traces) = (Joiner::new(JoinConfig::default()), Vec::<Trace>::new());
    joiner.apply(batch(0, events.clone(), u64::MAX), &mut traces);
    let (mut stage, mut said) = (JoinStage::begin(Incarnation(1), JoinStageConfig::new(3)), Said::default());
    stage.apply(Record { at: None, bytes: &v1::encode(&batch(0, events, u64::MAX)) }, &mut said);
    let expected: Vec<TraceFragment> = traces.iter().flat_map(pieces).collect();
    assert_eq!(said.pieces.iter().map(|(.., piece)| piece.clone()).collect::<Vec<_>>(), expected);
    assert_eq!(expected.len(), 1);
}

/// What an operation did ends before it, and comes before it.
#[test]
fn parts_are_kept_or_left_out_with_the_root_that_they_waited_for() {
    for (slower_than, kept) in [(5, true), (5_000, false)] {
        let slower_than = Some(DurationNs(slower_than));
        let rules = Rules { one_in: u32::MAX, slower_than, ..Rules::default() };
        let mut stage = AssembleStage::begin(Incarnation(1), AssembleStageConfig::new(1, rules));
        let mut traces = Vec::<Trace>::new();
        let mut joiner = Joiner::new(JoinConfig::default());
        let parts = [make::operation(3, Some(2), (120, 121)), make::operation(2, Some(1), (110, 130))];
        let root = make::operation(1, None, (100, 140));
        let late = make::operation(4, Some(1), (135, 141));
        joiner.apply(batch(0, parts.into_iter().chain([root, late]).collect(), u64::MAX), &mut traces);
        let mut said = Said::default();
        for (n, piece) in traces.iter().flat_map(pieces).enumerate() {
            let from = FragmentOrigin { stage: Stage::Join, partition: 0, incarnation: Incarnation(1) };
            let record = v1::encode_fragments(&FragmentBatch {
                origin: from,
                first: n as u64,
                fragments: vec![piece],
            });
            stage.apply(Record { at: Some(LogTime(1)), bytes: &record }, &mut said);
            assert_eq!(stage.pending(), [1, 2, 0, 0][n]);
        }
        let spans: Vec<u64> =
            said.pieces.iter().flat_map(|(_, _, piece)| piece.spans.iter().map(|span| span.id.0)).collect();
        assert_eq!(spans, if kept { vec![1, 3, 2, 4] } else { vec![] });
        assert_eq!(stage.books().left_out, if kept { 0 } else { 4 });
    }
}

/// Its root was lost, or is nowhere that events come from.
#[test]
fn parts_whose_root_never_comes_are_given_out_all_the_same() {
    let mut stage = AssembleStage::begin(Incarnation(1), AssembleStageConfig::new(1, Rules::default()));
    let mut traces = Vec::<Trace>::new();
    Joiner::new(JoinConfig::default())
        .apply(batch(0, vec![make::operation(3, Some(2), (1, 2))], u64::MAX), &mut traces);
    let from = FragmentOrigin { stage: Stage::Join, partition: 0, incarnation: Incarnation(1) };
    let pieces = traces.iter().flat_map(pieces).collect();
    let record = v1::encode_fragments(&FragmentBatch { origin: from, first: 0, fragments: pieces });
    let mut said = Said::default();
    stage.apply(Record { at: Some(LogTime(1)), bytes: &record }, &mut said);
    assert_eq!((said.pieces.len(), stage.pending()), (0, 1));
    let tick = v1::encode_fragments(&FragmentBatch::tick());
    stage.apply(Record { at: Some(LogTime(20_000)), bytes: &tick }, &mut said);
    assert_eq!((said.pieces.len(), stage.pending()), (1, 0));
    assert_eq!(stage.books().unasked, 1);
}
