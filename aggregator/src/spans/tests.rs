//! Spans of traces, as Zipkin shows them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blkkin_wire::call_sleeps::{CallSleeps, SleepPlace};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, FaultEvent, LayerEvent, RequestEvent, Submitter, SyscallEvent,
    SyscallOutcome, TaskEvent,
};
use blkkin_wire::ids::{DeviceId, SpanId, TraceId};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::span::{Span, SpanKind, TagValue};
use blkkin_wire::syscalls::SyscallId;
use blkkin_wire::thread_attributes::{ThreadAttribute, ThreadAttributes};
use blkkin_wire::virtual_machine::VirtualMachineEvent;
use proptest::prelude::*;

use super::spans_of;
use crate::fixtures;
use crate::join::JoinConfig;
use crate::join::tests::property::run;
use crate::join::tests::world::{World, acts};
use crate::trace::{DeviceNames, Incomplete, MergeLink, ProcessNames, Root, ShownIn, Trace, WaitLink};

fn named(mut trace: Trace) -> Trace {
    trace.names.task = Some(Arc::new(fixtures::task(1, 0, 1, "sqlite3")));
    trace.names.exe = Some(Arc::new(fixtures::file(fixtures::file_id(2), 1, "/usr/bin/sqlite3").into()));
    trace.names.file = Some(Arc::new(fixtures::file(fixtures::file_id(12), 1, "/srv/test.db").into()));
    trace.names.devices = Arc::new(DeviceNames::from([(fixtures::DISK, "loop0".into())]));
    trace
}

fn of_call(call: SyscallEvent, (bios, requests): (Vec<BioEvent>, Vec<RequestEvent>)) -> Trace {
    let mut trace = named(fixtures::trace(call.span.0));
    trace.root = Root::Call(call);
    (trace.bios, trace.requests) = (bios, requests);
    trace
}

fn direct_write() -> Trace {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (20, 80));
    of_call(fixtures::call_with(1, (10, 100), 1), (vec![bio], vec![request]))
}

fn commit() -> Trace {
    let (bio, request) = fixtures::bio_and_request(50, 51, 52, (30, 70));
    let mut trace = fixtures::trace(50);
    trace.root = Root::Commit(fixtures::commit(50, (20, 90), 7, 1));
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    trace
}

pub(super) fn tag(span: &Span, key: &str) -> Option<String> {
    let (_, value) = span.tags.iter().find(|(name, _)| name == key)?;
    Some(match value {
        TagValue::Text(text) => text.to_string(),
        TagValue::Number(number) => number.to_string(),
        TagValue::Shared(text) => text.to_string(),
    })
}

fn tree(spans: &[Span]) -> Vec<(String, Option<usize>)> {
    let index = |id| spans.iter().position(|span| span.id == id);
    let line = |span: &Span| (format!("{} {}", span.service, span.name), span.parent.and_then(index));
    spans.iter().map(line).collect()
}

#[test]
fn a_direct_write_goes_through_four_services() {
    let spans = spans_of(&direct_write());
    let expected = [
        ("sqlite3 pwrite64", None),
        ("ext4 write", Some(0)),
        ("block bio write", Some(1)),
        ("loop0 request write", Some(2)),
    ];
    assert_eq!(tree(&spans), expected.map(|(name, parent)| (name.to_owned(), parent)));
    assert_eq!(spans[0].kind, SpanKind::Client);
    assert_eq!(spans[0].remote_service.as_deref(), Some("ext4"));
    assert!(
        spans[1..]
            .iter()
            .all(|span| span.kind == SpanKind::Server && tag(span, "blkkin.parent.evidence").is_some())
    );
    assert!(tag(&spans[1], "blkkin.parent.evidence").unwrap().starts_with("derived: "));
    assert_eq!(spans[0].start.0, 1_700_000_000_000_000_010);
    assert_eq!(spans[3].annotations.len(), 2);
    assert!(spans.iter().all(|span| span.error.is_none() && tag(span, "error.type").is_none()));
}

