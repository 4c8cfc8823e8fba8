//! Golden bytes of each event kind: recorded batches decode to the same values for ever. Also:
//! decoding by readers with an older schema, and rejected values.

use prost::Message;

use super::*;
use crate::call_sleeps::{CallSleeps, SleepPlace};

/// Compares each batch with `golden/NAME.bin`, the bytes of version 1 as first recorded. A change there
/// changes stored records, which requires a new version. With BLESS in the environment it rewrites
/// the files.
#[test]
fn bytes_are_stable() {
    for (name, batch) in [
        ("v1", sample_batch()),
        ("rpc-endpoint-v1", with_rpc_endpoints()),
        ("no-reply-v1", without_reply()),
        ("daemon-span-v1", with_daemon_spans()),
        ("context-v1", with_contexts()),
        ("context-daemon-span-v1", with_daemon_span_contexts()),
        ("context-scan-v1", with_context_scan()),
        ("process-v1", with_process_contexts()),
        ("attributes-v1", with_attributes()),
        ("pid-namespace-v1", with_pid_namespace()),
        ("page-origin-v1", with_page_origins()),
        ("fault-v1", with_faults()),
        ("async-io-v1", with_async_io()),
        ("virtual-machine-v1", with_virtual_machines()),
        ("machine-disks-v1", with_machine_disks()),
        ("sleeps-v1", with_sleeps()),
        ("cluster-disks-v1", with_cluster_disks()),
        ("backing-files-v1", with_backing_files()),
        ("nbd-disks-v1", with_nbd_disks()),
    ] {
        let path = format!("{}/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, encode(&batch)).unwrap();
        }
        let golden = std::fs::read(path).unwrap();
        assert_eq!(encode(&batch), golden, "{name}, encoded now");
        assert_eq!(decode(&golden), Ok(Decoded { batch, calls_unknown: 0 }), "{name}");
    }
}

