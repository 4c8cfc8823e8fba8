//! Tests of the flight recorder: what leaves, what is overwritten, and the promises of the batches.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blkkin_wire::clock::ClockAnchor;
use blkkin_wire::event::{FileEvent, SyscallEvent, TaskChange, TaskEvent, TaskRef};
use blkkin_wire::ids::{BootId, DeviceId, FileId, NameId, NodeId, Source, SpanId, StartEpoch, TaskId};
use blkkin_wire::syscalls::SyscallId;
use proptest::prelude::*;

use super::*;

/// Memory of the property's recorder: some 2,000 calls.
const BYTES: u64 = 64 << 10;
const SOURCE: Source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };

fn task(id: u64) -> TaskRef {
    TaskRef { id: TaskId(id), version: 1 }
}

fn file(ino: u64) -> FileId {
    FileId { device: DeviceId { major: 8, minor: 0 }, ino, generation: 1, name: NameId::NONE }
}

/// Call number `number`, which ends at that many ms.
fn call(number: u64) -> LayerEvent {
    let end = MonotonicNs(number * 1_000_000);
    let name = SyscallId::by_name("fsync").unwrap();
    LayerEvent::Syscall(SyscallEvent::bare(SpanId(number + 1), task(1), name, end, end))
}

fn batch(events: Vec<LayerEvent>, watermark: u64) -> EventBatch {
    EventBatch {
        source: SOURCE,
        sequence: 0,
        anchor: ClockAnchor::NONE,
        events,
        watermark: MonotonicNs(watermark),
        stats: SourceStats::default(),
        crashed_runs: Vec::new(),
    }
}

fn recorder(window: u64, bytes_max: u64, interval: u64) -> FlightRecorder {
    let window = Duration::from_secs(window);
    let settings = FlightSettings { window, bytes_max, triggers: Triggers::default() };
    FlightRecorder::new(settings, Arc::new(DumpControl::new(Duration::from_secs(interval))))
}

/// Returns the numbers of the calls, in order.
fn calls(batches: &[EventBatch]) -> Vec<u64> {
    let events = batches.iter().flat_map(|batch| &batch.events);
    let calls = events.filter(|event| matches!(event, LayerEvent::Syscall(_)));
    calls.map(|event| event.time().0 / 1_000_000).collect()
}

fn take_all(recorder: &mut FlightRecorder, now: Instant) -> Vec<EventBatch> {
    let mut taken = Vec::new();
    while recorder.has_due() {
        taken.extend(recorder.take_due(now));
    }
    taken
}

#[test]
fn a_dump_has_all_of_the_window_after_the_names_of_what_was_overwritten() {
    let (mut recorder, start) = (recorder(10, 1 << 30, 60), Instant::now());
    let first = FileEvent::bare(file(7), MonotonicNs(1), "/data/seven");
    recorder.add(batch(vec![LayerEvent::File(first.clone())], 1), start);
    for number in 1..=600 {
        let at = start + Duration::from_millis(100 * number);
        recorder.add(batch(vec![call(100 * number)], 100 * number * 1_000_000), at);
    }
    let now = start + Duration::from_secs(60);
    assert!(!recorder.has_due());
    let held = recorder.control().request(DumpCause::Request, now).unwrap();
    assert_eq!((held.held_events, held.overwritten, held.held_for), (101, 499, Duration::from_secs(10)));
    let taken = take_all(&mut recorder, now);
    assert_eq!(taken[0].events, [LayerEvent::File(first)]);
    assert_eq!(calls(&taken), (500..=600).map(|number| 100 * number).collect::<Vec<_>>());
    assert!(taken.iter().all(|batch| batch.stats.events_overwritten == 499));
    // What arrives in the next two seconds follows, and no more.
    for number in 601..=640 {
        let at = start + Duration::from_millis(100 * number);
        recorder.add(batch(vec![call(100 * number)], 100 * number * 1_000_000), at);
        let after = calls(&take_all(&mut recorder, at));
        assert_eq!(after, if number <= 620 { vec![100 * number] } else { Vec::new() });
        recorder.take_due(at);
    }
}

#[test]
fn a_second_dump_begins_where_the_first_ended() {
    let (mut recorder, start) = (recorder(10, 1 << 30, 5), Instant::now());
    let mut taken = Vec::new();
    for number in 1..=300 {
        let at = start + Duration::from_millis(100 * number);
        recorder.add(batch(vec![call(100 * number)], 100 * number * 1_000_000), at);
        if number == 100 || number == 170 {
            recorder.control().request(DumpCause::Signal, at).unwrap();
        }
        taken.extend(take_all(&mut recorder, at));
        taken.extend(recorder.take_due(at));
    }
    assert_eq!(calls(&taken), (1..=190).map(|number| 100 * number).collect::<Vec<_>>());
    assert_eq!(recorder.stats(start).overwritten, 9, "those that ended between 19.0 and 20.0 s");
}

