//! Traces made by hand: a small database at work, and everything that can be odd about a trace.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

use std::sync::Arc;

use blkkin_aggregator::named::NamedFile;
use blkkin_aggregator::trace::{Adoption, Cause, DeviceNames, FragmentKind, Names, Root, Trace};
use blkkin_report::collect::operations::Heard;
use blkkin_report::{Losses, Report, ReportConfig};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, Captured, CommitEvent, ContextSource, FileEvent, OpenFile, RequestEvent,
    Submitter, SyscallEvent, SyscallOutcome, TaskChange, TaskEvent, TaskRef, TraceContext,
};
use blkkin_wire::ids::{
    BootId, CgroupId, DeviceId, Fd, FileId, NodeId, Pid, Sector, Source, SpanId, StartEpoch, TaskId, Tid,
    TraceId, Uid,
};
use blkkin_wire::in_flight::{BlockLayer, DeviceChange, FinalState, InFlightIo, LostDevice};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::remote_link::{ClockShift, Reparented, RpcEndpointEvent, RpcKey, RpcSide};
use blkkin_wire::span::SpanKind;
use blkkin_wire::syscalls::{Arch, SyscallId};
use blkkin_wire::thread_attributes::{ThreadAttribute, ThreadAttributes};

pub const STARTED: MonotonicNs = MonotonicNs(1_000_000_000);
const LOOP0: DeviceId = DeviceId { major: 7, minor: 0 };
const TASK: TaskRef = TaskRef { id: TaskId(7), version: 0 };

const READ: u32 = 0;
const WRITE: u32 = 1 | 1 << 11;
const META: u32 = 1 << 12;
const FUA: u32 = 1 << 17;
const PREFLUSH: u32 = 1 << 18;

/// An empty trace whose root began at `span`.
fn empty(span: u64) -> Trace {
    let source = Source { node: NodeId(1), boot: BootId(2), epoch: StartEpoch(3) };
    let anchor = ClockAnchor {
        monotonic: STARTED,
        wallclock: WallclockNs(1_700_000_000_000_000_000),
        uncertainty: DurationNs(100),
        ..ClockAnchor::NONE
    };
    let mut trace = Trace::new(source, anchor, SpanId(span));
    let devices = DeviceNames([(LOOP0, Arc::from("loop0"))].into());
    trace.names =
        Names { task: Some(task("sqlite3", 4_242)), devices: Arc::new(devices), ..Names::default() };
    trace
}

fn task(comm: &str, pid: u32) -> Arc<TaskEvent> {
    Arc::new(TaskEvent {
        time: STARTED,
        task: TASK,
        parent: None,
        change: TaskChange::Execed,
        tid: Tid(pid),
        pid: Pid(pid),
        ppid: Pid(1),
        uid: Uid(1000),
        cgroup: CgroupId(1),
        comm: comm.into(),
        exe: None,
        kernel_thread: false,
        ns_ids: None,
    })
}

fn at(us: u64) -> MonotonicNs {
    MonotonicNs(STARTED.0 + us * 1000)
}

fn file(path: &str, mode: u32) -> Arc<NamedFile> {
    let filesystem = if mode == 0o100_644 { "ext4" } else { "pipefs" };
    let id = FileId { device: LOOP0, ino: 12, generation: 1 };
    let event = FileEvent {
        time: STARTED,
        file: id,
        path: path.into(),
        captured: Captured::Full,
        filesystem: filesystem.into(),
        device_file: None,
        mode,
    };
    Arc::new(event.into())
}

/// A call of `name` from `from` µs after the start, `ns` long.
fn call(span: u64, name: &str, args: [u64; 6], ret: i64, from: u64, ns: u64) -> Trace {
    let mut trace = empty(span);
    let enter = at(from);
    trace.root = Root::Call(SyscallEvent {
        args,
        outcome: SyscallOutcome::Returned(ret),
        ..SyscallEvent::bare(
            SpanId(span),
            TASK,
            SyscallId::by_name(name).unwrap(),
            enter,
            MonotonicNs(enter.0 + ns),
        )
    });
    trace
}

