//! Head sampling in the kernel: an operation is recorded whole or not at all, by its trace's id.
//!
//! *Input*: programs that make a known number of direct reads by system calls, io_uring and libaio, and
//! one that publishes thread contexts. *Independent count*: what the program does. The rule is computed
//! here once more, as OpenTelemetry writes it: 56 bits of the trace id, not below the threshold.

use std::collections::{HashMap, HashSet};

use blkkin_aggregator::spans;
use blkkin_aggregator::trace::Root;
use blkkin_tracer::selection::keep::{KeepRule, KeptOperations};
use blkkin_tracer::{AttachKind, Filter, TraceScope, TracerConfig};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::Submitter;
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::ids::SpanId;
use blkkin_wire::span::{Span, TagValue};

use crate::support::aio::Aio;
use crate::support::context::Programs;
use crate::support::context::recorded_program::{record_with_config, writer_args};
use crate::support::direct;
use crate::support::disk::Disk;
use crate::support::gated_process::GatedProcess;
use crate::support::missed_ends::until_complete;
use crate::support::recording::{Recording, record};
use crate::support::tools::is_guest;
use crate::support::uring::{Mode, write_and_read};
use crate::support::{needs, or_skip};

/// Logarithm of the ratio: an operation in 8 is recorded.
const LOG2: u8 = 3;
const N: u64 = 1 << LOG2;
const BLOCK: u64 = 4096;
const DEPTH: u64 = 4;

/// Returns a configuration that records one in N. `defers`: each operation is deferred until it ends, and none is kept
/// for what it did, so that the same is recorded.
fn config(defers: bool) -> TracerConfig {
    let never = KeepRule::SlowerThan(KeptOperations::All, DurationNs(3_600_000_000_000));
    let keep = if defers { vec![never] } else { vec![] };
    TracerConfig { head_sampling: HeadSampling::from_log2(LOG2), keep, ..TracerConfig::default() }
}

/// Returns the number of reads of a run. A guest is emulated, and slow.
fn reads() -> u64 {
    if is_guest() { 2_000 } else { 16_000 }
}

/// Returns whether the threshold of 1/N keeps a trace whose id ends with these 64 bits.
fn is_kept(id: u64) -> bool {
    let threshold = (1_u64 << 56) - (1 << (56 - LOG2));
    id & ((1 << 56) - 1) >= threshold
}

/// Asserts that as many of `all` were kept as chance allows: within five standard deviations.
fn assert_share(kept: u64, all: u64) {
    let (all, share) = (all as f64, 1.0 / N as f64);
    let deviation = (all * share * (1.0 - share)).sqrt();
    println!("{kept} of {all} kept, {:.1} standard deviations off", (kept as f64 - all * share) / deviation);
    assert!((kept as f64 - all * share).abs() <= 5.0 * deviation, "{kept} of {all}");
}

/// Asserts that each call is recorded, filtered or counted as dropped, and that no recorded operation
/// is one that the rule drops.
fn assert_rule(recording: &Recording, disk: &Disk) {
    let stats = &recording.stats;
    let accounted_for = stats.calls.fired + stats.calls_filtered + stats.calls_unsampled;
    assert_eq!(stats.calls_entered, accounted_for, "{stats:#?}");
    assert!(stats.calls_unsampled > 0, "{stats:#?}");
    let ratio = HeadSampling::from_log2(LOG2).unwrap();
    for call in recording.calls() {
        assert!(call.sampling == ratio && is_kept(call.span.0), "{call:#?}");
    }
    let roots: HashSet<SpanId> = recording
        .calls()
        .map(|call| call.span)
        .chain(recording.faults().map(|fault| fault.span))
        .chain(recording.async_ios().filter(|io| io.submitter.is_none()).map(|io| io.span))
        .collect();
    for io in recording.async_ios() {
        assert!(roots.contains(&io.root()) && is_kept(io.root().0), "{io:#?}");
    }
    // Nothing of an operation that is dropped: no bio without its root, and none as the kernel's own.
    for bio in recording.bios().filter(|bio| bio.device == disk.device()) {
        assert!(roots.contains(&bio.root) && bio.submitter != Submitter::Kernel, "{bio:#?}");
    }
}

