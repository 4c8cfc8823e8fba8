//! What was written once means the same for ever: golden bytes of each kind of event, who reads them by a schema of before, and what of
//! them is refused.

use super::*;

/// `golden/NAME.bin` holds the bytes of version 1 as they were first written. A change there is a change of what others have stored: it
/// needs a version. With BLESS in the environment it is written anew.
fn means_for_ever(name: &str, batch: &EventBatch) {
    let path = format!("{}/golden/{name}.bin", env!("CARGO_MANIFEST_DIR"));
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(&path, encode(batch)).unwrap();
    }
    let golden = std::fs::read(path).unwrap();
    assert_eq!(decode(&golden), Ok(Decoded { batch: batch.clone(), calls_unknown: 0 }));
    assert_eq!(encode(batch), golden, "what is written now");
}

/// Of each kind one, as a tracer would say it: a pwrite64 and an fsync, of which a commit came. `golden/v1.bin` holds it.
pub(super) fn known() -> EventBatch {
    let (disk, part) = (DeviceId { major: 259, minor: 0 }, DeviceId { major: 259, minor: 2 });
    let task = TaskRef { id: TaskId(0x6a09_e667_f3bc_c908), version: 1 };
    let kernel = TaskRef { id: TaskId(0xbb67_ae85_84ca_a73b), version: 0 };
    let file = FileId { device: part, ino: 1_234, generation: 77 };
    let open = OpenFile { fd: Fd(3), file, position_before: None, position_after: None };
    let other = OpenFile { position_before: Some(100), position_after: Some(4_196), fd: Fd(4), file };
    let write = CallEvent {
        args: [3, 0x7fff_dead_b000, 4096, 8192, 0, 0],
        ending: Ending::Returned(4096),
        file: Some(open),
        bios: 1,
        sleeps: 1,
        cpu_wait: Some(DurationNs(900)),
        ..CallEvent::bare(
            SpanId(0x3c6e_f372_fe94_f82b),
            task,
            CallId::by_name("pwrite64").unwrap(),
            MonotonicNs(5_000_000_000),
            MonotonicNs(5_000_104_000),
        )
    };
    let sync = CallEvent {
        span: SpanId(0xa54f_f53a_5f1d_36f1),
        call: CallId::by_name("fsync").unwrap(),
        args: [3, 0, 0, 0, 0, 0],
        enter: MonotonicNs(5_000_105_000),
        exit: MonotonicNs(5_002_000_000),
        ending: Ending::Returned(-5),
        bios: 0,
        cpu_wait: None,
        sync_tid: Some(42),
        ..write.clone()
    };
    let copy = CallEvent {
        span: SpanId(0x510e_527f_ade6_82d1),
        call: CallId::by_name("copy_file_range").unwrap(),
        args: [3, 0, 4, 0, 4096, 0],
        ending: Ending::NoExit,
        second_file: Some(Box::new(other)),
        exit: MonotonicNs(5_003_000_000),
        ..write.clone()
    };
    let unlink = CallEvent {
        span: SpanId(0x9b05_688c_2b3e_6c1f),
        call: CallId::by_name("unlink").unwrap(),
        args: [0x7fff_dead_c000, 0, 0, 0, 0, 0],
        ending: Ending::Returned(0),
        file: None,
        paths: [Some("/srv/ä".into()), None],
        paths_kept: Kept::Truncated,
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
    // The commit's record: merged behind another's bio, so its request is not its own, and that one waited in a scheduler.
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
    let carrier = RequestEvent {
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
        exe: Some(FileId { device: part, ino: 99, generation: 0 }),
        kernel_thread: false,
        inner: None,
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
        kept: Kept::Whole,
        filesystem: "ext4".into(),
        device_file: None,
        mode: 0o100_600,
    };
    let node =
        FileEvent { path: "/dev/nvme0n1".into(), device_file: Some(disk), mode: 0o060_660, ..name.clone() };
    let device =
        DeviceEvent { time: bio.end, device: part, name: "nvme0n1p2".into(), partition_of: Some(disk) };
    let account = |fired, dropped| Account { fired, recorded: fired - dropped, dropped };
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
            LayerEvent::Call(write),
            LayerEvent::Bio(merged),
            LayerEvent::Request(carrier),
            LayerEvent::Commit(commit),
            LayerEvent::Call(sync),
            LayerEvent::Call(copy),
            LayerEvent::Call(unlink),
        ],
        watermark: MonotonicNs(5_004_000_000),
        accounts: Accounts {
            calls: account(1_000, 1),
            bios: account(500, 0),
            requests: account(400, 2),
            calls_entered: 1_001,
            flushes_served: 12,
            ..Accounts::default()
        },
        killed: Vec::new(),
    }
}