fn on(mut trace: Trace, path: &str) -> Trace {
    with_call(&mut trace, |call| {
        let file = FileId { device: LOOP0, ino: 12, generation: 1 };
        call.file = Some(OpenFile { fd: Fd(3), file, position_before: None, position_after: None });
    });
    trace.names.file = Some(file(path, 0o100_644));
    trace
}

fn with_call(trace: &mut Trace, change: impl FnOnce(&mut SyscallEvent)) {
    if let Root::Call(call) = &mut trace.root {
        change(call);
    }
}

/// When a request was started, issued and completed, in µs after the start.
struct Times(u64, Option<u64>, u64);

/// A bio and its request.
fn io(trace: &mut Trace, op: u32, bytes: u32, times: Times) {
    let number = trace.bios.len() as u64;
    let (span, request) =
        (SpanId(trace.root_span.0 * 1_000 + number), SpanId(trace.root_span.0 * 2_000 + number));
    let submitter = match trace.root {
        Root::Kernel => Submitter::Kernel,
        _ => Submitter::Span(trace.root_span),
    };
    let (start, complete) = (at(times.0), at(times.2));
    trace.bios.push(BioEvent {
        span,
        submitter,
        root: trace.root_span,
        task: TASK,
        request: Some(request),
        first: true,
        split: false,
        queue: start,
        end: complete,
        device: LOOP0,
        sector: Sector(2_048 + number * 8),
        bytes,
        op: BlockOp(op),
        status: BlockStatus(0),
    });
    trace.requests.push(RequestEvent {
        span: request,
        parent: Some(span),
        root: trace.root_span,
        task: TASK,
        start: MonotonicNs(start.0 + 700),
        insert: None,
        issue: times.1.map(at),
        complete,
        device: LOOP0,
        sector: Sector(2_048 + number * 8),
        bytes,
        op: BlockOp(op),
        status: BlockStatus(0),
        bios: 1,
        tag: times.1.map(|_| 4),
        plugged: false,
        requeued: false,
        flush_sequence: op & PREFLUSH != 0,
    });
    let bios = trace.bios.len() as u32;
    with_call(trace, |call| (call.bios, call.sleeps) = (bios, 1));
}

/// A bio that was merged into the request of the one before it.
fn merged(trace: &mut Trace, bytes: u32) {
    let mut bio = *trace.bios.last().unwrap();
    bio.span = SpanId(bio.span.0 + 500);
    bio.first = false;
    bio.bytes = bytes;
    bio.queue = MonotonicNs(bio.queue.0 + 900);
    trace.bios.push(bio);
    let request = trace.requests.last_mut().unwrap();
    request.bytes += bytes;
    request.bios += 1;
}

pub const DATABASE: &str = "/mnt/demo/shop.db";

/// Page cache only.
pub fn buffered_write(span: u64, from: u64, ns: u64) -> Trace {
    on(call(span, "pwrite64", [3, 0, 4096, 8192, 0, 0], 4096, from, ns), DATABASE)
}

/// A write and a flush, one after the other.
/// `slow` µs slower than it could be.
pub fn fdatasync(span: u64, from: u64, slow: u64) -> Trace {
    let time = 4_830_000 + slow * 1_000;
    let mut trace = on(call(span, "fdatasync", [3, 0, 0, 0, 0, 0], 0, from, time), DATABASE);
    io(&mut trace, WRITE, 8192, Times(from + 12, Some(from + 61), from + 1_420));
    io(&mut trace, 1 | PREFLUSH, 0, Times(from + 1_466, Some(from + 1_472), from + 4_790 + slow));
    trace
}