/// Asserts the tags of sampling of all spans.
fn assert_spans(recording: &Recording) {
    let mut roots = 0;
    for trace in &recording.traces {
        if !matches!(trace.root, Root::Call(_) | Root::AsyncIo) {
            continue;
        }
        let spans = spans::spans_of(trace);
        let tag = |span: &Span, key: &str| {
            let found = span.tags.iter().find(|(name, _)| name == key);
            found.map(|(_, value)| value.clone())
        };
        assert_eq!(
            tag(&spans[0], "blkkin.sampled.head_one_in"),
            Some(TagValue::Number(N as i64)),
            "{:#?}",
            spans[0]
        );
        for span in &spans {
            let state = Some(TagValue::Text("ot=th:e".into()));
            assert_eq!(tag(span, "w3c.tracestate"), state, "{span:#?}");
        }
        assert!(spans[1..].iter().all(|span| tag(span, "blkkin.sampled.head_one_in").is_none()));
        roots += 1;
    }
    assert!(roots > 20, "{roots} roots");
}

#[test]
fn a_call_is_recorded_whole_or_not_at_all() {
    needs!("losetup");
    let disk = or_skip!(Disk::raw(1 << 20));
    for (attach, defers) in
        [AttachKind::TpBtf, AttachKind::RawTp].into_iter().flat_map(|kind| [(kind, false), (kind, true)])
    {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let device = direct::open(disk.node());
                (0..reads()).for_each(|n| direct::read_at(&device, n % 256 * BLOCK).unwrap());
                0
            });
            record(&TracerConfig { attach: Some(attach), ..config(defers) }, &mut [&mut process])
        });
        assert_rule(&recording, &disk);
        assert_spans(&recording);
        let calls = recording.calls_named("pread64");
        assert_share(calls.len() as u64, reads());
        assert_share(recording.calls().count() as u64, recording.stats.calls_entered);
        let on_disk = |device| device == disk.device();
        let mut bios: HashMap<SpanId, u64> = HashMap::new();
        for bio in recording.bios().filter(|bio| on_disk(bio.device)) {
            *bios.entry(bio.root).or_default() += 1;
        }
        assert!(calls.iter().all(|call| call.bios == 1 && bios.get(&call.span) == Some(&1)));
        let requests = recording.requests().filter(|request| on_disk(request.device)).count();
        assert_eq!((bios.len(), requests), (calls.len(), calls.len()));
    }
}

/// A submission below a call goes with it, also where a worker executes it; below a poll thread it is a
/// root of its own.
#[test]
fn a_submission_of_io_uring_is_recorded_whole_or_not_at_all() {
    needs!("losetup");
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled").unwrap_or_default();
    if !["", "0", "1"].contains(&disabled.trim()) {
        crate::support::skip!("this kernel's io_uring is switched off");
    }
    let calls = reads() / 2 / DEPTH;
    let disk = or_skip!(Disk::raw(calls * DEPTH * BLOCK));
    let log = disk.file("log");
    let modes = [Mode::Plain, Mode::Worker, Mode::Sqpoll];
    for (mode, defers) in modes.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| write_and_read(disk.node(), mode, calls, DEPTH, &log));
            record(&config(defers), &mut [&mut process])
        });
        assert_rule(&recording, &disk);
        assert_spans(&recording);
        let submissions = recording.async_ios().count() as u64;
        // A bio that would block is queued again by a worker, so a submission may have two.
        let bios = recording.bios().filter(|bio| bio.device == disk.device());
        let submitters: HashSet<_> = bios.map(|bio| bio.submitter).collect();
        assert!(recording.async_ios().all(|io| submitters.contains(&Submitter::Span(io.span))), "{mode:?}");
        let requests = recording.requests().filter(|request| request.device == disk.device()).count() as u64;
        assert_eq!((submitters.len() as u64, requests), (submissions, submissions), "{mode:?}");
        if mode == Mode::Sqpoll {
            assert_share(submissions, 2 * calls * DEPTH);
        } else {
            let submitters: HashSet<_> = recording.async_ios().map(|io| io.submitter).collect();
            assert_share(submitters.len() as u64, 2 * calls);
            assert_eq!(submissions, submitters.len() as u64 * DEPTH, "{mode:?}");
        }
    }
}

