//! Writers of a range against a page cache that remembers them, and the wait for open calls.

use std::collections::{BTreeMap, BTreeSet};

use blkkin_probe_abi::record::{
    self as raw, BioPagesRecord, Header, PAGES_FILE, PAGES_NOT_CONSECUTIVE, PAGES_PART, PAGES_WRITTEN,
};
use blkkin_wire::async_io::{AsyncIoEvent, AsyncIoOutcome};
use blkkin_wire::cause::{self, Cause};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{
    BioEvent, BlockStatus, LayerEvent, OpenFile, PairEvent, Submitter, SyscallEvent, SyscallOutcome, TaskRef,
};
use blkkin_wire::ids::{DeviceId, Fd, FileId, NameId, SpanId, TaskId};
use blkkin_wire::page_origin::{PageOriginEvent, Unattributed, WriterEvidence};
use blkkin_wire::syscalls::SyscallId;
use proptest::prelude::*;

use super::PageOrigins;
use crate::stats::device_bytes::{DeviceByteCounters, DeviceBytesHandle};

const INO: u64 = 7;
/// Behind the wait for the records of operations that began before a bio's end.
const LATER: u64 = super::END_WAIT + 10_000;

fn file() -> FileId {
    FileId { device: DeviceId::from_kernel(0x80_0001), ino: INO, generation: 1, name: NameId::NONE }
}

fn write(span: u64, times: [u64; 2], offset: u64, bytes: u64) -> LayerEvent {
    let task = TaskRef { id: TaskId(span), version: 0 };
    let call = SyscallId::by_name("pwrite64").unwrap();
    let [enter, exit] = times.map(MonotonicNs);
    // Each call has the file by another of its names.
    let named = FileId { name: NameId(span), ..file() };
    let open = OpenFile { fd: Fd(3), file: named, position_before: None, position_after: None };
    LayerEvent::Syscall(SyscallEvent {
        args: [3, 0, bytes, offset, 0, 0],
        outcome: SyscallOutcome::Returned(bytes as i64),
        file: Some(open),
        writes_page_cache: true,
        ..SyscallEvent::bare(SpanId(span), task, call, enter, exit)
    })
}

fn truncate(span: u64, time: u64, length: u64) -> LayerEvent {
    let LayerEvent::Syscall(call) = write(span, [time, time], 0, 0) else { unreachable!() };
    let name = SyscallId::by_name("ftruncate").unwrap();
    LayerEvent::Syscall(SyscallEvent { call: name, args: [3, length, 0, 0, 0, 0], ..call })
}

fn bio(span: u64, time: u64, offset: u64, bytes: u32, open_writes: u32) -> BioPagesRecord {
    let header = Header { tag: raw::TAG_BIO_PAGES, flags: PAGES_WRITTEN, time_ns: time, ..Header::default() };
    let file = raw::FileId { dev: 0x80_0001, generation: 1, ino: INO, name: 0 };
    BioPagesRecord {
        header,
        span,
        root: span,
        file,
        offset,
        bytes,
        open_writes,
        kind: PAGES_FILE,
        ..Default::default()
    }
}

/// The end of a bio.
fn end(span: u64, time: u64) -> LayerEvent {
    let ids = [span, span, span + 1_000_000].map(SpanId);
    let task = TaskRef { id: TaskId(1), version: 0 };
    let mut pair = PairEvent::bare(ids, task, file().device, [MonotonicNs(time); 2]);
    pair.bio.has_page_origin = true;
    LayerEvent::Pair(pair)
}

/// Processes events and records as one batch. Each bio ends 1 ns after it was queued.
fn process(
    origins: &mut PageOrigins,
    mut events: Vec<LayerEvent>,
    records: &[BioPagesRecord],
    watermark: u64,
) -> Vec<PageOriginEvent> {
    records.iter().for_each(|record| origins.on_record(record));
    events.extend(records.iter().map(|record| end(record.span, record.header.time_ns + 1)));
    events.sort_by_key(LayerEvent::time);
    origins.process(&mut events, MonotonicNs(watermark));
    let origin = |event| match event {
        LayerEvent::PageOrigin(origin) => Some(*origin),
        _ => None,
    };
    events.into_iter().filter_map(origin).collect()
}