/// The prefix keeps a program's attribute from replacing a tag of the kernel.
#[test]
fn process_context_attributes_are_tags_of_the_call() {
    let mut trace = direct_write();
    let mut process = fixtures::process_context(5, "shop");
    process.attributes[1].key = "process.pid".into();
    trace.names.process = Some(ProcessNames { context: Some(process), ..Default::default() }.into());
    let spans = spans_of(&trace);
    let keys = ["app.service.name", "app.process.pid", "process.pid", "blkkin.app.dropped_attributes_count"];
    let tags = keys.map(|key| tag(&spans[0], key).unwrap());
    assert_eq!(tags, ["shop", "7", "100", "1"]);
    assert_eq!(&*spans[0].service, "sqlite3");
    assert!(spans[1..].iter().all(|span| tag(span, keys[0]).is_none()), "once per trace");
}

/// A virtual machine without a UUID has no such tag.
#[test]
fn a_virtual_machine_is_a_tag_of_its_calls() {
    let mut trace = direct_write();
    for (uuid, expected) in [("1-2", Some("1-2")), ("", None)] {
        let machine = fixtures::virtual_machine(5, "web1");
        let virtual_machine = Some(VirtualMachineEvent { uuid: uuid.into(), ..machine });
        trace.names.process = Some(ProcessNames { virtual_machine, ..Default::default() }.into());
        let spans = spans_of(&trace);
        let tags = ["blkkin.vm.name", "blkkin.vm.uuid"].map(|key| tag(&spans[0], key));
        assert_eq!(tags.each_ref().map(|tag| tag.as_deref()), [Some("web1"), expected]);
    }
}

/// Attributes have the names of the process. One without a name is dropped and counted, and of a
/// repeated name the later value is used.
#[test]
fn thread_attributes_are_tags_with_the_names_of_the_process() {
    let attributes_of = |keys: &[(u8, &str)]| {
        let entry = |(key, value): &(u8, &str)| ThreadAttribute { key: *key, value: (*value).into() };
        ThreadAttributes {
            entries: keys.iter().map(entry).collect(),
            dropped_attributes_count: 1,
            bytes_unread: 0,
        }
    };
    let tags_of = |attributes: Option<ThreadAttributes>, names: &[&str]| {
        let mut trace = direct_write();
        let Root::Call(call) = &mut trace.root else { panic!() };
        call.attributes = attributes.map(Arc::new);
        let thread_keys = names.iter().map(|name| (*name).into()).collect();
        let process =
            ProcessContextEvent { attributes: Vec::new(), thread_keys, ..fixtures::process_context(5, "") };
        let process = ProcessNames { context: Some(process), ..Default::default() };
        trace.names.process = (!names.is_empty()).then(|| Arc::new(process));
        let spans = spans_of(&trace);
        assert!(spans[1..].iter().flat_map(|span| &span.tags).all(|(key, _)| !key.contains("app_thread")));
        let own = |key: &str| key.contains("app_thread");
        let keys = spans[0].tags.iter().map(|(key, _)| &**key).filter(|key| own(key));
        keys.map(|key| format!("{key}={}", tag(&spans[0], key).unwrap())).collect::<Vec<_>>()
    };
    let all = attributes_of(&[(0, "/buy"), (1, "x"), (2, "7"), (3, "8"), (9, "unnamed")]);
    let names = ["http.route", "", "user.id", "user.id"];
    let expected = [
        "app_thread.http.route=/buy",
        "app_thread.user.id=8",
        "blkkin.app_thread.dropped_attributes_count=4",
    ];
    assert_eq!(tags_of(Some(all.clone()), &names), expected);
    // The process context is unknown.
    assert_eq!(tags_of(Some(all), &[]), ["blkkin.app_thread.dropped_attributes_count=6"]);
    let unread = ThreadAttributes { bytes_unread: 700, ..ThreadAttributes::default() };
    assert_eq!(tags_of(Some(unread), &names), ["blkkin.app_thread.bytes_unread=700"]);
    assert!(tags_of(None, &names).is_empty());
}