/// Returns a batch with one event of each kind as a tracer emits them: a pwrite64, and an fsync
/// with its commit. `golden/v1.bin` holds it.
pub(super) fn sample_batch() -> EventBatch {
    let (disk, part) = (DeviceId { major: 259, minor: 0 }, DeviceId { major: 259, minor: 2 });
    let task = TaskRef { id: TaskId(0x6a09_e667_f3bc_c908), version: 1 };
    let kernel = TaskRef { id: TaskId(0xbb67_ae85_84ca_a73b), version: 0 };
    let file = FileId { device: part, ino: 1_234, generation: 77, name: NameId::NONE };
    let open = OpenFile { fd: Fd(3), file, position_before: None, position_after: None };
    let other = OpenFile { position_before: Some(100), position_after: Some(4_196), fd: Fd(4), file };
    let write = SyscallEvent {
        args: [3, 0x7fff_dead_b000, 4096, 8192, 0, 0],
        outcome: SyscallOutcome::Returned(4096),
        file: Some(open),
        bios: 1,
        sleeps: 1,
        cpu_wait: DurationNs(900).into(),
        ..SyscallEvent::bare(
            SpanId(0x3c6e_f372_fe94_f82b),
            task,
            SyscallId::by_name("pwrite64").unwrap(),
            MonotonicNs(5_000_000_000),
            MonotonicNs(5_000_104_000),
        )
    };
    let sync = SyscallEvent {
        span: SpanId(0xa54f_f53a_5f1d_36f1),
        call: SyscallId::by_name("fsync").unwrap(),
        args: [3, 0, 0, 0, 0, 0],
        enter: MonotonicNs(5_000_105_000),
        exit: MonotonicNs(5_002_000_000),
        outcome: SyscallOutcome::Returned(-5),
        bios: 0,
        cpu_wait: OptionalNs::NONE,
        sync_tid: Some(42),
        ..write.clone()
    };
    let copy = SyscallEvent {
        span: SpanId(0x510e_527f_ade6_82d1),
        call: SyscallId::by_name("copy_file_range").unwrap(),
        args: [3, 0, 4, 0, 4096, 0],
        outcome: SyscallOutcome::NoExit,
        second_file: Some(Box::new(other)),
        exit: MonotonicNs(5_003_000_000),
        ..write.clone()
    };
    let unlink = SyscallEvent {
        span: SpanId(0x9b05_688c_2b3e_6c1f),
        call: SyscallId::by_name("unlink").unwrap(),
        args: [0x7fff_dead_c000, 0, 0, 0, 0, 0],
        outcome: SyscallOutcome::Returned(0),
        file: None,
        paths: [Some("/srv/ä".into()), None],
        paths_captured: Captured::Truncated,
        exit: MonotonicNs(5_003_500_000),
        ..write.clone()
    };
    let bio = BioEvent {
        span: SpanId(0x1f83_d9ab_fb41_bd6b),
        submitter: Submitter::Span(write.span),
        root: write.span,
        task,
        request: Some(SpanId(0x5be0_cd19_137e_2179)),
        first: true,
        split: false,
        has_page_origin: false,
        of_other_program: false,
        queue: MonotonicNs(5_000_010_000),
        end: MonotonicNs(5_000_100_000),
        device: part,
        sector: Sector(1_000_000),
        bytes: 4096,
        op: BlockOp(0x8801),
        status: BlockStatus(0),
    };
    let request = RequestEvent {
        span: SpanId(0x5be0_cd19_137e_2179),
        parent: Some(bio.span),
        root: write.span,
        task,
        start: MonotonicNs(5_000_011_000),
        insert: None,
        issue: Some(MonotonicNs(5_000_012_000)),
        complete: bio.end,
        device: disk,
        sector: Sector(1_000_000),
        bytes: 4096,
        op: BlockOp(0x8801),
        status: BlockStatus(0),
        bios: 1,
        tag: Some(17),
        plugged: true,
        requeued: false,
        flush_sequence: false,
    };
    let commit = CommitEvent {
        span: SpanId(0xcbbb_9d5d_c105_9ed8),
        task: kernel,
        start: MonotonicNs(5_000_200_000),
        end: MonotonicNs(5_001_900_000),
        device: part,
        tid: 42,
        bios: 1,
    };
    // A bio of the commit, merged into another bio's request, which waited in a scheduler.
    let merged = BioEvent {
        span: SpanId(0x629a_292a_367c_d507),
        submitter: Submitter::Span(commit.span),
        root: commit.span,
        task: kernel,
        request: Some(SpanId(0x9159_015a_3070_dd17)),
        first: false,
        end: MonotonicNs(5_001_700_000),
        sector: Sector(2_000_008),
        ..bio
    };
    let merged_request = RequestEvent {
        span: SpanId(0x9159_015a_3070_dd17),
        parent: None,
        root: SpanId(0x152f_ecd8_f70e_5939),
        task: kernel,
        insert: Some(MonotonicNs(5_000_300_000)),
        complete: MonotonicNs(5_001_700_000),
        sector: Sector(2_000_000),
        bytes: 8192,
        bios: 2,
        tag: None,
        status: BlockStatus(10),
        requeued: true,
        flush_sequence: true,
        ..request
    };
    let task_event = TaskEvent {
        time: MonotonicNs(4_999_000_000),
        task,
        parent: Some(TaskId(0x67_3322_6f2e)),
        change: TaskChange::Execed,
        tid: Tid(4_321),
        pid: Pid(4_300),
        ppid: Pid(1),
        uid: Uid(1_000),
        cgroup: CgroupId(9_999),
        comm: "postgres".into(),
        exe: Some(FileId { device: part, ino: 99, generation: 0, name: NameId::NONE }),
        kernel_thread: false,
        ns_ids: None,
    };
    let thread = TaskEvent {
        task: kernel,
        parent: None,
        exe: None,
        kernel_thread: true,
        comm: "jbd2/vda2".into(),
        ..task_event.clone()
    };
    let name = FileEvent {
        time: MonotonicNs(4_999_500_000),
        file,
        path: "/var/lib/postgresql/16/main/base/5/1259".into(),
        captured: Captured::Full,
        filesystem: "ext4".into(),
        device_file: None,
        mode: 0o100_600,
        removed: false,
    };
    let node =
        FileEvent { path: "/dev/nvme0n1".into(), device_file: Some(disk), mode: 0o060_660, ..name.clone() };
    let device = DeviceEvent {
        time: bio.end,
        device: part,
        name: "nvme0n1p2".into(),
        partition_of: Some(disk),
        disk: None,
    };
    let stats = |fired, dropped| RecordStats { fired, recorded: fired - dropped, dropped };
    EventBatch {
        source: Source {
            node: NodeId(0x0011_2233 << 96 | 7),
            boot: BootId(u128::MAX - 1),
            epoch: StartEpoch(0xfeed_f00d_dead_beef),
        },
        sequence: 3,
        anchor: ClockAnchor {
            monotonic: MonotonicNs(4_000_000_000),
            wallclock: WallclockNs(1_790_000_000_000_000_000),
            uncertainty: DurationNs(60),
            ..ClockAnchor::NONE
        },
        events: vec![
            LayerEvent::Task(task_event),
            LayerEvent::Task(thread),
            LayerEvent::File(name),
            LayerEvent::File(node),
            LayerEvent::Pair(PairEvent { bio, request }),
            LayerEvent::Device(device),
            LayerEvent::Syscall(write),
            LayerEvent::Bio(merged),
            LayerEvent::Request(merged_request),
            LayerEvent::Commit(commit),
            LayerEvent::Syscall(sync),
            LayerEvent::Syscall(copy),
            LayerEvent::Syscall(unlink),
        ],
        watermark: MonotonicNs(5_004_000_000),
        stats: SourceStats {
            calls: stats(1_000, 1),
            bios: stats(500, 0),
            requests: stats(400, 2),
            calls_entered: 1_001,
            flushes_served: 12,
            ..SourceStats::default()
        },
        crashed_runs: Vec::new(),
    }
}

/// Returns the sample batch with RPC endpoints of its first system call.
/// `golden/rpc-endpoint-v1.bin` holds it.
fn with_rpc_endpoints() -> EventBatch {
    let mut batch = sample_batch();
    let LayerEvent::Syscall(call) = &batch.events[6] else { panic!("{:?}", batch.events[6]) };
    let endpoint = RpcEndpointEvent {
        span: call.span,
        root: call.span,
        side: RpcSide::Server,
        key: RpcKey {
            protocol: "nbd".into(),
            connection: "10.0.0.1:41234>10.0.0.2:10809".into(),
            cookie: 1 << 32 | 7,
        },
        unique: true,
        no_reply: false,
        begin: call.enter,
        end: call.exit,
    };
    let other =
        RpcEndpointEvent { span: SpanId(77), side: RpcSide::Client, unique: false, ..endpoint.clone() };
    batch.events.insert(6, LayerEvent::RpcEndpoint(endpoint.into()));
    batch.events.insert(7, LayerEvent::RpcEndpoint(other.into()));
    batch
}

