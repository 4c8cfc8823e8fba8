//! Random batches with all kinds of events.

use super::*;
use crate::call_sleeps::{CallSleeps, SleepPlace};
use crate::call_waits::{CallWaits, LockHolder, LogWrite, LongestWait, WaitKind, WaitSum};
use crate::head_sampling::HeadSampling;

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
    (device(), any::<u64>(), any::<u32>(), any::<u64>()).prop_map(|(device, ino, generation, name)| FileId {
        device,
        ino,
        generation,
        name: NameId(name),
    })
}

fn text() -> impl Strategy<Value = Box<str>> {
    "\\PC{0,20}".prop_map(Into::into)
}

fn captured() -> impl Strategy<Value = Captured> {
    prop_oneof![Just(Captured::Full), Just(Captured::Truncated), Just(Captured::Faulted)]
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
    fn attributes()(entries in btree_map(any::<u8>(), text(), 0..4), dropped_attributes_count: u32, bytes_unread: u32) -> ThreadAttributes {
        let entries = entries.into_iter().map(|(key, value)| ThreadAttribute { key, value }).collect();
        ThreadAttributes { entries, dropped_attributes_count, bytes_unread }
    }
}

fn context() -> impl Strategy<Value = TraceContext> {
    use ContextSource::*;
    (1..u128::MAX, 1..u64::MAX, any::<u8>()).prop_map(|(trace, span, flags)| {
        let source = [ThreadContext, DaemonSpan, Both][(span % 3) as usize];
        TraceContext { trace: TraceId(trace), span: SpanId(span), flags, source }
    })
}

prop_compose! {
    fn waits()(
        sums in btree_map(0..8_u32, (any::<u64>(), any::<u32>()), 1..8), longest in 0..8_u32, begin in time(), time: u64,
        holder in option::of((any::<u32>(), any::<u32>(), text())), sleeps: u32, log_write in option::of((1..u64::MAX, 1..u64::MAX))
    ) -> CallWaits {
        let kind = |number| WaitKind::from_number(number).unwrap();
        let sum = |(number, (time, count))| WaitSum { kind: kind(number), time: DurationNs(time), count };
        let holder = holder.map(|(pid, tid, comm)| LockHolder { pid: Pid(pid), tid: Tid(tid), comm: comm.into() });
        let longest = LongestWait { kind: kind(longest), begin, time: DurationNs(time), holder };
        let log_write =
            log_write.map(|(span, root)| LogWrite { span: SpanId(span), root: SpanId(root), trace: TraceId(0) });
        CallWaits { sums: sums.into_iter().map(sum).collect(), longest, sleeps, log_write }
    }
}

prop_compose! {
    fn place()(functions in vec(text(), 0..4), time: u64, count: u32) -> SleepPlace {
        let functions = functions.into_iter().map(Into::into).collect();
        SleepPlace { functions, time: DurationNs(time), count }
    }
}

prop_compose! {
    fn slept()(places in vec(place(), 0..5), others: u32, others_time: u64, unended: u32) -> CallSleeps {
        CallSleeps { places, others, others_time: DurationNs(others_time), unended }
    }
}

fn sampling() -> impl Strategy<Value = HeadSampling> {
    (0..=HeadSampling::MIN_RATIO.log2()).prop_map(|log2| HeadSampling::from_log2(log2).unwrap())
}

prop_compose! {
    fn syscall()(
        span in span(), task in task(), index in 0..SyscallId::COUNT, registers: [u64; 6], enter in time(), exit in time(),
        ret in option::of(any::<i64>()), file in option::of(open()), second in option::of(open()),
        paths in [option::of(text()), option::of(text())], paths_captured in captured(), bios: u32, sleeps: u32,
        cpu_wait in option::of(0..u64::MAX), sync_tid: Option<u32>,
        context in option::of(context()), attributes in option::of(attributes()), writes_page_cache: bool, reads_page_cache: bool,
        waits in option::of(waits()), slept in option::of(slept()), sampling in sampling()
    ) -> SyscallEvent {
        let call = SyscallId::from_index(index as u8).unwrap();
        let mut args = [0; 6];
        let own = call.spec().args.len();
        args[..own].copy_from_slice(&registers[..own]);
        SyscallEvent {
            span, task, call, args, enter, exit, outcome: ret.map_or(SyscallOutcome::NoExit, SyscallOutcome::Returned), file,
            second_file: second.map(Box::new), paths, paths_captured, bios, sleeps, cpu_wait: cpu_wait.map(DurationNs).into(), sync_tid,
            context: context.map(Box::new),
            attributes: attributes.map(Arc::new), writes_page_cache, reads_page_cache, waits: waits.map(Box::new), slept: slept.map(Box::new), sampling,
        }
    }
}

