//! NBD client spans: matches NBD requests of traced programs with the replies of their servers.
//!
//! *In*: records of requests and replies (`kprobe-ebpf/src/nbd/`) in time order, and the tracer's
//! own events that name programs. *Out*: a client span per request, and the [`RpcEndpointEvent`]
//! that links it to the daemon's span (rule `nbd`, client side). *Invariant*: requests = replies +
//! not sent + unanswered + pending. A reply ends the request with its connection and cookie, and no
//! other.
//!
//! A cookie identifies one request until its reply ("Request message", doc/proto.md of NBD). If a
//! cookie is reused before its reply was observed, the reply was missed. The earlier request then
//! ends with a note. Requests without a reply when tracing or the connection ends get the same
//! note. Each is still an endpoint of a request that a daemon may have received, since it is known
//! to be sent.
//!
//! TCP retransmissions are recorded (`nbd.retransmitted`: when, and how often) on each request whose bytes
//! they carry, by the position in the stream. Only the client's own transmissions are observed; a
//! reply that was sent twice is known to the server's kernel.
//!
//! *Rejected*: a timeout for requests. A disk may take minutes, and a later reply would match no
//! request.

mod program_names;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

use blkkin_probe_abi::counters as slot;
use blkkin_probe_abi::record::{NbdReplyRecord, NbdRequestRecord, NbdRetransmitRecord};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::Source;
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcKey, RpcSide};

use crate::read::translate::nbd::{self as translate, ReplyOutcome};
use program_names::ProgramNames;

/// Maximum number of pending requests, some 30 MiB. Beyond it the oldest eighth ends without a
/// reply.
const PENDING_MAX: usize = 65_536;
/// Key of the notes on retransmissions: one per retransmission, and one with the total.
const RETRANSMITTED: &str = "nbd.retransmitted";
/// Maximum number of notes per request. TCP gives up after 15 retransmissions by default
/// (tcp_retries2).
const RETRANSMITTED_MAX: usize = 16;

/// Status and note of a request whose reply may have come unobserved.
const REPLY_NOT_SEEN: (SpanStatus, &str) = (SpanStatus::Unfinished, "not observed");

/// Counters of NBD requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NbdStats {
    /// Requests given to a socket, except disconnect requests.
    pub requests: u64,
    /// Requests whose reply was observed.
    pub replies: u64,
    /// Requests that the socket did not accept; the client may retry them.
    pub not_sent: u64,
    /// Requests that ended without an observed reply.
    pub unanswered: u64,
    /// Requests among `unanswered` that ended because too many were pending.
    pub evicted: u64,
    /// Requests among `unanswered` whose connection ended first.
    pub disconnected: u64,
    /// Segments that TCP retransmitted with bytes of pending requests.
    pub retransmits: u64,
    /// Segments that TCP retransmitted without bytes of pending requests.
    pub retransmits_other: u64,
    /// Replies without an observed request.
    pub unmatched_replies: u64,
    /// Records due, as counted by the kernel side.
    pub fired: u64,
    /// Records dropped because the rings were full, as counted by the kernel side.
    pub dropped: u64,
    /// Records read.
    pub recorded: u64,
    /// Buffers with a partial header, or with more data than was parsed.
    pub cut_headers: u64,
    /// Apparent requests at stream positions where data were due.
    pub in_data: u64,
    /// Requests with extended headers, which are not traced.
    pub extended: u64,
    /// Requests that are not traced because the table of connections was full.
    pub untracked: u64,
}

impl NbdStats {
    /// Returns the number of messages that are known to be missing: of these connections some request
    /// or reply is not recorded. A request without a reply is none; its server may have sent none.
    pub fn lost(&self) -> u64 {
        self.dropped + self.untracked + self.cut_headers + self.extended + self.evicted
    }
}

/// Shared snapshot of the counters, for monitoring.
#[derive(Clone, Debug, Default)]
pub struct NbdStatsHandle(Arc<Mutex<NbdStats>>);

impl NbdStatsHandle {
    /// Returns counters that are at most 50 ms old.
    pub fn get(&self) -> NbdStats {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn set(&self, stats: NbdStats) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = stats;
    }
}