/// O_DIRECT: a read that is one request.
pub fn direct_read(span: u64, from: u64) -> Trace {
    let mut trace = on(call(span, "pread64", [3, 0, 16_384, 1 << 20, 0, 0], 16_384, from, 182_400), DATABASE);
    io(&mut trace, READ, 16_384, Times(from + 4, Some(from + 9), from + 176));
    trace
}

/// A call that failed.
pub fn failed_open(span: u64, from: u64) -> Trace {
    let at_fdcwd = -100_i64 as u64;
    let mut trace = call(span, "openat", [at_fdcwd, 0, 0, 0, 0, 0], -2, from, 6_210);
    with_call(&mut trace, |call| call.paths[0] = Some("/mnt/demo/shop.db-journal".into()));
    trace
}

/// An fsync whose own bio is small and that waits for the journal; the commit is a trace of its own.
pub fn fsync_with_commit(span: u64, from: u64) -> [Trace; 2] {
    let mut commit = empty(span + 500);
    let (start, end) = (from.saturating_sub(300), from + 7_900);
    commit.root = Root::Commit(CommitEvent {
        span: SpanId(span + 500),
        task: TASK,
        start: at(start),
        end: at(end),
        device: LOOP0,
        tid: 1_187,
        bios: 8,
    });
    commit.names.task = Some(task("jbd2/loop0-8", 311));
    io(&mut commit, WRITE | META, 12_288, Times(from + 620, Some(from + 655), from + 2_300));
    (0..6).for_each(|_| merged(&mut commit, 4_096));
    io(
        &mut commit,
        WRITE | META | PREFLUSH | FUA,
        4_096,
        Times(from + 2_350, Some(from + 2_362), from + 7_880),
    );
    let mut fsync =
        on(call(span, "fsync", [3, 0, 0, 0, 0, 0], 0, from, 8_120_000), "/mnt/demo/orders-2026.csv");
    io(&mut fsync, WRITE, 65_536, Times(from + 30, Some(from + 44), from + 590));
    with_call(&mut fsync, |call| call.sync_tid = Some(1_187));
    commit.adopted_by = Some(Adoption { trace: fsync.id, call: SpanId(span) });
    fsync.causes.push(Cause { trace: Arc::new(commit.clone()), primary: true });
    [commit, fsync]
}

/// The thread said what it works for: by two names, and something under a number that has none.
fn says(mut trace: Trace, route: &str) -> Trace {
    let pid = Pid(4_242);
    let thread_keys = vec!["http.route".into(), "shop.tenant".into()];
    let process = ProcessContextEvent {
        time: STARTED,
        pid,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        thread_keys,
    };
    trace.names.process = Some(Arc::new(process));
    let entry = |key, value: &str| ThreadAttribute { key, value: value.into() };
    let entries = vec![entry(0, route), entry(1, "acme\x1b[31m"), entry(7, "x")];
    let said = ThreadAttributes { entries, dropped_attributes_count: 0, bytes_unread: 0 };
    with_call(&mut trace, |call| call.attributes = Some(Arc::new(said)));
    trace
}

/// A large direct write: 40 bios.
pub fn many_bios(span: u64, from: u64) -> Trace {
    let mut trace = call(span, "pwrite64", [5, 0, 40 << 17, 1 << 30, 0, 0], 40 << 17, from, 12_480_000);
    trace = on(trace, "/mnt/demo/backups/2026-11-21/weekly/shop-full-backup-with-a-long-name.img");
    for bio in 0..40 {
        let start = from + 20 + bio * 35;
        io(&mut trace, WRITE, 1 << 17, Times(start, Some(start + 90 + bio * 40), start + 900 + bio * 260));
    }
    says(trace, "/backups/:id")
}

