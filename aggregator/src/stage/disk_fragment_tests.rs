//! Traces of a guest and of QEMU: their endpoints, and the fragments of a call that serves several requests.

use std::sync::Arc;

use blkkin_wire::async_io::{AsyncIoEvent, AsyncIoOutcome};
use blkkin_wire::clock::{ClockOffset, MonotonicNs};
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::event::{BioEvent, BlockOp, RequestEvent, Submitter, SyscallEvent, SyscallOutcome};
use blkkin_wire::fragment::TraceFragment;
use blkkin_wire::ids::{BootId, NodeId, Pid, Sector, SpanId, TraceId};
use blkkin_wire::remote_link::{LinkEndpoint, RemoteLink, RpcEndpointEvent, RpcSide};
use blkkin_wire::span::SpanKind;
use blkkin_wire::syscalls::SyscallId;
use blkkin_wire::virtual_machine::{HostProcess, MachineDisk, NbdDisk, VirtualMachineEvent};

use super::fragments::{endpoints, fragments};
use crate::fixtures;
use crate::trace::async_io::AsyncIo;
use crate::trace::{Incomplete, ProcessNames, Root, ShownIn, Trace};

const IMAGE: u64 = 77;

/// Returns a trace of a process that runs a virtual machine with one disk.
fn of_qemu(root: Root) -> Trace {
    let file = fixtures::file_id(IMAGE);
    let disk = MachineDisk {
        disk: "serial=root".into(),
        device: file.device,
        ino: Some(file.ino),
        in_clusters: false,
        layer: 0,
    };
    let machine = VirtualMachineEvent { disks: vec![disk], ..fixtures::virtual_machine(1, "web1") };
    let mut trace = Trace { root, ..fixtures::trace(1) };
    trace.names.process = Some(ProcessNames { virtual_machine: Some(machine), ..Default::default() }.into());
    trace
}

/// Returns a submission of call 1 that wrote 4 KiB of the image, or of another file.
fn submission(span: u64, offset: i64, file: u64, outcome: AsyncIoOutcome) -> AsyncIo {
    let times = [MonotonicNs(20), MonotonicNs(80)];
    let event = AsyncIoEvent {
        opcode: 23,
        file: Some(fixtures::file_id(file)),
        offset: Some(offset),
        outcome,
        bios: 1,
        ..AsyncIoEvent::bare(SpanId(span), Some(SpanId(1)), fixtures::TASK, times)
    };
    AsyncIo { event, file: None }
}

fn write(sector: u64) -> DiskRequest {
    DiskRequest { operation: DiskOperation::Write, start: sector, length: 8 }
}

/// Returns trace, span and request of each endpoint, all of which are servers.
fn servers(trace: &Trace) -> Vec<(u128, u64, DiskRequest)> {
    let server = |endpoint: LinkEndpoint| {
        assert_eq!((endpoint.event.side, endpoint.peer), (RpcSide::Server, None));
        let request = DiskRequest::from_cookie(endpoint.event.key.cookie);
        (endpoint.trace.0, endpoint.event.span.0, request)
    };
    endpoints(trace).map(server).collect()
}

#[test]
fn a_call_on_an_image_is_the_server_of_its_range() {
    let mut call = fixtures::call(1, 10, 90);
    call.file = Some(fixtures::open_file(3, IMAGE));
    let trace = of_qemu(Root::Call(call.clone()));
    // 4 KiB at 8 KiB.
    assert_eq!(servers(&trace), [(trace.id.0, 1, write(16))]);
    assert!(trace.has_remote_client());
    let sync = SyscallEvent {
        call: SyscallId::by_name("fdatasync").unwrap(),
        outcome: SyscallOutcome::Returned(0),
        ..call.clone()
    };
    assert_eq!(servers(&of_qemu(Root::Call(sync.clone()))), [(trace.id.0, 1, DiskRequest::FLUSH)]);
    for (mode, requests) in [(0, 0), (1, 0), (0x03, 1), (0x10, 1), (0x11, 1)] {
        let fallocate = SyscallEvent {
            call: SyscallId::by_name("fallocate").unwrap(),
            args: [3, mode, 8_192, 4_096, 0, 0],
            ..sync.clone()
        };
        let discard = DiskRequest { operation: DiskOperation::Discard, ..write(16) };
        assert_eq!(servers(&of_qemu(Root::Call(fallocate))), vec![(trace.id.0, 1, discard); requests]);
    }
    let other = fixtures::call(1, 10, 90);
    assert_eq!(servers(&of_qemu(Root::Call(other))), []);
    let mut process = of_qemu(Root::Call(call));
    process.names.process = None;
    assert_eq!(servers(&process), [], "another process may use the image too");
}