#[test]
fn call_tags_have_a_fixed_order() {
    let spans = spans_of(&direct_write());
    let tags: Vec<String> =
        spans[0].tags.iter().map(|(key, _)| format!("{key}={}", tag(&spans[0], key).unwrap())).collect();
    assert_eq!(
        tags,
        [
            "process.executable.name=sqlite3",
            "process.executable.path=/usr/bin/sqlite3",
            "process.pid=100",
            "process.parent_pid=1",
            "thread.id=101",
            "thread.name=sqlite3",
            "process.real_user.id=1000",
            "blkkin.cgroup=1",
            "file.path=/srv/test.db",
            "blkkin.offset=8192",
            "blkkin.bytes.requested=4096",
            "blkkin.return=4096",
            "blkkin.bytes=4096",
            "blkkin.start.ns=10",
            "blkkin.duration.ns=90",
            "blkkin.device.ns=30",
            "blkkin.block.ns=30",
            "blkkin.file_system.ns=30",
            "blkkin.sleeps=1",
            "host.id=00000000000000000000000000000001",
        ]
    );
}

#[test]
fn the_places_where_a_call_slept_are_tags_in_the_order_of_their_time() {
    let place = |functions: &[&str], time, count| SleepPlace {
        functions: functions.iter().map(|function| (*function).into()).collect(),
        time: DurationNs(time),
        count,
    };
    let mut call = fixtures::call(1, 10, 20);
    call.slept = Some(Box::new(CallSleeps {
        places: vec![
            place(&["do_get_write_access"], 5, 2),
            place(&["folio_wait_bit_common", "folio_wait_writeback", "ext4_sync_file"], 7, 1),
        ],
        others: 3,
        others_time: DurationNs(4),
        unended: 1,
    }));
    let spans = spans_of(&of_call(call, (vec![], vec![])));
    let tags = spans[0].tags.iter().map(|(key, _)| format!("{key}={}", tag(&spans[0], key).unwrap()));
    let tags: Vec<String> = tags.filter(|tag| tag.starts_with("blkkin.sleep.")).collect();
    assert_eq!(
        tags,
        [
            "blkkin.sleep.0=folio_wait_writeback",
            "blkkin.sleep.0.callers=ext4_sync_file",
            "blkkin.sleep.0.duration.ns=7",
            "blkkin.sleep.0.count=1",
            "blkkin.sleep.1=do_get_write_access",
            "blkkin.sleep.1.duration.ns=5",
            "blkkin.sleep.1.count=2",
            "blkkin.sleep.others.duration.ns=4",
            "blkkin.sleep.others.count=3",
            "blkkin.sleep.unended=1",
        ]
    );
}

#[test]
fn a_call_without_io_is_one_span() {
    let trace = of_call(fixtures::call(1, 10, 20), (vec![], vec![]));
    assert_eq!(spans_of(&trace).len(), 1);
}

#[test]
fn bios_of_a_device_file_are_children_of_the_call() {
    let mut trace = direct_write();
    let mut file = fixtures::file(fixtures::file_id(12), 1, "/dev/loop0");
    file.device_file = Some(fixtures::DISK);
    trace.names.file = Some(Arc::new(file.into()));
    let spans = spans_of(&trace);
    assert_eq!((spans.len(), spans[1].parent, spans[0].remote_service.clone()), (3, Some(SpanId(1)), None));
}

#[test]
fn a_file_system_without_a_store_is_no_service() {
    let mut trace = direct_write();
    let mut file = fixtures::file(fixtures::file_id(12), 1, "pipe:[12]");
    file.filesystem = "pipefs".into();
    trace.names.file = Some(Arc::new(file.into()));
    let spans = spans_of(&trace);
    assert_eq!((spans.len(), spans[0].remote_service.clone()), (3, None));
}

