//! Tests of the flight recorder: what leaves, what is overwritten, and the promises of the batches.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use blkkin_wire::clock::ClockAnchor;
use blkkin_wire::event::{DeviceEvent, FileEvent, LayerEvent, SyscallEvent, TaskChange, TaskEvent, TaskRef};
use blkkin_wire::ids::{
    BootId, DeviceId, FileId, NameId, NodeId, Pid, Source, SpanId, StartEpoch, TaskId, Tid,
};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::syscalls::SyscallId;
use proptest::prelude::*;

use super::*;

const SECOND: u64 = 1_000_000_000;
/// Most bytes of one of its batches.
const BATCH_BYTES: u64 = 16 << 10;
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
    // A client of the endpoint does not use up the triggers' dumps, and they not its.
    control.request(DumpCause::Request, start + Duration::from_secs(10)).unwrap();
    assert_eq!(control.take_request(), Some(DumpCause::Request));
    let soon = control.request(DumpCause::Signal, start + Duration::from_secs(20));
    assert_eq!(soon.unwrap_err(), TooSoon { wait: Duration::from_secs(40) });
    assert!(!control.is_requested());
    control.request(DumpCause::Error, start + Duration::from_secs(60)).unwrap();
    let refused = control.metric_families().into_iter().find(|family| family.name == "flight_dumps_refused");
    assert_eq!(refused.unwrap().samples[0].1, crate::service::Sample::Number(1.0));
}

/// Adds the names as those of overwritten batches.
fn overwrite(names: &mut NameStore, events: impl IntoIterator<Item = LayerEvent>) {
    events.into_iter().for_each(|event| names.add(event, false));
}

fn named(id: u64, seconds: u64, change: TaskChange) -> LayerEvent {
    let event = TaskEvent::bare(task(id), MonotonicNs(seconds * SECOND), "sh");
    LayerEvent::Task(TaskEvent { change, tid: Tid(id as u32), pid: Pid(id as u32), ..event })
}

#[test]
fn an_ended_task_keeps_its_name_while_its_data_may_be_written_back() {
    let mut names = NameStore::default();
    let (first, end) = (named(1, 10, TaskChange::Discovered), named(1, 40, TaskChange::Exited));
    overwrite(&mut names, [first.clone(), end.clone(), named(2, 100, TaskChange::Discovered)]);
    assert_eq!(names.take_for_dump(), [first, end, named(2, 100, TaskChange::Discovered)]);
    let late = named(3, 200, TaskChange::Discovered);
    overwrite(&mut names, [late.clone()]);
    assert_eq!(names.take_for_dump(), [named(2, 100, TaskChange::Discovered), late]);
}

#[test]
fn a_task_that_a_dump_named_gets_its_end_with_a_later_one() {
    let mut names = NameStore::default();
    overwrite(&mut names, [named(1, 10, TaskChange::Discovered)]);
    assert_eq!(names.take_for_dump().len(), 1);
    names.add(named(2, 20, TaskChange::Discovered), true);
    let ends = [named(1, 30, TaskChange::Exited), named(2, 40, TaskChange::Exited)];
    overwrite(&mut names, ends.clone());
    let late = named(3, 500, TaskChange::Discovered);
    overwrite(&mut names, [late.clone()]);
    assert_eq!(names.take_for_dump(), [&ends[..], std::slice::from_ref(&late)].concat());
    assert_eq!(names.take_for_dump(), [late]);
}

#[test]
fn another_program_loses_the_context_of_its_process() {
    let context = |pid, seconds| {
        let (time, pid) = (MonotonicNs(seconds * SECOND), Pid(pid));
        let (attributes, thread_keys) = Default::default();
        LayerEvent::ProcessContext(
            ProcessContextEvent { time, pid, attributes, dropped_attributes_count: 0, thread_keys }.into(),
        )
    };
    let mut names = NameStore::default();
    let version = |seconds, version, change| {
        let LayerEvent::Task(event) = named(1, seconds, change) else { unreachable!() };
        LayerEvent::Task(TaskEvent { task: TaskRef { id: TaskId(1), version }, ..event })
    };
    let executed = version(40, 2, TaskChange::Execed);
    let changed = version(50, 3, TaskChange::Changed);
    overwrite(
        &mut names,
        [version(10, 1, TaskChange::Discovered), context(1, 20), executed.clone(), changed.clone()],
    );
    // The consumer drops the old program's context by this event, also when its version has expired.
    overwrite(&mut names, [named(2, 400, TaskChange::Discovered), context(2, 410)]);
    let all = names.take_for_dump();
    assert_eq!(all, [executed, changed, named(2, 400, TaskChange::Discovered), context(2, 410)]);
    overwrite(&mut names, [named(2, 420, TaskChange::Exited)]);
    assert!(!names.take_for_dump().contains(&context(2, 410)));
}