/// A lock that another process held; a second thread waited for it, until a signal came.
pub fn lock(span: u64, from: u64) -> Trace {
    let mut trace = on(call(span, "flock", [3, 2, 0, 0, 0, 0], -512, from, 5_050_000), DATABASE);
    with_call(&mut trace, |call| call.sleeps = 1);
    let main = task("sqlite3", 4_242);
    trace.names.task = Some(Arc::new(TaskEvent { tid: Tid(main.pid.0 + 1), ..(*main).clone() }));
    trace
}

/// Write-back without a call.
pub fn kernel_root(span: u64, from: u64) -> Trace {
    let mut trace = empty(span);
    trace.root = Root::Kernel;
    trace.names.task = Some(task("kworker/u8:2", 88));
    io(&mut trace, 1, 524_288, Times(from, Some(from + 15), from + 2_211));
    trace
}

/// The call's own record never came.
pub fn missing_root(span: u64, from: u64) -> Trace {
    let mut trace = empty(span);
    io(&mut trace, READ, 4_096, Times(from, Some(from + 5), from + 121));
    trace.missing.root = true;
    trace
}

/// A part that came after its trace had been given out.
pub fn late_part(span: u64, from: u64) -> Trace {
    Trace { part: FragmentKind::Late, ..missing_root(span, from) }
}

/// A read from a pipe, which waited for whoever wrote to it.
pub fn pipe_read(span: u64, from: u64) -> Trace {
    let mut trace = call(span, "read", [0, 0, 4096, 0, 0, 0], 31, from, 2_400_000_000);
    trace.names.file = Some(file("pipe:[8123]", 0o010_600));
    trace
}

/// A mapping of plain memory, which asks nobody's storage for anything.
pub fn plain_memory(span: u64, from: u64) -> Trace {
    call(span, "mmap", [0, 8_192, 3, 0x22, u64::MAX, 0], 0x7f00_0000_0000, from, 9_000_000)
}

/// A call that the task's end interrupted, two bios of which never came; its path argument was cut.
pub fn torn(span: u64, from: u64) -> Trace {
    let mut trace =
        on(call(span, "fsync", [3, 0, 0, 0, 0, 0], 0, from, 3_333_000), "/mnt/demo/日本/torn\x1b[31m.log");
    io(&mut trace, WRITE, 4_096, Times(from + 9, Some(from + 30), from + 2_000));
    trace.bios[0].status = BlockStatus(10);
    trace.requests[0].status = BlockStatus(10);
    with_call(&mut trace, |call| {
        (call.outcome, call.paths_captured) = (SyscallOutcome::NoExit, Captured::Truncated)
    });
    trace.missing.bios = 2;
    trace
}

/// One of a great many large ones: all its numbers are long.
pub fn large(span: u64, from: u64) -> Trace {
    let failed = span.is_multiple_of(2);
    let ret = if failed { -5 } else { 999 << 20 };
    let mut trace = call(span, "copy_file_range", [3, 0, 4, 0, 999 << 20, 0], ret, from, 123_456_789);
    trace = on(trace, DATABASE);
    let op = if failed { READ } else { 3 };
    io(&mut trace, op, 999 << 20, Times(from + 10, Some(from + 100_010), from + 123_000));
    merged(&mut trace, 4_096);
    trace
}