fn spans(event: &PageOriginEvent) -> Vec<u64> {
    event.writers.iter().map(|writer| writer.span.0).collect()
}

fn new() -> PageOrigins {
    PageOrigins::new(MonotonicNs(0))
}

#[test]
fn every_writer_of_the_range_is_named_and_no_other() {
    let events = vec![
        write(1, [10, 11], 0, 4_096),
        write(2, [20, 21], 4_096, 8_192),
        write(3, [30, 31], 1 << 20, 4_096),
        write(4, [40, 41], 100, 50),
    ];
    let found = process(&mut new(), events, &[bio(9, 100, 0, 12_288, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1, 2, 4]]);
    assert_eq!(found[0].writers.iter().map(|w| w.bytes).collect::<Vec<_>>(), [4_096, 8_192, 50]);
    assert_eq!((found[0].bytes_unattributed, found[0].unattributed), (0, None));
    assert!(found[0].writers.iter().all(|writer| writer.evidence == WriterEvidence::EndedBefore));
}

#[test]
fn a_bio_of_a_loop_device_is_a_writer_of_its_file_under_its_root() {
    let mut origins = new();
    let of_loop = |span, time, offset| {
        let bio = bio(span, time, offset, 4_096, 0);
        BioPagesRecord { kind: raw::PAGES_OF_LOOP, root: span + 500, ..bio }
    };
    // The third one ends after the lower bio was queued, the fourth one is behind it.
    let records = [
        of_loop(1, 10, 0),
        of_loop(2, 20, 4_096),
        of_loop(3, 100, 8_192),
        of_loop(4, 30, 12_288),
        bio(9, 100, 0, 12_288, 0),
    ];
    let found = process(&mut origins, vec![write(5, [11, 12], 0, 100)], &records, LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[501, 5, 502, 503]]);
    let evidence: Vec<_> = found[0].writers.iter().map(|writer| writer.evidence).collect();
    assert_eq!(
        evidence,
        [
            WriterEvidence::LoopDevice,
            WriterEvidence::EndedBefore,
            WriterEvidence::LoopDevice,
            WriterEvidence::UnderWay
        ]
    );
    assert_eq!(found[0].bytes_unattributed, 0);
    let found = process(&mut origins, vec![], &[bio(10, LATER + 200, 12_288, 4_096, 0)], 3 * LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[504]]);
}

