//! The rows, without their drawing. Whole pages are in tests/page.rs.

use super::*;
use crate::text::units;
use crate::waterfall::block::segments;
use crate::waterfall::words::words;
use blkkin_wire::clock::{ClockAnchor, WallclockNs};
use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent, Submitter, SyscallEvent, TaskRef};
use blkkin_wire::ids::{BootId, DeviceId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId};
use blkkin_wire::syscalls::SyscallId;

const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };
const DEVICE: DeviceId = DeviceId { major: 7, minor: 0 };
const ROOT: SpanId = SpanId(1);

fn split(file_system: u64) -> Breakdown {
    Breakdown { file_system: DurationNs(file_system), ..Breakdown::default() }
}

/// An fsync from 1,000 to 2,000.
fn fsync() -> Trace {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let anchor = ClockAnchor {
        monotonic: MonotonicNs(0),
        wallclock: WallclockNs(0),
        uncertainty: DurationNs(0),
        ..ClockAnchor::NONE
    };
    let call = SyscallEvent {
        args: [3, 0, 0, 0, 0, 0],
        ..SyscallEvent::bare(
            ROOT,
            TASK,
            SyscallId::by_name("fsync").unwrap(),
            MonotonicNs(1_000),
            MonotonicNs(2_000),
        )
    };
    Trace { root: Root::Call(call), ..Trace::new(source, anchor, ROOT) }
}

fn bio(span: u64, queue: u64, end: u64) -> BioEvent {
    BioEvent {
        span: SpanId(span),
        submitter: Submitter::Span(ROOT),
        root: ROOT,
        task: TASK,
        request: Some(SpanId(span + 100)),
        first: true,
        split: false,
        queue: MonotonicNs(queue),
        end: MonotonicNs(end),
        device: DEVICE,
        sector: Sector(0),
        bytes: 4096,
        op: BlockOp(1),
        status: BlockStatus(0),
    }
}

/// The request of the bio `span`.
fn request(span: u64, start: u64, issue: Option<u64>, complete: u64) -> RequestEvent {
    RequestEvent {
        span: SpanId(span + 100),
        parent: Some(SpanId(span)),
        root: ROOT,
        task: TASK,
        start: MonotonicNs(start),
        insert: None,
        issue: issue.map(MonotonicNs),
        complete: MonotonicNs(complete),
        device: DEVICE,
        sector: Sector(0),
        bytes: 4096,
        op: BlockOp(1),
        status: BlockStatus(0),
        bios: 1,
        tag: None,
        plugged: false,
        requeued: false,
        flush_sequence: false,
    }
}

fn labels(trace: &Trace) -> Vec<String> {
    let indented = |row: Row| format!("{}{}", "  ".repeat(row.depth), row.label);
    rows(trace, split(10)).into_iter().map(indented).collect()
}

#[test]
fn a_request_stands_below_its_bio_with_both_of_its_times() {
    let mut trace = fsync();
    trace.bios.push(bio(10, 1_100, 1_500));
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    assert_eq!(labels(&trace), ["fsync", "  file system", "  bio write 4 KiB", "    request 4 KiB"]);
    let row = rows(&trace, split(10)).pop().unwrap();
    assert_eq!((row.queued, row.device), (Some(DurationNs(90)), Some(DurationNs(300))));
    assert_eq!(row.time, DurationNs(390));
}

#[test]
fn a_flush_is_told_apart_at_the_device_and_what_was_never_issued_never_was_there() {
    let fills = |request| segments(&request).iter().map(|part| part.fill).collect::<Vec<_>>();
    assert_eq!(fills(request(10, 1, None, 9)), [Fill::Queued]);
    let flushed = RequestEvent { flush_sequence: true, ..request(10, 1, Some(5), 9) };
    assert_eq!(fills(flushed), [Fill::Queued, Fill::Flush]);
}

#[test]
fn the_scheduler_is_told_apart_from_the_rest_of_the_queue() {
    let inserted = RequestEvent { insert: Some(MonotonicNs(3)), ..request(10, 1, Some(5), 9) };
    let parts = segments(&inserted).into_iter().map(|part| (part.from.0, part.to.0, part.fill));
    let expected = [(1, 3, Fill::Queued), (3, 5, Fill::Scheduled), (5, 9, Fill::Device)];
    assert_eq!(parts.collect::<Vec<_>>(), expected);
}