#[test]
fn two_files_on_two_file_systems_have_no_file_system_span() {
    let mut trace = direct_write();
    let mut other = fixtures::file(fixtures::file_id(13), 1, "/tmp/x");
    other.filesystem = "tmpfs".into();
    trace.names.second_file = Some(Arc::new(other.into()));
    if let Root::Call(call) = &mut trace.root {
        call.second_file = Some(Box::new(fixtures::open_file(4, 13)));
    }
    assert_eq!(spans_of(&trace).len(), 3);
}

#[test]
fn only_failures_have_an_error() {
    let failed = SyscallEvent { outcome: SyscallOutcome::Returned(-11), ..fixtures::call(1, 10, 20) };
    let span = &spans_of(&of_call(failed, (vec![], vec![])))[0];
    assert_eq!(span.error.as_deref(), Some("EAGAIN: would have to wait"));
    assert_eq!(tag(span, "error.type").as_deref(), Some("EAGAIN"));
    // A position may look negative, but is not an error number.
    let seek = SyscallEvent { outcome: SyscallOutcome::Returned(-5000), ..fixtures::call(1, 10, 20) };
    assert_eq!(spans_of(&of_call(seek, (vec![], vec![])))[0].error, None);
    let mut trace = direct_write();
    trace.requests[0].status = BlockStatus(10);
    assert_eq!(spans_of(&trace)[3].error.as_deref(), Some("I/O error"));
}

#[test]
fn missing_parts_are_tagged() {
    let call = SyscallEvent { outcome: SyscallOutcome::NoExit, ..fixtures::call_with(1, (10, 20), 3) };
    let mut trace = of_call(call, (vec![], vec![]));
    trace.incomplete = Incomplete { bios: 3, ..Incomplete::default() };
    let span = &spans_of(&trace)[0];
    assert_eq!(tag(span, "blkkin.missing.bios").as_deref(), Some("3"));
    assert!(tag(span, "blkkin.incomplete").is_some());
    assert_eq!((tag(span, "blkkin.return"), &span.error), (None, &None));

    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (20, 80));
    let mut orphans = fixtures::trace(1);
    (orphans.bios, orphans.requests) = (vec![bio], vec![request]);
    orphans.incomplete.root = true;
    let spans = spans_of(&orphans);
    assert_eq!(spans[0].parent, Some(SpanId(1)), "the call submitted it, whether or not its record arrived");
    assert_eq!(tag(&spans[0], "blkkin.missing.parent").as_deref(), Some("0000000000000001"));
    assert!(tag(&spans[0], "blkkin.missing.root").is_some());
    assert_eq!(tag(&spans[1], "blkkin.missing.parent"), None);
}

#[test]
fn a_commit_is_a_child_of_its_primary_and_linked_from_the_other_calls() {
    let mut shared = commit();
    let waiters = [fixtures::fsync_call(1, (10, 100), 7), fixtures::fsync_call(2, (15, 101), 7)];
    let mut traces = waiters.map(|call| of_call(call, (vec![], vec![])));
    shared.shown_in = Some(ShownIn { trace: traces[0].id, call: SpanId(1) });
    assert!(spans_of(&shared).is_empty());
    let shared = Arc::new(shared);
    for (trace, primary) in traces.iter_mut().zip([true, false]) {
        trace.waited_for.push(WaitLink { trace: shared.clone(), primary });
    }
    let first = spans_of(&traces[0]);
    let expected = [
        ("sqlite3 fdatasync", None),
        ("ext4 fdatasync", Some(0)),
        ("jbd2 journal commit", Some(1)),
        ("block bio write", Some(2)),
        ("7:0 request write", Some(3)),
    ];
    assert_eq!(tree(&first), expected.map(|(name, parent)| (name.to_owned(), parent)));
    assert!(first.iter().all(|span| span.trace == traces[0].id));
    assert_eq!(tag(&first[2], "blkkin.parent.evidence").as_deref(), Some("rule: ext4 transaction id"));
    let second = spans_of(&traces[1]);
    assert_eq!(second.len(), 1);
    assert_eq!((second[0].links[0].trace, second[0].links[0].span), (traces[0].id, SpanId(50)));
}

