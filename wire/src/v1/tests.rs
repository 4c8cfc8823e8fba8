use std::sync::Arc;

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;

use super::*;
use crate::attributes::{ThreadAttribute, ThreadAttributes};
use crate::batch::{Account, Accounts, EventBatch};
use crate::calls::CallId;
use crate::clock::{ClockAnchor, DurationNs, MonotonicNs, WallclockNs};
use crate::event::*;
use crate::ids::*;
use crate::killed::{Killed, Remains, Tally};
use crate::meeting::{Meeting, MeetingEvent, Side};
use crate::operation::{Note, NoteValue, OperationEvent, Outcome, WHOLE};
use crate::process::{Attribute, AttributeValue, ProcessEvent};
use crate::span::SpanKind;

fn time() -> impl Strategy<Value = MonotonicNs> {
    any::<u64>().prop_map(MonotonicNs)
}

fn span() -> impl Strategy<Value = SpanId> {
    any::<u64>().prop_map(SpanId)
}

fn task() -> impl Strategy<Value = TaskRef> {
    (any::<u64>(), any::<u16>()).prop_map(|(id, version)| TaskRef { id: TaskId(id), version })
}

fn device() -> impl Strategy<Value = DeviceId> {
    any::<u32>().prop_map(DeviceId::from_kernel)
}

fn file() -> impl Strategy<Value = FileId> {
    (device(), any::<u64>(), any::<u32>()).prop_map(|(device, ino, generation)| FileId {
        device,
        ino,
        generation,
    })
}

fn text() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,20}".prop_map(Into::into)
}

fn kept() -> impl Strategy<Value = Kept> {
    prop_oneof![Just(Kept::Whole), Just(Kept::Truncated), Just(Kept::Unreadable)]
}

fn open() -> impl Strategy<Value = OpenFile> {
    (any::<i32>(), file(), any::<Option<i64>>(), any::<Option<i64>>()).prop_map(
        |(fd, file, position_before, position_after)| OpenFile {
            fd: Fd(fd),
            file,
            position_before,
            position_after,
        },
    )
}

prop_compose! {
    fn attributes()(entries in btree_map(any::<u8>(), text(), 0..4), left_out: u32, bytes_unread: u32) -> ThreadAttributes {
        let entries = entries.into_iter().map(|(key, value)| ThreadAttribute { key, value }).collect();
        ThreadAttributes { entries, left_out, bytes_unread }
    }
}

prop_compose! {
    fn call()(
        span in span(), task in task(), index in 0..CallId::COUNT, registers: [u64; 6], enter in time(), exit in time(),
        ret in option::of(any::<i64>()), file in option::of(open()), second in option::of(open()),
        paths in [option::of(text()), option::of(text())], paths_kept in kept(), bios: u32, sleeps: u32,
        cpu_wait: Option<u64>, sync_tid: Option<u32>,
        context in option::of((1..u128::MAX, 1..u64::MAX, any::<u8>())), attributes in option::of(attributes())
    ) -> CallEvent {
        let call = CallId::from_index(index as u8).unwrap();
        let mut args = [0; 6];
        let own = call.spec().args.len();
        args[..own].copy_from_slice(&registers[..own]);
        CallEvent {
            span, task, call, args, enter, exit, ending: ret.map_or(Ending::NoExit, Ending::Returned), file,
            second_file: second.map(Box::new), paths, paths_kept, bios, sleeps, cpu_wait: cpu_wait.map(DurationNs), sync_tid,
            context: context.map(|(trace, span, flags)| TraceContext { trace: TraceId(trace), span: SpanId(span), flags, from: [ContextFrom::Thread, ContextFrom::Events, ContextFrom::Both][(span % 3) as usize] }.into()),
            attributes: attributes.map(Arc::new),
        }
    }
}

prop_compose! {
    fn bio()(
        span in span(), above in option::of(span()), root in option::of(span()), task in task(),
        request in option::of(span()), first: bool, split: bool, queue in time(), end in time(), device in device(),
        sector: u64, bytes: u32, op: u32, status: u8
    ) -> BioEvent {
        BioEvent {
            span, submitter: above.map_or(Submitter::Kernel, Submitter::Span),
            root: root.unwrap_or(above.unwrap_or(span)), task, request, first, split, queue, end, device,
            sector: Sector(sector), bytes, op: BlockOp(op), status: BlockStatus(status),
        }
    }
}