/// Returns the batch with RPC endpoints where the client saw no reply. `golden/no-reply-v1.bin`
/// holds it.
fn without_reply() -> EventBatch {
    let mut batch = with_rpc_endpoints();
    let LayerEvent::RpcEndpoint(asked) = &mut batch.events[7] else { panic!("{:?}", batch.events[7]) };
    (asked.no_reply, asked.unique) = (true, true);
    batch
}

/// Returns the sample batch with two daemon spans. `golden/daemon-span-v1.bin` holds it.
fn with_daemon_spans() -> EventBatch {
    let mut batch = sample_batch();
    let annotation = |at, key: &str, value| Annotation { time: MonotonicNs(at), key: key.into(), value };
    let time = batch.events[6].time();
    let read = DaemonSpanEvent {
        span: SpanId(0x1234_5678_9abc_def0),
        parent: Some(SpanId(0xabc)),
        parent_is_remote: true,
        trace: TraceId(0xfeed_0000_0000_0001_1234_5678_9abc_def0),
        kind: SpanKind::Server,
        name: "nbd read".into(),
        service: "blkkin-nbd".into(),
        begin: MonotonicNs(time.0 - 900),
        end: time,
        pid: Pid(900),
        tid: Tid(902),
        status: SpanStatus::Error(5),
        sample_rate: 250_000,
        annotations: vec![
            annotation(time.0 - 900, "offset", AnnotationValue::Number(-4096)),
            annotation(time.0 - 800, "export", AnnotationValue::Text("disk".into())),
            annotation(time.0 - 1, "answered", AnnotationValue::Event),
        ],
    };
    let part = DaemonSpanEvent {
        span: SpanId(7),
        parent: Some(read.span),
        parent_is_remote: false,
        kind: SpanKind::Local,
        name: "checksum".into(),
        tid: Tid(900),
        status: SpanStatus::Unfinished,
        sample_rate: SAMPLE_RATE_ALL,
        annotations: Vec::new(),
        ..read.clone()
    };
    batch.events.insert(6, LayerEvent::DaemonSpan(part.into()));
    batch.events.insert(7, LayerEvent::DaemonSpan(read.into()));
    batch
}

/// Returns the sample batch where the first system call and the last two have application contexts.
/// `golden/context-v1.bin` holds it.
fn with_contexts() -> EventBatch {
    let mut batch = sample_batch();
    let one = TraceContext {
        trace: TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736),
        span: SpanId(0x00f0_67aa_0ba9_02b7),
        flags: 1,
        source: ContextSource::ThreadContext,
    };
    let other = TraceContext { trace: TraceId(0x10), flags: 0, source: ContextSource::DaemonSpan, ..one };
    let mut contexts = [Some(one), None, Some(other), Some(one)].into_iter();
    for event in &mut batch.events {
        if let LayerEvent::Syscall(call) = event {
            call.context = contexts.next().flatten().map(Box::new);
        }
    }
    batch
}

/// Returns the batch with contexts where the published spans are daemon spans of this node,
/// reported as events too. `golden/context-daemon-span-v1.bin` holds it.
fn with_daemon_span_contexts() -> EventBatch {
    let mut batch = with_contexts();
    for event in &mut batch.events {
        if let LayerEvent::Syscall(SyscallEvent { context: Some(context), .. }) = event
            && context.source == ContextSource::ThreadContext
        {
            context.source = ContextSource::Both;
        }
    }
    batch
}

/// A reader with the older schema decodes them as contexts that the thread published, which is
/// correct.
#[test]
fn reader_without_daemon_span_contexts_reads_thread_contexts() {
    let mut message = message::EventBatch::decode(encode(&with_daemon_span_contexts()).as_slice()).unwrap();
    message.contexts.as_mut().unwrap().daemon_span.clear();
    assert_eq!(message.encode_to_vec(), encode(&with_contexts()));
}

/// Adds counters of process scans. `golden/context-scan-v1.bin` holds it.
fn with_context_scan() -> EventBatch {
    let mut batch = with_contexts();
    let stats = &mut batch.stats;
    (stats.contexts_publishing, stats.contexts_denied, stats.contexts_no_room) = (3, 300, 1);
    batch
}

/// Returns the batch with contexts where a process publishes, changes and withdraws its process
/// context. `golden/process-v1.bin` holds it.
fn with_process_contexts() -> EventBatch {
    let mut batch = with_contexts();
    let text =
        |key: &str, value: &str| Attribute { key: key.into(), value: AttributeValue::Text(value.into()) };
    let first = ProcessContextEvent {
        time: MonotonicNs(4_999_900_000),
        pid: Pid(4_300),
        attributes: vec![
            text("service.name", "shop"),
            text("service.instance.id", "627cc493-f310-47de-96bd-71410b7dec09"),
            Attribute { key: "shop.shard".into(), value: AttributeValue::Number(-7) },
        ],
        dropped_attributes_count: 2,
        thread_keys: Vec::new(),
    };
    let second = ProcessContextEvent {
        attributes: vec![text("service.name", "store")],
        dropped_attributes_count: 0,
        ..first.clone()
    };
    let last =
        ProcessContextEvent { attributes: Vec::new(), time: MonotonicNs(5_003_000_000), ..second.clone() };
    assert!(last.is_withdrawal() && !second.is_withdrawal());
    batch.events.insert(2, LayerEvent::ProcessContext(first.into()));
    batch.events.insert(3, LayerEvent::ProcessContext(second.into()));
    batch.events.push(LayerEvent::ProcessContext(last.into()));
    batch.stats.resources_publishing = 1;
    batch.stats.resources_malformed = 2;
    batch
}