prop_compose! {
    fn bio()(
        span in span(), above in option::of(span()), root in option::of(span()), task in task(),
        request in option::of(span()), first: bool, split: bool, has_page_origin: bool, queue in time(), end in time(), device in device(),
        sector: u64, bytes: u32, op: u32, status: u8
    ) -> BioEvent {
        BioEvent {
            span, submitter: above.map_or(Submitter::Kernel, Submitter::Span),
            root: root.unwrap_or(above.unwrap_or(span)), task, request, first, split, has_page_origin,
            of_other_program: first && !split, queue, end, device,
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

/// A pair as tracers emit them, or two events that share only their end.
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
            time, task, parent: parent.map(TaskId), change: [Discovered, Forked, Execed, Changed, Exited][change],
            tid: Tid(ids[0]), pid: Pid(ids[1]), ppid: Pid(ids[2]), uid: Uid(ids[3]), cgroup: CgroupId(cgroup), comm: comm.into(), exe,
            kernel_thread,
            ns_ids: inner.map(|[pid_ns, pid, tid]| PidNsIds { pid_ns, pid: Pid(pid), tid: Tid(tid) }),
        }
    }
}

prop_compose! {
    fn file_event()(
        time in time(), file in file(), path in text(), captured in captured(), filesystem in text(),
        device_file in option::of(device()), mode: u32, removed: bool
    ) -> FileEvent {
        FileEvent { time, file, path: path.into(), captured, filesystem: filesystem.into(), device_file, mode, removed }
    }
}

prop_compose! {
    fn device_event()(
        time in time(), device in device(), name in text(), partition_of in option::of(device()), disk in option::of(text())
    ) -> DeviceEvent {
        DeviceEvent { time, device, name, partition_of, disk }
    }
}

prop_compose! {
    fn rpc_endpoint()(
        span in span(), root in option::of(span()), client: bool, protocol in text(), connection in text(), cookie: u64,
        unique: bool, no_reply: bool, begin in time(), end in time()
    ) -> RpcEndpointEvent {
        RpcEndpointEvent {
            span, root: root.unwrap_or(span), side: if client { RpcSide::Client } else { RpcSide::Server },
            key: RpcKey { protocol, connection, cookie }, unique, no_reply, begin, end,
        }
    }
}

prop_compose! {
    fn annotation()(time in time(), key in text(), value in prop_oneof![
        Just(AnnotationValue::Event), text().prop_map(AnnotationValue::Text), any::<i64>().prop_map(AnnotationValue::Number),
    ]) -> Annotation {
        Annotation { time, key, value }
    }
}

prop_compose! {
    fn daemon_span()(
        ids in any::<(u64, Option<u64>, u128)>(), kind in 0..3_usize, words in [text(), text()], begin in time(),
        end in time(), tasks in [0..3_u32, 0..3], status in any::<Option<Option<u32>>>(), sample_rate in option::of(any::<u32>()),
        annotations in vec(annotation(), 0..4)
    ) -> DaemonSpanEvent {
        let [name, service] = words;
        DaemonSpanEvent {
            span: SpanId(ids.0), parent: ids.1.map(SpanId), parent_is_remote: ids.0 & 1 != 0, trace: TraceId(ids.2),
            kind: [SpanKind::Client, SpanKind::Server, SpanKind::Local][kind],
            name, service, begin, end, pid: Pid(tasks[0]), tid: Tid(tasks[1]),
            status: match status {
                None => SpanStatus::Ok,
                Some(None) => SpanStatus::Unfinished,
                Some(Some(errno)) => SpanStatus::Error(errno),
            },
            sample_rate: sample_rate.unwrap_or(SAMPLE_RATE_ALL), annotations,
        }
    }
}

prop_compose! {
    fn process_context()(
        time in time(), pid: u32, dropped_attributes_count: u32, attributes in vec((text(), prop_oneof![
            text().prop_map(AttributeValue::Text), any::<i64>().prop_map(AttributeValue::Number),
        ]), 0..4), thread_keys in vec(text(), 0..4)
    ) -> ProcessContextEvent {
        let attributes = attributes.into_iter().map(|(key, value)| Attribute { key, value }).collect();
        ProcessContextEvent { time, pid: Pid(pid), attributes, dropped_attributes_count, thread_keys }
    }
}