#[test]
fn a_call_with_one_submission_moves_as_a_whole() {
    let mut trace = of_qemu(Root::Call(fixtures::call(1, 10, 90)));
    trace.async_ios = vec![submission(2, 4096, IMAGE, AsyncIoOutcome::Returned(4096))];
    trace.async_ios.push(submission(3, 0, 5, AsyncIoOutcome::Returned(4096)));
    assert_eq!(servers(&trace), [(trace.id.0, 1, write(8))]);
    let all: Vec<TraceFragment> = fragments(&trace).collect();
    assert_eq!((all.len(), all[0].remote_link.clone()), (1, RemoteLink::PendingParent));
}

#[test]
fn each_of_several_submissions_is_a_trace_of_its_own() {
    let mut trace = of_qemu(Root::Call(fixtures::call(1, 10, 90)));
    trace.async_ios = vec![
        submission(2, 4096, IMAGE, AsyncIoOutcome::Returned(4096)),
        submission(3, 8192, IMAGE, AsyncIoOutcome::Returned(4096)),
        submission(4, 0, 5, AsyncIoOutcome::Returned(4096)),
    ];
    let bio = fixtures::bio_and_request(1, 10, 12, (30, 70)).0;
    trace.bios = vec![BioEvent { submitter: Submitter::Span(SpanId(3)), ..bio }];
    let own = |span| trace.source.trace_id(SpanId(span));
    assert_eq!(servers(&trace), [(own(2).0, 2, write(8)), (own(3).0, 3, write(16))]);
    let all: Vec<TraceFragment> = fragments(&trace).collect();
    let shape = |one: &TraceFragment| {
        (one.trace, one.remote_link.clone(), one.spans.iter().map(|span| span.id.0).collect::<Vec<_>>())
    };
    let shapes: Vec<_> = all.iter().map(shape).collect();
    let pending = RemoteLink::PendingParent;
    assert_eq!(shapes[0].1, RemoteLink::None);
    assert!(shapes[0].2.contains(&1) && shapes[0].2.contains(&4) && !shapes[0].2.contains(&3), "{shapes:?}");
    assert_eq!((shapes[1].0, &shapes[1].1), (own(2), &pending));
    assert_eq!((shapes[2].0, &shapes[2].1), (own(3), &pending));
    assert!(shapes[2].2.starts_with(&[3]) && shapes[2].2.contains(&10), "{shapes:?}");
    let root = &all[2].spans[0];
    assert_eq!((root.parent, root.links[0].span, root.links[0].trace), (None, SpanId(1), trace.id));
    assert!(all.iter().all(|one| one.spans.iter().all(|span| span.trace == one.trace)));
}

#[test]
fn a_submission_without_a_result_has_the_length_of_its_bios_if_all_are_there() {
    let mut trace = of_qemu(Root::Call(fixtures::call(1, 10, 90)));
    trace.async_ios = vec![submission(2, 4096, IMAGE, AsyncIoOutcome::Ended)];
    assert_eq!(servers(&trace), []);
    let bio = fixtures::bio_and_request(1, 10, 12, (30, 70)).0;
    trace.bios = vec![BioEvent { submitter: Submitter::Span(SpanId(2)), bytes: 4096, ..bio }];
    assert_eq!(servers(&trace), [(trace.id.0, 1, write(8))]);
    let incomplete = Trace { incomplete: Incomplete { bios: 1, ..Incomplete::default() }, ..trace.clone() };
    assert_eq!(servers(&incomplete), [(trace.source.trace_id(SpanId(2)).0, 2, write(8))]);
    // A second one without a known range belongs to another request, and does not move with the first.
    trace.async_ios.push(submission(3, 8192, IMAGE, AsyncIoOutcome::Ended));
    assert_eq!(servers(&trace), [(trace.source.trace_id(SpanId(2)).0, 2, write(8))]);
}

/// Returns QEMU's span of an NBD request for 4 KiB at 8 KiB, in a trace of its own.
fn nbd_span(name: &str) -> DaemonSpanEvent {
    let number = |key: &str, value: i64| Annotation {
        time: MonotonicNs(10),
        key: key.into(),
        value: AnnotationValue::Number(value),
    };
    let trace = fixtures::trace(NBD_SPAN).id;
    DaemonSpanEvent {
        name: name.into(),
        kind: SpanKind::Client,
        annotations: vec![number("nbd.offset", 8_192), number("nbd.length", 4_096)],
        ..DaemonSpanEvent::bare(SpanId(NBD_SPAN), trace, MonotonicNs(20), MonotonicNs(80))
    }
}