/// A reader with the older schema skips the field, and no other field counts it.
#[test]
fn reader_without_process_contexts_reads_other_events() {
    let mut message = message::EventBatch::decode(encode(&with_process_contexts()).as_slice()).unwrap();
    message.process_context_events.clear();
    (message.stats.resources_publishing, message.stats.resources_malformed) = (0, 0);
    // Unreferenced strings remain.
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, with_contexts());
}

#[test]
fn process_context_after_the_end_is_rejected() {
    let mut message = message::EventBatch::decode(encode(&with_process_contexts()).as_slice()).unwrap();
    message.process_context_events[2].before = 99;
    let rejected = Malformed::Value { column: "ProcessContextEvent.before", value: 99 };
    assert_eq!(decode(&message.encode_to_vec()), Err(rejected));
}

/// Returns the batch with process contexts and thread attributes with key names. The first two
/// system calls have equal attributes, the third has dropped ones, the last has unread ones.
/// `golden/attributes-v1.bin` holds it.
fn with_attributes() -> EventBatch {
    let mut batch = with_process_contexts();
    let entry = |key, value: &str| ThreadAttribute { key, value: value.into() };
    let full = ThreadAttributes { entries: vec![entry(0, "/buy/:id"), entry(7, "")], ..Default::default() };
    let less = ThreadAttributes {
        entries: vec![entry(7, "/buy/:id")],
        dropped_attributes_count: 3,
        bytes_unread: 0,
    };
    let unread = ThreadAttributes { bytes_unread: 700, ..Default::default() };
    let mut sets = [full.clone(), full, less, unread].into_iter();
    for event in &mut batch.events {
        match event {
            LayerEvent::Syscall(call) => call.attributes = sets.next().map(Arc::new),
            LayerEvent::ProcessContext(process) => process.thread_keys = vec!["http.route".into(), "".into()],
            _ => {}
        }
    }
    (batch.stats.attributes_cut, batch.stats.attributes_unread) = (1, 2);
    batch
}

/// System calls with equal attributes share them, so a short record stays short when it is decoded.
#[test]
fn equal_thread_attributes_are_shared() {
    let batch = decode(&encode(&with_attributes())).unwrap().batch;
    let sets: Vec<_> = batch
        .events
        .iter()
        .filter_map(|event| match event {
            LayerEvent::Syscall(call) => call.attributes.as_ref(),
            _ => None,
        })
        .collect();
    assert!(Arc::ptr_eq(sets[0], sets[1]) && !Arc::ptr_eq(sets[1], sets[2]));
}

/// A reader with the older schema skips three fields and ignores the flag.
#[test]
fn reader_without_thread_attributes_reads_other_fields() {
    let mut message = message::EventBatch::decode(encode(&with_attributes()).as_slice()).unwrap();
    (message.thread_attributes, message.syscall_events.attributes) = (None, Vec::new());
    message.syscall_events.flags.iter_mut().for_each(|flags| *flags &= (1 << 14) - 1);
    message.process_context_events.iter_mut().for_each(|process| process.thread_key.clear());
    (message.stats.attributes_cut, message.stats.attributes_unread) = (0, 0);
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, with_process_contexts());
}

#[test]
fn invalid_thread_attributes_are_rejected() {
    let good = message::EventBatch::decode(encode(&with_attributes()).as_slice()).unwrap();
    let rejected = |change: fn(&mut message::ThreadAttributes)| {
        let mut message = good.clone();
        change(message.thread_attributes.as_mut().unwrap());
        decode(&message.encode_to_vec()).unwrap_err()
    };
    let value = |column, value| Malformed::Value { column, value };
    assert_eq!(rejected(|sets| sets.key[1] = 0), value("ThreadAttributes.key", 0));
    assert_eq!(rejected(|sets| sets.key[1] = 256), value("ThreadAttributes.key", 256));
    assert_eq!(rejected(|sets| sets.value[0] = 999), value("ThreadAttributes.value", 999));
    assert_eq!(rejected(|sets| sets.entries[0] = u32::MAX), value("ThreadAttributes.key", 7));
    assert_eq!(rejected(|sets| sets.entries[0] = 1), Malformed::Long("ThreadAttributes.key"));
    assert_eq!(
        rejected(|sets| sets.dropped_attributes_count.truncate(2)),
        Malformed::Short("ThreadAttributes.dropped_attributes_count")
    );
    let mut message = good.clone();
    message.syscall_events.attributes[2] = 3;
    assert_eq!(decode(&message.encode_to_vec()), Err(value("SyscallEvents.attributes", 3)));
}

/// Returns the sample batch with a task in a container. `golden/pid-namespace-v1.bin` holds it.
fn with_pid_namespace() -> EventBatch {
    let mut batch = sample_batch();
    let mut inner = Some(PidNsIds { pid_ns: 4_026_532_777, pid: Pid(1), tid: Tid(9) });
    for event in &mut batch.events {
        if let LayerEvent::Task(task) = event {
            // Only the first task.
            task.ns_ids = inner.take();
        }
    }
    batch
}