/// Everything above, and enough of the common to make quantiles of.
pub fn all() -> Vec<Trace> {
    let mut traces = Vec::new();
    for n in 0..1_200 {
        traces.push(buffered_write(10_000 + n, 100 * n, 2_100 + (n * n) % 9_700));
    }
    traces.extend((0..60).map(|n| direct_read(20_000 + n, 150_000 + 400 * n)));
    traces.extend((0..12).map(|n| failed_open(30_000 + n, 180_000 + 10 * n)));
    traces.extend((0..3).map(|n| fdatasync(40_000 + n, 190_000 + 6_000 * n, 311 * n)));
    traces.extend(fsync_with_commit(50_000, 230_000));
    traces.push(many_bios(60_000, 250_000));
    traces.extend((0..4).map(|n| kernel_root(70_000 + n, 270_000 + 3_000 * n)));
    traces.push(missing_root(80_000, 290_000));
    traces.push(late_part(80_000, 291_000));
    traces.push(pipe_read(85_000, 10));
    traces.push(plain_memory(86_000, 500));
    traces.push(torn(90_000, 300_000));
    traces.push(lock(91_000, 305_000));
    for (n, name) in ["fstat", "lseek", "close", "fcntl", "mmap", "getxattr", "dup", "statfs", "ftruncate"]
        .iter()
        .enumerate()
    {
        let n = n as u64;
        traces.push(on(call(95_000 + n, name, [3, 0, 0, 0, 0, 0], 0, 310_000 + n, 900 + n), DATABASE));
    }
    for n in 0..14 {
        let path = format!("/mnt/demo/tables/part-{n:04}.db");
        traces.push(on(call(96_000 + n, "close", [3, 0, 0, 0, 0, 0], 0, 311_000 + n, 700 + n), &path));
    }
    traces
}

/// A report on `traces`.
pub fn report(traces: &[Trace]) -> Report {
    let command = Some("sqlite3 /mnt/demo/shop.db".to_owned());
    let heard = Heard::Nothing;
    let config = ReportConfig { command, slowest: 5, started: STARTED, arch: Arch::X86_64, heard };
    let mut report = Report::new(config);
    traces.iter().for_each(|trace| report.add(trace));
    report.end(MonotonicNs(STARTED.0 + 2_512_345_678));
    report
}

/// Of every kind one.
pub fn some_losses() -> Losses {
    Losses {
        fired: 12_345,
        recorded: 12_222,
        calls_dropped: 100,
        bios_dropped: 23,
        ends_missed: 3,
        incomplete: 1,
        truncated: 1,
        in_flight: 2,
        ..Losses::default()
    }
}

/// Of no kind any.
pub fn no_losses() -> Losses {
    Losses { fired: 12_345, recorded: 12_345, ..Losses::default() }
}

/// A device that is gone, another disk in its place, and something in flight on each layer.
pub fn at_end() -> FinalState {
    let lost = |minor, name: &str, fate| LostDevice {
        device: DeviceId { major: 7, minor },
        name: name.into(),
        change: fate,
    };
    let at = MonotonicNs(STARTED.0 + 2_512_345_678);
    let bio = InFlightIo {
        layer: BlockLayer::Bio,
        span: SpanId(901),
        root: SpanId(901),
        start: MonotonicNs(at.0 - 1_500_000_000),
        issue: None,
        in_request: false,
        device: DeviceId { major: 253, minor: 0 },
        sector: Sector(2048),
        bytes: 4096,
        op: BlockOp(1),
    };
    let request = InFlightIo {
        layer: BlockLayer::Request,
        start: MonotonicNs(at.0 - 2_000_000),
        issue: Some(MonotonicNs(at.0 - 1_000_000)),
        in_request: true,
        device: DeviceId { major: 8, minor: 0 },
        ..bio
    };
    FinalState {
        at,
        in_flight: vec![bio, InFlightIo { layer: BlockLayer::Bio, ..request }, request],
        lost: vec![lost(1, "loop1", DeviceChange::Gone), lost(2, "loop2", DeviceChange::Replaced)],
        device_names: vec![(request.device, "sda".into()), (bio.device, "dm-0".into())],
    }
}

fn said(span: u64, kind: SpanKind, service: &str, (from, ns): (u64, u64), notes: &[(&str, i64)]) -> Trace {
    let mut trace = empty(span);
    let begin = at(from);
    let note = |(key, value): &(&str, i64)| Annotation {
        time: begin,
        key: (*key).into(),
        value: AnnotationValue::Number(*value),
    };
    trace.id = TraceId(u128::from(span) << 32);
    trace.root = Root::Operation(Box::new(DaemonSpanEvent {
        kind,
        name: "nbd read".into(),
        service: service.into(),
        pid: Pid(if kind == SpanKind::Client { 5_001 } else { 5_002 }),
        tid: Tid(if kind == SpanKind::Client { 5_001 } else { 5_007 }),
        annotations: notes.iter().map(note).collect(),
        ..DaemonSpanEvent::bare(SpanId(span), trace.id, begin, MonotonicNs(begin.0 + ns))
    }));
    trace
}