/// The kernel may have cut the file before the write, though the truncation returned after it.
#[test]
fn a_write_during_a_truncation_stays_a_writer() {
    let LayerEvent::Syscall(mut truncation) = truncate(3, 60, 4_096) else { unreachable!() };
    truncation.enter = MonotonicNs(20);
    let events = vec![
        write(1, [10, 15], 8_192, 4_096),
        write(2, [30, 40], 8_192, 4_096),
        LayerEvent::Syscall(truncation),
    ];
    let found = process(&mut new(), events, &[bio(9, 100, 8_192, 4_096, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[2]]);
}

/// The record of a bio that writes 4 KiB of a loop device's file, under the root `span + 500`.
fn loop_bio(span: u64, time: u64, offset: u64) -> BioPagesRecord {
    let bio = bio(span, time, offset, 4_096, 0);
    BioPagesRecord { kind: raw::PAGES_OF_LOOP, root: span + 500, ..bio }
}

/// The end of a loop device's bio, changed.
fn loop_end(span: u64, time: u64, change: impl FnOnce(&mut BioEvent)) -> LayerEvent {
    let LayerEvent::Pair(mut pair) = end(span, time) else { unreachable!() };
    pair.bio.has_page_origin = false;
    change(&mut pair.bio);
    LayerEvent::Bio(pair.bio)
}

/// Processes without the end of each bio.
fn process_as_given(
    origins: &mut PageOrigins,
    mut events: Vec<LayerEvent>,
    records: &[BioPagesRecord],
    watermark: u64,
) -> Vec<Vec<u64>> {
    records.iter().for_each(|record| origins.on_record(record));
    events.sort_by_key(LayerEvent::time);
    origins.process(&mut events, MonotonicNs(watermark));
    let origin = |event| if let LayerEvent::PageOrigin(origin) = event { Some(spans(&origin)) } else { None };
    events.into_iter().filter_map(origin).collect()
}

#[test]
fn a_loop_devices_bio_that_failed_or_discarded_is_no_writer() {
    let discard = |span, time| {
        let mut record = loop_bio(span, time, 4_096);
        record.header.flags = 0;
        record
    };
    // The fifth one ends while the discard is in flight.
    let records = [
        loop_bio(1, 10, 0),
        loop_bio(2, 20, 4_096),
        loop_bio(3, 30, 8_192),
        discard(4, 40),
        loop_bio(5, 35, 4_096),
    ];
    let events = vec![
        loop_end(1, 11, |bio| bio.status = BlockStatus(10)),
        loop_end(2, 21, |_| {}),
        loop_end(3, 31, |_| {}),
        loop_end(5, 45, |_| {}),
        loop_end(4, 50, |_| {}),
        end(9, 101),
    ];
    let mut origins = new();
    let found =
        process_as_given(&mut origins, events, &[&records[..], &[bio(9, 100, 0, 12_288, 0)]].concat(), LATER);
    assert_eq!(found, [[503, 505]]);
}

#[test]
fn data_without_a_writer_are_of_other_programs_where_a_filter_excludes_writers() {
    for (whole_machine, cause) in [(true, Cause::Unknown), (false, Cause::OtherPrograms)] {
        let mut origins = new();
        origins.set_whole_machine(whole_machine);
        process_as_given(&mut origins, vec![end(9, 101)], &[bio(9, 100, 0, 4_096, 0)], LATER);
        let handle = DeviceBytesHandle::default();
        handle.set([&origins.device_bytes, &DeviceByteCounters::default()]);
        assert_eq!(handle.get()[0].by_cause, cause::one(cause, 4_096));
    }
}

#[test]
fn write_back_to_a_loop_device_counts_with_data_of_traced_tasks_only() {
    let run = |whole_machine| {
        let mut origins = new();
        origins.set_whole_machine(whole_machine);
        // The device's file is another one than that of the data on it.
        let of_data = |span, time| {
            let mut record = bio(span, time, 0, 4_096, 0);
            record.file.ino = INO + span;
            record
        };
        let mut written = write(5, [1, 2], 0, 100);
        if let LayerEvent::Syscall(call) = &mut written {
            call.file.as_mut().unwrap().file.ino = INO + 1;
        }
        let kernels = |span, time| {
            let LayerEvent::Bio(mut bio) = loop_end(span, time, |bio| bio.submitter = Submitter::Kernel)
            else {
                unreachable!()
            };
            bio.has_page_origin = true;
            LayerEvent::Bio(bio)
        };
        let records = [
            of_data(1, 10),
            loop_bio(1, 10, 0),
            of_data(2, 20),
            loop_bio(2, 20, 4_096),
            bio(9, 100, 0, 8_192, 0),
        ];
        let events = vec![written, kernels(1, 11), kernels(2, 21), end(9, 101)];
        process_as_given(&mut origins, events, &records, LATER).pop().unwrap()
    };
    assert_eq!(run(false), [501]);
    assert_eq!(run(true), [501, 502]);
}

#[test]
fn a_bio_waits_for_those_of_a_loop_device_that_may_have_written_its_pages() {
    let mut origins = new();
    let records = [loop_bio(1, 50, 0), bio(9, 100, 0, 4_096, 0)];
    assert_eq!(process_as_given(&mut origins, vec![end(9, 101)], &records, 3 * LATER), [[0; 0]; 0]);
    let events = vec![loop_end(1, 3 * LATER + 1, |_| {})];
    assert_eq!(process_as_given(&mut origins, events, &[], 3 * LATER + 2), [[501]]);
    // One whose end is never seen is awaited for the maximum.
    let records = [loop_bio(2, 5 * LATER, 0), bio(10, 5 * LATER + 1, 0, 4_096, 0)];
    assert_eq!(
        process_as_given(&mut origins, vec![end(10, 5 * LATER + 2)], &records, 5 * LATER + super::WAIT_MAX),
        [[0; 0]; 0]
    );
    let found = process_as_given(&mut origins, vec![], &[], 5 * LATER + super::WAIT_MAX + 1);
    assert_eq!(found.len(), 1);
}

/// A request of io_uring, which the call `span + 500` submitted.
fn request(span: u64, times: [u64; 2], offset: i64, bytes: i32) -> LayerEvent {
    let task = TaskRef { id: TaskId(span), version: 0 };
    let [start, end] = times.map(MonotonicNs);
    LayerEvent::AsyncIo(AsyncIoEvent {
        opcode: 23,
        file: Some(FileId { name: NameId(span), ..file() }),
        offset: Some(offset),
        outcome: AsyncIoOutcome::Returned(bytes),
        writes_page_cache: true,
        ..AsyncIoEvent::bare(SpanId(span), Some(SpanId(span + 500)), task, [start, end])
    })
}

#[test]
fn a_request_of_io_uring_is_a_writer_under_its_call() {
    let mut origins = new();
    let LayerEvent::AsyncIo(direct) = request(3, [30, 31], 4_096, 4_096) else { unreachable!() };
    let direct = LayerEvent::AsyncIo(AsyncIoEvent { writes_page_cache: false, ..direct });
    let events = vec![request(1, [10, 11], 0, 4_096), direct, request(2, [95, 150], 8_192, 4_096)];
    let records = [bio(9, 100, 0, 12_288, 0)];
    let early = process(&mut origins, events, &records, 200);
    assert_eq!(early, [], "the bio waits for requests that were under way");
    let found = process(&mut origins, vec![], &[], 101 + super::END_WAIT);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[501, 502]]);
    let evidence = found[0].writers.iter().map(|writer| writer.evidence);
    assert!(evidence.eq([WriterEvidence::EndedBefore, WriterEvidence::UnderWay]));
    assert_eq!(
        (found[0].bytes_unattributed, found[0].unattributed),
        (4_096, Some(Unattributed::NotRecorded))
    );
}