#[test]
fn the_file_system_is_drawn_where_nothing_else_was() {
    let mut trace = fsync();
    trace.bios.extend([bio(10, 1_100, 1_400), bio(11, 1_300, 1_500), bio(12, 1_900, 2_500)]);
    let alone = &rows(&trace, split(10))[1].segments;
    let times: Vec<(u64, u64)> = alone.iter().map(|part| (part.from.0, part.to.0)).collect();
    assert_eq!(times, [(1_000, 1_100), (1_500, 1_900)]);
}

#[test]
fn what_is_drawn_as_own_time_is_what_the_account_says() {
    for sleeps in [0, 1] {
        let mut trace = fsync();
        if let Root::Call(call) = &mut trace.root {
            (call.sleeps, call.bios) = (sleeps, 3);
        }
        trace.bios.extend([bio(10, 1_100, 1_400), bio(11, 1_350, 1_500)]);
        trace.requests.push(request(10, 1_090, Some(1_200), 1_520));
        let split = blkkin_aggregator::account::breakdown(&trace);
        let own = &rows(&trace, split)[1];
        let fill = if sleeps == 0 { Fill::FileSystem } else { Fill::Unaccounted };
        assert!(own.segments.iter().all(|part| part.fill == fill));
        let drawn: u64 = own.segments.iter().map(|part| part.to.0 - part.from.0).sum();
        assert_eq!(drawn, own.time.0);
        assert_eq!(drawn, split.file_system.0 + split.unaccounted.0);
    }
}

#[test]
fn what_outlives_the_call_has_no_share_of_it() {
    let mut trace = fsync();
    trace.bios.extend([bio(10, 1_100, 2_000), bio(11, 1_100, 2_001)]);
    let within: Vec<bool> = rows(&trace, split(0)).iter().map(|row| row.within).collect();
    assert_eq!(within, [true, true, false]);
}

#[test]
fn every_bio_and_request_is_in_a_row_however_many_there_are() {
    for number in 0..12 {
        let mut trace = fsync();
        for span in 10..10 + number {
            trace.bios.push(bio(span, 1_000 + span, 1_900));
            trace.requests.push(request(span, 1_000 + span, Some(1_050), 1_900));
        }
        let labels = labels(&trace);
        let shown = labels.iter().filter(|label| label.starts_with("  bio")).count() as u64;
        let more = number - shown;
        assert!(number <= 4 && more == 0 || shown == 3);
        assert_eq!(
            more > 0,
            labels.contains(&format!("  + {more} more bios, {}", units::bytes(more * 4096)))
        );
        assert_eq!(more > 0, labels.contains(&format!("    {more} requests")));
    }
}

#[test]
fn the_slowest_are_shown_and_who_makes_durable_always() {
    let mut trace = fsync();
    // The last is the fastest.
    trace
        .bios
        .extend((0..8).map(|n| BioEvent { bytes: 4096 << n, ..bio(10 + n, 1_000 + n, 1_900 - 100 * n) }));
    trace.bios[7].op = BlockOp(1 | 1 << 17 | 1 << 18);
    let shown =
        ["  bio write 4 KiB", "  bio write 8 KiB", "  bio write 16 KiB", "  bio write 512 KiB flush+FUA"];
    assert_eq!(labels(&trace)[2..6], shown);
    assert_eq!(labels(&trace)[6..], ["  + 4 more bios, 480 KiB"]);
}

#[test]
fn what_was_merged_and_says_nothing_is_summed_below_its_request() {
    let mut trace = fsync();
    trace.bios.push(bio(10, 1_100, 1_500));
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    let merged = |span| BioEvent { first: false, request: Some(SpanId(110)), ..bio(span, 1_120, 1_500) };
    trace.bios.extend((11..17).map(merged));
    trace.bios.push(BioEvent { status: BlockStatus(10), ..merged(17) });
    assert_eq!(
        labels(&trace)[2..],
        [
            "  bio write 4 KiB",
            "    request 4 KiB",
            "      + 6 merged, 24 KiB",
            &format!("  bio write 4 KiB, merged: {}", BlockStatus(10).name())
        ]
    );
}

