//! Page width for arbitrary traces: they can come from another machine's tracer.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_report::{Alphabet, Colour, Section, Style};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{BlockOp, SyscallOutcome};
use proptest::prelude::*;

/// Generates one of the unusual traces with random times and sizes.
fn any_trace() -> impl Strategy<Value = Trace> {
    let time = prop_oneof![4 => 99_000_000_000_u64..102_000_000_000, 1 => any::<u64>()].prop_map(MonotonicNs);
    let times = prop::collection::vec(time, 12);
    (0_usize..12, times, any::<i64>(), any::<u32>()).prop_map(|(kind, times, ret, word)| {
        let mut trace = unusual(kind);
        let mut times = times.into_iter().cycle();
        let mut next = || times.next().unwrap();
        if let Root::Call(call) = &mut trace.root {
            (call.enter, call.exit) = (next(), next());
            if call.outcome != SyscallOutcome::NoExit {
                call.outcome = SyscallOutcome::Returned(ret);
            }
        }
        for bio in &mut trace.bios {
            (bio.queue, bio.end, bio.bytes, bio.op) = (next(), next(), word, BlockOp(word));
        }
        for origin in &mut trace.page_origins {
            (origin.time, origin.offset, origin.bytes, origin.bytes_unattributed) =
                (next(), ret as u64, word, word);
            origin.writers.iter_mut().for_each(|writer| (writer.dirtied, writer.bytes) = (next(), word));
        }
        for request in &mut trace.requests {
            (request.start, request.complete, request.bytes) = (next(), next(), word);
            request.issue = request.issue.map(|_| next());
        }
        trace
    })
}

fn unusual(kind: usize) -> Trace {
    let [commit, fsync] = common::fsync_with_commit(1, 10);
    match kind {
        0 => commit,
        1 => fsync,
        2 => common::many_bios(1, 10),
        3 => common::kernel_root(1, 10),
        4 => common::missing_root(1, 10),
        5 => common::late_part(1, 10),
        6 => common::pipe_read(1, 10),
        7 => common::interrupted_fsync(1, 10),
        8 => common::failed_open(1, 10),
        9 => common::lock(1, 10),
        10 => common::fdatasync(1, 10, 0),
        _ => common::write_back::fsync_of_earlier_writes(1, 10),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn pages_of_arbitrary_traces_fit_the_width(
        traces in prop::collection::vec(any_trace(), 0..12), width in 60_usize..160
    ) {
        let report = common::report(&traces);
        let style = Style { width, alphabet: Alphabet::Unicode, colour: Colour::Never };
        for line in report.render(&style, &common::some_losses(), &Section::ALL).lines() {
            prop_assert!(unicode_width::UnicodeWidthStr::width(line) <= width, "{}", line);
        }
        report.to_json(&common::no_losses());
    }
}