/// A reader with the older schema skips three fields and ignores the flag.
#[test]
fn reader_without_pid_namespaces_reads_other_fields() {
    let mut message = message::EventBatch::decode(encode(&with_pid_namespace()).as_slice()).unwrap();
    let tasks = &mut message.task_events;
    tasks.flags.iter_mut().for_each(|flags| *flags &= 0b111);
    (tasks.pid_ns, tasks.ns_pid, tasks.ns_tid) = (Vec::new(), Vec::new(), Vec::new());
    assert_eq!(message.encode_to_vec(), encode(&sample_batch()));
}

/// A reader with a schema older than contexts skips two fields and ignores the flag.
#[test]
fn reader_without_contexts_reads_other_fields() {
    let mut message = message::EventBatch::decode(encode(&with_contexts()).as_slice()).unwrap();
    (message.contexts, message.syscall_events.context) = (None, Vec::new());
    message.syscall_events.flags.iter_mut().for_each(|flags| *flags &= (1 << 13) - 1);
    assert_eq!(message.encode_to_vec(), encode(&sample_batch()));
}

#[test]
fn zero_context_is_rejected() {
    let mut message = message::EventBatch::decode(encode(&with_contexts()).as_slice()).unwrap();
    message.contexts.as_mut().unwrap().span[1] = 0;
    let none = Malformed::Value { column: "Contexts.span", value: 0 };
    assert_eq!(decode(&message.encode_to_vec()), Err(none));
}

/// Returns the sample batch with two bios of the commit whose pages have an origin: one that other
/// calls wrote, and one of metadata. One event is that of a bio of an earlier batch.
/// `golden/page-origin-v1.bin` holds it.
fn with_page_origins() -> EventBatch {
    let mut batch = sample_batch();
    let LayerEvent::Syscall(write) = &mut batch.events[6] else { panic!("{:?}", batch.events[6]) };
    write.writes_page_cache = true;
    let (call, task, exit) = (write.span, write.task, write.exit);
    let trace = batch.source.trace_id(call);
    let LayerEvent::Bio(bio) = &mut batch.events[7] else { panic!("{:?}", batch.events[7]) };
    bio.has_page_origin = true;
    let writer = PageWriter {
        trace,
        span: call,
        task,
        dirtied: exit,
        bytes: 1_024,
        evidence: WriterEvidence::EndedBefore,
    };
    let mapped = PageWriter {
        trace: TraceId(0),
        span: SpanId(0),
        dirtied: MonotonicNs(exit.0 + 7_000),
        bytes: 4_096,
        evidence: WriterEvidence::MappedStore,
        ..writer
    };
    let file =
        FileId { device: DeviceId { major: 259, minor: 2 }, ino: 1_234, generation: 77, name: NameId::NONE };
    let data = PageOriginEvent {
        time: bio.queue,
        bio: bio.span,
        root: bio.root,
        kind: PageKind::File,
        file: Some(file),
        offset: 8_192,
        bytes: 4_096,
        parts: Vec::new(),
        reason: Some(WritebackReason::Periodic),
        writers: vec![writer, mapped],
        bytes_unattributed: 0,
        unattributed: None,
    };
    let earlier = PageOriginEvent {
        time: MonotonicNs(4_000_000_000),
        bio: SpanId(0x77),
        root: SpanId(0x77),
        kind: PageKind::Device,
        file: None,
        offset: 12_288,
        parts: vec![PagePart { offset: 12_288, bytes: 1_024 }, PagePart { offset: 1_024, bytes: 3_072 }],
        reason: None,
        writers: Vec::new(),
        bytes_unattributed: 4_096,
        unattributed: Some(Unattributed::NotRecorded),
        ..data
    };
    batch.events.insert(4, LayerEvent::PageOrigin(data.into()));
    batch.events.push(LayerEvent::PageOrigin(earlier.into()));
    batch
}

/// Returns the batch with process contexts and three page faults: one with all fields, one whose end
/// was not seen, and one that waited for another task. `golden/fault-v1.bin` holds it.
fn with_faults() -> EventBatch {
    let mut batch = with_process_contexts();
    let (task, context) = batch
        .events
        .iter()
        .find_map(|event| match event {
            LayerEvent::Syscall(call) => call.context.clone().map(|context| (call.task, context)),
            _ => None,
        })
        .unwrap();
    let file =
        FileId { device: DeviceId { major: 259, minor: 2 }, ino: 1_234, generation: 77, name: NameId::NONE };
    let (begin, end) = (MonotonicNs(5_000_300_000), MonotonicNs(5_000_400_000));
    let full = FaultEvent {
        file: Some(file),
        offset: Some(1 << 30),
        address: Some(0x7fff_dead_b000),
        context: Some(context),
        ..FaultEvent::bare(SpanId(0x3c6e_f372_fe94_f82b), task, begin, end)
    };
    let unseen = FaultEvent {
        span: SpanId(0xa54f_f53a_5f1d_36f1),
        major: false,
        address: None,
        end_seen: false,
        time: MonotonicNs(5_000_900_000),
        context: None,
        ..full.clone()
    };
    let waited =
        FaultEvent { span: SpanId(0x510e_527f_ade6_82d1), bios: 0, file: None, offset: None, ..full.clone() };
    batch.events.insert(3, LayerEvent::Fault(full));
    batch.events.insert(4, LayerEvent::Fault(waited));
    batch.events.push(LayerEvent::Fault(unseen));
    batch.stats.faults = RecordStats { fired: 4, recorded: 3, dropped: 1 };
    batch.stats.faults_filtered = 2;
    batch
}