const NBD_SPAN: u64 = 40;

fn of_nbd_span(span: DaemonSpanEvent) -> Trace {
    let template = of_qemu(Root::Missing);
    let mut trace =
        Trace { names: template.names, root: Root::DaemonSpan(span.into()), ..fixtures::trace(NBD_SPAN) };
    let client = fixtures::rpc_endpoint(NBD_SPAN, RpcSide::Client, 7, (20, 80));
    let disk = NbdDisk { disk: "serial=root".into(), connection: client.key.connection.clone() };
    let process = Arc::make_mut(trace.names.process.as_mut().unwrap());
    process.virtual_machine.as_mut().unwrap().nbd_disks = vec![disk];
    trace.rpc_endpoints = vec![client];
    trace
}

/// Returns the trace of an NBD request of a virtual machine's process.
pub(super) fn nbd_request(name: &str) -> Trace {
    of_nbd_span(nbd_span(name))
}

/// Returns a guest's trace whose request has the range of that NBD request, to the same disk of the same host.
pub(super) fn guest_with_disk() -> Trace {
    let qemu = nbd_request("nbd write");
    let mut trace = of_guest(Root::Call(fixtures::call(1, 10, 90)));
    trace.source.node = NodeId(77);
    trace.id = trace.source.trace_id(trace.root_span);
    trace.requests[0].op = BlockOp(1);
    trace.requests[0].issue = Some(MonotonicNs(15));
    trace.requests[0].complete = MonotonicNs(85);
    let pid = qemu.names.virtual_machine().unwrap().pid;
    let clock = ClockOffset { at: MonotonicNs(5), low: 0, high: 0 };
    trace.names.node_machine =
        node(HostProcess { node: qemu.source.node, boot: qemu.source.boot, pid, clock: Some(clock) });
    name_disk(&mut trace);
    trace
}

#[test]
fn a_request_over_nbd_is_the_server_of_its_range_and_the_client_of_its_daemon() {
    let trace = nbd_request("nbd write");
    let all: Vec<LinkEndpoint> = endpoints(&trace).collect();
    let [client, server] = &all[..] else { panic!("{all:?}") };
    assert_eq!((client.event.side, &*client.event.key.protocol), (RpcSide::Client, "nbd"));
    let key = write(16).key(trace.source.node, Pid(100), "serial=root");
    assert_eq!((server.event.side, &server.event.key, server.trace), (RpcSide::Server, &key, trace.id));
    assert_eq!([server.event.begin, server.event.end], [MonotonicNs(20), MonotonicNs(80)]);
    let all: Vec<TraceFragment> = fragments(&trace).collect();
    assert_eq!((all.len(), all[0].remote_link.clone()), (1, RemoteLink::PendingParent));
    let cookie = |name: &str| {
        let trace = nbd_request(name);
        let mut servers = endpoints(&trace).filter(|one| one.event.side == RpcSide::Server);
        servers.next().map(|one| DiskRequest::from_cookie(one.event.key.cookie))
    };
    let of = |operation| Some(DiskRequest { operation, ..write(16) });
    assert_eq!(cookie("nbd read"), of(DiskOperation::Read));
    assert_eq!(cookie("nbd flush"), Some(DiskRequest::FLUSH));
    assert_eq!(["nbd trim", "nbd write zeroes"].map(cookie), [of(DiskOperation::Discard); 2]);
    assert_eq!(cookie("nbd block status"), None);
    // A request that was sent again or failed, another connection, a span without one, and a daemon's own span.
    let mut resent = nbd_request("nbd write");
    resent.rpc_endpoints[0].no_reply = true;
    let mut other = nbd_request("nbd write");
    other.rpc_endpoints[0].key.connection = "other".into();
    let mut local = nbd_request("nbd write");
    local.rpc_endpoints.clear();
    let failed = of_nbd_span(DaemonSpanEvent { status: SpanStatus::Error(5), ..nbd_span("nbd write") });
    let daemons = of_nbd_span(DaemonSpanEvent { trace: TraceId(7), ..nbd_span("nbd write") });
    for trace in [resent, other, local, failed, daemons] {
        assert!(!trace.has_remote_client());
    }
}

const CLOCK: ClockOffset = ClockOffset { at: MonotonicNs(5), low: -10, high: 10 };

/// Returns the host of the guest, with its clock.
fn host() -> HostProcess {
    HostProcess { node: NodeId(9), boot: BootId(8), pid: Pid(4_400), clock: Some(CLOCK) }
}