#[test]
fn bytes_that_were_written_once_mean_the_same_for_ever() {
    means_for_ever("v1", &known());
}

/// The same with a meeting of its first call. `golden/meeting-v1.bin` holds it.
fn met() -> EventBatch {
    let mut batch = known();
    let LayerEvent::Call(call) = &batch.events[6] else { panic!("{:?}", batch.events[6]) };
    let meeting = MeetingEvent {
        span: call.span,
        root: call.span,
        side: Side::Answered,
        meeting: Meeting {
            rule: "nbd".into(),
            connection: "10.0.0.1:41234>10.0.0.2:10809".into(),
            cookie: 1 << 32 | 7,
        },
        unique: true,
        unanswered: false,
        begin: call.enter,
        end: call.exit,
    };
    let other = MeetingEvent { span: SpanId(77), side: Side::Asked, unique: false, ..meeting.clone() };
    batch.events.insert(6, LayerEvent::Meeting(meeting.into()));
    batch.events.insert(7, LayerEvent::Meeting(other.into()));
    batch
}

#[test]
fn a_meeting_means_the_same_for_ever() {
    means_for_ever("meeting-v1", &met());
}

/// The same where who asked saw no answer. `golden/unanswered-v1.bin` holds it.
fn unanswered() -> EventBatch {
    let mut batch = met();
    let LayerEvent::Meeting(asked) = &mut batch.events[7] else { panic!("{:?}", batch.events[7]) };
    (asked.unanswered, asked.unique) = (true, true);
    batch
}

#[test]
fn a_request_without_an_answer_means_the_same_for_ever() {
    means_for_ever("unanswered-v1", &unanswered());
}

/// The same with two operations of a daemon. `golden/operation-v1.bin` holds it.
fn operated() -> EventBatch {
    let mut batch = known();
    let note = |at, key: &str, value| Note { at: MonotonicNs(at), key: key.into(), value };
    let time = batch.events[6].time();
    let read = OperationEvent {
        span: SpanId(0x1234_5678_9abc_def0),
        parent: Some(SpanId(0xabc)),
        continued: true,
        trace: TraceId(0xfeed_0000_0000_0001_1234_5678_9abc_def0),
        kind: SpanKind::Server,
        name: "nbd read".into(),
        service: "blkkin-nbd".into(),
        begin: MonotonicNs(time.0 - 900),
        end: time,
        pid: Pid(900),
        tid: Tid(902),
        outcome: Outcome::Failed(5),
        kept: 250_000,
        notes: vec![
            note(time.0 - 900, "offset", NoteValue::Number(-4096)),
            note(time.0 - 800, "export", NoteValue::Text("disk".into())),
            note(time.0 - 1, "answered", NoteValue::Moment),
        ],
    };
    let part = OperationEvent {
        span: SpanId(7),
        parent: Some(read.span),
        continued: false,
        kind: SpanKind::Local,
        name: "checksum".into(),
        tid: Tid(900),
        outcome: Outcome::Unfinished,
        kept: WHOLE,
        notes: Vec::new(),
        ..read.clone()
    };
    batch.events.insert(6, LayerEvent::Operation(part.into()));
    batch.events.insert(7, LayerEvent::Operation(read.into()));
    batch
}

#[test]
fn an_operation_means_the_same_for_ever() {
    means_for_ever("operation-v1", &operated());
}

/// The same where the first call, and the last two, were made for spans of the application's. `golden/context-v1.bin` holds it.
fn under_spans() -> EventBatch {
    let mut batch = known();
    let one = TraceContext {
        trace: TraceId(0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736),
        span: SpanId(0x00f0_67aa_0ba9_02b7),
        flags: 1,
        from: ContextFrom::Thread,
    };
    let other = TraceContext { trace: TraceId(0x10), flags: 0, from: ContextFrom::Events, ..one };
    let mut contexts = [Some(one), None, Some(other), Some(one)].into_iter();
    for event in &mut batch.events {
        if let LayerEvent::Call(call) = event {
            call.context = contexts.next().flatten().map(Box::new);
        }
    }
    batch
}

#[test]
fn a_context_means_the_same_for_ever() {
    means_for_ever("context-v1", &under_spans());
}