#[test]
fn a_call_is_a_child_of_its_applications_span() {
    let mut trace = direct_write();
    let Root::Call(call) = trace.root.clone() else { panic!() };
    let names = trace.names.clone();
    trace.set_root(Root::Call(SyscallEvent { context: fixtures::thread_context(77, 5), ..call }), names);
    let under = spans_of(&trace);
    assert_eq!(under[0].parent, Some(SpanId(5)));
    assert!(under.iter().all(|span| span.trace == TraceId(77)));
    assert!(tag(&under[0], "blkkin.parent.evidence").unwrap().starts_with("exact: the thread's own context"));
    // Everything else is unchanged.
    let mut alone = spans_of(&direct_write());
    alone[0].parent = Some(SpanId(5));
    alone[0].tags.insert(0, under[0].tags[0].clone());
    alone.iter_mut().for_each(|span| span.trace = TraceId(77));
    assert_eq!(under, alone);
}

#[test]
fn a_merged_bio_links_to_its_request() {
    let (bio, _) = fixtures::bio_and_request(1, 2, 3, (20, 80));
    let (_, request) = fixtures::bio_and_request(9, 8, 3, (15, 80));
    let mut trace =
        of_call(fixtures::call_with(1, (10, 100), 1), (vec![BioEvent { first: false, ..bio }], vec![]));
    trace.merged_into.push(MergeLink { bio: SpanId(2), trace: Some(fixtures::trace(9).id), request });
    let spans = spans_of(&trace);
    assert_eq!(spans.len(), 3);
    assert_eq!((spans[2].links[0].trace, spans[2].links[0].span), (fixtures::trace(9).id, SpanId(3)));
    assert_eq!(tag(&spans[2], "blkkin.missing.request"), None);
}

#[test]
fn lower_bios_are_children_with_evidence() {
    let mut trace = direct_write();
    let below =
        |(bio, request), submitter| (BioEvent { submitter: Submitter::Span(submitter), ..bio }, request);
    // A lower bio of the request, and a lower bio of that bio.
    let (on_file, made) = below(fixtures::bio_and_request(1, 4, 5, (30, 70)), SpanId(3));
    let (mapped, last) = below(fixtures::bio_and_request(1, 6, 7, (40, 60)), SpanId(4));
    trace.bios.extend([on_file, mapped]);
    trace.requests.extend([made, last]);
    let spans = spans_of(&trace);
    let of = |id| spans.iter().find(|span| span.id == SpanId(id)).unwrap();
    assert_eq!((of(4).parent, of(6).parent), (Some(SpanId(3)), Some(SpanId(4))));
    assert_eq!(faults(&spans), Vec::<String>::new());
    let link = |id| tag(of(id), "blkkin.parent.evidence").unwrap();
    // The graph reads block → loop0 → loop0: no bio between two devices is a server.
    assert_eq!([2, 4, 6].map(|id| of(id).kind), [SpanKind::Server, SpanKind::Local, SpanKind::Local]);
    assert!([2, 4, 6].iter().all(|id| &*of(*id).service == "block"));
    assert!(link(2).contains("inside the call") && link(4).contains("kiocb") && link(6).contains("pointer"));
    assert!(spans.iter().all(|span| tag(span, "blkkin.missing.parent").is_none()));
}