prop_compose! {
    fn request()(
        span in span(), parent in option::of(span()), root in span(), task in task(), start in time(),
        insert in option::of(time()), issue in option::of(time()), complete in time(), device in device(), sector: u64,
        bytes: u32, op: u32, status: u8, bios: u16, tag: Option<u32>, flags: [bool; 3]
    ) -> RequestEvent {
        let [plugged, requeued, flush_sequence] = flags;
        RequestEvent {
            span, parent, root, task, start, insert, issue, complete, device, sector: Sector(sector), bytes,
            op: BlockOp(op), status: BlockStatus(status), bios, tag, plugged, requeued, flush_sequence,
        }
    }
}

/// One to one as a tracer makes them, or alike in their time only.
fn pair() -> impl Strategy<Value = PairEvent> {
    (bio(), request(), any::<bool>()).prop_map(|(mut bio, mut request, alike)| {
        bio.end = request.complete;
        if alike {
            bio.request = Some(request.span);
            (request.parent, request.root, request.task) = (Some(bio.span), bio.root, bio.task);
        }
        PairEvent { bio, request }
    })
}

prop_compose! {
    fn commit()(span in span(), task in task(), start in time(), end in time(), device in device(), tid: u32, bios: u32)
        -> CommitEvent {
        CommitEvent { span, task, start, end, device, tid, bios }
    }
}

prop_compose! {
    fn task_event()(
        time in time(), task in task(), parent: Option<u64>, change in 0..5_usize, ids: [u32; 4], cgroup: u64,
        comm in text(), exe in option::of(file()), kernel_thread: bool, inner: Option<[u32; 3]>
    ) -> TaskEvent {
        use TaskChange::*;
        TaskEvent {
            time, task, parent: parent.map(TaskId), change: [Seen, Forked, Execed, Changed, Exited][change],
            tid: Tid(ids[0]), pid: Pid(ids[1]), ppid: Pid(ids[2]), uid: Uid(ids[3]), cgroup: CgroupId(cgroup), comm: comm.into(), exe,
            kernel_thread,
            inner: inner.map(|[pid_ns, pid, tid]| InnerTask { pid_ns, pid: Pid(pid), tid: Tid(tid) }),
        }
    }
}

prop_compose! {
    fn file_event()(
        time in time(), file in file(), path in text(), kept in kept(), filesystem in text(),
        device_file in option::of(device()), mode: u32
    ) -> FileEvent {
        FileEvent { time, file, path: path.into(), kept, filesystem: filesystem.into(), device_file, mode }
    }
}

prop_compose! {
    fn device_event()(time in time(), device in device(), name in text(), partition_of in option::of(device()))
        -> DeviceEvent {
        DeviceEvent { time, device, name, partition_of }
    }
}

prop_compose! {
    fn meeting()(
        span in span(), root in option::of(span()), asked: bool, rule in text(), connection in text(), cookie: u64,
        unique: bool, unanswered: bool, begin in time(), end in time()
    ) -> MeetingEvent {
        MeetingEvent {
            span, root: root.unwrap_or(span), side: if asked { Side::Asked } else { Side::Answered },
            meeting: Meeting { rule, connection, cookie }, unique, unanswered, begin, end,
        }
    }
}

prop_compose! {
    fn note()(at in time(), key in text(), value in prop_oneof![
        Just(NoteValue::Moment), text().prop_map(NoteValue::Text), any::<i64>().prop_map(NoteValue::Number),
    ]) -> Note {
        Note { at, key, value }
    }
}