/// The same where what threads published is an operation of this node, which its daemon has said too.
/// `golden/context-operation-v1.bin` holds it.
fn under_operations() -> EventBatch {
    let mut batch = under_spans();
    for event in &mut batch.events {
        if let LayerEvent::Call(CallEvent { context: Some(context), .. }) = event
            && context.from == ContextFrom::Thread
        {
            context.from = ContextFrom::Both;
        }
    }
    batch
}

#[test]
fn an_operation_that_a_thread_published_means_the_same_for_ever() {
    means_for_ever("context-operation-v1", &under_operations());
}

/// Who reads by the schema of before takes it for what a thread published, which it is.
#[test]
fn who_knows_no_operations_reads_what_was_published() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&under_operations()).as_slice()).unwrap();
    message.contexts.as_mut().unwrap().operation.clear();
    assert_eq!(message.encode_to_vec(), encode(&under_spans()));
}

/// The same with what became of looks at processes. `golden/looks-v1.bin` holds it.
#[test]
fn what_became_of_looks_means_the_same_for_ever() {
    let mut batch = under_spans();
    let accounts = &mut batch.accounts;
    (accounts.contexts_publishing, accounts.contexts_denied, accounts.contexts_no_room) = (3, 300, 1);
    means_for_ever("looks-v1", &batch);
}

/// The same where a process says who it is, is another, and says nothing any more. `golden/process-v1.bin` holds it.
fn of_processes() -> EventBatch {
    let mut batch = under_spans();
    let text =
        |key: &str, value: &str| Attribute { key: key.into(), value: AttributeValue::Text(value.into()) };
    let first = ProcessEvent {
        time: MonotonicNs(4_999_900_000),
        pid: Pid(4_300),
        attributes: vec![
            text("service.name", "shop"),
            text("service.instance.id", "627cc493-f310-47de-96bd-71410b7dec09"),
            Attribute { key: "shop.shard".into(), value: AttributeValue::Number(-7) },
        ],
        left_out: 2,
        thread_keys: Vec::new(),
    };
    let second =
        ProcessEvent { attributes: vec![text("service.name", "store")], left_out: 0, ..first.clone() };
    let last = ProcessEvent { attributes: Vec::new(), time: MonotonicNs(5_003_000_000), ..second.clone() };
    assert!(last.is_silence() && !second.is_silence());
    batch.events.insert(2, LayerEvent::Process(first.into()));
    batch.events.insert(3, LayerEvent::Process(second.into()));
    batch.events.push(LayerEvent::Process(last.into()));
    batch.accounts.resources_publishing = 1;
    batch.accounts.resources_malformed = 2;
    batch
}

#[test]
fn what_a_process_says_means_the_same_for_ever() {
    means_for_ever("process-v1", &of_processes());
}

/// Who reads by the schema of before reads all the rest: the field is skipped, and nothing else counts it.
#[test]
fn who_knows_no_processes_reads_the_rest() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&of_processes()).as_slice()).unwrap();
    message.process_events.clear();
    (message.accounts.resources_publishing, message.accounts.resources_malformed) = (0, 0);
    // Words that nothing refers to any more stay.
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, under_spans());
}

#[test]
fn a_process_that_lies_behind_the_end_is_refused() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&of_processes()).as_slice()).unwrap();
    message.process_events[2].before = 99;
    let refused = Malformed::Value { column: "ProcessEvent.before", value: 99 };
    assert_eq!(decode(&message.encode_to_vec()), Err(refused));
}

/// The same where threads say more of their work than a span, of names that their process gives: the first two calls the same, the
/// third what was left out, the last what was not read. `golden/attributes-v1.bin` holds it.
fn with_attributes() -> EventBatch {
    let mut batch = of_processes();
    let entry = |key, value: &str| ThreadAttribute { key, value: value.into() };
    let said = ThreadAttributes { entries: vec![entry(0, "/buy/:id"), entry(7, "")], ..Default::default() };
    let less = ThreadAttributes { entries: vec![entry(7, "/buy/:id")], left_out: 3, bytes_unread: 0 };
    let unread = ThreadAttributes { bytes_unread: 700, ..Default::default() };
    let mut sets = [said.clone(), said, less, unread].into_iter();
    for event in &mut batch.events {
        match event {
            LayerEvent::Call(call) => call.attributes = sets.next().map(Arc::new),
            LayerEvent::Process(process) => process.thread_keys = vec!["http.route".into(), "".into()],
            _ => {}
        }
    }
    (batch.accounts.attributes_cut, batch.accounts.attributes_unread) = (1, 2);
    batch
}

#[test]
fn what_threads_say_means_the_same_for_ever() {
    means_for_ever("attributes-v1", &with_attributes());
}

