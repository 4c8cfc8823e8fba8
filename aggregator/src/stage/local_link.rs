//! Links requests with both endpoints on this node, within one process.
//!
//! *In*: finished traces and their spans, in the join's order. *Out*: spans; those of a server's
//! trace are in its client's trace.
//!
//! *Invariant*: that of [`super`]. Each span leaves once, changed by `reparent` alone. The
//! state machines that link nodes ([`LinkStage`], [`AssembleStage`]) decide here too, on the clock
//! of this node's events. The caller passes it as the log's time; guests have clocks of their own.
//!
//! Waiting fragments stay decoded, but for those that wait behind many others (`pending_traces`).
//!
//! *Rejected*: the client's trace id for a daemon span before the join. The client's request is
//! known when it has its reply, after the daemon span and all of its children. These would have to
//! wait in the join, in another form than between nodes.

use blkkin_wire::fragment::{FragmentKind, Incarnation, TraceFragment};
use blkkin_wire::ids::TraceId;
use blkkin_wire::remote_link::{RemoteLink, Reparented};
use blkkin_wire::span::Span;
use blkkin_wire::stage::{LogTime, Stage, StageOutput};

use super::assemble::{AssembleStage, AssembleStageConfig};
use super::fragments::{endpoints, fragments_of};
use super::link::{LinkStage, LinkStageConfig, LinkStats};
use super::sampling::SamplingRules;
use crate::trace::Trace;

/// Steps of the time after the last trace, ms: the link stage waits for 2 s twice before it decides about a disk, and gives
/// an endpoint up after 10 s.
const FINISH_STEP_MS: u64 = 500;
const FINISH_STEPS: u64 = 20;

/// The link stage and the assemble stage of one process.
#[derive(Debug)]
pub struct LocalLinker {
    link: LinkStage,
    assemble: AssembleStage,
    now: LogTime,
    reparented: Vec<(TraceId, Reparented)>,
}

impl Default for LocalLinker {
    fn default() -> Self {
        LocalLinker::new()
    }
}

impl LocalLinker {
    /// Creates a linker that has seen nothing.
    pub fn new() -> LocalLinker {
        LocalLinker {
            link: LinkStage::new(Incarnation(0), LinkStageConfig::new(1)),
            assemble: AssembleStage::new(
                Incarnation(0),
                AssembleStageConfig::new(1, SamplingRules::default()),
            ),
            now: LogTime::default(),
            reparented: Vec::new(),
        }
    }

    /// Adds a trace with its spans at a time of the log, and emits the spans that are decided by now.
    pub fn add(&mut self, trace: &Trace, spans: Vec<Span>, at: LogTime, emit: &mut dyn FnMut(Vec<Span>)) {
        self.reparented.clear();
        let mut output = LocalOutput { reinput: Vec::new(), emit };
        self.advance(at, &mut output);
        for fragment in fragments_of(trace, spans) {
            self.assemble.add_fragment(fragment, &mut output);
        }
        for endpoint in endpoints(trace) {
            self.link.add_endpoint(endpoint, &mut output);
        }
        self.process_reinput(output);
    }

    /// Emits all waiting spans, at the end of tracing. No further endpoint arrives, so the time goes on until those of disks
    /// are decided, and then to its end.
    pub fn finish(&mut self, emit: &mut dyn FnMut(Vec<Span>)) {
        self.reparented.clear();
        let from = self.now.0;
        let steps = (1..=FINISH_STEPS).map(|step| LogTime(from.saturating_add(step * FINISH_STEP_MS)));
        for at in steps.chain([LogTime(u64::MAX)]) {
            let mut output = LocalOutput { reinput: Vec::new(), emit: &mut *emit };
            self.advance(at, &mut output);
            self.process_reinput(output);
        }
    }

    /// Returns the decisions of the last [`LocalLinker::add`] or [`LocalLinker::finish`]:
    /// provisional trace ids, each with its new trace and parent.
    pub fn reparented(&self) -> &[(TraceId, Reparented)] {
        &self.reparented
    }

