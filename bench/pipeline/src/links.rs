//! Cost of the link stage for virtual machines' disks: endpoints of guests' requests and of QEMU's operations to links,
//! on one core.
//!
//! *In*: a number of requests. *Out*: [`LinkedStats`]. *Invariant*: as in [`crate::stages`], the same input is the same
//! work. Each request has one operation, which arrives 300 ms after it; 10,000 requests a second of one disk write
//! ranges of 4 KiB in an area of 1 GiB. One in [`FLUSH_EVERY`] can be a flush instead: all flushes of a disk have one
//! range, and are found by time. Decoding and encoding of the records are not included.

use std::time::Duration;

use blkkin_aggregator::stage::link::{LinkStage, LinkStageConfig};
use blkkin_wire::clock::{ClockAnchor, ClockOffset, MonotonicNs};
use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::fragment::{Incarnation, TraceFragment};
use blkkin_wire::ids::{BootId, NodeId, Pid, Source, SpanId, StartEpoch, TraceId};
use blkkin_wire::remote_link::{LinkEndpoint, NodeClock, PeerClock, RemoteLink, RpcEndpointEvent, RpcSide};
use blkkin_wire::stage::{LogTime, Stage, StageOutput};

use crate::aggregate::thread_time;

const HOST: NodeId = NodeId(1);
const GUEST: NodeId = NodeId(2);
/// Time between two requests, and the parts of one, in ns.
const STEP: u64 = 100_000;
const BEFORE: u64 = 30_000;
const WORK: u64 = 50_000;
const AFTER: u64 = 20_000;
/// Difference of the clocks, and half of the bound that a ping has, in ns.
const AHEAD: u64 = 1_000_000_000_000;
const PING: i64 = 1_000_000;
/// Requests by which an operation arrives later.
const LATE: u64 = 3_000;
/// Steps between two readings of the processor time, each of which is a system call.
const CHUNK: u64 = 1_000;
/// Requests of which the last is a flush, in a pass with flushes: 500 a second.
pub const FLUSH_EVERY: u64 = 20;
const RANGES: u64 = (1 << 30) / 4096;

/// Counters of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkedStats {
    /// Input endpoints.
    pub endpoints: u64,
    /// Operations with a request.
    pub links: u64,
    /// Processor time from endpoints to links.
    pub spent: Duration,
}

/// Counts links.
#[derive(Default)]
struct Links(u64);

impl StageOutput for Links {
    fn fragment(&mut self, _: u32, _: u64, fragment: TraceFragment) {
        self.0 += u64::from(matches!(fragment.remote_link, RemoteLink::Reparented(_)));
    }

    fn side_output(&mut self, _: u32, _: u64, _: TraceFragment) {}

    fn dead_letter(&mut self, _why: String) {}
}

fn endpoint(n: u64, side: RpcSide, with_flushes: bool) -> LinkEndpoint {
    let range = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) % RANGES;
    let request = match with_flushes && (n + 1).is_multiple_of(FLUSH_EVERY) {
        true => DiskRequest::FLUSH,
        false => DiskRequest { operation: DiskOperation::Write, start: 8 * range, length: 8 },
    };
    let issue = n * STEP;
    let (node, times) = match side {
        RpcSide::Client => (GUEST, [issue, issue + BEFORE + WORK + AFTER]),
        RpcSide::Server => (HOST, [AHEAD + issue + BEFORE, AHEAD + issue + BEFORE + WORK]),
    };
    let low = AHEAD as i64;
    let offset = ClockOffset { at: MonotonicNs(issue), low: low - PING, high: low + PING };
    let key = request.key(HOST, Pid(4_400), "serial=root");
    LinkEndpoint {
        event: RpcEndpointEvent::bare(SpanId(n), side, key, times.map(MonotonicNs)),
        trace: TraceId(node.0 << 64 | u128::from(n)),
        clock: NodeClock {
            source: Source { node, boot: BootId(node.0), epoch: StartEpoch(1) },
            anchor: ClockAnchor::NONE,
        },
        peer: (side == RpcSide::Client).then_some(PeerClock { node: HOST, boot: BootId(HOST.0), offset }),
        image: None,
    }
}

/// Sends `requests` requests with their operations through the stage.
pub fn run(requests: u64, with_flushes: bool) -> LinkedStats {
    let mut stage = LinkStage::new(Incarnation(1), LinkStageConfig::new(12));
    let (mut links, mut done) = (Links::default(), LinkedStats::default());
    for first in (0..requests + LATE).step_by(CHUNK as usize) {
        let steps = first..(first + CHUNK).min(requests + LATE);
        let client = |n: u64| (n < requests).then(|| endpoint(n, RpcSide::Client, with_flushes));
        let server = |n: u64| n.checked_sub(LATE).map(|n| endpoint(n, RpcSide::Server, with_flushes));
        let steps: Vec<_> = steps.map(|n| (LogTime(n * STEP / 1_000_000), [client(n), server(n)])).collect();
        let started = thread_time();
        for (at, endpoints) in steps {
            stage.advance(at, &mut links);
            for endpoint in endpoints.into_iter().flatten() {
                done.endpoints += 1;
                stage.add_endpoint(endpoint, &mut links);
            }
        }
        done.spent += thread_time() - started;
    }
    let started = thread_time();
    stage.advance(LogTime(u64::MAX), &mut links);
    LinkedStats { links: links.0, spent: done.spent + (thread_time() - started), ..done }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_request_has_its_operation() {
        for with_flushes in [false, true] {
            let done = run(30_000, with_flushes);
            assert_eq!((done.endpoints, done.links), (60_000, 30_000));
        }
    }
}