/// Returns the sample batch with asynchronous I/O at the start, between others and at the end: one
/// by a call, one by a poll thread whose end was not seen, and an iocb. `golden/async-io-v1.bin`
/// holds it.
fn with_async_io() -> EventBatch {
    let mut batch = with_process_contexts();
    let task = TaskRef { id: TaskId(0x6a09_e667_f3bc_c908), version: 1 };
    let times = [MonotonicNs(5_000_000_000), MonotonicNs(5_000_090_000)];
    let read = AsyncIoEvent {
        user_data: 0xdead_beef_0000_0001,
        file: Some(FileId {
            device: DeviceId { major: 259, minor: 2 },
            ino: 1_234,
            generation: 77,
            name: NameId::NONE,
        }),
        descriptor: Some(AsyncDescriptor::Registered(3)),
        offset: Some(1 << 40),
        queued: Some(MonotonicNs(5_000_001_000)),
        bios: 2,
        ..AsyncIoEvent::bare(SpanId(0x1234_5678_9abc_def0), Some(SpanId(0x3c6e_f372_fe94_f82b)), task, times)
    };
    let polled = AsyncIoEvent {
        span: SpanId(0x2234_5678_9abc_def0),
        submitter: None,
        outcome: AsyncIoOutcome::NoEnd,
        ring_flags: 3,
        sqe_flags: 4,
        writes_page_cache: false,
        offset: Some(-1),
        length: None,
        ..read
    };
    let iocb = AsyncIoEvent {
        span: SpanId(0x3234_5678_9abc_def0),
        interface: AsyncInterface::Libaio,
        opcode: 1,
        outcome: AsyncIoOutcome::Ended,
        descriptor: Some(AsyncDescriptor::Descriptor(-1)),
        file: None,
        queued: None,
        ..read
    };
    batch.events.insert(0, LayerEvent::AsyncIo(read));
    batch.events.insert(4, LayerEvent::AsyncIo(polled));
    batch.events.push(LayerEvent::AsyncIo(iocb));
    batch
}

/// A reader with the older schema skips the field, and ignores the flags.
#[test]
fn reader_without_page_origins_reads_other_events() {
    let mut message = message::EventBatch::decode(encode(&with_page_origins()).as_slice()).unwrap();
    message.page_origin_events = None;
    message.syscall_events.flags.iter_mut().for_each(|flags| *flags &= (1 << 15) - 1);
    message.bio_events.flags.iter_mut().for_each(|flags| *flags &= (1 << 6) - 1);
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, sample_batch());
}

#[test]
fn invalid_page_origins_are_rejected() {
    let good = message::EventBatch::decode(encode(&with_page_origins()).as_slice()).unwrap();
    let rejected = |change: fn(&mut message::PageOriginEvents)| {
        let mut message = good.clone();
        change(message.page_origin_events.as_mut().unwrap());
        decode(&message.encode_to_vec()).unwrap_err()
    };
    let value = |column, value| Malformed::Value { column, value };
    assert_eq!(rejected(|m| m.before[1] = 99), value("PageOriginEvents.before", 99));
    assert_eq!(rejected(|m| m.flags[0] = 9), value("PageOriginEvents.flags", 9));
    assert_eq!(rejected(|m| m.writer_flags[1] |= 4), value("PageOriginEvents.writer_flags", 86));
    assert_eq!(rejected(|m| m.writers[0] = u32::MAX), Malformed::Short("PageOriginEvents.writer_flags"));
    assert_eq!(rejected(|m| m.writers[0] = 1), Malformed::Long("PageOriginEvents.writer_flags"));
    assert_eq!(rejected(|m| m.writer_task[0] = 99), value("PageOriginEvents.writer_task", 99));
}

/// A reader with the older schema skips the field, and no other field counts it.
#[test]
fn reader_without_page_faults_reads_other_events() {
    let mut message = message::EventBatch::decode(encode(&with_faults()).as_slice()).unwrap();
    message.fault_events = None;
    (message.stats.faults, message.stats.faults_filtered) = (None, 0);
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, with_process_contexts());
}

/// Returns the batch with page faults and two virtual machines, one of them without a UUID, before, between and
/// after other events. `golden/virtual-machine-v1.bin` holds it.
fn with_virtual_machines() -> EventBatch {
    let mut batch = with_faults();
    let uuid = "11111111-2222-3333-4444-555555555555";
    let web = VirtualMachineEvent::bare(MonotonicNs(4_999_800_000), Pid(4_400), "web1", uuid);
    let db = VirtualMachineEvent::bare(web.time, Pid(4_401), "db", "");
    let last = VirtualMachineEvent { time: MonotonicNs(5_003_000_001), ..db.clone() };
    batch.events.insert(0, LayerEvent::VirtualMachine(web.into()));
    batch.events.insert(4, LayerEvent::VirtualMachine(db.into()));
    batch.events.push(LayerEvent::VirtualMachine(last.into()));
    batch
}

fn host_process() -> HostProcess {
    let clock = ClockOffset { at: MonotonicNs(4_000_000_000), low: -2_000_500_000, high: -1_999_500_000 };
    HostProcess { node: NodeId(7), boot: BootId(8), pid: Pid(4_400), clock: Some(clock) }
}