#[test]
fn a_written_back_range_is_clean_and_the_rest_stays_dirty() {
    let mut origins = new();
    let events = vec![write(1, [10, 11], 0, 1 << 20)];
    let later = 10_000_000_000;
    let records = [bio(9, 100, 0, 4_096, 0), bio(10, later, 0, 8_192, 0)];
    let found = process(&mut origins, events, &records, later + LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1], [1]]);
    assert_eq!(found[1].bytes_unattributed, 4_096);
    assert_eq!(found[1].unattributed, Some(Unattributed::NotRecorded));
    assert_eq!(origins.ranges.dirty_bytes(), (1 << 20) - 8_192);
}

#[test]
fn a_page_that_was_made_dirty_again_before_its_bio_was_queued_has_its_writer_twice() {
    let events = vec![write(1, [10, 11], 0, 4_096)];
    let found = process(&mut new(), events, &[bio(9, 100, 0, 4_096, 0), bio(10, 5_000, 0, 4_096, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1], [1]]);
}

/// With head sampling a write that is not recorded may have made the page dirty again.
#[test]
fn an_earlier_writer_is_no_second_choice_if_not_all_writes_are_recorded() {
    let mut origins = new();
    origins.set_sampled();
    let events = vec![write(1, [10, 11], 0, 4_096)];
    let found =
        process(&mut origins, events, &[bio(9, 100, 0, 4_096, 0), bio(10, 5_000, 0, 4_096, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [vec![1], vec![]]);
    assert_eq!(found[1].bytes_unattributed, 4_096);
}

/// A bio that is dropped writes the page: no write of before is a writer of the next bio.
#[test]
fn a_bio_that_is_left_out_makes_its_range_clean() {
    let mut origins = new();
    origins.set_sampled();
    let mut left_out = bio(0, 100, 0, 4_096, 0);
    left_out.header.flags |= raw::PAGES_UNSAMPLED;
    // One write ended before, one is under way, and one follows.
    let events =
        vec![write(1, [10, 11], 0, 4_096), write(2, [90, 110], 0, 4_096), write(3, [200, 201], 4_096, 4_096)];
    let found = process(&mut origins, events, &[left_out, bio(10, 5_000, 0, 8_192, 0)], LATER);
    assert_eq!(
        found.iter().map(|origin| (origin.bio, spans(origin))).collect::<Vec<_>>(),
        [(SpanId(10), vec![3])]
    );
    assert_eq!(found[0].bytes_unattributed, 4_096);
}

/// An origin whose bio is deferred waits for the bio's record, and leaves with it or not at all. A write that began after
/// the bio was queued may have come before its end: that is known too late.
#[test]
fn the_origin_of_a_deferred_bio_leaves_with_its_bio() {
    let mut origins = new();
    let deferred = |span: u64, time| {
        let mut record = bio(span, time, 0, 4_096, 0);
        record.header.flags |= raw::PAGES_DEFERRED;
        record
    };
    let events = vec![write(1, [10, 11], 0, 4_096), write(2, [150, 160], 0, 4_096)];
    let nothing: Vec<Vec<u64>> = Vec::new();
    assert_eq!(
        process_as_given(&mut origins, events, &[deferred(9, 100), deferred(10, 300)], 3_000_000_000),
        nothing
    );
    assert_eq!(process_as_given(&mut origins, vec![end(9, 250)], &[], 3_500_000_000), [vec![1]]);
    assert_eq!(
        process_as_given(&mut origins, vec![], &[], 500_000_000_000),
        nothing,
        "the other bio was dropped"
    );
}

/// A write that is read before the record of an earlier bio: that bio does not carry its bytes.
#[test]
fn a_write_that_is_read_early_waits_for_its_time() {
    let mut origins = new();
    let early = vec![write(1, [110, 111], 0, 4_096)];
    assert_eq!(process_as_given(&mut origins, early, &[], 100), Vec::<Vec<u64>>::new());
    let records = [bio(9, 105, 0, 4_096, 0), bio(10, 120, 0, 4_096, 0)];
    let ends = vec![end(9, 106), end(10, 121)];
    assert_eq!(process_as_given(&mut origins, ends, &records, LATER), [vec![], vec![1]]);
}

/// A program may write before the reader begins.
#[test]
fn a_write_of_before_the_reader_is_a_writer() {
    let mut origins = PageOrigins::new(MonotonicNs(1_000));
    let found =
        process(&mut origins, vec![write(1, [10, 11], 0, 4_096)], &[bio(9, 1_100, 0, 4_096, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1]]);
}

/// The record of a write may come after later events: it was deferred, or its CPU stopped before it reached the ring. The
/// kernel may have written its bytes back since.
#[test]
fn a_write_that_comes_late_is_a_writer_if_its_file_was_not_written_back_since() {
    let first_bio = [bio(8, 500, 0, 4_096, 0)];
    for (late, writers) in [([10, 11], vec![]), ([499, 510], vec![]), ([501, 510], vec![1])] {
        let mut origins = new();
        process(&mut origins, vec![], &first_bio, 1_000);
        let found =
            process(&mut origins, vec![write(1, late, 0, 4_096)], &[bio(9, 5_000, 0, 4_096, 0)], LATER);
        assert_eq!(found.last().map(spans), Some(writers), "{late:?}");
    }
    // One that comes later than any that the kernel side delays.
    let mut origins = new();
    let watermark = 500 + super::LATE_MAX + 1;
    process(&mut origins, vec![], &[], watermark);
    let records = [bio(9, watermark + 5_000, 0, 4_096, 0)];
    let found = process(&mut origins, vec![write(1, [500, 510], 0, 4_096)], &records, watermark + LATER);
    assert_eq!(found.last().map(spans), Some(vec![]));
}

#[test]
fn an_earlier_writer_is_no_second_choice_if_a_later_one_covers_the_page() {
    let events = vec![write(1, [10, 11], 0, 4_096), write(2, [200, 201], 0, 4_096)];
    let found = process(&mut new(), events, &[bio(9, 100, 0, 4_096, 0), bio(10, 5_000, 0, 4_096, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1], [2]]);
}

#[test]
fn a_bio_waits_for_the_calls_that_were_open() {
    let mut origins = new();
    let first = vec![write(1, [10, 11], 0, 4_096)];
    assert_eq!(process(&mut origins, first, &[bio(9, 100, 0, 8_192, 1)], 150), []);
    let unrelated = vec![write(2, [120, 121], 0, 4_096)];
    assert_eq!(process(&mut origins, unrelated, &[], 150), []);
    let found = process(&mut origins, vec![write(3, [90, 300], 4_096, 4_096)], &[], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1, 3]]);
    assert_eq!(found[0].writers[1].evidence, WriterEvidence::UnderWay);
    assert_eq!(found[0].bytes_unattributed, 0);
    // The call may have written after the bio. What the next bio carries is not dirty for longer than the
    // kernel takes to queue a bio.
    let seconds = 1_000_000_000;
    let records = [bio(10, 30 * seconds, 4_096, 4_096, 0), bio(11, 40 * seconds, 4_096, 4_096, 0)];
    let found = process(&mut origins, vec![], &records, 50 * seconds);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [vec![3], vec![]]);
}

