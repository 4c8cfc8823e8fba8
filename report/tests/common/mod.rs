//! Traces built by hand: the workload of a small database, and every unusual kind of trace.

#![allow(dead_code, unreachable_pub, reason = "each test uses a part of it")]

pub mod guests;
#[path = "../../src/sample.rs"]
mod sample;
pub mod write_back;

use std::sync::Arc;

use blkkin_aggregator::trace::{
    DeviceNames, FragmentKind, Names, ProcessNames, Root, ShownIn, Trace, WaitLink,
};
use blkkin_report::collect::coverage::DiskCount;
use blkkin_report::collect::daemon_spans::DaemonSpanInput;
use blkkin_report::{Losses, Report, ReportConfig};
use blkkin_wire::call_sleeps::{CallSleeps, SleepPlace};
use blkkin_wire::call_waits::{CallWaits, LockHolder, LongestWait, WaitKind, WaitSum};
use blkkin_wire::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use blkkin_wire::daemon_span::{Annotation, AnnotationValue, DaemonSpanEvent, SpanStatus};
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, Captured, CommitEvent, ContextSource, FileEvent, RequestEvent, Submitter,
    SyscallOutcome, TaskChange, TaskEvent, TaskRef,
};
use blkkin_wire::ids::{DeviceId, Pid, Sector, SpanId, Tid, TraceId};
use blkkin_wire::in_flight::{BlockLayer, DeviceChange, FinalState, InFlightIo, LostDevice};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::remote_link::{ClockShift, Reparented};
use blkkin_wire::span::SpanKind;
use blkkin_wire::syscalls::Arch;
use blkkin_wire::thread_attributes::{ThreadAttribute, ThreadAttributes};

use sample::{DEVICE as LOOP0, TASK, file, with_call};

pub const STARTED: MonotonicNs = MonotonicNs(100_000_000_000);

const READ: u32 = 0;
const WRITE: u32 = 1 | 1 << 11;
const META: u32 = 1 << 12;
const FUA: u32 = 1 << 17;
const PREFLUSH: u32 = 1 << 18;

/// Returns a trace without events, of the task `sqlite3`.
fn empty(root: u64) -> Trace {
    let mut trace = sample::empty(root);
    with_names(&mut trace);
    trace
}

/// Adds a clock anchor, a task and a device name.
fn with_names(trace: &mut Trace) {
    trace.anchor = ClockAnchor {
        monotonic: STARTED,
        wallclock: WallclockNs(1_700_000_000_000_000_000),
        uncertainty: DurationNs(100),
        ..ClockAnchor::NONE
    };
    let devices = DeviceNames::from([(LOOP0, Arc::from("loop0"))]);
    trace.names =
        Names { task: Some(task("sqlite3", 4_242)), devices: Arc::new(devices), ..Names::default() };
}

pub(crate) fn task(comm: &str, pid: u32) -> Arc<TaskEvent> {
    let (tid, pid) = (Tid(pid), Pid(pid));
    Arc::new(TaskEvent { change: TaskChange::Execed, tid, pid, ..TaskEvent::bare(TASK, STARTED, comm) })
}

fn at(us: u64) -> MonotonicNs {
    MonotonicNs(STARTED.0 + us * 1000)
}

/// Returns a call that starts `from` µs after the start of tracing and takes `ns`.
fn call(span: u64, name: &str, args: [u64; 6], ret: i64, from: u64, ns: u64) -> Trace {
    let enter = at(from).0;
    let mut trace = sample::call_between(span, name, enter, enter + ns);
    with_names(&mut trace);
    with_call(&mut trace, |call| (call.args, call.outcome) = (args, SyscallOutcome::Returned(ret)));
    trace
}

fn on(trace: Trace, path: &str) -> Trace {
    sample::on_file(trace, path, 0o100_644)
}

/// Start, issue and completion of a request in µs after the start of tracing.
struct Times(u64, Option<u64>, u64);

