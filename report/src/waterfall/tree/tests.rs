//! Rows of a waterfall, without their layout. `tests/page.rs` checks whole pages.

use super::*;
use crate::sample::{self, bio};
use crate::text::units;
use crate::waterfall::block::segments;
use crate::waterfall::summary::summary;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{BioEvent, BlockOp, BlockStatus, RequestEvent, Submitter};
use blkkin_wire::ids::{DeviceId, SpanId};

fn breakdown(file_system: u64) -> Breakdown {
    Breakdown { file_system: DurationNs(file_system), ..Breakdown::default() }
}

/// Returns an fsync from 1,000 to 2,000.
fn fsync() -> Trace {
    sample::call_between(1, "fsync", 1_000, 2_000)
}

/// Returns the request of the bio `span`.
fn request(span: u64, start: u64, issue: Option<u64>, complete: u64) -> RequestEvent {
    RequestEvent { parent: Some(SpanId(span)), ..sample::request(span + 100, start, issue, complete) }
}

fn labels(trace: &Trace) -> Vec<String> {
    let indented = |row: WaterfallRow| format!("{}{}", "  ".repeat(row.depth), row.label);
    rows(trace, breakdown(10)).into_iter().map(indented).collect()
}

#[test]
fn a_request_is_below_its_bio_with_both_times() {
    let mut trace = fsync();
    trace.bios.push(bio(10, 1_100, 1_500));
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    assert_eq!(labels(&trace), ["fsync", "  file system", "  bio write 4 KiB", "    request 4 KiB"]);
    let row = rows(&trace, breakdown(10)).pop().unwrap();
    assert_eq!((row.queued, row.device), (Some(DurationNs(90)), Some(DurationNs(300))));
    assert_eq!(row.time, DurationNs(390));
}

#[test]
fn flushes_and_requests_that_were_never_issued_have_their_own_fills() {
    let fills = |request| segments(&request).iter().map(|part| part.fill).collect::<Vec<_>>();
    assert_eq!(fills(request(10, 1, None, 9)), [Fill::Queued]);
    let flushed = RequestEvent { flush_sequence: true, ..request(10, 1, Some(5), 9) };
    assert_eq!(fills(flushed), [Fill::Queued, Fill::Flush]);
}

#[test]
fn time_in_the_scheduler_is_a_segment() {
    let inserted = RequestEvent { insert: Some(MonotonicNs(3)), ..request(10, 1, Some(5), 9) };
    let parts = segments(&inserted).into_iter().map(|part| (part.from.0, part.to.0, part.fill));
    let expected = [(1, 3, Fill::Queued), (3, 5, Fill::Scheduled), (5, 9, Fill::Device)];
    assert_eq!(parts.collect::<Vec<_>>(), expected);
}

#[test]
fn file_system_time_is_drawn_outside_io() {
    let mut trace = fsync();
    trace.bios.extend([bio(10, 1_100, 1_400), bio(11, 1_300, 1_500), bio(12, 1_900, 2_500)]);
    let own = &rows(&trace, breakdown(10))[1].segments;
    let times: Vec<(u64, u64)> = own.iter().map(|part| (part.from.0, part.to.0)).collect();
    assert_eq!(times, [(1_000, 1_100), (1_500, 1_900)]);
}

#[test]
fn drawn_own_time_equals_the_breakdown() {
    for sleeps in [0, 1] {
        let mut trace = fsync();
        if let Root::Call(call) = &mut trace.root {
            (call.sleeps, call.bios) = (sleeps, 3);
        }
        trace.bios.extend([bio(10, 1_100, 1_400), bio(11, 1_350, 1_500)]);
        trace.requests.push(request(10, 1_090, Some(1_200), 1_520));
        let breakdown = blkkin_aggregator::latency::breakdown(&trace);
        let own = &rows(&trace, breakdown)[1];
        let fill = if sleeps == 0 { Fill::FileSystem } else { Fill::Unaccounted };
        assert!(own.segments.iter().all(|part| part.fill == fill));
        let drawn: u64 = own.segments.iter().map(|part| part.to.0 - part.from.0).sum();
        assert_eq!(drawn, own.time.0);
        assert_eq!(drawn, breakdown.file_system.0 + breakdown.unaccounted.0);
    }
}

#[test]
fn a_bio_that_ends_after_the_call_has_no_share() {
    let mut trace = fsync();
    trace.bios.extend([bio(10, 1_100, 2_000), bio(11, 1_100, 2_001)]);
    let within: Vec<bool> = rows(&trace, breakdown(0)).iter().map(|row| row.within).collect();
    assert_eq!(within, [true, true, false]);
}

#[test]
fn every_bio_and_request_is_counted_in_a_row() {
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
fn the_slowest_and_the_durable_bios_are_shown() {
    let mut trace = fsync();
    // The last bio is the fastest, and flushes.
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
fn merged_bios_are_summed_below_their_request() {
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

/// Checks the sum of the numbers in the labels.
#[test]
fn every_bio_is_in_exactly_one_row() {
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
fn a_request_without_its_bio_has_a_row() {
    let mut trace = fsync();
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    assert_eq!(labels(&trace), ["fsync", "  file system", "  request 4 KiB"]);
}

#[test]
fn several_devices_are_named() {
    let mut trace = fsync();
    trace.requests.push(request(10, 1_110, Some(1_200), 1_500));
    let elsewhere = DeviceId { major: 8, minor: 16 };
    trace.requests.push(RequestEvent { device: elsewhere, ..request(11, 1_120, Some(1_200), 1_500) });
    assert_eq!(labels(&trace)[2..], ["  request 4 KiB 7:0", "  request 4 KiB 8:16"]);
}

#[test]
fn a_bio_in_the_request_of_another_trace_is_marked() {
    let mut trace = fsync();
    trace.bios.push(BioEvent { first: false, ..bio(10, 1_100, 1_500) });
    let carried = blkkin_aggregator::trace::MergeLink {
        bio: SpanId(10),
        trace: Some(trace.id),
        request: request(99, 1_050, Some(1_200), 1_500),
    };
    trace.merged_into.push(carried);
    assert_eq!(labels(&trace)[2..], ["  bio write 4 KiB, merged", "    request 4 KiB, of another trace"]);
}

/// Stacks a loop device on a mapped device on a disk.
#[test]
fn bios_on_a_lower_device_are_below_their_parent_with_device_names() {
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
    let breakdown = Breakdown { block: DurationNs(900), ..Breakdown::default() };
    // For 400 of its 500 ns, the mapped device's bio had no bio in flight to a lower device.
    assert!(
        summary(&trace, breakdown).contains("in the block queue of 253:0"),
        "{}",
        summary(&trace, breakdown)
    );
}

#[test]
fn the_larger_of_own_time_and_cpu_wait_has_the_bar() {
    let mut trace = fsync();
    trace.bios.push(bio(10, 1_100, 1_500));
    let bars = |cpu| {
        let rows = rows(&trace, Breakdown { cpu: DurationNs(cpu), ..breakdown(10) });
        ["file system", "waiting for a CPU"].map(|label| {
            let row = rows.iter().find(|row| row.label == label).unwrap();
            (row.time.0, row.segments.len())
        })
    };
    assert_eq!(bars(300), [(10, 0), (300, 2)]);
    assert_eq!(bars(5), [(10, 2), (5, 0)]);
}