/// A bio of the time 100 to 200. Writers: of before, within the transfer, from its begin to behind its end,
/// and behind its end.
/// A write of 90 to 300 may be in the bio of the time 100, in the next one, or in both.
#[test]
fn a_write_that_was_under_way_at_a_bio_may_be_in_the_next_one() {
    let mut origins = new();
    let events = vec![write(1, [90, 300], 0, 8_192), write(2, [200, 210], 0, 4_096)];
    let found =
        process(&mut origins, events, &[bio(9, 100, 0, 8_192, 1), bio(10, 5_000, 0, 8_192, 0)], LATER);
    let named: Vec<Vec<_>> = found
        .iter()
        .map(|event| {
            event.writers.iter().map(|writer| (writer.span.0, writer.bytes, writer.evidence)).collect()
        })
        .collect();
    use WriterEvidence::{EndedBefore, UnderWay, UnderWayEarlier};
    let [first, second] = named.as_slice() else { panic!("{named:?}") };
    assert_eq!(*first, [(1, 8_192, UnderWay)]);
    // The second page has no other writer.
    assert_eq!(*second, [(2, 4_096, EndedBefore), (1, 8_192, EndedBefore)]);
    // That bio carried it.
    let next = vec![write(3, [LATER, LATER + 10], 0, 8_192)];
    let found = process(&mut origins, next, &[bio(11, LATER + 20, 0, 8_192, 0)], 2 * LATER + 20);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[3]]);
    // With another writer for each page.
    let mut origins = new();
    let events = vec![write(1, [90, 300], 0, 8_192), write(2, [200, 210], 0, 8_192)];
    let found =
        process(&mut origins, events, &[bio(9, 100, 0, 8_192, 1), bio(10, 5_000, 0, 8_192, 0)], LATER);
    let evidence: Vec<_> = found[1].writers.iter().map(|writer| (writer.span.0, writer.evidence)).collect();
    assert_eq!(evidence, [(2, EndedBefore), (1, UnderWayEarlier)]);
}