/// Adds a bio and its request.
fn io(trace: &mut Trace, op: u32, bytes: u32, times: Times) {
    let number = trace.bios.len() as u64;
    let (span, request) = (trace.root_span.0 * 1_000 + number, trace.root_span.0 * 2_000 + number);
    let submitter = match trace.root {
        Root::Kernel => Submitter::Kernel,
        _ => Submitter::Span(trace.root_span),
    };
    let (start, complete) = (at(times.0).0, at(times.2).0);
    let sector = Sector(2_048 + number * 8);
    trace.bios.push(BioEvent {
        submitter,
        root: trace.root_span,
        request: Some(SpanId(request)),
        sector,
        bytes,
        op: BlockOp(op),
        ..sample::bio(span, start, complete)
    });
    let issue = times.1.map(|us| at(us).0);
    trace.requests.push(RequestEvent {
        parent: Some(SpanId(span)),
        root: trace.root_span,
        sector,
        bytes,
        op: BlockOp(op),
        tag: issue.map(|_| 4),
        flush_sequence: op & PREFLUSH != 0,
        ..sample::request(request, start + 700, issue, complete)
    });
    let bios = trace.bios.len() as u32;
    with_call(trace, |call| (call.bios, call.sleeps) = (bios, 1));
}

/// Adds a bio that was merged into the last request.
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

/// Returns a write to the page cache.
pub fn buffered_write(span: u64, from: u64, ns: u64) -> Trace {
    on(call(span, "pwrite64", [3, 0, 4096, 8192, 0, 0], 4096, from, ns), DATABASE)
}

/// Returns a write and a flush, one after the other; the flush takes `slow` µs longer.
pub fn fdatasync(span: u64, from: u64, slow: u64) -> Trace {
    let time = 4_830_000 + slow * 1_000;
    let mut trace = on(call(span, "fdatasync", [3, 0, 0, 0, 0, 0], 0, from, time), DATABASE);
    io(&mut trace, WRITE, 8192, Times(from + 12, Some(from + 61), from + 1_420));
    io(&mut trace, 1 | PREFLUSH, 0, Times(from + 1_466, Some(from + 1_472), from + 4_790 + slow));
    trace
}

/// Returns a read with O_DIRECT that is one request.
pub fn direct_read(span: u64, from: u64) -> Trace {
    let mut trace = on(call(span, "pread64", [3, 0, 16_384, 1 << 20, 0, 0], 16_384, from, 182_400), DATABASE);
    io(&mut trace, READ, 16_384, Times(from + 4, Some(from + 9), from + 176));
    trace
}

/// Returns a call that failed.
pub fn failed_open(span: u64, from: u64) -> Trace {
    let at_fdcwd = -100_i64 as u64;
    let mut trace = call(span, "openat", [at_fdcwd, 0, 0, 0, 0, 0], -2, from, 6_210);
    with_call(&mut trace, |call| call.paths[0] = Some("/mnt/demo/shop.db-journal".into()));
    trace
}

/// Returns a commit, and an fsync with a small bio that waited for it. Each is a trace of its own.
pub fn fsync_with_commit(span: u64, from: u64) -> [Trace; 2] {
    let mut commit = empty(span + 500);
    let times = [from.saturating_sub(300), from + 7_900].map(at);
    let bare = CommitEvent::bare(SpanId(span + 500), TASK, LOOP0, 1_187, times);
    commit.root = Root::Commit(CommitEvent { bios: 8, ..bare });
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
    commit.shown_in = Some(ShownIn { trace: fsync.id, call: SpanId(span) });
    fsync.waited_for.push(WaitLink { trace: Arc::new(commit.clone()), primary: true });
    [commit, fsync]
}