/// By the numbers in the labels: nothing is left out, nothing is there twice.
#[test]
fn every_bio_is_in_one_row_however_they_were_merged() {
    for heads in 1..9_u64 {
        for each in 0..4_u64 {
            let mut trace = fsync();
            for head in 0..heads {
                let span = 1_000 * (head + 1);
                trace.bios.push(bio(span, 1_000 + head, 1_900));
                trace.requests.push(request(span, 1_010, Some(1_050), 1_900));
                let request = Some(SpanId(span + 100));
                let merged = |n| BioEvent { first: false, request, ..bio(span + 1 + n, 1_010, 1_900) };
                trace.bios.extend((0..each).map(merged));
            }
            let number = |label: &String| match label.trim().strip_prefix("+ ") {
                Some(rest) => rest.split(' ').next().unwrap().parse::<u64>().unwrap(),
                None => u64::from(label.trim().starts_with("bio")),
            };
            assert_eq!(labels(&trace).iter().map(number).sum::<u64>(), heads * (each + 1));
        }
    }
}

#[test]
fn a_request_without_its_bio_still_stands_there() {
    let mut trace = fsync();
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    assert_eq!(labels(&trace), ["fsync", "  file system", "  request 4 KiB"]);
}

#[test]
fn devices_are_named_where_there_are_several() {
    let mut trace = fsync();
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    let elsewhere = DeviceId { major: 8, minor: 16 };
    trace.requests.push(RequestEvent { device: elsewhere, ..request(11, 1_120, Some(1_200), 1_500) });
    assert_eq!(labels(&trace)[2..], ["  request 4 KiB 7:0", "  request 4 KiB 8:16"]);
}

#[test]
fn a_bio_carried_by_anothers_request_says_so() {
    let mut trace = fsync();
    trace.bios.push(BioEvent { first: false, ..bio(10, 1_100, 1_500) });
    let carried = blkkin_aggregator::trace::Carried {
        bio: SpanId(10),
        trace: Some(trace.id),
        request: request(99, 1_050, Some(1_200), 1_500),
    };
    trace.carried.push(carried);
    assert_eq!(labels(&trace)[2..], ["  bio write 4 KiB, merged", "    request 4 KiB, another's"]);
}

/// A loop device on a disk, and below that a mapped one: each row stands below what it does the work of.
#[test]
fn what_is_done_on_a_device_below_stands_below_it_with_the_devices_names() {
    let mut trace = fsync();
    let (disk, mapped) = (DeviceId { major: 8, minor: 0 }, DeviceId { major: 253, minor: 0 });
    let upper = bio(10, 1_100, 1_900);
    let on_mapped = BioEvent {
        submitter: Submitter::Span(SpanId(110)),
        device: mapped,
        request: None,
        ..bio(11, 1_300, 1_800)
    };
    let lower = BioEvent { submitter: Submitter::Span(SpanId(11)), device: disk, ..bio(12, 1_700, 1_790) };
    trace.bios.extend([upper, on_mapped, lower]);
    let below = RequestEvent { device: disk, ..request(12, 1_705, Some(1_710), 1_790) };
    trace.requests.extend([request(10, 1_110, Some(1_200), 1_900), below]);
    let expected = [
        "fsync",
        "  file system",
        "  bio write 4 KiB 7:0",
        "    request 4 KiB 7:0",
        "      bio write 4 KiB 253:0",
        "        bio write 4 KiB 8:0",
        "          request 4 KiB 8:0",
    ];
    assert_eq!(labels(&trace), expected);
    let split = Breakdown { block: DurationNs(900), ..Breakdown::default() };
    // 400 of the mapped device's 500 had nothing below them on the way.
    assert!(words(&trace, split).contains("in the block queue of 253:0"), "{}", words(&trace, split));
}

#[test]
fn of_own_time_and_a_wait_for_a_cpu_the_larger_has_the_bar() {
    let mut trace = fsync();
    trace.bios.push(bio(10, 1_100, 1_500));
    let bars = |cpu| {
        let rows = rows(&trace, Breakdown { cpu: DurationNs(cpu), ..split(10) });
        ["file system", "waiting for a CPU"].map(|label| {
            let row = rows.iter().find(|row| row.label == label).unwrap();
            (row.time.0, row.segments.len())
        })
    };
    assert_eq!(bars(300), [(10, 0), (300, 2)]);
    assert_eq!(bars(5), [(10, 2), (5, 0)]);
}