    /// Returns the counters of RPC endpoints.
    pub fn stats(&self) -> &LinkStats {
        self.link.stats()
    }

    fn advance(&mut self, at: LogTime, output: &mut LocalOutput<'_>) {
        self.now = self.now.max(at);
        self.link.advance(at, output);
        self.assemble.advance(at, output);
    }

    /// Passes reparent decisions and reparented fragments through the assemble stage again. The
    /// number of reparents of a fragment bounds the loop.
    fn process_reinput(&mut self, mut output: LocalOutput<'_>) {
        while !output.reinput.is_empty() {
            for fragment in std::mem::take(&mut output.reinput) {
                if let RemoteLink::Reparented(target) = &fragment.remote_link {
                    self.reparented.push((fragment.trace, (**target).clone()));
                }
                self.assemble.add_fragment(fragment, &mut output);
            }
        }
    }
}

/// Output of both stages.
struct LocalOutput<'a> {
    reinput: Vec<TraceFragment>,
    emit: &'a mut dyn FnMut(Vec<Span>),
}

impl StageOutput for LocalOutput<'_> {
    fn fragment(&mut self, _partition: u32, _number: u64, fragment: TraceFragment) {
        match fragment.remote_link {
            RemoteLink::Reparented(_) | RemoteLink::Unlinked => self.reinput.push(fragment),
            _ => (self.emit)(fragment.spans),
        }
    }

    fn side_output(&mut self, _partition: u32, _number: u64, fragment: TraceFragment) {
        debug_assert_eq!(fragment.kind, FragmentKind::Late);
        self.reinput.push(fragment);
    }

    /// Does nothing: only unreadable bytes are dead letters, and there are none here.
    fn dead_letter(&mut self, _why: String) {}
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use blkkin_wire::event::{ContextSource, SyscallEvent, TraceContext};
    use blkkin_wire::ids::{SpanId, TraceId};
    use blkkin_wire::remote_link::RpcSide;
    use blkkin_wire::span::SpanKind;

    use super::*;
    use crate::fixtures;
    use crate::spans;
    use crate::stage::disk_fragment_tests;
    use crate::trace::Root;

    /// Returns a daemon span that was an endpoint of request `cookie`.
    fn endpoint_trace(side: RpcSide, span: u64, cookie: u64, times: (u64, u64)) -> Trace {
        let kind = if side == RpcSide::Client { SpanKind::Client } else { SpanKind::Server };
        let rpc_endpoints = vec![fixtures::rpc_endpoint(span, side, cookie, times)];
        Trace { rpc_endpoints, ..fixtures::daemon_span_trace(span, kind, times) }
    }

    /// Returns a call that was made for the daemon span `parent`.
    fn call(span: u64, parent: u64, times: (u64, u64)) -> Trace {
        let context = TraceContext {
            trace: TraceId(parent.into()),
            span: SpanId(parent),
            flags: 0,
            source: ContextSource::DaemonSpan,
        };
        let call = SyscallEvent { context: Some(context.into()), ..fixtures::call_with(span, times, 0) };
        Trace { id: context.trace, root: Root::Call(call), ..fixtures::trace(span) }
    }

    fn link(traces: &[Trace]) -> (HashMap<u64, (TraceId, Option<SpanId>)>, LinkStats) {
        let (mut linker, mut spans) = (LocalLinker::new(), Vec::new());
        let mut out = |more: Vec<Span>| spans.extend(more);
        traces.iter().for_each(|trace| {
            linker.add(trace, spans::spans_of(trace), LogTime(trace.last_end().0 / 1_000_000), &mut out);
        });
        linker.finish(&mut out);
        let count = spans.len();
        let all: HashMap<_, _> = spans.iter().map(|one| (one.id.0, (one.trace, one.parent))).collect();
        assert_eq!(all.len(), count, "each span once");
        (all, linker.stats().clone())
    }

    #[test]
    fn a_server_span_and_its_children_move_into_the_clients_trace() {
        let (client, server) = (
            endpoint_trace(RpcSide::Client, 1, 7, (100, 500)),
            endpoint_trace(RpcSide::Server, 2, 7, (150, 400)),
        );
        let below = call(3, 2, (200, 300));
        let (spans, stats) = link(&[below, server, client]);
        let trace = TraceId(1);
        assert_eq!(spans[&1], (trace, None));
        assert_eq!(spans[&2], (trace, Some(SpanId(1))));
        assert_eq!(spans[&3], (trace, Some(SpanId(2))));
        assert_eq!(stats.matched, 2);
    }

    #[test]
    fn a_server_may_report_its_end_after_the_client_has_the_reply() {
        let (client, server) = (
            endpoint_trace(RpcSide::Client, 1, 7, (100, 500)),
            endpoint_trace(RpcSide::Server, 2, 7, (150, 510)),
        );
        let (spans, _) = link(&[client, call(3, 2, (200, 300)), server]);
        assert_eq!(spans[&2], (TraceId(1), Some(SpanId(1))));
        assert_eq!(spans[&3].0, TraceId(1));
    }

    #[test]
    fn repeated_cookies_match_their_own_request() {
        let traces = [
            endpoint_trace(RpcSide::Server, 2, 7, (150, 400)),
            endpoint_trace(RpcSide::Client, 1, 7, (100, 390)),
            endpoint_trace(RpcSide::Server, 4, 7, (450, 600)),
            endpoint_trace(RpcSide::Client, 3, 7, (420, 700)),
        ];
        let (spans, stats) = link(&traces);
        assert_eq!(spans[&2].1, Some(SpanId(1)));
        assert_eq!(spans[&4].1, Some(SpanId(3)));
        assert_eq!((stats.matched, stats.refused), (4, 0));
    }

    /// A guest's request, QEMU's NBD request for it, and the server's work, which arrive in any order.
    #[test]
    fn a_server_moves_with_its_client_into_the_trace_of_a_guest() {
        let (guest, qemu) =
            (disk_fragment_tests::guest_with_disk(), disk_fragment_tests::nbd_request("nbd write"));
        let server = endpoint_trace(RpcSide::Server, 50, 7, (30, 60));
        let below = call(51, 50, (40, 50));
        let host = qemu.root_span;
        for order in [[0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]] {
            let all = [&guest, &qemu, &server, &below];
            let (spans, stats) = link(&order.map(|at| all[at].clone()));
            let request = SpanId(guest.requests[0].span.0);
            assert_eq!(spans[&host.0], (guest.id, Some(request)));
            assert_eq!(spans[&50], (guest.id, Some(host)));
            assert_eq!(spans[&51], (guest.id, Some(SpanId(50))));
            assert_eq!((stats.matched, stats.unmatched), (4, 0));
        }
        // Without a guest the server stays below QEMU's request, and each span leaves once.
        let (spans, _) = link(&[below, server, qemu.clone()]);
        assert_eq!(spans[&host.0], (qemu.id, None));
        assert_eq!([spans[&50], spans[&51]], [(qemu.id, Some(host)), (qemu.id, Some(SpanId(50)))]);
    }

    #[test]
    fn endpoints_of_different_requests_do_not_match() {
        // The first request's server endpoint was lost, and the second's client endpoint.
        let traces = [
            endpoint_trace(RpcSide::Client, 1, 7, (100, 390)),
            endpoint_trace(RpcSide::Server, 4, 7, (450, 600)),
        ];
        let (spans, stats) = link(&traces);
        assert_eq!((spans[&1], spans[&4]), ((TraceId(1), None), (TraceId(4), None)));
        assert_eq!((stats.matched, stats.unmatched), (0, 2));
    }
}
