//! Endpoints of a trace toward a virtual machine's disk: requests of a guest, and operations of QEMU.
//!
//! *In*: a trace. *Out*: for a guest's trace, a client endpoint for each request to a disk that guest and host both
//! name, and another one for each flush before or after a request's data. For a trace of a QEMU
//! process, a server endpoint for each operation on the image of such a disk: a system call, a submission of
//! asynchronous I/O, or a request to the NBD server that has the image.
//!
//! A call that submits several serves several requests, so each submission is a trace of its own, with a span link to
//! the call (`stage/fragments.rs`). The call with one submission moves to the guest's trace as a whole.
//!
//! *Invariant*: an endpoint has the key of its own operation and range ([`DiskRequest`]), and the times at which QEMU
//! had it or the image's file system had it. A guest's endpoint carries the host's clock as its host's agent knows it;
//! without that there is none, since nothing could be matched.
//!
//! QEMU takes the results of libaio from memory, without a call, so they are unknown. Then the bios of the submission
//! have its length, if all are there.
//!
//! An NBD request that failed or has no reply is no endpoint: QEMU may send it again, and the guest waits for that one.
//!
//! *Rejected*: the call's trace below one of the requests that it serves. The others would have nothing, and that one
//! what belongs to others.

use blkkin_wire::async_io::{AsyncDirection, AsyncInterface, AsyncIoEvent, AsyncIoOutcome};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::{AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::disk_request::{DiskOperation, DiskRequest};
use blkkin_wire::event::{BioEvent, RequestEvent, SyscallEvent, SyscallOutcome};
use blkkin_wire::ids::{DeviceId, FileId, SpanId};
use blkkin_wire::remote_link::{PeerClock, RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::SpanKind;
use blkkin_wire::syscalls::SyscallClass;
use blkkin_wire::virtual_machine::MachineDisk;

use crate::trace::async_io::AsyncIo;
use crate::trace::interned_file::InternedFile;
use crate::trace::{Root, Trace};

/// `fallocate` modes that make a hole or zeroes (FALLOC_FL_PUNCH_HOLE, FALLOC_FL_ZERO_RANGE; include/uapi/linux/falloc.h).
/// QEMU uses either for a write-zeroes request, by the image's `discard` and the request's unmap flag.
const HOLE_OR_ZEROES: u64 = 0x02 | 0x10;
/// `IORING_OP_FSYNC`, `IOCB_CMD_FSYNC` and `IOCB_CMD_FDSYNC`.
const SYNC_OPCODES: [(AsyncInterface, u8); 3] =
    [(AsyncInterface::IoUring, 3), (AsyncInterface::Libaio, 2), (AsyncInterface::Libaio, 3)];

/// Operation of QEMU that serves requests of its guest.
pub(crate) struct DiskServer {
    pub(crate) endpoint: RpcEndpointEvent,
    /// Image of which its key has a range: one with clusters, or a backing file.
    pub(crate) image: Option<u64>,
}

impl Trace {
    /// Returns the requests of a guest that its host serves, with the host's clock.
    pub(crate) fn disk_clients(&self) -> Option<(PeerClock, Vec<RpcEndpointEvent>)> {
        let host = self.names.node_machine.as_ref()?.host.as_deref()?;
        let clock = PeerClock { node: host.node, boot: host.boot, offset: host.clock? };
        let client = |(request, to_disk): (&RequestEvent, DiskRequest)| {
            let disk = self.names.devices.disks.get(&request.device)?;
            let key = to_disk.key(host.node, host.pid, disk);
            let (span, times) = (request.span, [request.issue?, request.complete]);
            Some(endpoint(span, self.root_span, RpcSide::Client, key, times))
        };
        let with_parts = self.requests.iter().flat_map(|one| parts_of(one).map(move |part| (one, part)));
        let clients: Vec<_> = with_parts.filter_map(client).collect();
        (!clients.is_empty()).then_some((clock, clients))
    }

    /// Returns the operations of QEMU that serve requests of its guest. One that is alone has the span of the root;
    /// each of several is the root of a trace of its own.
    pub(crate) fn disk_servers(&self) -> Vec<DiskServer> {
        let process = self.names.process.as_ref();
        let Some(machine) = process.and_then(|process| process.virtual_machine.as_ref()) else {
            return Vec::new();
        };
        let disk_of = |file: FileId, name: Option<&InternedFile>| {
            let device = name.and_then(|name| name.device_file);
            machine.disks.iter().find(|disk| is_image(disk, file, device))
        };
        let server = |span: SpanId, disk: &MachineDisk, request: DiskRequest, times| {
            let image = (disk.in_clusters || disk.layer > 0).then(|| identity_of(disk));
            let request = if image.is_some() { range_in_image(disk, request)? } else { request };
            let key = request.key(self.source.node, machine.pid, &disk.disk);
            let endpoint = endpoint(span, span, RpcSide::Server, key, times);
            Some(DiskServer { endpoint, image })
        };
        let of_call = self.call().and_then(|call| {
            let disk = disk_of(call.file?.file, self.names.file.as_deref())?;
            server(self.root_span, disk, request_of_call(call)?, [call.enter, call.exit])
        });
        let of_nbd = || {
            let Root::DaemonSpan(request) = &self.root else { return None };
            let is_client =
                |one: &&RpcEndpointEvent| one.side == RpcSide::Client && one.span == self.root_span;
            let client = self.rpc_endpoints.iter().find(is_client).filter(|client| !client.no_reply)?;
            // Spans of daemons (LTTng) may have any trace and parent.
            let is_tracers = request.kind == SpanKind::Client
                && request.parent.is_none()
                && request.trace == self.source.trace_id(self.root_span);
            if !is_tracers || request.status != SpanStatus::Ok {
                return None;
            }
            let disk = machine.nbd_disks.iter().find(|disk| disk.connection == client.key.connection)?;
            let key = request_of_nbd(request)?.key(self.source.node, machine.pid, &disk.disk);
            let times = [request.begin, request.end];
            let endpoint = endpoint(self.root_span, self.root_span, RpcSide::Server, key, times);
            Some(DiskServer { endpoint, image: None })
        };
        if let Some(server) = of_call.or_else(of_nbd) {
            return vec![server];
        }
        let on_images =
            self.async_ios.iter().filter_map(|io| Some((io, disk_of(io.event.file?, io.file.as_deref())?)));
        let on_images: Vec<_> = on_images.collect();
        let of_submission = |(io, disk): &(&AsyncIo, &MachineDisk)| {
            let request = request_of_submission(&io.event, || self.bios_of(&io.event))?;
            server(io.event.span, disk, request, [io.event.start, io.event.end])
        };
        let mut servers: Vec<_> = on_images.iter().filter_map(of_submission).collect();
        // One whose range is unknown, or that did not arrive, is another's too, and must not move with the first.
        let are_all_known = self.incomplete.bios == 0;
        if let ([_], [alone], true) = (on_images.as_slice(), servers.as_mut_slice(), are_all_known) {
            (alone.endpoint.span, alone.endpoint.root) = (self.root_span, self.root_span);
        }
        servers
    }
}

fn endpoint(
    span: SpanId,
    root: SpanId,
    side: RpcSide,
    key: RpcKey,
    [begin, end]: [MonotonicNs; 2],
) -> RpcEndpointEvent {
    RpcEndpointEvent { span, root, side, key, unique: false, no_reply: false, begin, end }
}

/// Returns whether a file, or the block device behind a device file, is the image of a disk.
fn is_image(disk: &MachineDisk, file: FileId, device: Option<DeviceId>) -> bool {
    match disk.ino {
        Some(ino) => (disk.device, ino) == (file.device, file.ino),
        None => device == Some(disk.device),
    }
}

/// Returns a number that two images of one disk hardly share.
fn identity_of(disk: &MachineDisk) -> u64 {
    disk.ino.unwrap_or_default() ^ u64::from(disk.device.to_kernel()).rotate_right(32)
}

/// Returns a request's range in the address space of all images of its disk. QEMU changes a backing file only on its
/// own.
fn range_in_image(disk: &MachineDisk, request: DiskRequest) -> Option<DiskRequest> {
    let is_for_guest = disk.layer == 0 || request.operation == DiskOperation::Read;
    request.in_image(disk.layer, disk.in_clusters).filter(|_| is_for_guest)
}

/// Returns what the host sees of a guest's request: a write with PREFLUSH has a flush before its data, and one with FUA
/// has a flush after it, by the guest or by QEMU.
fn parts_of(request: &RequestEvent) -> impl Iterator<Item = DiskRequest> + use<> {
    let own = request_of(request);
    let flushes = match own {
        Some(own) if own != DiskRequest::FLUSH => [request.op.is_preflush(), request.op.is_fua()],
        _ => [false; 2],
    };
    own.into_iter().chain(flushes.into_iter().filter(|flush| *flush).map(|_| DiskRequest::FLUSH))
}

fn request_of(request: &RequestEvent) -> Option<DiskRequest> {
    let operation = match request.op.number() {
        1 if request.bytes == 0 && request.op.is_preflush() => return Some(DiskRequest::FLUSH),
        2 => return Some(DiskRequest::FLUSH),
        0 => DiskOperation::Read,
        1 => DiskOperation::Write,
        // Discard and write-zeroes.
        3 | 9 => DiskOperation::Discard,
        _ => return None,
    };
    DiskRequest::of_bytes(operation, request.sector.0.checked_mul(512)?, request.bytes.into())
}

fn request_of_call(call: &SyscallEvent) -> Option<DiskRequest> {
    let spec = call.call.spec();
    let operation = match (spec.class, spec.name) {
        (SyscallClass::Read, _) => DiskOperation::Read,
        (SyscallClass::Write, _) => DiskOperation::Write,
        (_, "fsync" | "fdatasync") => return Some(DiskRequest::FLUSH),
        (_, "fallocate") if call.args[1] & HOLE_OR_ZEROES != 0 => {
            return DiskRequest::of_bytes(DiskOperation::Discard, call.args[2], call.args[3]);
        }
        _ => return None,
    };
    let SyscallOutcome::Returned(returned) = call.outcome else { return None };
    let offset = u64::try_from(spec.offset(&call.args)?).ok()?;
    DiskRequest::of_bytes(operation, offset, spec.bytes(returned)?)
}

/// Returns the request of an NBD client's span, by its name and annotations (`tracer/src/read/translate/nbd.rs`).
fn request_of_nbd(span: &DaemonSpanEvent) -> Option<DiskRequest> {
    let operation = match &*span.name {
        "nbd read" => DiskOperation::Read,
        "nbd write" => DiskOperation::Write,
        "nbd trim" | "nbd write zeroes" => DiskOperation::Discard,
        "nbd flush" => return Some(DiskRequest::FLUSH),
        _ => return None,
    };
    let number = |key: &str| {
        let value = span.annotations.iter().find(|note| &*note.key == key).map(|note| &note.value);
        if let Some(AnnotationValue::Number(number)) = value { u64::try_from(*number).ok() } else { None }
    };
    DiskRequest::of_bytes(operation, number("nbd.offset")?, number("nbd.length")?)
}

fn request_of_submission<'a, B: Iterator<Item = &'a BioEvent>>(
    io: &AsyncIoEvent,
    bios: impl FnOnce() -> B,
) -> Option<DiskRequest> {
    if SYNC_OPCODES.contains(&(io.interface, io.opcode)) {
        return Some(DiskRequest::FLUSH);
    }
    let operation = match io.operation().direction? {
        AsyncDirection::Read => DiskOperation::Read,
        AsyncDirection::Write => DiskOperation::Write,
    };
    let bytes = match io.outcome {
        AsyncIoOutcome::Returned(_) => io.bytes()?.into(),
        AsyncIoOutcome::Ended | AsyncIoOutcome::NoEnd => {
            let (count, bytes) =
                bios().fold((0, 0), |(count, bytes), bio| (count + 1, bytes + u64::from(bio.bytes)));
            // Without one of them the range would be another.
            if count == io.bios { bytes } else { return None }
        }
    };
    DiskRequest::of_bytes(operation, u64::try_from(io.offset?).ok()?, bytes)
}