/// Calls that say the same share it, so what is read of a short record stays short.
#[test]
fn what_two_calls_say_alike_is_there_once() {
    let batch = decode(&encode(&with_attributes())).unwrap().batch;
    let sets: Vec<_> = batch
        .events
        .iter()
        .filter_map(|event| match event {
            LayerEvent::Call(call) => call.attributes.as_ref(),
            _ => None,
        })
        .collect();
    assert!(Arc::ptr_eq(sets[0], sets[1]) && !Arc::ptr_eq(sets[1], sets[2]));
}

/// As it is for whoever reads by the schema of before: it skips three fields, and does not look at the flag.
#[test]
fn who_knows_no_attributes_reads_the_rest() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&with_attributes()).as_slice()).unwrap();
    (message.thread_attributes, message.call_events.attributes) = (None, Vec::new());
    message.call_events.flags.iter_mut().for_each(|flags| *flags &= (1 << 14) - 1);
    message.process_events.iter_mut().for_each(|process| process.thread_key.clear());
    (message.accounts.attributes_cut, message.accounts.attributes_unread) = (0, 0);
    assert_eq!(decode(&message.encode_to_vec()).unwrap().batch, of_processes());
}

#[test]
fn attributes_that_are_not_in_order_or_not_there_are_refused() {
    use prost::Message;
    let good = message::EventBatch::decode(encode(&with_attributes()).as_slice()).unwrap();
    let refused = |change: fn(&mut message::ThreadAttributes)| {
        let mut message = good.clone();
        change(message.thread_attributes.as_mut().unwrap());
        decode(&message.encode_to_vec()).unwrap_err()
    };
    let value = |column, value| Malformed::Value { column, value };
    assert_eq!(refused(|sets| sets.key[1] = 0), value("ThreadAttributes.key", 0));
    assert_eq!(refused(|sets| sets.key[1] = 256), value("ThreadAttributes.key", 256));
    assert_eq!(refused(|sets| sets.value[0] = 999), value("ThreadAttributes.value", 999));
    assert_eq!(refused(|sets| sets.entries[0] = u32::MAX), value("ThreadAttributes.key", 7));
    assert_eq!(refused(|sets| sets.entries[0] = 1), Malformed::Long("ThreadAttributes.key"));
    assert_eq!(refused(|sets| sets.left_out.truncate(2)), Malformed::Short("ThreadAttributes.left_out"));
    let mut message = good.clone();
    message.call_events.attributes[2] = 3;
    assert_eq!(decode(&message.encode_to_vec()), Err(value("CallEvents.attributes", 3)));
}

/// The same of tasks in a container. `golden/inner-v1.bin` holds it.
fn in_a_container() -> EventBatch {
    let mut batch = known();
    let mut inner = Some(InnerTask { pid_ns: 4_026_532_777, pid: Pid(1), tid: Tid(9) });
    for event in &mut batch.events {
        if let LayerEvent::Task(task) = event {
            // Of the first alone.
            task.inner = inner.take();
        }
    }
    batch
}

#[test]
fn what_a_task_is_called_in_its_container_means_the_same_for_ever() {
    means_for_ever("inner-v1", &in_a_container());
}

/// As it is for whoever reads by the schema of before: it skips three fields, and does not look at the flag.
#[test]
fn who_knows_no_pid_namespaces_reads_the_rest() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&in_a_container()).as_slice()).unwrap();
    let tasks = &mut message.task_events;
    tasks.flags.iter_mut().for_each(|flags| *flags &= 0b111);
    (tasks.pid_ns, tasks.inner_pid, tasks.inner_tid) = (Vec::new(), Vec::new(), Vec::new());
    assert_eq!(message.encode_to_vec(), encode(&known()));
}

/// As it is for whoever reads by the schema of before contexts: it skips two fields, and does not look at the flag.
#[test]
fn who_knows_no_contexts_reads_the_rest() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&under_spans()).as_slice()).unwrap();
    (message.contexts, message.call_events.context) = (None, Vec::new());
    message.call_events.flags.iter_mut().for_each(|flags| *flags &= (1 << 13) - 1);
    assert_eq!(message.encode_to_vec(), encode(&known()));
}

#[test]
fn a_context_that_is_none_is_refused() {
    use prost::Message;
    let mut message = message::EventBatch::decode(encode(&under_spans()).as_slice()).unwrap();
    message.contexts.as_mut().unwrap().span[1] = 0;
    let none = Malformed::Value { column: "Contexts.span", value: 0 };
    assert_eq!(decode(&message.encode_to_vec()), Err(none));
}
