//! The events of a fleet: each node calls, and each fourth call reads from the next node.
//!
//! *In*: node and second. *Out*: the node's batch of that second, and whether a span is in the right trace.
//! *Invariant*: a function of its arguments. A span id is an odd multiple of the span's number, so
//! a span that comes out leads back to the call that it belongs to.

use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    DeviceEvent, FileEvent, LayerEvent, OpenFile, PairEvent, SyscallEvent, SyscallOutcome, TaskEvent, TaskRef,
};
use blkkin_wire::ids::{
    BootId, DeviceId, Fd, FileId, NameId, NodeId, Source, SpanId, StartEpoch, TaskId, TraceId,
};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::Span;
use blkkin_wire::syscalls::SyscallId;

use super::Size;

/// Every fourth call is served by another node.
const REMOTE_EVERY: u64 = 4;
/// Every eighth call ends a second later: it is open in every snapshot.
const OPEN_EVERY: u64 = 8;
/// A call, its bio and its request.
pub(crate) const SPANS_OF_CALL: u64 = 3;
const SECOND: u64 = 1_000_000_000;
pub(super) const DISK: DeviceId = DeviceId { major: 7, minor: 1 };
/// Odd, so its multiples modulo 2^64 are a bijection.
const ODD: u64 = 0x9e37_79b9_7f4a_7c15;

/// The load of a fleet.
#[derive(Clone, Copy)]
pub(crate) struct Load(pub(crate) Size);

/// A call, by node and number. Those from `own_calls` on serve the previous node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Call {
    node: u64,
    second: u64,
    number: u64,
}

impl Load {
    fn own_calls(&self) -> u64 {
        self.0.calls
    }

    fn calls_of_second(&self) -> u64 {
        self.own_calls() + self.own_calls() / REMOTE_EVERY
    }

    /// Returns the number of spans of all nodes.
    pub(crate) fn spans(&self) -> u64 {
        self.0.nodes * self.0.seconds * self.calls_of_second() * SPANS_OF_CALL
    }

    fn index(&self, call: Call) -> u64 {
        let of_node = call.second * self.calls_of_second() + call.number;
        (call.node * self.0.seconds * self.calls_of_second() + of_node) * SPANS_OF_CALL
    }

    fn call(&self, index: u64) -> Call {
        let call = index / SPANS_OF_CALL;
        let (node, of_node) = (
            call / (self.0.seconds * self.calls_of_second()),
            call % (self.0.seconds * self.calls_of_second()),
        );
        Call { node, second: of_node / self.calls_of_second(), number: of_node % self.calls_of_second() }
    }

    /// Returns the number of a span, and whether it is in the trace to which it belongs.
    pub(crate) fn check(&self, span: &Span) -> Option<(u64, bool)> {
        let index =
            span.id.0.wrapping_mul(inverse(ODD)).checked_sub(1).filter(|index| *index < self.spans())?;
        let call = self.call(index);
        let client = if call.number < self.own_calls() { call } else { self.client_of(call) };
        Some((index, span.trace == self.trace(client)))
    }

    fn trace(&self, call: Call) -> TraceId {
        source(call.node).trace_id(span(self.index(call)))
    }

    fn client_of(&self, server: Call) -> Call {
        let node = (server.node + self.0.nodes - 1) % self.0.nodes;
        Call { node, number: (server.number - self.own_calls()) * REMOTE_EVERY, ..server }
    }

    /// Returns the batch of a node's second. That after the last one has the calls still open.
    pub(crate) fn batch(&self, node: u64, second: u64) -> EventBatch {
        let mut events = if second == 0 { self.names(node) } else { Vec::new() };
        let calls = |second| (0..self.calls_of_second()).map(move |number| Call { node, second, number });
        if second < self.0.seconds {
            calls(second).for_each(|call| self.below(call, &mut events));
        }
        let ends = |call: &Call| call.second + u64::from(is_open(*call)) == second;
        let ended =
            calls(second.saturating_sub(1)).chain(calls(second)).filter(|call| call.second < self.0.seconds);
        let ended: std::collections::BTreeMap<u64, Call> =
            ended.filter(ends).map(|call| (self.index(call), call)).collect();
        events.extend(ended.into_values().map(|call| LayerEvent::Syscall(self.syscall(call))));
        events.sort_by_key(LayerEvent::time);
        let anchor = ClockAnchor {
            monotonic: MonotonicNs(clock(node)),
            wallclock: WallclockNs(1_700_000_000_000_000_000),
            uncertainty: DurationNs(100),
            ..ClockAnchor::NONE
        };
        let watermark = MonotonicNs(clock(node) + (second + 1) * SECOND);
        EventBatch { source: source(node), sequence: second, anchor, events, watermark, ..EventBatch::tick() }
    }