#[test]
fn requests_that_come_too_soon_are_refused_and_counted() {
    let (control, start) = (DumpControl::new(Duration::from_secs(60)), Instant::now());
    control.request(DumpCause::Latency, start).unwrap();
    assert_eq!(control.take_request(), Some(DumpCause::Latency));
    let soon = control.request(DumpCause::Signal, start + Duration::from_secs(20));
    assert_eq!(soon.unwrap_err(), TooSoon { wait: Duration::from_secs(40) });
    assert!(!control.is_requested());
    control.request(DumpCause::Error, start + Duration::from_secs(60)).unwrap();
    let refused = control.metric_families().into_iter().find(|family| family.name == "flight_dumps_refused");
    assert_eq!(refused.unwrap().samples[0].1, crate::service::Sample::Number(1.0));
}

#[test]
fn the_latest_name_stays_until_its_task_ends() {
    let named = |id, at, comm| TaskEvent::bare(task(id), MonotonicNs(at), comm);
    let mut names = NameStore::default();
    let ended = TaskEvent { change: TaskChange::Exited, ..named(1, 40, "one") };
    for event in [named(1, 10, "one"), named(2, 20, "sh"), named(2, 30, "two"), ended] {
        let (key, event) = NameKey::with_event(&LayerEvent::Task(event)).unwrap();
        names.add(key, event);
    }
    assert_eq!(names.all(), [LayerEvent::Task(named(2, 30, "two"))]);
    for ino in 0..150_000 {
        let event = LayerEvent::File(FileEvent::bare(file(ino), MonotonicNs(50 + ino), "/f"));
        let (key, event) = NameKey::with_event(&event).unwrap();
        names.add(key, event);
    }
    assert_eq!(names.all().len() as u64 + names.forgotten(), 150_001);
    assert_eq!(names.all().len(), 131_072);
}

/// Step of the sender.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A batch of this many calls arrives.
    Add(u64),
    /// The sender asks for a batch.
    Take,
    Request,
    /// Time passes.
    Wait(u64),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u64..200).prop_map(Step::Add),
        4 => Just(Step::Take),
        1 => Just(Step::Request),
        2 => (1u64..3_000).prop_map(Step::Wait),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn each_event_leaves_once_in_order_or_is_counted(steps in prop::collection::vec(step(), 1..200)) {
        let (mut recorder, mut now) = (recorder(5, BYTES, 3), Instant::now());
        let (mut added, mut taken) = (0, Vec::<EventBatch>::new());
        for step in steps {
            match step {
                Step::Add(count) => {
                    let events: Vec<_> = (added..added + count).map(call).collect();
                    added += count;
                    // The next call ends at this time.
                    recorder.add(batch(events, added * 1_000_000), now);
                }
                Step::Take => taken.extend(recorder.take_due(now)),
                Step::Request => drop(recorder.control().request(DumpCause::Request, now)),
                Step::Wait(ms) => now += Duration::from_millis(ms),
            }
            let stats = recorder.stats(now);
            prop_assert!(stats.held_bytes <= BYTES);
            prop_assert_eq!(stats.dumped + stats.overwritten + stats.held_events, added);
        }
        let left = calls(&taken);
        prop_assert!(left.is_sorted_by(|one, next| one < next), "{:?}", left);
        prop_assert_eq!(left.len() as u64, recorder.stats(now).dumped);
        while let Some(batch) = recorder.take_at_end(now) {
            taken.push(batch);
        }
        // A watermark promises that no earlier event follows.
        let mut watermark = MonotonicNs(0);
        for batch in &taken {
            prop_assert!(batch.events.iter().all(|event| event.time() >= watermark));
            prop_assert!(batch.watermark >= watermark);
            watermark = batch.watermark;
        }
        if let Some(last) = taken.last() {
            prop_assert_eq!(calls(&taken).len() as u64 + last.stats.events_overwritten, added);
        }
    }
}

#[test]
fn a_dump_that_began_is_completed_at_the_end() {
    let (mut recorder, start) = (recorder(10, 1 << 30, 60), Instant::now());
    for number in 1..=3 {
        recorder.add(batch(vec![call(number)], number * 1_000_000), start);
    }
    recorder.control().request(DumpCause::Signal, start).unwrap();
    let mut taken = Vec::new();
    while let Some(batch) = recorder.take_at_end(start) {
        taken.push(batch);
    }
    assert_eq!(calls(&taken), [1, 2, 3]);
    assert_eq!(taken.last().unwrap().watermark, MonotonicNs(3_000_000));
}