#[test]
fn many_files_displace_neither_devices_nor_tasks() {
    let device = DeviceEvent {
        time: MonotonicNs(1),
        device: file(1).device,
        name: "sda".into(),
        partition_of: None,
        disk: None,
    };
    let mut names = NameStore::default();
    overwrite(&mut names, [LayerEvent::Device(device.clone()), named(1, 10, TaskChange::Discovered)]);
    let files = (0..100_000).map(|ino| FileEvent::bare(file(ino), MonotonicNs(50 * SECOND + ino), "/f"));
    overwrite(&mut names, files.map(LayerEvent::File));
    let all = names.take_for_dump();
    assert_eq!(all[..2], [LayerEvent::Device(device), named(1, 10, TaskChange::Discovered)]);
    assert_eq!((all.len() - 2) as u64 + names.forgotten(), 100_000);
    assert!(names.forgotten() > 0);
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
        // Last call of the current dump.
        let mut last = None;
        for step in steps {
            match step {
                Step::Add(count) if recorder.has_room() => {
                    let name = FileEvent::bare(file(added % 7), MonotonicNs(added * 1_000_000), "/f");
                    let events = [LayerEvent::File(name)].into_iter().chain((added..added + count).map(call));
                    added += count;
                    // The next call ends at this time.
                    recorder.add(batch(events.collect(), added * 1_000_000), now);
                }
                Step::Add(_) if recorder.has_due() => {}
                // The dump is over, and only the next look at it ends it.
                Step::Add(_) => {
                    prop_assert_eq!(recorder.take_due(now), None);
                    prop_assert!(recorder.has_room());
                    last = None;
                }
                Step::Take => {
                    let was_sent = recorder.dump.is_some();
                    let batch = recorder.take_due(now);
                    last = last.filter(|_| was_sent);
                    for number in calls(batch.as_slice()) {
                        prop_assert!(last.is_none_or(|last| number == last + 1), "{last:?}, {number}");
                        last = Some(number);
                    }
                    taken.extend(batch);
                }
                Step::Request => {
                    let _ = recorder.control().request(DumpCause::Request, now);
                }
                Step::Wait(ms) => now += Duration::from_millis(ms),
            }
            let stats = recorder.stats(now);
            prop_assert!(stats.held_bytes <= BYTES + BATCH_BYTES, "{stats:?}");
            let held: usize = recorder.held.iter().map(|held| held.bytes.len() + held.names.len()).sum();
            prop_assert_eq!(stats.held_bytes, held as u64);
            prop_assert_eq!(stats.dumped + stats.overwritten + stats.held_events, added);
        }
        let left = calls(&taken);
        prop_assert!(left.is_sorted_by(|one, next| one < next), "{:?}", left);
        prop_assert_eq!(left.len() as u64, recorder.stats(now).dumped);
        let had_batches = recorder.latest.is_some();
        while let Some(batch) = recorder.take_at_end(now) {
            taken.push(batch);
        }
        // A request that comes too late finds nothing.
        let _ = recorder.control().request(DumpCause::Signal, now);
        prop_assert_eq!(recorder.take_at_end(now), None);
        // A watermark promises that no earlier event but a name follows.
        let mut watermark = MonotonicNs(0);
        for batch in &taken {
            let mut operations = batch.events.iter().filter(|event| !event.is_name());
            prop_assert!(operations.all(|event| event.time() >= watermark));
            prop_assert!(batch.watermark >= watermark);
            watermark = batch.watermark;
        }
        if had_batches {
            let stats = &taken.last().unwrap().stats;
            prop_assert_eq!(calls(&taken).len() as u64 + stats.events_overwritten, added);
            prop_assert_eq!(watermark, MonotonicNs(added * 1_000_000), "the closing one");
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