#[test]
fn an_iocb_of_libaio_goes_with_its_call() {
    needs!("losetup");
    let calls = reads() / DEPTH;
    let disk = or_skip!(Disk::raw(1 << 20));
    for defers in [false, true] {
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let device = direct::open(disk.node());
                let mut aio = Aio::new(DEPTH as usize);
                for call in 0..calls {
                    let offsets: Vec<u64> =
                        (0..DEPTH).map(|slot| (call * DEPTH + slot) % 256 * BLOCK).collect();
                    aio.read(&device, &offsets, BLOCK as usize);
                    aio.wait(DEPTH as usize, BLOCK as usize);
                }
                0
            });
            record(&config(defers), &mut [&mut process])
        });
        assert_rule(&recording, &disk);
        let submits = recording.calls_named("io_submit").len() as u64;
        assert_share(submits, calls);
        let bios = recording.bios().filter(|bio| bio.device == disk.device()).count() as u64;
        assert_eq!((recording.async_ios().count() as u64, bios), (submits * DEPTH, submits * DEPTH));
    }
}

/// A loop device with direct I/O: its worker, which is a task like others, reads the disk below. What it does for
/// reads that are dropped is dropped too.
#[test]
fn a_workers_part_of_an_operation_goes_with_it() {
    needs!("losetup", "mkfs.ext4");
    let lower = or_skip!(Disk::ext4(64 << 20));
    let upper = or_skip!(lower.upper(1 << 20));
    for defers in [false, true] {
        let config = TracerConfig { scope: TraceScope::All, ..config(defers) };
        let recording = until_complete(|| {
            let mut process = GatedProcess::new(|| {
                let device = direct::open(&upper.node);
                (0..reads() / 4).for_each(|n| direct::read_at(&device, n % 256 * BLOCK).unwrap());
                0
            });
            record(&config, &mut [&mut process])
        });
        // The call and its request of the upper device, of which other programs of the machine have none.
        let of_upper: HashSet<SpanId> = recording
            .requests()
            .filter(|request| request.device == upper.device())
            .map(|request| request.root)
            .collect();
        let of_image: Vec<_> = recording
            .calls_named("pread64")
            .into_iter()
            .filter(|call| of_upper.contains(&call.span))
            .collect();
        assert_share(of_image.len() as u64, reads() / 4);
        let roots: HashSet<SpanId> = of_image.iter().map(|call| call.span).collect();
        let below: Vec<_> = recording.bios().filter(|bio| bio.device == lower.device()).collect();
        assert!(below.iter().all(|bio| roots.contains(&bio.root)), "{below:#?}");
        assert_eq!(below.len(), of_image.len());
    }
}

/// The calls of one trace of an application are kept together, by the trace's id. Those that the
/// application samples are kept with a ratio of 1, if that is asked for.
#[test]
fn the_calls_of_an_applications_trace_are_kept_together() {
    const SPANS: u64 = 1_000;
    const CALLS: u64 = 10;
    /// The program's ids are multiples of it: spread over the 56 bits, and positive as 64 bits with a sign. Each
    /// second one is odd, and has the sampled flag.
    const STEP: u64 = 5_567_024_236_452_841;
    needs!();
    for (attach, defers) in [(AttachKind::TpBtf, false), (AttachKind::RawTp, true)] {
        let programs = or_skip!(Programs::of("own"));
        let args = writer_args(&programs, "own", (SPANS, CALLS), STEP, &[]);
        let filter = Filter { keep_sampled: true, ..Filter::default() };
        let config = TracerConfig { attach: Some(attach), filter, ..config(defers) };
        let recording = record_with_config(&config, &args, &programs.go());
        let mut calls_of: HashMap<u64, u64> = HashMap::new();
        for call in recording.calls() {
            let Some(context) = &call.context else {
                assert!(is_kept(call.span.0), "{call:#?}");
                continue;
            };
            let expected = if context.is_sampled() { 0 } else { LOG2 };
            assert_eq!(call.sampling.log2(), expected, "{call:#?}");
            assert!(context.is_sampled() || is_kept(context.trace.0 as u64), "{call:#?}");
            *calls_of.entry(context.span.0).or_default() += 1;
        }
        // Two threads make the calls of each span.
        let (mut sampled, mut kept) = (0, 0);
        for span in (1..=SPANS).map(|number| number * STEP) {
            let by_program = span % 2 == 1;
            let expected = if by_program || is_kept(span) { 2 * CALLS } else { 0 };
            assert_eq!(calls_of.get(&span).copied().unwrap_or(0), expected, "{span:x}");
            (sampled, kept) =
                (sampled + u64::from(by_program), kept + u64::from(!by_program && expected > 0));
        }
        assert_eq!(sampled, SPANS / 2);
        assert_share(kept, SPANS / 2);
    }
}