#[test]
fn bios_of_a_device_without_requests_are_server_spans() {
    let mut trace = direct_write();
    // The lower bio of a mapped device is the lower device's.
    let mapped = DeviceId { major: 253, minor: 0 };
    let devices = [(fixtures::DISK, "sda".into()), (mapped, "dm-0".into())];
    trace.names.devices = Arc::new(DeviceNames::from(devices));
    let (bio, request) = fixtures::bio_and_request(1, 4, 5, (30, 70));
    trace.requests.clear();
    (trace.bios[0].device, trace.bios[0].request) = (mapped, None);
    trace.bios.push(BioEvent { submitter: Submitter::Span(SpanId(2)), ..bio });
    trace.requests.push(request);
    let expected = [
        ("sqlite3 pwrite64", None),
        ("ext4 write", Some(0)),
        ("dm-0 bio write", Some(1)),
        ("block bio write", Some(2)),
        ("sda request write", Some(3)),
    ];
    let found = spans_of(&trace);
    assert_eq!(tree(&found), expected.map(|(name, parent)| (name.to_owned(), parent)));
    let kinds: Vec<_> = found[1..].iter().map(|span| span.kind).collect();
    assert_eq!(kinds, [SpanKind::Server, SpanKind::Server, SpanKind::Local, SpanKind::Server]);
    // Refused before it reached a driver, or a flush without a cache: no device processed it.
    let mut refused = trace.clone();
    refused.bios.truncate(1);
    refused.requests.clear();
    refused.bios[0].status = BlockStatus(10);
    assert_eq!(&*spans_of(&refused)[2].service, "block");
    (refused.bios[0].status, refused.bios[0].bytes) = (BlockStatus(0), 0);
    assert_eq!(&*spans_of(&refused)[2].service, "block");
}

#[test]
fn io_without_a_call_has_a_remote_client() {
    let (bio, request) = fixtures::kernel_bio(1, 2, (10, 20));
    let mut trace = fixtures::trace(1);
    trace.root = Root::Kernel;
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    let clients =
        |trace: &Trace| spans_of(trace).iter().map(|span| span.remote_service.clone()).collect::<Vec<_>>();
    assert_eq!(clients(&trace), [None, None], "the client is unknown");
    let worker = TaskEvent { kernel_thread: true, ..fixtures::task(1, 0, 1, "kworker/u8:2") };
    trace.names.task = Some(Arc::new(worker));
    assert_eq!(clients(&trace), [Some("kernel".into()), None]);
    assert_eq!(clients(&named(trace)), [Some("sqlite3".into()), None], "by a page fault");
}

#[test]
fn a_page_fault_is_a_client_of_the_block_layer() {
    let (bio, request) = fixtures::bio_and_request(1, 2, 3, (11, 19));
    let mut trace = named(fixtures::trace(1));
    let file = Some(fixtures::file_id(5));
    trace.root = Root::Fault(FaultEvent { file, offset: Some(8192), ..fixtures::fault(1, (10, 20), 1) });
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    let spans = spans_of(&trace);
    assert_eq!(spans.iter().map(|span| &*span.name).collect::<Vec<_>>()[0], "page fault");
    assert_eq!((&*spans[0].service, spans[0].kind), ("sqlite3", SpanKind::Client));
    assert_eq!(spans[1].parent, Some(spans[0].id));
    assert_eq!(tag(&spans[0], "blkkin.address").as_deref(), Some("0x7000"));
    assert_eq!(tag(&spans[0], "blkkin.fault").as_deref(), Some("major"));
    let evidence = tag(&spans[1], "blkkin.parent.evidence");
    assert_eq!(evidence.as_deref(), Some("exact: the task was inside the page fault"));
    assert_eq!(faults(&spans), Vec::<String>::new());
}