prop_compose! {
    fn operation()(
        ids in any::<(u64, Option<u64>, u128)>(), kind in 0..3_usize, words in [text(), text()], begin in time(),
        end in time(), tasks in [0..3_u32, 0..3], outcome in any::<Option<Option<u32>>>(), kept in option::of(any::<u32>()),
        notes in vec(note(), 0..4)
    ) -> OperationEvent {
        let [name, service] = words;
        OperationEvent {
            span: SpanId(ids.0), parent: ids.1.map(SpanId), continued: ids.0 & 1 != 0, trace: TraceId(ids.2),
            kind: [SpanKind::Client, SpanKind::Server, SpanKind::Local][kind],
            name, service, begin, end, pid: Pid(tasks[0]), tid: Tid(tasks[1]),
            outcome: match outcome {
                None => Outcome::Done,
                Some(None) => Outcome::Unfinished,
                Some(Some(errno)) => Outcome::Failed(errno),
            },
            kept: kept.unwrap_or(WHOLE), notes,
        }
    }
}

prop_compose! {
    fn process()(
        time in time(), pid: u32, left_out: u32, attributes in vec((text(), prop_oneof![
            text().prop_map(AttributeValue::Text), any::<i64>().prop_map(AttributeValue::Number),
        ]), 0..4), thread_keys in vec(text(), 0..4)
    ) -> ProcessEvent {
        let attributes = attributes.into_iter().map(|(key, value)| Attribute { key, value }).collect();
        ProcessEvent { time, pid: Pid(pid), attributes, left_out, thread_keys }
    }
}

fn event() -> impl Strategy<Value = LayerEvent> {
    prop_oneof![
        call().prop_map(LayerEvent::Call),
        bio().prop_map(LayerEvent::Bio),
        request().prop_map(LayerEvent::Request),
        pair().prop_map(LayerEvent::Pair),
        commit().prop_map(LayerEvent::Commit),
        task_event().prop_map(LayerEvent::Task),
        file_event().prop_map(LayerEvent::File),
        device_event().prop_map(LayerEvent::Device),
        meeting().prop_map(|meeting| LayerEvent::Meeting(meeting.into())),
        operation().prop_map(|operation| LayerEvent::Operation(operation.into())),
        process().prop_map(|process| LayerEvent::Process(process.into())),
    ]
}

fn accounts() -> impl Strategy<Value = Accounts> {
    any::<([u64; 31], [u64; 15])>().prop_map(|(n, last)| {
        let account = |at: usize| Account { fired: n[at], recorded: n[at + 1], dropped: n[at + 2] };
        Accounts {
            calls: account(0),
            bios: account(3),
            requests: account(6),
            commits: account(9),
            names: account(12),
            calls_entered: n[15],
            calls_filtered: n[16],
            calls_incomplete: n[17],
            calls_truncated: n[18],
            files_truncated: n[19],
            calls_compat: n[20],
            bios_queued: n[21],
            requests_started: n[22],
            requests_merged: n[23],
            ends_missed: n[24],
            untracked: n[25],
            tasks_missed: n[26],
            recursion_misses: n[27],
            malformed: n[28],
            requests_foreign: n[29],
            paths_failed: n[30],
            walk_overflow: last[0],
            flushes_served: last[1],
            flush_overflow: last[2],
            contexts_faulted: last[3],
            contexts_unread: last[4],
            contexts_invalid: last[5],
            contexts_publishing: last[6],
            contexts_denied: last[7],
            contexts_no_room: last[8],
            resources_publishing: last[9],
            resources_malformed: last[10],
            resources_unread: last[11],
            resources_no_room: last[12],
            attributes_cut: last[13],
            attributes_unread: last[14],
        }
    })
}

fn killed() -> impl Strategy<Value = Killed> {
    let tally = || any::<[u64; 5]>().prop_map(Tally::from_numbers);
    let remains = [tally(), tally(), tally(), tally(), tally()]
        .prop_map(|[fired, dropped, read, kept, doubtful]| Remains { fired, dropped, read, kept, doubtful });
    (option::of(1..u64::MAX), option::of(remains))
        .prop_map(|(epoch, remains)| Killed { epoch: epoch.map(StartEpoch), remains })
}

