use std::time::{Duration, Instant};

use blkkin_wire::batch::{EventBatch, SourceStats};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{DeviceEvent, LayerEvent};
use blkkin_wire::ids::{BootId, DeviceId, NodeId, Source, StartEpoch};
use blkkin_wire::v1;

use super::*;

/// Returns a batch of events numbered `numbers`, each with a name of `name` bytes.
fn batch(numbers: std::ops::Range<u64>, name: usize) -> EventBatch {
    let event = |n: u64| {
        LayerEvent::Device(DeviceEvent {
            time: MonotonicNs(n * 10),
            device: DeviceId { major: 7, minor: n as u32 },
            // Compression does not matter: the limit is on the bytes before compression.
            name: "x".repeat(name).into(),
            partition_of: None,
            disk: None,
        })
    };
    EventBatch {
        source: Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) },
        sequence: 77,
        watermark: MonotonicNs(numbers.end * 10),
        events: numbers.map(event).collect(),
        stats: SourceStats { calls_entered: name as u64, ..SourceStats::default() },
        ..EventBatch::tick()
    }
}

fn decoded(records: &BatchedRecords) -> Vec<EventBatch> {
    records.records.iter().map(|record| v1::decode(&record.bytes).unwrap().batch).collect()
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
fn small_batches_become_one_record_when_it_is_full_or_old() {
    let (mut batcher, start) = (EventBatcher::new(SMALL, 5), Instant::now());
    assert_eq!(batcher.add(batch(0..40, 1), start), BatchedRecords::default());
    assert_eq!(batcher.due_in(start + Duration::from_millis(20)), Duration::from_millis(30));
    assert_eq!(batcher.due(start + Duration::from_millis(49)), BatchedRecords::default());
    let aged = decoded(&batcher.due(start + Duration::from_millis(50)));
    assert_eq!((aged.len(), aged[0].sequence, numbers(&aged)), (1, 5, (0..40).collect()));
    assert_eq!(batcher.add(batch(40..90, 2), start), BatchedRecords::default());
    let full = decoded(&batcher.add(batch(90..140, 3), start));
    assert_eq!((full.len(), full[0].sequence, numbers(&full)), (1, 6, (40..140).collect()));
    assert_eq!(
        (full[0].watermark, full[0].stats.calls_entered),
        (MonotonicNs(1_400), 3),
        "the later batch has the totals"
    );
    assert_eq!(batcher.take(), BatchedRecords::default());
}

#[test]
fn a_long_batch_is_split_and_each_part_has_its_own_watermark() {
    let (mut batcher, now) = (EventBatcher::new(SMALL, 0), Instant::now());
    let records = batcher.add(batch(0..250, 60), now);
    assert!(records.records.iter().all(|record| record.bytes.len() <= SMALL.bytes_max));
    let parts = decoded(&records);
    assert!(parts.len() >= 4, "{}", parts.len());
    assert_eq!(numbers(&parts), (0..250).collect::<Vec<_>>());
    assert!(parts.iter().map(|part| part.sequence).eq(0..parts.len() as u64));
    for two in parts.windows(2) {
        assert_eq!(
            two[0].watermark,
            two[1].events[0].time(),
            "the next part has no event below the watermark"
        );
    }
    assert_eq!(parts.last().unwrap().watermark, MonotonicNs(2_500));
    assert_eq!(records.records.iter().map(|record| record.events).sum::<u64>(), 250);
}

#[test]
fn an_oversize_event_is_counted_and_the_others_are_sent() {
    let mut long = batch(0..3, 10);
    let LayerEvent::Device(device) = &mut long.events[1] else { panic!("a device") };
    device.name = "y".repeat(5_000).into();
    let mut batcher = EventBatcher::new(SMALL, 0);
    assert_eq!(batcher.add(long, Instant::now()), BatchedRecords::default());
    let records = batcher.take();
    assert_eq!((records.oversize, numbers(&decoded(&records))), (1, vec![0, 2]));
}

/// Adds a batch every 20 ms, of a burst of events and of the idle time after it, and checks the
/// times in ms at which records are sent.
#[test]
fn an_idle_source_sends_watermarks_at_full_pace_until_settled_and_then_one_a_second() {
    const MS: u64 = 1_000_000;
    let (start, mut batcher) = (Instant::now(), EventBatcher::new(BatcherConfig::default(), 0));
    let at = |ms: u64| start + Duration::from_millis(ms);
    let mut sent = Vec::new();
    for ms in (0..10_000).step_by(20) {
        let mut batch = batch(0..0, 1);
        // Events until 1 s, and one at 5 s. A drain's watermark is the time of the drain before it.
        let burst = (ms < 1_000 || ms == 5_000).then(|| {
            LayerEvent::Device(DeviceEvent {
                time: MonotonicNs(ms * MS),
                device: DeviceId { major: 7, minor: 1 },
                name: "x".into(),
                partition_of: None,
                disk: None,
            })
        });
        batch.events.extend(burst);
        batch.watermark = MonotonicNs(ms.saturating_sub(20) * MS);
        let records = decoded(&batcher.add(batch, at(ms)));
        sent.extend(records.iter().map(|record| (ms, record.events.len(), record.watermark.0 / MS)));
    }
    let within = |from, to| sent.iter().filter(move |(ms, ..)| (from..to).contains(ms)).collect::<Vec<_>>();
    assert!(within(0, 1_000).windows(2).all(|two| two[1].0 - two[0].0 == 80), "{sent:?}");
    // The pace stays until the watermark has advanced by 250 ms of event time (SETTLE).
    assert!(within(1_000, 1_300).windows(2).all(|two| two[1].0 - two[0].0 == 80), "{sent:?}");
    let decided = sent.iter().find(|(.., watermark)| *watermark >= 980 + 250).unwrap();
    assert!(decided.0 <= 980 + 250 + 20 + 80, "{decided:?}");
    let idle = within(decided.0, 5_000);
    assert!(
        (3..=4).contains(&(idle.len() - 1)) && idle.iter().all(|(_, events, _)| *events == 0),
        "{idle:?}"
    );
    assert!(
        sent.iter().any(|(ms, events, _)| (*ms, *events) == (5_000, 1)),
        "the first event after a pause is sent at once"
    );
    assert_eq!(sent.iter().map(|(_, events, _)| events).sum::<usize>(), 51);
}