#[test]
fn an_empty_preflush_is_a_flush() {
    let mut trace = direct_write();
    let op = BlockOp(1 | 1 << 18);
    (trace.bios[0].op, trace.bios[0].bytes) = (op, 0);
    (trace.requests[0].op, trace.requests[0].bytes, trace.requests[0].issue) = (op, 0, None);
    let spans = spans_of(&trace);
    assert_eq!((&*spans[2].name, &*spans[3].name), ("bio flush", "request flush"));
    assert_eq!(tag(&spans[3], "disk.io.direction"), None);
    assert!(tag(&spans[3], "blkkin.flush").is_some());
}

#[test]
fn operations_have_no_numbers_and_few_names() {
    let all: HashSet<_> = SyscallId::all().map(super::names::operation).collect();
    assert!(all.iter().all(|name| !name.ends_with(|c: char| c.is_ascii_digit())), "{all:?}");
}

/// Returns every violation of the rules for all spans of a world.
fn faults(spans: &[Span]) -> Vec<String> {
    let mut starts: HashMap<(TraceId, SpanId), u64> = HashMap::new();
    let mut faults = Vec::new();
    for span in spans {
        if starts.insert((span.trace, span.id), span.start.0).is_some() {
            faults.push(format!("{} appears twice in {}", span.id, span.trace));
        }
    }
    for span in spans {
        let Some(parent) = span.parent else { continue };
        // A daemon names its parent, which may not be known on this node.
        let operation = &*span.service == "blkkin-nbd";
        let missing = operation || tag(span, "blkkin.missing.parent") == Some(parent.to_string());
        let parent_start = starts.get(&(span.trace, parent));
        // A lost part may have arrived later, in a trace of the same id.
        if parent_start.is_none() && !missing {
            faults.push(format!("{}'s parent {parent} does not exist", span.id));
        }
        let commit = tag(span, "blkkin.waited_for_by").is_some();
        if parent_start.is_some_and(|start| *start > span.start.0) && !commit {
            faults.push(format!("{} begins before its parent", span.id));
        }
    }
    faults
}

/// Gives every call's file a name, so that each call has a derived span too.
fn put_on_a_file_system(world: &mut World) {
    let name = fixtures::file(fixtures::file_id(12), 1, "/srv/test.db");
    for event in &mut world.events {
        if let LayerEvent::Syscall(call) = event {
            call.file = Some(fixtures::open_file(3, 12));
        }
    }
    world.events.push(LayerEvent::File(name));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spans_are_unique_and_parents_exist(acts in acts(), open_max in 1_usize..50) {
        let mut world = World::build(&acts);
        put_on_a_file_system(&mut world);
        let config = JoinConfig { open_max, ..JoinConfig::default() };
        let (traces, _) = run(&config, vec![(world.events, u64::MAX)]);
        let all: Vec<Span> = traces.iter().flat_map(spans_of).collect();
        prop_assert_eq!(faults(&all), Vec::<String>::new());
        let events: usize = traces.iter().map(|trace| trace.bios.len() + trace.requests.len()).sum();
        let block = all.iter().filter(|span| ["bio ", "request "].iter().any(|kind| span.name.starts_with(kind))).count();
        prop_assert_eq!(block, events, "each bio and request is exported once");
    }

    #[test]
    fn a_replay_gives_the_same_spans(acts in acts()) {
        let replay = || {
            let (traces, _) = run(&JoinConfig::default(), vec![(World::build(&acts).events, u64::MAX)]);
            traces.iter().flat_map(spans_of).collect::<Vec<Span>>()
        };
        prop_assert_eq!(replay(), replay());
    }
}

#[test]
fn planted_violations_are_found() {
    let mut spans = spans_of(&direct_write());
    assert!(faults(&spans).is_empty());
    spans[3].parent = Some(SpanId(77));
    assert_eq!(faults(&spans).len(), 1);
    spans[2].start.0 -= 1_000;
    assert_eq!(faults(&spans).len(), 2);
    spans.push(spans[0].clone());
    assert_eq!(faults(&spans).len(), 3);
}