prop_compose! {
    fn batch()(node: u128, boot: u128, epoch: u64, sequence: u64, clock: [u64; 4], claimed: Option<u64>, events in vec(event(), 0..40), watermark in time(), accounts in accounts(), killed in vec(killed(), 0..3))
        -> EventBatch {
        EventBatch {
            source: Source { node: NodeId(node), boot: BootId(boot), epoch: StartEpoch(epoch) }, sequence,
            anchor: ClockAnchor {
                monotonic: MonotonicNs(clock[0]), wallclock: WallclockNs(clock[1]), uncertainty: DurationNs(clock[2]),
                suspended: DurationNs(clock[3]), claimed: claimed.map(DurationNs),
            },
            events, watermark, accounts, killed,
        }
    }
}

proptest! {
    #[test]
    fn what_is_written_is_read_again(batch in batch()) {
        prop_assert_eq!(decode(&encode(&batch)), Ok(Decoded { batch, calls_unknown: 0 }));
    }

    #[test]
    fn a_look_sees_what_decoding_gives(batch in batch()) {
        let peeked = peek(&encode(&batch)).unwrap();
        let EventBatch { source, sequence, events, .. } = &batch;
        prop_assert_eq!(peeked, Peeked {
            source: *source, sequence: *sequence, events: events.len() as u64, tally: Tally::of(events),
        });
    }

    #[test]
    fn any_bytes_are_a_batch_or_an_error(bytes in vec(any::<u8>(), 0..400)) {
        let _ = (decode(&bytes), peek(&bytes));
    }

    #[test]
    fn a_batch_with_bytes_changed_is_a_batch_or_an_error(
        batch in batch(), changes in vec((any::<prop::sample::Index>(), any::<u8>()), 1..8), cut: prop::sample::Index
    ) {
        let mut bytes = encode(&batch);
        for (at, byte) in changes {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        let _ = decode(&bytes);
        let _ = decode(&bytes[..cut.index(bytes.len())]);
    }
}

/// Of each kind one, as a tracer would say it: a pwrite64 and an fsync, of which a commit came. `golden/v1.bin` holds it.
fn known() -> EventBatch {
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

/// Bytes of version 1 as they were first written. A change here is a change of what others have stored: it needs a version.
#[test]
fn bytes_that_were_written_once_mean_the_same_for_ever() {
    let golden = include_bytes!("../../golden/v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/v1.bin");
        std::fs::write(path, encode(&known())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: known(), calls_unknown: 0 }));
    assert_eq!(encode(&known()), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/meeting-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/meeting-v1.bin");
        std::fs::write(path, encode(&met())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: met(), calls_unknown: 0 }));
    assert_eq!(encode(&met()), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/unanswered-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/unanswered-v1.bin");
        std::fs::write(path, encode(&unanswered())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: unanswered(), calls_unknown: 0 }));
    assert_eq!(encode(&unanswered()), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/operation-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/operation-v1.bin");
        std::fs::write(path, encode(&operated())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: operated(), calls_unknown: 0 }));
    assert_eq!(encode(&operated()), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/context-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/context-v1.bin");
        std::fs::write(path, encode(&under_spans())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: under_spans(), calls_unknown: 0 }));
    assert_eq!(encode(&under_spans()), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/context-operation-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/context-operation-v1.bin");
        std::fs::write(path, encode(&under_operations())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: under_operations(), calls_unknown: 0 }));
    assert_eq!(encode(&under_operations()), golden, "what is written now");
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
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/looks-v1.bin");
        std::fs::write(path, encode(&batch)).unwrap();
    }
    let golden = include_bytes!("../../golden/looks-v1.bin");
    assert_eq!(decode(golden), Ok(Decoded { batch: batch.clone(), calls_unknown: 0 }));
    assert_eq!(encode(&batch), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/process-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/process-v1.bin");
        std::fs::write(path, encode(&of_processes())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: of_processes(), calls_unknown: 0 }));
    assert_eq!(encode(&of_processes()), golden, "what is written now");
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
    let golden = include_bytes!("../../golden/attributes-v1.bin");
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/attributes-v1.bin");
        std::fs::write(path, encode(&with_attributes())).unwrap();
    }
    assert_eq!(decode(golden), Ok(Decoded { batch: with_attributes(), calls_unknown: 0 }));
    assert_eq!(encode(&with_attributes()), golden, "what is written now");
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
    if std::env::var_os("BLESS").is_some() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/golden/inner-v1.bin");
        std::fs::write(path, encode(&in_a_container())).unwrap();
    }
    let golden = std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/golden/inner-v1.bin")).unwrap();
    assert_eq!(decode(&golden), Ok(Decoded { batch: in_a_container(), calls_unknown: 0 }));
    assert_eq!(encode(&in_a_container()), golden, "what is written now");
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