prop_compose! {
    fn virtual_machine()(
        time in time(), pid: u32, words in [text(), text()], disks in vec(machine_disk(), 0..3),
        nbd_disks in vec(nbd_disk(), 0..3), host in option::of(host_process())
    ) -> VirtualMachineEvent {
        let [name, uuid] = words.map(Into::into);
        let mut disks = disks;
        // They are encoded in this order.
        disks.sort_by_key(|disk| (disk.layer > 0, disk.layer == 0 && disk.in_clusters));
        VirtualMachineEvent { time, pid: Pid(pid), name, uuid, disks, nbd_disks, host: host.map(Box::new) }
    }
}

prop_compose! {
    fn machine_disk()(
        disk in text(), device in device(), ino in option::of(any::<u64>()), in_clusters: bool, layer in 0..3_u32
    ) -> MachineDisk {
        MachineDisk { disk, device, ino, in_clusters, layer }
    }
}

prop_compose! {
    fn nbd_disk()(texts in [text(), text()]) -> NbdDisk {
        let [disk, connection] = texts;
        NbdDisk { disk, connection }
    }
}

prop_compose! {
    fn host_process()(ids: (u128, u128), pid: u32, clock in option::of(any::<(u64, i64, i64)>())) -> HostProcess {
        let clock = clock.map(|(at, low, high)| ClockOffset { at: MonotonicNs(at), low, high });
        HostProcess { node: NodeId(ids.0), boot: BootId(ids.1), pid: Pid(pid), clock }
    }
}

prop_compose! {
    fn page_writer()(
        trace in option::of(any::<u128>()), span in option::of(1..u64::MAX), task in task(), dirtied in time(), bytes: u32,
        evidence in 0..6_usize
    ) -> PageWriter {
        use WriterEvidence::*;
        let span = SpanId(span.unwrap_or(0));
        PageWriter {
            trace: TraceId(trace.unwrap_or(7 << 64 | u128::from(span.0))), span, task, dirtied, bytes,
            evidence: [EndedBefore, UnderWay, MappedStore, DuringTransfer, UnderWayEarlier, LoopDevice][evidence],
        }
    }
}

prop_compose! {
    fn page_origin()(
        time in time(), bio in span(), root in option::of(span()), kind in 0..5_usize, file in option::of(file()),
        offset: u64, bytes: u32, reason in 0..8_usize, writers in vec(page_writer(), 0..4), bytes_unattributed: u32,
        unattributed in 0..4_usize, parts in vec((any::<u64>(), any::<u32>()), 0..3)
    ) -> PageOriginEvent {
        let reason = (reason > 0).then(|| {
            use WritebackReason::*;
            [Background, MemoryPressure, Sync, Periodic, FreeSpace, ForeignCgroup, Other][reason - 1]
        });
        let unattributed = (unattributed > 0).then(|| {
            use Unattributed::*;
            [NotRecorded, Evicted, NotConsecutive][unattributed - 1]
        });
        use PageKind::*;
        PageOriginEvent {
            time, bio, root: root.unwrap_or(bio), kind: [File, Device, Metadata, Log, Swap][kind], file, offset, bytes, reason,
            parts: parts.into_iter().map(|(offset, bytes)| PagePart { offset, bytes }).collect(), writers,
            bytes_unattributed, unattributed,
        }
    }
}

prop_compose! {
    fn fault()(
        span in span(), task in task(), ends in any::<[bool; 4]>(), address: Option<u64>, file in option::of(file()),
        offset: Option<u64>, times in [time(), time(), time()], bios: u32, context in option::of(context())
    ) -> FaultEvent {
        let [major, begin_seen, end_seen, late] = ends;
        let [begin, end, time] = times;
        FaultEvent {
            span, task, major, address, file, offset, begin, begin_seen, end, end_seen, time: if late { time } else { end },
            bios, context: context.map(Box::new),
        }
    }
}