/// Adds three thread attributes, one of which has a key without a name.
fn with_thread_attributes(mut trace: Trace, route: &str) -> Trace {
    let pid = Pid(4_242);
    let thread_keys = vec!["http.route".into(), "shop.tenant".into()];
    let process = ProcessContextEvent {
        time: STARTED,
        pid,
        attributes: Vec::new(),
        dropped_attributes_count: 0,
        thread_keys,
    };
    trace.names.process = Some(Arc::new(ProcessNames { context: Some(process), ..ProcessNames::default() }));
    let entry = |key, value: &str| ThreadAttribute { key, value: value.into() };
    let entries = vec![entry(0, route), entry(1, "acme\x1b[31m"), entry(7, "x")];
    let attributes = ThreadAttributes { entries, dropped_attributes_count: 0, bytes_unread: 0 };
    with_call(&mut trace, |call| call.attributes = Some(Arc::new(attributes)));
    trace
}

/// Returns a large direct write of 40 bios.
pub fn many_bios(span: u64, from: u64) -> Trace {
    let mut trace = call(span, "pwrite64", [5, 0, 40 << 17, 1 << 30, 0, 0], 40 << 17, from, 12_480_000);
    trace = on(trace, "/mnt/demo/backups/2026-11-21/weekly/shop-full-backup-with-a-long-name.img");
    for bio in 0..40 {
        let start = from + 20 + bio * 35;
        io(&mut trace, WRITE, 1 << 17, Times(start, Some(start + 90 + bio * 40), start + 900 + bio * 260));
    }
    with_thread_attributes(trace, "/backups/:id")
}

/// Returns a second thread's wait for a lock of another process, interrupted by a signal.
pub fn lock(span: u64, from: u64) -> Trace {
    let mut trace = on(call(span, "flock", [3, 2, 0, 0, 0, 0], -512, from, 5_050_000), DATABASE);
    with_call(&mut trace, |call| call.sleeps = 1);
    let main = task("sqlite3", 4_242);
    trace.names.task = Some(Arc::new(TaskEvent { tid: Tid(main.pid.0 + 1), ..(*main).clone() }));
    trace
}

/// Returns write-back without a call.
pub fn kernel_root(span: u64, from: u64) -> Trace {
    let mut trace = empty(span);
    trace.root = Root::Kernel;
    trace.names.task = Some(task("kworker/u8:2", 88));
    io(&mut trace, 1, 524_288, Times(from, Some(from + 15), from + 2_211));
    trace
}

/// Returns a read without the record of its call.
pub fn missing_root(span: u64, from: u64) -> Trace {
    let mut trace = empty(span);
    io(&mut trace, READ, 4_096, Times(from, Some(from + 5), from + 121));
    trace.incomplete.root = true;
    trace
}

/// Returns a part that arrived after its trace had been closed.
pub fn late_part(span: u64, from: u64) -> Trace {
    Trace { kind: FragmentKind::Late, ..missing_root(span, from) }
}

/// Returns a read from a pipe, which waited for the writer.
pub fn pipe_read(span: u64, from: u64) -> Trace {
    let mut trace = call(span, "read", [0, 0, 4096, 0, 0, 0], 31, from, 2_400_000_000);
    trace.names.file = Some(file("pipe:[8123]", 0o010_600));
    trace
}

/// Returns a mapping of plain memory, which is no storage operation.
pub fn plain_memory(span: u64, from: u64) -> Trace {
    call(span, "mmap", [0, 8_192, 3, 0x22, u64::MAX, 0], 0x7f00_0000_0000, from, 9_000_000)
}

/// Returns a call without an exit, with two missing bios and a truncated path argument.
pub fn interrupted_fsync(span: u64, from: u64) -> Trace {
    let mut trace =
        on(call(span, "fsync", [3, 0, 0, 0, 0, 0], 0, from, 3_333_000), "/mnt/demo/日本/torn\x1b[31m.log");
    io(&mut trace, WRITE, 4_096, Times(from + 9, Some(from + 30), from + 2_000));
    trace.bios[0].status = BlockStatus(10);
    trace.requests[0].status = BlockStatus(10);
    with_call(&mut trace, |call| {
        (call.outcome, call.paths_captured) = (SyscallOutcome::NoExit, Captured::Truncated)
    });
    trace.incomplete.bios = 2;
    trace
}

/// Returns a call all of whose numbers are long.
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