#[test]
fn a_write_while_the_device_reads_the_page_is_named_and_stays_dirty() {
    for submitted_by_ring in [false, true] {
        let during = |span: u64, times| {
            if submitted_by_ring {
                request(span - 500, times, 0, 4_096)
            } else {
                write(span, times, 0, 4_096)
            }
        };
        let mut origins = new();
        origins.on_record(&bio(9, 100, 0, 4_096, 0));
        let mut events = vec![
            write(501, [10, 11], 0, 4_096),
            during(502, [110, 120]),
            end(9, 200),
            during(503, [190, 300]),
        ];
        origins.process(&mut events, MonotonicNs(300));
        let found = process(&mut origins, vec![during(504, [201, 400])], &[], LATER);
        assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[501, 502, 503]]);
        let evidence = found[0].writers.iter().map(|writer| writer.evidence);
        let during_transfer = WriterEvidence::DuringTransfer;
        assert!(evidence.eq([WriterEvidence::EndedBefore, during_transfer, during_transfer]));
        let found = process(&mut origins, vec![], &[bio(10, LATER, 0, 4_096, 0)], 2 * LATER);
        assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[502, 503, 504]]);
    }
}

#[test]
fn the_bios_that_wait_behind_their_end_have_a_limit() {
    let mut origins = new();
    let bios: Vec<_> = (1..=1_030).map(|span| bio(span, 100 * span, span << 12, 4_096, 0)).collect();
    let found = process(&mut origins, vec![], &bios, 1_030 * 100 + 50);
    assert_eq!(found.iter().map(|event| event.bio.0).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
}

#[test]
fn a_wait_ends_after_a_time() {
    let mut origins = new();
    assert_eq!(process(&mut origins, vec![], &[bio(9, 100, 0, 4_096, 1)], 1_000_000), []);
    let found = process(&mut origins, vec![], &[], super::WAIT_MAX + 100);
    assert_eq!((spans(&found[0]), found[0].bytes_unattributed), (vec![], 4_096));
}

#[test]
fn a_truncated_range_has_no_writer_but_the_truncation() {
    let events = vec![write(1, [10, 11], 0, 1 << 20), truncate(2, 20, 100), write(3, [30, 31], 4_096, 4_096)];
    let found = process(&mut new(), events, &[bio(9, 100, 0, 8_192, 0)], LATER);
    assert_eq!(found.iter().map(spans).collect::<Vec<_>>(), [[1, 2, 3]]);
    assert_eq!(found[0].writers[0].bytes, 100);
}

#[test]
fn pages_that_are_not_consecutive_have_the_writers_of_their_parts() {
    let mut record = bio(9, 100, 0, 8_192, 0);
    record.header.flags |= PAGES_NOT_CONSECUTIVE;
    let part = |offset| {
        let mut part = bio(9, 100, offset, 4_096, 0);
        part.header.flags = PAGES_PART;
        part
    };
    let events = || {
        vec![write(1, [10, 11], 0, 4_096), write(2, [20, 21], 4_096, 4_096), write(3, [30, 31], 8_192, 4_096)]
    };
    let found = process(&mut new(), events(), &[part(0), part(8_192), record], LATER);
    assert_eq!((found.len(), spans(&found[0]), found[0].bytes_unattributed), (1, vec![1, 3], 0));
    // A part's record was lost.
    let found = process(&mut new(), events(), &[part(0), record], LATER);
    assert_eq!((spans(&found[0]), found[0].bytes_unattributed), (vec![], 8_192));
    assert_eq!(found[0].unattributed, Some(Unattributed::NotConsecutive));
}

#[test]
fn a_read_has_a_file_and_no_writers() {
    let mut record = bio(9, 100, 0, 8_192, 0);
    record.header.flags = 0;
    let found = process(&mut new(), vec![write(1, [10, 11], 0, 8_192)], &[record], LATER);
    assert_eq!((found[0].file, spans(&found[0]), found[0].bytes_unattributed), (Some(file()), vec![], 0));
}

#[derive(Clone, Debug)]
enum Step {
    Write { page: u64, pages: u64 },
    Carry { page: u64, pages: u64 },
    Truncate { pages: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let pages = || (0..40u64, 1..24u64);
    prop_oneof![
        5 => pages().prop_map(|(page, pages)| Step::Write { page, pages }),
        2 => pages().prop_map(|(page, pages)| Step::Carry { page, pages }),
        1 => (0..40u64).prop_map(|pages| Step::Truncate { pages }),
    ]
}

proptest! {
    /// A page cache with the writers of each page since it was last clean. Steps are seconds apart.
    #[test]
    fn writers_are_those_of_a_page_cache(steps in proptest::collection::vec(step(), 1..60)) {
        let mut cache: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        let (mut events, mut records, mut expected) = (Vec::new(), Vec::new(), Vec::new());
        for (step, number) in steps.into_iter().zip(1..) {
            let time = number * 5_000_000_000;
            match step {
                Step::Write { page, pages } => {
                    events.push(write(number, [time, time + 1], page * 4_096, pages * 4_096));
                    (page..page + pages).for_each(|page| { cache.entry(page).or_default().insert(number); });
                }
                Step::Carry { page, pages } => {
                    records.push(bio(number, time, page * 4_096, (pages * 4_096) as u32, 0));
                    let written: BTreeSet<u64> =
                        cache.range(page..page + pages).flat_map(|(_, writers)| writers.clone()).collect();
                    let clean = (page..page + pages).filter(|page| !cache.contains_key(page)).count();
                    cache.retain(|at, _| !(page..page + pages).contains(at));
                    expected.push((written, clean as u32 * 4_096));
                }
                Step::Truncate { pages } => {
                    events.push(truncate(number, time, pages * 4_096));
                    cache.retain(|at, _| *at < pages);
                }
            }
        }
        let found = process(&mut new(), events, &records, u64::MAX);
        let found: Vec<_> = found
            .iter()
            .map(|event| (spans(event).into_iter().collect::<BTreeSet<u64>>(), event.bytes_unattributed))
            .collect();
        prop_assert_eq!(found, expected);
    }
}

#[test]
fn memory_for_1_gib_of_dirty_data_stays_below_16_mib() {
    use super::dirty_ranges::{DirtyRanges, Writer};
    let mut ranges = DirtyRanges::new(MonotonicNs(0), super::WRITES_MAX);
    for page in 0..(1u64 << 30) / 4_096 {
        let task = TaskRef { id: TaskId(1), version: 0 };
        let (span, ended, evidence) = (SpanId(page + 1), MonotonicNs(page), WriterEvidence::EndedBefore);
        let writer = Writer { span, trace: None, task, ended, evidence };
        ranges.write(file(), page * 4_096..(page + 1) * 4_096, &writer, &[]);
    }
    assert_eq!(ranges.dirty_bytes(), 1 << 30);
    assert!(ranges.memory_bytes() <= 16 << 20, "{} bytes", ranges.memory_bytes());
}

#[test]
fn a_full_table_evicts_the_oldest_and_reports_it() {
    use super::dirty_ranges::{DirtyRanges, Writer};
    use super::page_set::PageSet;
    let mut ranges = DirtyRanges::new(MonotonicNs(0), 8);
    let other = FileId { ino: INO + 1, ..file() };
    for page in 0..20u64 {
        let task = TaskRef { id: TaskId(1), version: 0 };
        let (span, ended, evidence) = (SpanId(page + 1), MonotonicNs(page), WriterEvidence::EndedBefore);
        let writer = Writer { span, trace: None, task, ended, evidence };
        let from = if page < 10 { other } else { file() };
        ranges.write(from, page << 16..(page << 16) + 4_096, &writer, &[]);
    }
    assert_eq!(ranges.evicted, 12);
    assert!(ranges.was_evicted(other) && ranges.was_evicted(file()));
    let range = 0..20u64 << 16;
    let mut covered = PageSet::new(std::slice::from_ref(&range));
    let writers = ranges.carry(file(), std::slice::from_ref(&range), MonotonicNs(100), &mut covered);
    assert_eq!(writers.iter().map(|w| w.span.0).collect::<Vec<_>>(), (13..=20).collect::<Vec<_>>());
}
