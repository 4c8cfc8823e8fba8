//! Batches of all that may be said, by chance.

use super::*;

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
    pub(super) fn batch()(node: u128, boot: u128, epoch: u64, sequence: u64, clock: [u64; 4], claimed: Option<u64>, events in vec(event(), 0..40), watermark in time(), accounts in accounts(), killed in vec(killed(), 0..3))
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