/// Returns a buffered write that was paused for dirty pages and waited for its file's lock, and an
/// fsync of another thread that waited for that lock alone.
pub fn waits() -> Vec<Trace> {
    let sum = |kind, us: u64, count| WaitSum { kind, time: DurationNs(us * 1_000), count };
    let longest = |kind, from, us: u64, holder| LongestWait {
        kind,
        begin: at(from),
        time: DurationNs(us * 1_000),
        holder,
    };
    let holder = |comm: &str, pid, tid| Some(LockHolder { pid: Pid(pid), tid: Tid(tid), comm: comm.into() });
    let waited = |mut trace: Trace, sums, longest| {
        with_call(&mut trace, |call| {
            (call.sleeps, call.waits) =
                (7, Some(Box::new(CallWaits { sums, longest, sleeps: 7, log_write: None })));
        });
        trace
    };
    let (file, dirty) = (WaitKind::FileLock, WaitKind::DirtyPages);
    let write = on(call(1, "pwrite64", [3, 0, 1 << 24, 0, 0, 0], 1 << 24, 1_000, 60_000_000), DATABASE);
    let sync = on(call(2, "fsync", [4, 0, 0, 0, 0, 0], 0, 90_000, 20_000_000), DATABASE);
    let place = |functions: &[&str], us: u64, count| SleepPlace {
        functions: functions.iter().map(|function| (*function).into()).collect(),
        time: DurationNs(us * 1_000),
        count,
    };
    let places = vec![
        place(&["folio_wait_bit_common", "folio_wait_writeback", "__filemap_fdatawait_range"], 310, 3),
        place(&["ext4_sync_file"], 19_000, 1),
    ];
    let slept = CallSleeps { places, others: 3, others_time: DurationNs(210_000), unended: 1 };
    let mut traces = vec![
        waited(
            write,
            vec![sum(file, 7_000, 2), sum(WaitKind::MemoryMapLock, 40, 1), sum(dirty, 44_000, 4)],
            longest(dirty, 20_000, 24_000, None),
        ),
        waited(
            sync,
            vec![sum(file, 19_500, 3)],
            longest(file, 90_100, 19_000, holder("backup\x1b[31m", 977, 981)),
        ),
    ];
    with_call(&mut traces[1], |call| call.slept = Some(Box::new(slept)));
    traces
}

/// Returns every trace above, and enough of the common ones for quantiles.
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
    traces.push(interrupted_fsync(90_000, 300_000));
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

/// Returns a report of `traces`.
pub fn report(traces: &[Trace]) -> Report {
    let command = Some("sqlite3 /mnt/demo/shop.db".to_owned());
    let config = ReportConfig {
        command,
        excludes_writers: true,
        slowest: 5,
        started: STARTED,
        arch: Arch::X86_64,
        daemon_spans: DaemonSpanInput::None,
    };
    let mut report = Report::new(config);
    for trace in traces {
        report.add(trace);
        report.add_coverage(trace);
    }
    let bytes = 84 << 20;
    let count = DiskCount { disk: LOOP0, name: "loop0".into(), partitions: Vec::new(), bytes };
    report.set_disk_counts(vec![count]);
    report.set_end(MonotonicNs(STARTED.0 + 2_512_345_678));
    report
}

/// Returns losses of several kinds.
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

/// Returns no losses.
pub fn no_losses() -> Losses {
    Losses { fired: 12_345, recorded: 12_345, ..Losses::default() }
}