/// Returns the batch with a virtual machine that has a file and a block device as images, a node on a host, and a
/// disk of a virtual machine. `golden/machine-disks-v1.bin` holds it.
fn with_machine_disks() -> EventBatch {
    let mut batch = with_virtual_machines();
    let time = MonotonicNs(5_003_000_002);
    let device = DeviceId { major: 254, minor: 0 };
    let disks = [(r"serial=root", Some(1_234)), ("bytes=1073741824", None)];
    let disks =
        disks.map(|(disk, ino)| MachineDisk { disk: disk.into(), device, ino, in_clusters: false, layer: 0 });
    let disks = disks.to_vec();
    let web = VirtualMachineEvent { disks, ..VirtualMachineEvent::bare(time, Pid(4_400), "web1", "") };
    let node = VirtualMachineEvent {
        host: Some(host_process().into()),
        ..VirtualMachineEvent::bare(time, VirtualMachineEvent::NODE, "host1", "")
    };
    let disk = Some("serial=root".into());
    let device = DeviceEvent { time, device, name: "vda".into(), partition_of: None, disk };
    batch.events.push(LayerEvent::VirtualMachine(web.into()));
    batch.events.push(LayerEvent::Device(device));
    batch.events.push(LayerEvent::VirtualMachine(node.into()));
    batch
}

/// Returns the batch with a disk in an image with clusters too. `golden/cluster-disks-v1.bin` holds it.
fn with_cluster_disks() -> EventBatch {
    let mut batch = with_machine_disks();
    for event in &mut batch.events {
        if let LayerEvent::VirtualMachine(machine) = event
            && let Some(first) = machine.disks.first().cloned()
        {
            let disk = MachineDisk { disk: "serial=data".into(), in_clusters: true, ..first };
            let disks = [&machine.disks[..], &[disk]].concat();
            *machine = VirtualMachineEvent { disks, ..VirtualMachineEvent::clone(machine) }.into();
        }
    }
    batch
}

/// Returns the batch with two backing files below the first disk too. `golden/backing-files-v1.bin` holds it.
fn with_backing_files() -> EventBatch {
    let mut batch = with_cluster_disks();
    for event in &mut batch.events {
        if let LayerEvent::VirtualMachine(machine) = event
            && let Some(first) = machine.disks.first()
        {
            let file =
                |ino, layer, in_clusters| MachineDisk { ino: Some(ino), layer, in_clusters, ..first.clone() };
            let disks = [&machine.disks[..], &[file(1_235, 1, true), file(1_236, 2, false)]].concat();
            *machine = VirtualMachineEvent { disks, ..VirtualMachineEvent::clone(machine) }.into();
        }
    }
    batch
}

/// Returns the batch with a disk over NBD too. `golden/nbd-disks-v1.bin` holds it.
fn with_nbd_disks() -> EventBatch {
    let mut batch = with_backing_files();
    for event in &mut batch.events {
        if let LayerEvent::VirtualMachine(machine) = event
            && !machine.disks.is_empty()
        {
            let connection = "192.0.2.1:40000>192.0.2.2:10809".into();
            let nbd_disks = vec![NbdDisk { disk: "serial=far".into(), connection }];
            *machine = VirtualMachineEvent { nbd_disks, ..VirtualMachineEvent::clone(machine) }.into();
        }
    }
    batch
}

/// A reader with the older schema must not take an offset in such an image for the guest's.
#[test]
fn reader_without_clusters_knows_no_disk_in_them() {
    let mut message = message::EventBatch::decode(encode(&with_cluster_disks()).as_slice()).unwrap();
    message.virtual_machine_events.iter_mut().for_each(|machine| machine.cluster_disks.clear());
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, with_machine_disks());
}

/// The host's agent adds the event of the node to a guest's record.
#[test]
fn an_appended_virtual_machine_is_the_last_event() {
    for mut batch in [sample_batch(), with_virtual_machines()] {
        let time = batch.events[0].time();
        let event = VirtualMachineEvent {
            host: Some(host_process().into()),
            ..VirtualMachineEvent::bare(time, VirtualMachineEvent::NODE, "web1", "")
        };
        let mut record = encode(&batch);
        append_virtual_machine(&mut record, &event);
        batch.events.push(LayerEvent::VirtualMachine(event.into()));
        assert_eq!(peek(&record).unwrap().events, batch.events.len() as u64);
        assert_eq!(decode(&record).unwrap().batch, batch);
    }
}

/// A reader with the older schema skips the field, and no other field counts it in a way that it misreads.
#[test]
fn reader_without_virtual_machines_reads_other_events() {
    let mut message = message::EventBatch::decode(encode(&with_virtual_machines()).as_slice()).unwrap();
    message.virtual_machine_events.clear();
    let mut known = with_virtual_machines();
    known.events.retain(|event| !matches!(event, LayerEvent::VirtualMachine(_)));
    let read = decode(&message.encode_to_vec()).unwrap().batch;
    assert_eq!(read.events.len(), known.events.len());
    for event in &known.events {
        assert!(read.events.contains(event), "{event:?}");
    }
}

/// A newer writer may know further events that this reader skips.
#[test]
fn page_fault_after_the_last_known_event_is_read() {
    let mut message = message::EventBatch::decode(encode(&with_faults()).as_slice()).unwrap();
    message.fault_events.as_mut().unwrap().before[2] += 9;
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, with_faults());
}