/// Table of pending requests.
pub struct NbdRequests {
    source: Source,
    /// Boot id as the kernel formats it, which is a part of a Unix connection's name.
    boot: String,
    /// Pending requests by socket and cookie.
    pending: HashMap<(u64, u64), PendingRequest>,
    programs: ProgramNames,
    stats: NbdStats,
}

struct PendingRequest {
    span_event: DaemonSpanEvent,
    /// Key that links the request to the server's span, and whether it is unique.
    rpc_key: Option<(RpcKey, bool)>,
    /// Range of the request's bytes in its connection's stream; empty if unknown.
    bytes: Range<u64>,
    /// Number of retransmissions of these bytes.
    retransmits: usize,
}

impl NbdRequests {
    /// Creates an empty table for this source.
    pub fn new(source: Source) -> NbdRequests {
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let (pending, programs) = (HashMap::new(), ProgramNames::default());
        NbdRequests {
            source,
            boot: boot.trim_end().to_owned(),
            pending,
            programs,
            stats: NbdStats::default(),
        }
    }

    /// Learns program names from the tracer's events.
    pub fn observe(&mut self, event: &LayerEvent) {
        self.programs.observe(event);
    }

    /// Handles a request that was given to a socket.
    pub fn on_request(&mut self, record: &NbdRequestRecord, out: &mut Vec<LayerEvent>) {
        self.stats.recorded += 1;
        let trace = self.source.trace_id(blkkin_wire::ids::SpanId(record.span));
        let span = translate::client_span(record, trace, self.programs.name(record.task));
        if translate::is_disconnect(record) {
            // The protocol defines no reply to a disconnect.
            return out.push(LayerEvent::DaemonSpan(span.into()));
        }
        self.stats.requests += 1;
        if self.pending.len() >= PENDING_MAX {
            self.evict_oldest(span.begin, out);
        }
        let (begin, bytes) = (span.begin, translate::bytes(record));
        let request = PendingRequest {
            span_event: span,
            rpc_key: translate::rpc_key(record, &self.boot),
            bytes,
            retransmits: 0,
        };
        let earlier = self.pending.insert((record.socket, record.cookie), request);
        if let Some(earlier) = earlier {
            self.end_without_reply(earlier, begin, REPLY_NOT_SEEN, out);
        }
    }

    /// Handles a reply, the notice that a request was not sent, or the end of a connection.
    pub fn on_reply(&mut self, record: &NbdReplyRecord, out: &mut Vec<LayerEvent>) {
        self.stats.recorded += 1;
        if let Some(errno) = translate::connection_error(record) {
            return self.on_disconnect(record, errno, out);
        }
        let key = (record.socket, record.cookie);
        let Some(request) = self.pending.get_mut(&key) else {
            self.stats.unmatched_replies += 1;
            return;
        };
        let at = MonotonicNs(record.header.time_ns);
        match translate::reply_outcome(record) {
            ReplyOutcome::NotSent => {
                self.stats.not_sent += 1;
                self.pending.remove(&key);
                return;
            }
            ReplyOutcome::Done => {}
            ReplyOutcome::Failed(errno) => request.span_event.status = SpanStatus::Error(errno),
            ReplyOutcome::FailedUnknown { last } => {
                // The error number is in a separate buffer.
                request.span_event.status = SpanStatus::Error(libc::EIO.unsigned_abs());
                request.span_event.annotations.push(text_note(
                    at,
                    "nbd.error",
                    "in a separate chunk: EIO stands for any error",
                ));
                if !last {
                    return;
                }
            }
        }
        if let Some(request) = self.pending.remove(&key) {
            self.stats.replies += 1;
            emit(request, at, false, out);
        }
    }

    /// Handles a retransmission.
    pub fn on_retransmit(&mut self, record: &NbdRetransmitRecord) {
        self.stats.recorded += 1;
        let (mut ours, at) = (false, MonotonicNs(record.header.time_ns));
        for (_, request) in self.pending.iter_mut().filter(|((socket, _), _)| *socket == record.socket) {
            if request.bytes.start.max(record.from) >= request.bytes.end.min(record.to) {
                continue;
            }
            ours = true;
            request.retransmits += 1;
            if request.retransmits <= RETRANSMITTED_MAX {
                request.span_event.annotations.push(Annotation {
                    time: at,
                    key: RETRANSMITTED.into(),
                    value: AnnotationValue::Event,
                });
            }
        }
        *(if ours { &mut self.stats.retransmits } else { &mut self.stats.retransmits_other }) += 1;
    }