prop_compose! {
    fn async_io()(
        ids in (span(), option::of(span())), task in task(), libaio: bool, opcode: u8, start in time(), end in time(),
        queued in option::of(time()), numbers in any::<(u64, Option<i64>, Option<u32>, u32, u32, u8)>(),
        outcome in any::<Option<Option<i32>>>(), file in option::of(file()), descriptor in any::<Option<(bool, i32)>>(),
        writes_page_cache: bool, sampling in sampling()
    ) -> AsyncIoEvent {
        AsyncIoEvent {
            span: ids.0, sampling, submitter: ids.1, task, opcode, start, end, queued, file,
            interface: if libaio { AsyncInterface::Libaio } else { AsyncInterface::IoUring },
            writes_page_cache, user_data: numbers.0, offset: numbers.1, length: numbers.2, bios: numbers.3, ring_flags: numbers.4, sqe_flags: numbers.5,
            outcome: match outcome {
                None => AsyncIoOutcome::Ended,
                Some(None) => AsyncIoOutcome::NoEnd,
                Some(Some(result)) => AsyncIoOutcome::Returned(result),
            },
            descriptor: descriptor.map(|(registered, number)| match registered {
                true => AsyncDescriptor::Registered(number),
                false => AsyncDescriptor::Descriptor(number),
            }),
        }
    }
}

fn event() -> impl Strategy<Value = LayerEvent> {
    prop_oneof![
        syscall().prop_map(LayerEvent::Syscall),
        bio().prop_map(LayerEvent::Bio),
        request().prop_map(LayerEvent::Request),
        pair().prop_map(LayerEvent::Pair),
        async_io().prop_map(LayerEvent::AsyncIo),
        commit().prop_map(LayerEvent::Commit),
        task_event().prop_map(LayerEvent::Task),
        file_event().prop_map(LayerEvent::File),
        device_event().prop_map(LayerEvent::Device),
        rpc_endpoint().prop_map(|endpoint| LayerEvent::RpcEndpoint(endpoint.into())),
        daemon_span().prop_map(|span| LayerEvent::DaemonSpan(span.into())),
        process_context().prop_map(|context| LayerEvent::ProcessContext(context.into())),
        virtual_machine().prop_map(|machine| LayerEvent::VirtualMachine(machine.into())),
        page_origin().prop_map(|origin| LayerEvent::PageOrigin(origin.into())),
        fault().prop_map(LayerEvent::Fault),
    ]
}

fn stats() -> impl Strategy<Value = SourceStats> {
    any::<([u64; 31], [u64; 19])>().prop_map(|(n, last)| {
        let stats = |at: usize| RecordStats { fired: n[at], recorded: n[at + 1], dropped: n[at + 2] };
        SourceStats {
            calls: stats(0),
            bios: stats(3),
            requests: stats(6),
            commits: stats(9),
            names: stats(12),
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
            page_origins: RecordStats { fired: last[0], recorded: last[1], dropped: last[2] },
            dirty_writes_evicted: last[3],
            dirty_bytes: last[4],
            faults: RecordStats { fired: last[15], recorded: last[16], dropped: last[17] },
            faults_filtered: last[18],
            calls_excluded: last[8],
            waits: RecordStats { fired: last[5], recorded: last[6], dropped: last[7] },
            sleeps: RecordStats { fired: last[4], recorded: last[5], dropped: last[6] },
            names_displaced: last[9],
            events_overwritten: last[10],
            calls_unsampled: last[11],
            kept_slow: last[12],
            kept_failed: last[13],
            kept_large: last[14],
        }
    })
}

fn crashed_run() -> impl Strategy<Value = CrashedRun> {
    let counts = || any::<[u64; 5]>().prop_map(RecordCounts::from_array);
    let remains = [counts(), counts(), counts(), counts(), counts()].prop_map(
        |[fired, dropped, read, kept, doubtful]| LossReport {
            fired,
            dropped,
            read,
            persisted: kept,
            unacknowledged: doubtful,
        },
    );
    (option::of(1..u64::MAX), option::of(remains))
        .prop_map(|(epoch, remains)| CrashedRun { epoch: epoch.map(StartEpoch), losses: remains })
}

prop_compose! {
    pub(super) fn batch()(node: u128, boot: u128, epoch: u64, sequence: u64, clock: [u64; 4], claimed: Option<u64>, events in vec(event(), 0..40), watermark in time(), stats in stats(), crashed_runs in vec(crashed_run(), 0..3))
        -> EventBatch {
        EventBatch {
            source: Source { node: NodeId(node), boot: BootId(boot), epoch: StartEpoch(epoch) }, sequence,
            anchor: ClockAnchor {
                monotonic: MonotonicNs(clock[0]), wallclock: WallclockNs(clock[1]), uncertainty: DurationNs(clock[2]),
                suspended: DurationNs(clock[3]), max_error: claimed.map(DurationNs),
            },
            events, watermark, stats, crashed_runs,
        }
    }
}