#[test]
fn dirty_pages_are_not_encoded() {
    let mut batch = sample_batch();
    let (file, time) = (
        FileId { device: DeviceId { major: 7, minor: 0 }, ino: 1, generation: 0, name: NameId::NONE },
        MonotonicNs(1),
    );
    let task = TaskRef { id: TaskId(1), version: 0 };
    batch
        .events
        .insert(1, LayerEvent::Dirty(DirtyEvent { task, span: None, file, offset: 0, bytes: 4096, time }));
    assert_eq!(encode(&batch), encode(&sample_batch()));
}

/// Random write-back has one origin for each bio. Ids are consecutive, as the eBPF programs make them.
#[test]
fn an_origin_of_random_write_back_is_short() {
    let mut batch = sample_batch();
    let epoch = batch.source.epoch.0;
    let id = |origin: u64, counter: u64| SpanId(mix((origin << 44 | (70_000 + counter)) ^ epoch));
    let random = |n: u64| mix(n) % (1 << 18);
    let LayerEvent::Bio(bio) = batch.events[7].clone() else { panic!("{:?}", batch.events[7]) };
    let file = FileId { device: bio.device, ino: 1_234, generation: 77, name: NameId::NONE };
    let event = |n: u64| {
        let queue = MonotonicNs(9_000_000_000 + 10_000 * n + random(n) % 5_000);
        let writer = PageWriter {
            trace: TraceId(0),
            span: id(1, random(n)),
            task: bio.task,
            dirtied: MonotonicNs(1_000_000_000 + random(n) * 20_000),
            bytes: 4_096,
            evidence: WriterEvidence::EndedBefore,
        };
        PageOriginEvent {
            time: queue,
            bio: id(2, n),
            root: id(2, n),
            kind: PageKind::File,
            file: Some(file),
            offset: random(n) << 12,
            bytes: 4_096,
            parts: Vec::new(),
            reason: Some(WritebackReason::Periodic),
            writers: vec![writer],
            bytes_unattributed: 0,
            unattributed: None,
        }
    };
    batch.events = (0..2_000).map(|n| LayerEvent::PageOrigin(event(n).into())).collect();
    let bytes = encode(&batch).len() - encode(&EventBatch { events: Vec::new(), ..batch.clone() }).len();
    assert!(bytes / batch.events.len() <= 32, "{bytes} bytes");
    assert_eq!(decode(&encode(&batch)).unwrap().batch, batch);
}

/// A reader with the older schema skips the field, and no other field counts it.
#[test]
fn reader_without_async_io_reads_other_events() {
    let mut message = message::EventBatch::decode(encode(&with_async_io()).as_slice()).unwrap();
    message.async_io_events = None;
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, with_process_contexts());
}

#[test]
fn async_io_after_the_end_is_rejected() {
    let mut message = message::EventBatch::decode(encode(&with_async_io()).as_slice()).unwrap();
    message.async_io_events.as_mut().unwrap().before[1] = 99;
    let rejected = Malformed::Value { column: "AsyncIoEvents.before", value: 99 };
    assert_eq!(decode(&message.encode_to_vec()), Err(rejected));
}

/// Returns the batch with the places where its system calls slept. `golden/sleeps-v1.bin` holds it.
fn with_sleeps() -> EventBatch {
    let mut batch = sample_batch();
    let place = |functions: &[&str], time, count| SleepPlace {
        functions: functions.iter().map(|function| (*function).into()).collect(),
        time: DurationNs(time),
        count,
    };
    let slept = CallSleeps {
        places: vec![
            place(&["folio_wait_bit_common", "folio_wait_writeback", "ext4_sync_file"], 700, 2),
            place(&[], 40, 1),
        ],
        others: 3,
        others_time: DurationNs(90),
        unended: 1,
    };
    let calls = batch.events.iter_mut().filter_map(|event| match event {
        LayerEvent::Syscall(call) => Some(call),
        _ => None,
    });
    calls.for_each(|call| call.slept = Some(Box::new(slept.clone())));
    batch.stats.sleeps = RecordStats { fired: 3, recorded: 2, dropped: 1 };
    batch
}

#[test]
fn names_of_functions_are_written_and_read_once() {
    let bytes = encode(&with_sleeps());
    let name = b"folio_wait_writeback";
    assert_eq!(bytes.windows(name.len()).filter(|bytes| bytes == name).count(), 1);
    let batch = decode(&bytes).unwrap().batch;
    let names = batch.events.iter().filter_map(|event| match event {
        LayerEvent::Syscall(call) => Some(call.slept.as_ref()?.places[0].functions[1].clone()),
        _ => None,
    });
    let names: Vec<Arc<str>> = names.collect();
    assert!(names.len() > 1 && names.iter().all(|name| Arc::ptr_eq(name, &names[0])));
}

#[test]
fn invalid_sleeps_are_rejected() {
    let valid = message::EventBatch::decode(encode(&with_sleeps()).as_slice()).unwrap();
    let refused = |change: fn(&mut message::CallSleeps)| {
        let mut message = valid.clone();
        change(&mut message.syscall_events.slept[0]);
        decode(&message.encode_to_vec()).unwrap_err()
    };
    let value = |column, value| Malformed::Value { column, value };
    let places = refused(|slept| slept.places.resize(5, Default::default()));
    assert_eq!(places, value("CallSleeps.places", 5));
    let functions = refused(|slept| slept.places[1].function = vec![0; 4]);
    assert_eq!(functions, value("SleepPlace.function", 4));
    let index = refused(|slept| slept.places[1].function = vec![999]);
    assert_eq!(index, value("SleepPlace.function", 999));
}
