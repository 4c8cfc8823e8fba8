//! A report with the operations of two guests, one of which has its disk over NBD.

use std::borrow::Cow;
use std::sync::Arc;

use blkkin_aggregator::trace::{Names, Trace};
use blkkin_report::Report;
use blkkin_wire::clock::{DurationNs, WallclockNs};
use blkkin_wire::event::{BlockOp, RequestEvent};
use blkkin_wire::ids::{NodeId, Source, SpanId, TraceId};
use blkkin_wire::span::{Span, TagValue};
use blkkin_wire::stage::LogTime;
use blkkin_wire::virtual_machine::VirtualMachineEvent;

use super::STARTED;

const GUESTS: [(&str, u128); 2] = [("web1", 0xa), ("db1", 0xb)];
const HOST: u128 = 0xc;

/// A span: its parent, service, name, and begin and length in µs; and its machine if it is the first one there.
type Line = (u64, u64, &'static str, &'static str, [u64; 2], Option<u128>);

fn spans(trace: TraceId, lines: &[Line]) -> Vec<Span> {
    let span = |(id, parent, service, name, [begin, length], machine): &Line| Span {
        parent: (*parent > 0).then_some(SpanId(*parent)),
        service: (*service).into(),
        name: (*name).into(),
        start: WallclockNs(1_700_000_000_000_000_000 + begin * 1_000),
        duration: DurationNs(length * 1_000),
        tags: tags(*machine),
        ..Span::bare(trace, SpanId(*id))
    };
    lines.iter().map(span).collect()
}

/// Returns the tags of the first span of a machine, which the linker has moved unless it is a guest.
fn tags(machine: Option<u128>) -> Vec<(Cow<'static, str>, TagValue)> {
    let text = |key: &'static str, value: String| (Cow::Borrowed(key), TagValue::Text(value.into()));
    let host = machine.map(|node| text("host.id", format!("{node:032x}")));
    let moved = machine.filter(|node| *node == HOST).map(|_| text("blkkin.trace.own", String::new()));
    host.into_iter().chain(moved).collect()
}

/// Returns the trace of a guest's call with a bio, and requests to a disk of QEMU.
fn call(guest: usize, root: u64, comm: &str, requests: &[(u64, u32)]) -> Trace {
    let (name, node) = GUESTS[guest];
    let mut trace = super::direct_read(root, 0);
    trace.source.node = NodeId(node);
    trace.id = trace.source.trace_id(SpanId(root));
    let request = trace.requests[0];
    let of = |(span, bytes): &(u64, u32)| RequestEvent {
        span: SpanId(*span),
        bytes: *bytes,
        op: BlockOp(if *bytes == 0 { 2 } else { 1 }),
        issue: None,
        ..request
    };
    trace.requests = requests.iter().map(of).collect();
    Arc::make_mut(&mut trace.names.devices).disks.insert(request.device, "serial=root".into());
    let machine = VirtualMachineEvent::bare(STARTED, VirtualMachineEvent::NODE, name, "");
    trace.names = Names {
        node_machine: Some(machine.into()),
        task: Some(super::task(comm, 7)),
        ..Names::clone(&trace.names)
    };
    trace
}

/// Adds the operations of guests to a report.
pub fn add(report: &mut Report) {
    let mut add = |trace: Trace, lines: &[Line]| {
        report.add_guests_trace(&trace, LogTime(1_000));
        report.add_linked_spans(&spans(trace.id, lines));
    };
    let [web, db] = GUESTS.map(|(_, node)| Some(node));
    let host = Some(HOST);
    add(
        call(0, 1, "sqlite3", &[(5, 4096), (9, 0)]),
        &[
            (1, 0, "sqlite3", "fdatasync", [0, 9_000], web),
            (2, 1, "ext4", "fdatasync", [1, 8_900], None),
            (3, 2, "jbd2", "journal commit", [500, 8_000], None),
            (4, 3, "block", "bio write", [900, 1_900], None),
            (5, 4, "vda", "request write", [1_000, 1_700], None),
            (6, 5, "qemu-system-x86_64", "pwrite64", [1_200, 1_000], host),
            (7, 6, "block", "bio write", [1_300, 800], None),
            (8, 7, "loop0", "request write", [1_310, 780], None),
            (9, 3, "vda", "request flush", [3_000, 4_000], None),
            (10, 9, "qemu-system-x86_64", "fdatasync", [3_100, 3_500], host),
        ],
    );
    add(
        call(0, 20, "dd", &[(21, 4096)]),
        &[(20, 0, "busybox", "write", [0, 100], web), (21, 20, "vda", "request write", [10, 80], None)],
    );
    add(
        call(1, 30, "postgres", &[(31, 4096)]),
        &[
            (30, 0, "postgres", "fsync", [0, 5_000], db),
            (31, 30, "vda", "request write", [100, 4_800], None),
            (32, 31, "qemu-system-x86_64", "nbd write", [300, 4_000], host),
            (33, 32, "blkkin-nbd", "nbd write", [2_000, 400], host),
            (34, 33, "blkkin-nbd", "pwrite64", [2_100, 200], host),
        ],
    );
    // Three of them before it connected.
    let source = Source { node: NodeId(GUESTS[0].1), ..Source::NONE };
    [3, 15].iter().for_each(|lost| report.set_guests_lost(source, *lost));
    report.finish_guests(3);
}