/// Returns a lost device, a replaced device, and I/O in flight on each layer.
pub fn final_state() -> FinalState {
    let lost = |minor, name: &str, change| LostDevice {
        device: DeviceId { major: 7, minor },
        name: name.into(),
        change,
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

fn daemon_span(
    span: u64,
    kind: SpanKind,
    service: &str,
    (from, ns): (u64, u64),
    tags: &[(&str, i64)],
) -> Trace {
    let mut trace = empty(span);
    let begin = at(from);
    let annotation = |(key, value): &(&str, i64)| Annotation {
        time: begin,
        key: (*key).into(),
        value: AnnotationValue::Number(*value),
    };
    trace.id = TraceId(u128::from(span) << 32);
    trace.root = Root::DaemonSpan(Box::new(DaemonSpanEvent {
        kind,
        name: "nbd read".into(),
        service: service.into(),
        pid: Pid(if kind == SpanKind::Client { 5_001 } else { 5_002 }),
        tid: Tid(if kind == SpanKind::Client { 5_001 } else { 5_007 }),
        annotations: tags.iter().map(annotation).collect(),
        ..DaemonSpanEvent::bare(SpanId(span), trace.id, begin, MonotonicNs(begin.0 + ns))
    }));
    trace
}

fn with_daemon_span(trace: &mut Trace, change: impl FnOnce(&mut DaemonSpanEvent)) {
    if let Root::DaemonSpan(span) = &mut trace.root {
        change(span);
    }
}

/// Makes the call of `trace` a child of a daemon span.
fn called_for(trace: Trace, daemon_span: &Trace) -> Trace {
    sample::called_for(trace, daemon_span.id, daemon_span.root_span, ContextSource::Both)
}

/// Returns a report of an NBD client, the server and its call on a disk; a read from the page
/// cache; a daemon with many calls; and a request without a reply.
pub fn daemon_spans() -> Report {
    let (command, daemon_spans) = (Some("fio --ioengine=nbd".to_owned()), DaemonSpanInput::LinkedSpans);
    let (started, arch) = (STARTED, Arch::X86_64);
    let config = ReportConfig { command, excludes_writers: true, slowest: 5, started, arch, daemon_spans };
    let mut report = Report::new(config);
    let tags: &[(&str, i64)] = &[("nbd.offset", 1 << 20), ("nbd.length", 16_384), ("nbd.cookie", 77)];
    let mut nbd_request = |span: u64, from: u64, slow: u64, read: Trace| {
        let client = daemon_span(span, SpanKind::Client, "fio", (from, 260_000 + 1_000 * slow), tags);
        let mut server = daemon_span(
            span + 1,
            SpanKind::Server,
            "blkkin-nbd",
            (from + 22, 221_000 + 1_000 * slow),
            &tags[..2],
        );
        let started = Annotation {
            time: at(from + 25),
            key: "taken by a thread".into(),
            value: AnnotationValue::Event,
        };
        with_daemon_span(&mut server, |span| span.annotations.push(started));
        let server = sample::with_server_endpoint(server, "unix:1>2", 77);
        report.add(&called_for(read, &server));
        report.add(&server);
        report.add(&client);
        let rule = "rule: nbd connection and cookie, inside by both clocks".into();
        let clock = ClockShift { shift: 0, error: DurationNs(0) };
        report.reparent(server.id, &Reparented { trace: client.id, parent: client.root_span, rule, clock });
    };
    nbd_request(200_000, 100, 0, direct_read(200_010, 140));
    nbd_request(
        201_000,
        900,
        3_000,
        on(call(201_010, "pread64", [3, 0, 4096, 0, 0, 0], 4096, 930, 12_000), DATABASE),
    );
    let mut query = daemon_span(202_000, SpanKind::Local, "postgres", (5_000, 40_000_000), &[]);
    with_daemon_span(&mut query, |span| {
        span.name = "query".into();
        let text =
            "select sum(amount) from orders\n where day between '2026-11-01' and '2026-11-21' group by day";
        span.annotations.push(Annotation {
            time: at(5_000),
            key: "db.query".into(),
            value: AnnotationValue::Text(text.into()),
        });
    });
    for n in 0..300 {
        report.add(&called_for(direct_read(202_010 + n, 5_020 + 130 * n), &query));
    }
    report.add(&query);
    let mut unanswered =
        daemon_span(203_000, SpanKind::Client, "qemu-system-x86_64", (60_000, 2_000_000_000), tags);
    with_daemon_span(&mut unanswered, |span| span.status = SpanStatus::Unfinished);
    report.add(&unanswered);
    report.set_end(MonotonicNs(STARTED.0 + 2_512_345_678));
    report
}