    /// Ends the requests of a closed connection.
    fn on_disconnect(&mut self, record: &NbdReplyRecord, errno: u32, out: &mut Vec<LayerEvent>) {
        let (at, before) = (MonotonicNs(record.header.time_ns), self.stats.unanswered);
        let why = match errno {
            0 => "none: the connection was closed first",
            _ => "none: the connection failed first",
        };
        let outcome = if errno == 0 { SpanStatus::Unfinished } else { SpanStatus::Error(errno) };
        self.end_matching(at, |socket, _| socket == record.socket, (outcome, why), out);
        self.stats.disconnected += self.stats.unanswered - before;
    }

    /// Ends all pending requests, after the last record.
    pub fn finish(&mut self, now: MonotonicNs, out: &mut Vec<LayerEvent>) {
        self.end_matching(now, |_, _| true, REPLY_NOT_SEEN, out);
    }

    /// Returns the counters, including those of the kernel side.
    pub fn stats(&self, kernel: &[u64; slot::COUNTERS]) -> NbdStats {
        NbdStats {
            fired: kernel[slot::NBD_FIRED],
            dropped: kernel[slot::NBD_DROPPED],
            cut_headers: kernel[slot::NBD_UNALIGNED],
            in_data: kernel[slot::NBD_IN_DATA],
            extended: kernel[slot::NBD_EXTENDED],
            untracked: kernel[slot::NBD_UNTRACKED],
            ..self.stats
        }
    }

    fn evict_oldest(&mut self, now: MonotonicNs, out: &mut Vec<LayerEvent>) {
        let mut begins: Vec<_> = self.pending.values().map(|request| request.span_event.begin).collect();
        let (_, until, _) = begins.select_nth_unstable(PENDING_MAX / 8);
        let until = *until;
        let before = self.stats.unanswered;
        self.end_matching(now, |_, request| request.span_event.begin <= until, REPLY_NOT_SEEN, out);
        self.stats.evicted += self.stats.unanswered - before;
    }

    /// Ends matching requests without a reply, oldest first.
    fn end_matching(
        &mut self,
        at: MonotonicNs,
        which: impl Fn(u64, &PendingRequest) -> bool,
        why: (SpanStatus, &str),
        out: &mut Vec<LayerEvent>,
    ) {
        let cut = self.pending.extract_if(|(socket, _), request| which(*socket, request));
        let mut cut: Vec<PendingRequest> = cut.map(|(_, request)| request).collect();
        cut.sort_by_key(|request| (request.span_event.begin, request.span_event.span));
        cut.into_iter().for_each(|request| self.end_without_reply(request, at, why, out));
    }

    fn end_without_reply(
        &mut self,
        mut request: PendingRequest,
        at: MonotonicNs,
        (outcome, why): (SpanStatus, &str),
        out: &mut Vec<LayerEvent>,
    ) {
        self.stats.unanswered += 1;
        request.span_event.status = outcome;
        request.span_event.annotations.push(text_note(at, "nbd.reply", why));
        emit(request, at, true, out);
    }
}

fn emit(request: PendingRequest, at: MonotonicNs, no_reply: bool, out: &mut Vec<LayerEvent>) {
    let PendingRequest { span_event: mut span, rpc_key, retransmits, .. } = request;
    if retransmits > 0 {
        let value = AnnotationValue::Number(retransmits as i64);
        span.annotations.push(Annotation { time: at, key: RETRANSMITTED.into(), value });
    }
    span.end = at.max(span.begin);
    if let Some((key, unique)) = rpc_key {
        let endpoint = RpcEndpointEvent {
            span: span.span,
            root: span.span,
            side: RpcSide::Client,
            key,
            unique,
            no_reply,
            begin: span.begin,
            end: span.end,
        };
        out.push(LayerEvent::RpcEndpoint(endpoint.into()));
    }
    out.push(LayerEvent::DaemonSpan(span.into()));
}

fn text_note(at: MonotonicNs, key: &str, value: &str) -> Annotation {
    Annotation { time: at, key: key.into(), value: AnnotationValue::Text(value.into()) }
}