    fn names(&self, node: u64) -> Vec<LayerEvent> {
        let time = MonotonicNs(clock(node));
        let device = DeviceEvent { time, device: DISK, name: "loop1".into(), partition_of: None, disk: None };
        let names = (0..self.0.names).flat_map(|n| {
            let file = FileEvent::bare(file(n), time, &format!("/srv/data/tenant-{n}/table"));
            let task = TaskEvent::bare(task(n), time, &format!("database-{n}"));
            [LayerEvent::File(file), LayerEvent::Task(task)]
        });
        std::iter::once(LayerEvent::Device(device)).chain(names).collect()
    }

    /// Time of the call on the clock of its node. A server's is that of its client.
    fn begin(&self, call: Call) -> u64 {
        let client = if call.number < self.own_calls() { call } else { self.client_of(call) };
        clock(call.node) + call.second * SECOND + (client.number + 1) * (SECOND / 2 / (self.own_calls() + 1))
    }

    fn below(&self, call: Call, events: &mut Vec<LayerEvent>) {
        let (index, begin) = (self.index(call), self.begin(call));
        let is_server = call.number >= self.own_calls();
        let inset = if is_server { 100_000 } else { 0 };
        let ids = [0, 1, 2].map(|n| span(index + n));
        let times = [begin + 50_000 + inset, begin + 600_000 - inset].map(MonotonicNs);
        let pair = PairEvent::bare(ids, task(call.number % self.0.names.max(1)), DISK, times);
        events.push(LayerEvent::Pair(pair));
        if is_server {
            let times = (begin + inset, begin + 700_000 - inset);
            let client = self.client_of(call);
            events.push(self.endpoint(RpcSide::Server, client, [ids[0], ids[0]], times));
        } else if call.number.is_multiple_of(REMOTE_EVERY)
            && call.number / REMOTE_EVERY < self.own_calls() / REMOTE_EVERY
        {
            events.push(self.endpoint(RpcSide::Client, call, [ids[2], ids[0]], (begin + 1, begin + 700_000)));
        }
    }

    fn endpoint(
        &self,
        side: RpcSide,
        client: Call,
        [span, root]: [SpanId; 2],
        times: (u64, u64),
    ) -> LayerEvent {
        let connection = format!("node-{}>node-{}", client.node, (client.node + 1) % self.0.nodes).into();
        let key = RpcKey { protocol: "nbd".into(), connection, cookie: self.index(client) };
        let (begin, end) = (MonotonicNs(times.0), MonotonicNs(times.1));
        let event = RpcEndpointEvent { span, root, side, key, unique: true, no_reply: false, begin, end };
        LayerEvent::RpcEndpoint(event.into())
    }

    fn syscall(&self, call: Call) -> SyscallEvent {
        let begin = self.begin(call);
        let end = begin + 700_000 + if is_open(call) { SECOND } else { 0 };
        let names = self.0.names.max(1);
        let opened = OpenFile {
            fd: Fd(3),
            file: file(call.number % names),
            position_before: None,
            position_after: None,
        };
        let name = SyscallId::by_name("pwrite64").unwrap();
        let times = [begin, end].map(MonotonicNs);
        SyscallEvent {
            outcome: SyscallOutcome::Returned(4096),
            file: Some(opened),
            bios: 1,
            sleeps: 1,
            ..SyscallEvent::bare(span(self.index(call)), task(call.number % names), name, times[0], times[1])
        }
    }
}

fn is_open(call: Call) -> bool {
    call.number % OPEN_EVERY == 1
}

/// Each node's clock began at another time.
fn clock(node: u64) -> u64 {
    1_000 + node * 17 * SECOND
}

pub(super) fn source(node: u64) -> Source {
    Source { node: NodeId(u128::from(node) + 1), boot: BootId(7), epoch: StartEpoch(node + 1) }
}

/// Returns the partition of a node's events.
pub(crate) fn partition(node: u64, partitions: u32) -> u32 {
    blkkin_wire::partition::partition_of(&(u128::from(node) + 1).to_be_bytes(), partitions)
}

pub(super) fn span(index: u64) -> SpanId {
    SpanId((index + 1).wrapping_mul(ODD))
}

pub(super) fn task(n: u64) -> TaskRef {
    TaskRef { id: TaskId(n + 1), version: 0 }
}

fn file(n: u64) -> FileId {
    FileId { device: DISK, ino: 12 + n, generation: 1, name: NameId::NONE }
}

/// Returns the inverse modulo 2^64 of an odd number: each step of Newton's method doubles the
/// number of correct bits, of which the first three are.
fn inverse(odd: u64) -> u64 {
    (0..5).fold(odd, |inverse, _| inverse.wrapping_mul(2_u64.wrapping_sub(odd.wrapping_mul(inverse))))
}
