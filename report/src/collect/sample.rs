//! Small traces for this folder's tests.

use std::sync::Arc;

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::event::{
    BlockOp, BlockStatus, Captured, FileEvent, OpenFile, RequestEvent, SyscallEvent, TaskRef,
};
use blkkin_wire::ids::{BootId, DeviceId, Fd, FileId, NodeId, Sector, Source, SpanId, StartEpoch, TaskId};
use blkkin_wire::syscalls::SyscallId;

const TASK: TaskRef = TaskRef { id: TaskId(1), version: 0 };
const FILE: FileId = FileId { device: DeviceId { major: 8, minor: 0 }, ino: 1, generation: 0 };

/// A call at time 0 that took `time` ns.
pub(crate) fn call(span: u64, name: &str, time: u64) -> Trace {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let anchor = ClockAnchor {
        monotonic: MonotonicNs(0),
        wallclock: WallclockNs(0),
        uncertainty: DurationNs(0),
        ..ClockAnchor::NONE
    };
    let call = SyscallEvent {
        args: [3, 0, 0, 0, 0, 0],
        ..SyscallEvent::bare(
            SpanId(span),
            TASK,
            SyscallId::by_name(name).unwrap(),
            MonotonicNs(0),
            MonotonicNs(time),
        )
    };
    Trace { root: Root::Call(call), ..Trace::new(source, anchor, SpanId(span)) }
}

/// With a file of that path and type.
pub(super) fn on_file(mut trace: Trace, path: &str, mode: u32) -> Trace {
    if let Root::Call(call) = &mut trace.root {
        call.file = Some(OpenFile { fd: Fd(3), file: FILE, position_before: None, position_after: None });
    }
    let file = FileEvent {
        time: MonotonicNs(0),
        file: FILE,
        path: path.into(),
        captured: Captured::Full,
        filesystem: "ext4".into(),
        device_file: None,
        mode,
    };
    trace.names.file = Some(Arc::new(file.into()));
    trace
}

/// A write of 4 KiB from 1 to 9 that was issued then.
pub(super) fn request(device: DeviceId, issue: Option<u64>) -> RequestEvent {
    RequestEvent {
        span: SpanId(100),
        parent: None,
        root: SpanId(1),
        task: TASK,
        start: MonotonicNs(1),
        insert: None,
        issue: issue.map(MonotonicNs),
        complete: MonotonicNs(9),
        device,
        sector: Sector(0),
        bytes: 4096,
        op: BlockOp(1),
        status: BlockStatus(0),
        bios: 1,
        tag: None,
        plugged: false,
        requeued: false,
        flush_sequence: false,
    }
}