/// Names the guest that runs on this host.
fn node(host: HostProcess) -> Option<Arc<VirtualMachineEvent>> {
    let machine = VirtualMachineEvent::bare(MonotonicNs(1), VirtualMachineEvent::NODE, "web1", "");
    Some(Arc::new(VirtualMachineEvent { host: Some(host.into()), ..machine }))
}

/// Returns a guest's trace with a request for 4 KiB at 8 KiB, to a disk that the host does not know.
fn of_guest(root: Root) -> Trace {
    let mut trace = Trace { root, ..fixtures::trace(1) };
    let request = fixtures::bio_and_request(1, 10, 12, (30, 70)).1;
    trace.requests = vec![RequestEvent { sector: Sector(16), bytes: 4096, ..request }];
    trace.names.node_machine = node(host());
    trace
}

/// Names the disk as the host does.
fn name_disk(trace: &mut Trace) {
    Arc::make_mut(&mut trace.names.devices).disks.insert(trace.requests[0].device, "serial=root".into());
}

#[test]
fn a_guests_request_is_a_client_once_the_hosts_clock_is_known() {
    let mut trace = of_guest(Root::Kernel);
    assert_eq!(endpoints(&trace).count(), 0, "no disk that the host knows");
    name_disk(&mut trace);
    let all: Vec<_> = endpoints(&trace).collect();
    let [endpoint] = &all[..] else { panic!("{all:?}") };
    let operation = if trace.requests[0].op.is_write() { DiskOperation::Write } else { DiskOperation::Read };
    let expected = DiskRequest { operation, ..write(16) }.key(NodeId(9), Pid(4_400), "serial=root");
    assert_eq!(
        (&endpoint.event.key, endpoint.event.side, endpoint.event.span),
        (&expected, RpcSide::Client, SpanId(12))
    );
    assert_eq!(endpoint.event.begin, trace.requests[0].issue.unwrap());
    assert_eq!(endpoint.peer.unwrap().offset, CLOCK);
    trace.names.node_machine = node(HostProcess { clock: None, ..host() });
    assert_eq!(endpoints(&trace).count(), 0);
}

#[test]
fn a_request_with_flushes_is_a_client_of_the_flushes_too() {
    let mut trace = of_guest(Root::Kernel);
    name_disk(&mut trace);
    let requests = |trace: &Trace| {
        let request =
            |one: LinkEndpoint| (one.event.span.0, DiskRequest::from_cookie(one.event.key.cookie).operation);
        endpoints(trace).map(request).collect::<Vec<_>>()
    };
    trace.requests[0].op = BlockOp(1);
    assert_eq!(requests(&trace), [(12, DiskOperation::Write)]);
    let (fua, preflush) = (1 << 17, 1 << 18);
    for (flags, flushes) in [(fua, 1), (preflush, 1), (fua | preflush, 2)] {
        trace.requests[0].op = BlockOp(1 | flags);
        let all = [&[(12, DiskOperation::Write)][..], &vec![(12, DiskOperation::Flush); flushes]].concat();
        assert_eq!(requests(&trace), all);
    }
    trace.requests[0].op = BlockOp(2 | preflush);
    assert_eq!(requests(&trace), [(12, DiskOperation::Flush)]);
    for discard_or_write_zeroes in [3, 9] {
        trace.requests[0].op = BlockOp(discard_or_write_zeroes);
        assert_eq!(requests(&trace), [(12, DiskOperation::Discard)]);
    }
}

#[test]
fn requests_of_a_commit_that_a_call_shows_are_in_the_calls_trace() {
    let mut trace = of_guest(Root::Commit(fixtures::commit(1, (20, 90), 7, 1)));
    name_disk(&mut trace);
    let traces = |trace: &Trace| endpoints(trace).map(|one| one.trace).collect::<Vec<_>>();
    assert_eq!(traces(&trace), [trace.id]);
    let call = fixtures::trace(5);
    trace.shown_in = Some(ShownIn { trace: call.id, call: SpanId(5) });
    assert_eq!(traces(&trace), [call.id]);
    assert_eq!(fragments(&trace).map(|one| one.spans.len()).sum::<usize>(), 0, "the call shows them");
}

#[test]
fn an_endpoint_that_a_source_made_itself_is_ignored() {
    let mut trace = fixtures::call_trace(1, (10, 90));
    let endpoint = fixtures::rpc_endpoint(1, RpcSide::Client, 7, (20, 80));
    let key = write(16).key(NodeId(9), Pid(4_400), "serial=root");
    trace.rpc_endpoints = vec![endpoint.clone(), RpcEndpointEvent { key, ..endpoint }];
    let protocols: Vec<_> = endpoints(&trace).map(|one| one.event.key.protocol).collect();
    assert_eq!(protocols, ["nbd".into()]);
}
