//! Origins of bios' pages: before and after their bio, late, and missing.

use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{BioEvent, LayerEvent, PairEvent, SyscallEvent};
use blkkin_wire::ids::{SpanId, TraceId};
use blkkin_wire::page_origin::PageWriter;
use proptest::prelude::*;

use super::property::{cut, run};
use super::world::{World, acts};
use crate::fixtures::{self, batch};
use crate::join::{JoinConfig, Joiner};
use crate::trace::{FragmentKind, Incomplete, Root, Trace};

/// Marks some bios as bios with pages of a page cache. Returns their origins.
fn announce(events: &mut [LayerEvent], which: u64) -> Vec<LayerEvent> {
    let mut origins = Vec::new();
    for event in events {
        if let LayerEvent::Bio(bio) = event
            && which.rotate_left(bio.span.0 as u32 & 63) & 1 == 1
        {
            bio.has_page_origin = true;
            let writers = vec![fixtures::page_writer(bio.span.0 ^ 1, 5, bio.bytes)];
            origins.push(LayerEvent::PageOrigin(fixtures::page_origin(bio, writers).into()));
        }
    }
    origins
}

fn sorted(mut traces: Vec<Trace>) -> String {
    traces.sort_by_key(|trace| (trace.root_span, trace.kind == FragmentKind::Late));
    format!("{traces:#?}")
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]

    /// An origin arrives in any batch, also long after the watermark has passed its time.
    #[test]
    fn the_result_does_not_depend_on_when_an_origin_arrives(
        acts in acts(),
        which in any::<u64>(),
        keys in prop::collection::vec(any::<u32>(), 1..64),
        cuts in prop::collection::vec(0_u64..2_200, 0..6),
    ) {
        let mut events = World::build(&acts).events;
        let origins = announce(&mut events, which);
        let config = JoinConfig::default();
        let all = events.iter().chain(&origins).cloned().collect();
        let (whole, stats) = run(&config, vec![(all, u64::MAX)]);
        let mut batches = cut(&events, &keys, &cuts);
        for (n, origin) in origins.into_iter().enumerate() {
            let (key, at) = (keys[n % keys.len()] as usize, batches.len());
            let events = &mut batches[key % at].0;
            events.insert(key % (events.len() + 1), origin);
        }
        let (cut, cut_stats) = run(&config, batches);
        prop_assert_eq!(sorted(whole), sorted(cut));
        prop_assert_eq!(stats, cut_stats);
    }
}

fn pair(announced: bool) -> PairEvent {
    let (bio, request) = fixtures::kernel_bio(2, 3, (10, 20));
    PairEvent { bio: BioEvent { has_page_origin: announced, ..bio }, request }
}

fn origin() -> LayerEvent {
    let writers = vec![fixtures::page_writer(7, 5, 4096)];
    LayerEvent::PageOrigin(fixtures::page_origin(&pair(true).bio, writers).into())
}

#[test]
fn a_trace_waits_for_the_origins_that_its_bios_announce() {
    let (mut joiner, mut out) = (Joiner::new(JoinConfig::default()), Vec::new());
    let names = vec![
        LayerEvent::Task(fixtures::task(1, 0, 1, "dd")),
        LayerEvent::File(fixtures::file(fixtures::file_id(12), 2, "/srv/log")),
    ];
    joiner.apply(batch(0, names, 10), &mut out);
    joiner.apply(batch(1, vec![LayerEvent::Pair(pair(true))], 1_000), &mut out);
    assert!(out.is_empty(), "the origin is announced");
    joiner.apply(batch(2, vec![origin()], 2_000), &mut out);
    let [trace] = &out[..] else { panic!("{out:?}") };
    assert!(matches!(trace.root, Root::Kernel) && trace.incomplete.is_empty());
    assert_eq!(trace.page_origins.len(), 1);
    assert_eq!(&*trace.origin_names.path(&fixtures::file_id(12)), "/srv/log");
    assert_eq!(trace.origin_names.writers[&fixtures::TASK].program(), "dd");
    let stats = joiner.stats();
    assert_eq!((stats.page_origins.joined, stats.behind_watermark), (1, 0));
}

#[test]
fn a_bio_without_an_origin_is_complete_at_once() {
    let (out, _) = run(&JoinConfig::default(), vec![(vec![LayerEvent::Pair(pair(false))], u64::MAX)]);
    assert!(out[0].incomplete.is_empty() && out[0].page_origins.is_empty());
}

#[test]
fn a_lost_origin_and_a_late_one_are_counted() {
    let config = JoinConfig { quiet_after: DurationNs(100), ..JoinConfig::default() };
    let later = LayerEvent::Syscall(fixtures::call(9, 490, 500));
    let batches = vec![(vec![LayerEvent::Pair(pair(true)), later], 600), (vec![origin()], 700)];
    let (out, stats) = run(&config, batches);
    let lost = Incomplete { page_origins: 1, ..Incomplete::default() };
    assert_eq!((out.len(), out[0].incomplete, out[0].bios.len()), (2, lost, 1));
    assert_eq!((stats.page_origins.late, stats.traces_incomplete), (1, 1));
}

#[test]
fn an_origin_of_a_lost_bio_is_no_trace() {
    let (out, stats) = run(&JoinConfig::default(), vec![(vec![origin()], u64::MAX)]);
    assert!(out.is_empty(), "{out:?}");
    assert_eq!((stats.page_origins.orphaned, stats.traces_incomplete), (1, 0));
}

#[test]
fn a_writer_has_the_trace_that_its_call_began_or_belongs_to() {
    let own = fixtures::page_writer(7, 5, 4096);
    let none = TraceId(0);
    let writers = [
        PageWriter { trace: none, ..own },
        PageWriter { trace: none, span: SpanId(8), ..own },
        PageWriter { trace: TraceId(99), span: SpanId(9), ..own },
        PageWriter { trace: none, span: SpanId(0), ..own },
    ];
    let bio = pair(true).bio;
    let origin = LayerEvent::PageOrigin(fixtures::page_origin(&bio, writers.to_vec()).into());
    let for_a_span = SyscallEvent {
        writes_page_cache: true,
        context: fixtures::thread_context(77, 5),
        ..fixtures::call(8, 1, 2)
    };
    let events = vec![LayerEvent::Syscall(for_a_span), LayerEvent::Pair(pair(true)), origin];
    let (out, _) = run(&JoinConfig::default(), vec![(events, u64::MAX)]);
    let trace = out.iter().find(|trace| matches!(trace.root, Root::Kernel)).unwrap();
    let traces: Vec<TraceId> = trace.page_origins[0].writers.iter().map(|writer| writer.trace).collect();
    assert_eq!(traces, [fixtures::SOURCE.trace_id(SpanId(7)), TraceId(77), TraceId(99), none]);
}
