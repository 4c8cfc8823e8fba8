use std::time::{Duration, Instant};

use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{DeviceEvent, LayerEvent};
use blkkin_wire::ids::{BootId, DeviceId, NodeId, Source, StartEpoch};
use blkkin_wire::v1;

use super::*;

/// Events that say their number, with a name of so many bytes.
fn batch(numbers: std::ops::Range<u64>, name: usize) -> EventBatch {
    let event = |n: u64| {
        LayerEvent::Device(DeviceEvent {
            time: MonotonicNs(n * 10),
            device: DeviceId { major: 7, minor: n as u32 },
            // Not one that compresses to nothing: it is counted before compression.
            name: "x".repeat(name).into(),
            partition_of: None,
        })
    };
    EventBatch {
        source: Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) },
        sequence: 77,
        anchor: ClockAnchor {
            monotonic: MonotonicNs(0),
            wallclock: WallclockNs(0),
            uncertainty: DurationNs(1),
            ..ClockAnchor::NONE
        },
        watermark: MonotonicNs(numbers.end * 10),
        events: numbers.map(event).collect(),
        stats: SourceStats { calls_entered: name as u64, ..SourceStats::default() },
        crashed_runs: Vec::new(),
    }
}

fn decoded(gathered: &BatchedRecords) -> Vec<EventBatch> {
    gathered.records.iter().map(|record| v1::decode(&record.bytes).unwrap().batch).collect()
}

fn numbers(batches: &[EventBatch]) -> Vec<u64> {
    let events = batches.iter().flat_map(|batch| &batch.events);
    events.map(|event| event.time().0 / 10).collect()
}

const SMALL: BatcherConfig = BatcherConfig {
    events_max: 100,
    age_max: Duration::from_millis(50),
    bytes_max: 4_000,
    idle_max: Duration::from_secs(1),
};

#[test]
fn small_batches_become_one_record_when_there_are_enough_or_they_are_old() {
    let (mut gatherer, start) = (EventBatcher::new(SMALL, 5), Instant::now());
    assert_eq!(gatherer.add(batch(0..40, 1), start), BatchedRecords::default());
    assert_eq!(gatherer.due_in(start + Duration::from_millis(20)), Duration::from_millis(30));
    assert_eq!(gatherer.due(start + Duration::from_millis(49)), BatchedRecords::default());
    let old = decoded(&gatherer.due(start + Duration::from_millis(50)));
    assert_eq!((old.len(), old[0].sequence, numbers(&old)), (1, 5, (0..40).collect()));
    assert_eq!(gatherer.add(batch(40..90, 2), start), BatchedRecords::default());
    let full = decoded(&gatherer.add(batch(90..140, 3), start));
    assert_eq!((full.len(), full[0].sequence, numbers(&full)), (1, 6, (40..140).collect()));
    assert_eq!(
        (full[0].watermark, full[0].stats.calls_entered),
        (MonotonicNs(1_400), 3),
        "the later says all"
    );
    assert_eq!(gatherer.take(), BatchedRecords::default());
}

#[test]
fn what_is_too_long_is_cut_and_each_part_says_how_far_it_is_complete() {
    let (mut gatherer, now) = (EventBatcher::new(SMALL, 0), Instant::now());
    let gathered = gatherer.add(batch(0..250, 60), now);
    assert!(gathered.records.iter().all(|record| record.bytes.len() <= SMALL.bytes_max));
    let parts = decoded(&gathered);
    assert!(parts.len() >= 4, "{}", parts.len());
    assert_eq!(numbers(&parts), (0..250).collect::<Vec<_>>());
    assert!(parts.iter().map(|part| part.sequence).eq(0..parts.len() as u64));
    for two in parts.windows(2) {
        assert_eq!(two[0].watermark, two[1].events[0].time(), "what comes next is not below it");
    }
    assert_eq!(parts.last().unwrap().watermark, MonotonicNs(2_500));
    assert_eq!(gathered.records.iter().map(|record| record.events).sum::<u64>(), 250);
}

#[test]
fn an_event_that_no_record_can_hold_is_counted_and_the_others_go() {
    let mut long = batch(0..3, 10);
    let LayerEvent::Device(device) = &mut long.events[1] else { panic!("a device") };
    device.name = "y".repeat(5_000).into();
    let mut gatherer = EventBatcher::new(SMALL, 0);
    assert_eq!(gatherer.add(long, Instant::now()), BatchedRecords::default());
    let gathered = gatherer.take();
    assert_eq!((gathered.oversize, numbers(&decoded(&gathered))), (1, vec![0, 2]));
}

/// What a drain every 20 ms makes of a burst and of the silence behind it: the times at which records go, in ms.
#[test]
fn a_silent_source_says_how_far_it_is_as_fast_as_before_and_then_only_that_it_lives() {
    const MS: u64 = 1_000_000;
    let (start, mut gatherer) = (Instant::now(), EventBatcher::new(BatcherConfig::default(), 0));
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut gone = Vec::new();
    for ms in (0..10_000).step_by(20) {
        let mut batch = batch(0..0, 1);
        // Events until 1 s, and one at 5 s. A drain is complete up to the one before it.
        let burst = (ms < 1_000 || ms == 5_000).then(|| {
            LayerEvent::Device(DeviceEvent {
                time: MonotonicNs(ms * MS),
                device: DeviceId { major: 7, minor: 1 },
                name: "x".into(),
                partition_of: None,
            })
        });
        batch.events.extend(burst);
        batch.watermark = MonotonicNs(ms.saturating_sub(20) * MS);
        let records = decoded(&gatherer.add(batch, at(ms)));
        gone.extend(records.iter().map(|record| (ms, record.events.len(), record.watermark.0 / MS)));
    }
    let within = |from, to| gone.iter().filter(move |(ms, ..)| (from..to).contains(ms)).collect::<Vec<_>>();
    assert!(within(0, 1_000).windows(2).all(|two| two[1].0 - two[0].0 == 80), "{gone:?}");
    // The pace goes on until whatever waits for 250 ms of event time is decided.
    assert!(within(1_000, 1_300).windows(2).all(|two| two[1].0 - two[0].0 == 80), "{gone:?}");
    let decided = gone.iter().find(|(.., watermark)| *watermark >= 980 + 250).unwrap();
    assert!(decided.0 <= 980 + 250 + 20 + 80, "{decided:?}");
    let idle = within(decided.0, 5_000);
    assert!(
        (3..=4).contains(&(idle.len() - 1)) && idle.iter().all(|(_, events, _)| *events == 0),
        "{idle:?}"
    );
    assert!(
        gone.iter().any(|(ms, events, _)| (*ms, *events) == (5_000, 1)),
        "what comes after a pause goes at once"
    );
    assert_eq!(gone.iter().map(|(_, events, _)| events).sum::<usize>(), 51);
}