#[test]
fn another_version_is_refused_by_its_number() {
    let mut bytes = encode(&known());
    assert_eq!(bytes[..2], [1 << 3, VERSION as u8], "field 1 comes first");
    bytes[1] = 2;
    assert_eq!(decode(&bytes), Err(Malformed::Version(2)));
    assert_eq!(decode(&[]), Err(Malformed::Version(0)));
}

#[test]
fn a_field_that_is_not_known_is_ignored() {
    let batch = known();
    let mut bytes = encode(&batch);
    // Field 1000, a varint.
    bytes.extend([0xc0, 0x3e, 0x07]);
    assert_eq!(decode(&bytes).unwrap().batch, batch);
}

/// As it is for whoever reads by the schema of before it: the same bytes, and one field more.
#[test]
fn who_was_killed_is_said_behind_what_a_batch_has_always_said() {
    let tally = Tally { calls: 7, ..Tally::default() };
    let remains = Remains { fired: tally, ..Remains::default() };
    let killed = vec![
        Killed { epoch: Some(StartEpoch(3)), remains: Some(remains) },
        Killed { epoch: None, remains: None },
    ];
    let batch = EventBatch { killed, ..known() };
    let bytes = encode(&batch);
    assert_eq!(decode(&bytes).unwrap().batch, batch);
    // Field 9, twice: an epoch, of the fired 7 calls, of the rest nothing; then only that it is not known.
    let first = [0x4a, 21, 9, 3, 0, 0, 0, 0, 0, 0, 0, 0x1a, 2, 8, 7, 0x22, 0, 0x2a, 0, 0x32, 0, 0x3a, 0];
    let said = [&first[..], &[0x4a, 2, 0x10, 1]].concat();
    let at = bytes.windows(said.len()).position(|window| window == said).unwrap();
    assert_eq!([&bytes[..at], &bytes[at + said.len()..]].concat(), encode(&known()));
}

#[test]
fn a_call_that_is_not_known_is_left_out_and_counted() {
    let batch = known();
    let at = batch.events.iter().position(|event| matches!(event, LayerEvent::Call(_))).unwrap();
    let (name, bytes) = ("pwrite64".as_bytes(), encode(&batch));
    let place = bytes.windows(name.len()).position(|window| window == name).unwrap();
    let mut newer = bytes.clone();
    newer[place..place + name.len()].fill(b'?');
    let decoded = decode(&newer).unwrap();
    assert_eq!((decoded.batch.events.len(), decoded.calls_unknown), (batch.events.len() - 1, 1));
    assert_eq!(decoded.batch.events[at..], batch.events[at + 1..], "and the others are as they were");
}

#[test]
fn a_column_too_short_or_too_long_is_named() {
    use prost::Message;
    let changed = |change: fn(&mut message::EventBatch)| {
        let mut message = message::EventBatch::decode(encode(&known()).as_slice()).unwrap();
        change(&mut message);
        decode(&message.encode_to_vec()).unwrap_err()
    };
    assert_eq!(changed(|m| m.bio_events.bytes.clear()), Malformed::Short("BioEvents.bytes"));
    assert_eq!(changed(|m| m.call_events.took.push(1)), Malformed::Long("CallEvents.took"));
    assert_eq!(changed(|m| m.times.push(1)), Malformed::Long("EventBatch.times"));
    assert_eq!(changed(|m| m.kinds.push(9)), Malformed::Short("EventBatch.times"));
    let wrong = Malformed::Value { column: "CommitEvents.task", value: 99 };
    assert_eq!(changed(|m| m.commit_events.task[0] = 99), wrong);
}