/// A call that was made for an operation.
fn made_for(mut trace: Trace, operation: &Trace) -> Trace {
    let (of, span) = (operation.id, operation.root_span);
    let context = TraceContext { trace: of, span, flags: 0, source: ContextSource::Both };
    with_call(&mut trace, |call| call.context = Some(context.into()));
    trace.id = of;
    trace
}

/// A client of an NBD server, the server, and its call on a disk; one that was read from memory; a daemon with a great many calls;
/// and a request that has no answer.
pub fn served() -> Report {
    let (command, heard) = (Some("fio --ioengine=nbd".to_owned()), Heard::Meetings);
    let config = ReportConfig { command, slowest: 5, started: STARTED, arch: Arch::X86_64, heard };
    let mut report = Report::new(config);
    let asked: &[(&str, i64)] = &[("nbd.offset", 1 << 20), ("nbd.length", 16_384), ("nbd.cookie", 77)];
    let mut meet = |client: u64, from: u64, slow: u64, read: Trace| {
        let ask = said(client, SpanKind::Client, "fio", (from, 260_000 + 1_000 * slow), asked);
        let mut served = said(
            client + 1,
            SpanKind::Server,
            "blkkin-nbd",
            (from + 22, 221_000 + 1_000 * slow),
            &asked[..2],
        );
        let Root::Operation(operation) = &mut served.root else { return };
        let queued = Annotation {
            time: at(from + 25),
            key: "taken by a thread".into(),
            value: AnnotationValue::Event,
        };
        operation.annotations.push(queued);
        let key = RpcKey { protocol: "nbd".into(), connection: "unix:1>2".into(), cookie: 77 };
        let (span, begin, end) = (served.root_span, served.start(), served.end());
        served.meetings = vec![RpcEndpointEvent {
            span,
            root: span,
            side: RpcSide::Server,
            key,
            unique: false,
            no_reply: false,
            begin,
            end,
        }];
        report.add(&made_for(read, &served));
        report.add(&served);
        report.add(&ask);
        let rule = "rule: nbd connection and cookie, inside by both clocks".into();
        let clock = ClockShift { shift: 0, error: DurationNs(0) };
        report.moved(served.id, &Reparented { trace: ask.id, parent: ask.root_span, rule, clock });
    };
    meet(200_000, 100, 0, direct_read(200_010, 140));
    meet(
        201_000,
        900,
        3_000,
        on(call(201_010, "pread64", [3, 0, 4096, 0, 0, 0], 4096, 930, 12_000), DATABASE),
    );
    let mut query = said(202_000, SpanKind::Local, "postgres", (5_000, 40_000_000), &[]);
    if let Root::Operation(operation) = &mut query.root {
        operation.name = "query".into();
        let text =
            "select sum(amount) from orders\n where day between '2026-11-01' and '2026-11-21' group by day";
        operation.annotations.push(Annotation {
            time: at(5_000),
            key: "db.query".into(),
            value: AnnotationValue::Text(text.into()),
        });
    }
    for n in 0..300 {
        report.add(&made_for(direct_read(202_010 + n, 5_020 + 130 * n), &query));
    }
    report.add(&query);
    let mut alone = said(203_000, SpanKind::Client, "qemu-system-x86_64", (60_000, 2_000_000_000), asked);
    if let Root::Operation(operation) = &mut alone.root {
        operation.status = SpanStatus::Unfinished;
    }
    report.add(&alone);
    report.end(MonotonicNs(STARTED.0 + 2_512_345_678));
    report
}
