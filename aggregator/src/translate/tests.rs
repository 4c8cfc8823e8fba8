//! Traces as a reader of Zipkin meets them.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use blkkin_wire::event::{
    BioEvent, BlockOp, BlockStatus, LayerEvent, RequestEvent, Submitter, SyscallEvent, SyscallOutcome,
    TaskEvent,
};
use blkkin_wire::ids::{DeviceId, SpanId, TraceId};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::span::{Span, SpanKind, TagValue};
use blkkin_wire::syscalls::SyscallId;
use blkkin_wire::thread_attributes::{ThreadAttribute, ThreadAttributes};
use proptest::prelude::*;

use super::spans;
use crate::join::JoinConfig;
use crate::join::tests::make;
use crate::join::tests::property::run;
use crate::join::tests::world::{World, acts};
use crate::trace::{Adoption, Carried, Cause, DeviceNames, Missing, Root, Trace};

fn named(mut trace: Trace) -> Trace {
    trace.names.task = Some(Arc::new(make::task(1, 0, 1, "sqlite3")));
    trace.names.exe = Some(Arc::new(make::file(make::file_id(2), 1, "/usr/bin/sqlite3").into()));
    trace.names.file = Some(Arc::new(make::file(make::file_id(12), 1, "/srv/test.db").into()));
    trace.names.devices = Arc::new(DeviceNames([(make::DISK, "loop0".into())].into()));
    trace
}

fn of_call(call: SyscallEvent, (bios, requests): (Vec<BioEvent>, Vec<RequestEvent>)) -> Trace {
    let mut trace = named(make::trace(call.span.0));
    trace.root = Root::Call(call);
    (trace.bios, trace.requests) = (bios, requests);
    trace
}

fn direct_write() -> Trace {
    let (bio, request) = make::direct(1, 2, 3, (20, 80));
    of_call(make::call_with(1, (10, 100), 1), (vec![bio], vec![request]))
}

fn commit() -> Trace {
    let (bio, request) = make::direct(50, 51, 52, (30, 70));
    let mut trace = make::trace(50);
    trace.root = Root::Commit(make::commit(50, (20, 90), 7, 1));
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    trace
}

fn tag(span: &Span, key: &str) -> Option<String> {
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
    let spans = spans(&direct_write());
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
        spans[1..].iter().all(|span| span.kind == SpanKind::Server && tag(span, "blkkin.link").is_some())
    );
    assert!(tag(&spans[1], "blkkin.link").unwrap().starts_with("derived: "));
    assert_eq!(spans[0].start.0, 1_700_000_000_000_000_010);
    assert_eq!(spans[3].annotations.len(), 2);
    assert!(spans.iter().all(|span| span.error.is_none() && tag(span, "error.type").is_none()));
}

/// Under a prefix of its own: no word of a program's stands for one of the kernel's.
#[test]
fn what_a_process_says_of_itself_is_tags_of_its_calls() {
    let mut trace = direct_write();
    let mut process = make::process(5, "shop");
    process.attributes[1].key = "process.pid".into();
    trace.names.process = Some(Arc::new(process));
    let spans = spans(&trace);
    let said = ["app.service.name", "app.process.pid", "process.pid", "blkkin.app.left_out"];
    let tags = said.map(|key| tag(&spans[0], key).unwrap());
    assert_eq!(tags, ["shop", "7", "100", "1"]);
    assert_eq!(&*spans[0].service, "sqlite3");
    assert!(spans[1..].iter().all(|span| tag(span, said[0]).is_none()), "once a trace");
}

/// By the names that the process gives; what has none is left out and counted, and a name that comes twice has the later value.
#[test]
fn what_a_thread_says_is_tags_of_its_call_by_its_processs_names() {
    let said = |keys: &[(u8, &str)]| {
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
        let process = ProcessContextEvent { attributes: Vec::new(), thread_keys, ..make::process(5, "") };
        trace.names.process = (!names.is_empty()).then(|| Arc::new(process));
        let spans = spans(&trace);
        assert!(spans[1..].iter().flat_map(|span| &span.tags).all(|(key, _)| !key.contains("app_thread")));
        let own = |key: &str| key.contains("app_thread");
        let keys = spans[0].tags.iter().map(|(key, _)| &**key).filter(|key| own(key));
        keys.map(|key| format!("{key}={}", tag(&spans[0], key).unwrap())).collect::<Vec<_>>()
    };
    let all = said(&[(0, "/buy"), (1, "x"), (2, "7"), (3, "8"), (9, "nobody")]);
    let names = ["http.route", "", "user.id", "user.id"];
    let expected = ["app_thread.http.route=/buy", "app_thread.user.id=8", "blkkin.app_thread.left_out=4"];
    assert_eq!(tags_of(Some(all.clone()), &names), expected);
    // Nothing is known of the process.
    assert_eq!(tags_of(Some(all), &[]), ["blkkin.app_thread.left_out=6"]);
    let unread = ThreadAttributes { bytes_unread: 700, ..ThreadAttributes::default() };
    assert_eq!(tags_of(Some(unread), &names), ["blkkin.app_thread.bytes_unread=700"]);
    assert!(tags_of(None, &names).is_empty());
}

#[test]
fn the_calls_tags_say_who_what_where_and_how_long_in_a_fixed_order() {
    let spans = spans(&direct_write());
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
fn a_call_without_io_is_one_span() {
    let trace = of_call(make::call(1, 10, 20), (vec![], vec![]));
    assert_eq!(spans(&trace).len(), 1);
}

#[test]
fn a_device_files_bios_hang_below_the_call() {
    let mut trace = direct_write();
    let mut file = make::file(make::file_id(12), 1, "/dev/loop0");
    file.device_file = Some(make::DISK);
    trace.names.file = Some(Arc::new(file.into()));
    let spans = spans(&trace);
    assert_eq!((spans.len(), spans[1].parent, spans[0].remote_service.clone()), (3, Some(SpanId(1)), None));
}

#[test]
fn a_file_system_without_a_store_is_nobodys_service() {
    let mut trace = direct_write();
    let mut file = make::file(make::file_id(12), 1, "pipe:[12]");
    file.filesystem = "pipefs".into();
    trace.names.file = Some(Arc::new(file.into()));
    let spans = spans(&trace);
    assert_eq!((spans.len(), spans[0].remote_service.clone()), (3, None));
}

#[test]
fn of_two_files_on_two_file_systems_neither_is_named_between() {
    let mut trace = direct_write();
    let mut other = make::file(make::file_id(13), 1, "/tmp/x");
    other.filesystem = "tmpfs".into();
    trace.names.second_file = Some(Arc::new(other.into()));
    if let Root::Call(call) = &mut trace.root {
        call.second_file = Some(Box::new(make::open_file(4, 13)));
    }
    assert_eq!(spans(&trace).len(), 3);
}

#[test]
fn only_a_failure_has_an_error() {
    let failed = SyscallEvent { outcome: SyscallOutcome::Returned(-11), ..make::call(1, 10, 20) };
    let span = &spans(&of_call(failed, (vec![], vec![])))[0];
    assert_eq!(span.error.as_deref(), Some("EAGAIN: would have to wait"));
    assert_eq!(tag(span, "error.type").as_deref(), Some("EAGAIN"));
    // A position may look negative to whoever does not know what an error is.
    let seek = SyscallEvent { outcome: SyscallOutcome::Returned(-5000), ..make::call(1, 10, 20) };
    assert_eq!(spans(&of_call(seek, (vec![], vec![])))[0].error, None);
    let mut trace = direct_write();
    trace.requests[0].status = BlockStatus(10);
    assert_eq!(spans(&trace)[3].error.as_deref(), Some("I/O error"));
}

#[test]
fn what_is_not_whole_says_so() {
    let call = SyscallEvent { outcome: SyscallOutcome::NoExit, ..make::call_with(1, (10, 20), 3) };
    let mut trace = of_call(call, (vec![], vec![]));
    trace.missing = Missing { bios: 3, ..Missing::default() };
    let span = &spans(&trace)[0];
    assert_eq!(tag(span, "blkkin.missing.bios").as_deref(), Some("3"));
    assert!(tag(span, "blkkin.incomplete").is_some());
    assert_eq!((tag(span, "blkkin.return"), &span.error), (None, &None));

    let (bio, request) = make::direct(1, 2, 3, (20, 80));
    let mut orphans = make::trace(1);
    (orphans.bios, orphans.requests) = (vec![bio], vec![request]);
    orphans.missing.root = true;
    let spans = spans(&orphans);
    assert_eq!(
        spans[0].parent,
        Some(SpanId(1)),
        "it was submitted by that call, whether or not its record came"
    );
    assert_eq!(tag(&spans[0], "blkkin.missing.parent").as_deref(), Some("0000000000000001"));
    assert!(tag(&spans[0], "blkkin.missing.root").is_some());
    assert_eq!(tag(&spans[1], "blkkin.missing.parent"), None);
}

#[test]
fn a_commit_is_below_its_primary_and_linked_from_the_others() {
    let mut shared = commit();
    let waiters = [make::sync(1, (10, 100), 7), make::sync(2, (15, 101), 7)];
    let mut traces = waiters.map(|call| of_call(call, (vec![], vec![])));
    shared.adopted_by = Some(Adoption { trace: traces[0].id, call: SpanId(1) });
    assert!(spans(&shared).is_empty());
    let shared = Arc::new(shared);
    for (trace, primary) in traces.iter_mut().zip([true, false]) {
        trace.causes.push(Cause { trace: shared.clone(), primary });
    }
    let first = spans(&traces[0]);
    let expected = [
        ("sqlite3 fdatasync", None),
        ("ext4 fdatasync", Some(0)),
        ("jbd2 journal commit", Some(1)),
        ("block bio write", Some(2)),
        ("7:0 request write", Some(3)),
    ];
    assert_eq!(tree(&first), expected.map(|(name, parent)| (name.to_owned(), parent)));
    assert!(first.iter().all(|span| span.trace == traces[0].id));
    assert_eq!(tag(&first[2], "blkkin.link").as_deref(), Some("rule: ext4 transaction id"));
    let second = spans(&traces[1]);
    assert_eq!(second.len(), 1);
    assert_eq!((second[0].links[0].trace, second[0].links[0].span), (traces[0].id, SpanId(50)));
}

#[test]
fn a_call_for_a_span_of_an_applications_is_its_child() {
    let mut trace = direct_write();
    let Root::Call(call) = trace.root.clone() else { panic!() };
    let names = trace.names.clone();
    trace.take_root(Root::Call(SyscallEvent { context: make::context(77, 5), ..call }), names);
    let under = spans(&trace);
    assert_eq!(under[0].parent, Some(SpanId(5)));
    assert!(under.iter().all(|span| span.trace == TraceId(77)));
    assert!(tag(&under[0], "blkkin.link").unwrap().starts_with("exact: the thread's own context"));
    // All else is as it was.
    let mut alone = spans(&direct_write());
    alone[0].parent = Some(SpanId(5));
    alone[0].tags.insert(0, under[0].tags[0].clone());
    alone.iter_mut().for_each(|span| span.trace = TraceId(77));
    assert_eq!(under, alone);
}

#[test]
fn a_merged_bio_links_to_the_request_that_carried_it() {
    let (bio, _) = make::direct(1, 2, 3, (20, 80));
    let (_, request) = make::direct(9, 8, 3, (15, 80));
    let mut trace =
        of_call(make::call_with(1, (10, 100), 1), (vec![BioEvent { first: false, ..bio }], vec![]));
    trace.carried.push(Carried { bio: SpanId(2), trace: Some(make::trace(9).id), request });
    let spans = spans(&trace);
    assert_eq!(spans.len(), 3);
    assert_eq!((spans[2].links[0].trace, spans[2].links[0].span), (make::trace(9).id, SpanId(3)));
    assert_eq!(tag(&spans[2], "blkkin.missing.request"), None);
}

#[test]
fn what_is_done_on_a_device_below_hangs_below_it_and_says_why() {
    let mut trace = direct_write();
    let below =
        |(bio, request), submitter| (BioEvent { submitter: Submitter::Span(submitter), ..bio }, request);
    // A bio below the request, and one below that bio.
    let (on_file, made) = below(make::direct(1, 4, 5, (30, 70)), SpanId(3));
    let (mapped, last) = below(make::direct(1, 6, 7, (40, 60)), SpanId(4));
    trace.bios.extend([on_file, mapped]);
    trace.requests.extend([made, last]);
    let spans = spans(&trace);
    let of = |id| spans.iter().find(|span| span.id == SpanId(id)).unwrap();
    assert_eq!((of(4).parent, of(6).parent), (Some(SpanId(3)), Some(SpanId(4))));
    assert_eq!(faults(&spans), Vec::<String>::new());
    let link = |id| tag(of(id), "blkkin.link").unwrap();
    // The graph reads block → loop0 → loop0: no bio between two devices is anybody's server.
    assert_eq!([2, 4, 6].map(|id| of(id).kind), [SpanKind::Server, SpanKind::Local, SpanKind::Local]);
    assert!([2, 4, 6].iter().all(|id| &*of(*id).service == "block"));
    assert!(link(2).contains("inside the call") && link(4).contains("kiocb") && link(6).contains("pointer"));
    assert!(spans.iter().all(|span| tag(span, "blkkin.missing.parent").is_none()));
}

#[test]
fn a_device_without_requests_is_asked_by_bios() {
    let mut trace = direct_write();
    // What a mapped device makes of its bio is the lower device's.
    let mapped = DeviceId { major: 253, minor: 0 };
    let devices = [(make::DISK, "sda".into()), (mapped, "dm-0".into())];
    trace.names.devices = Arc::new(DeviceNames(devices.into()));
    let (bio, request) = make::direct(1, 4, 5, (30, 70));
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
    let found = spans(&trace);
    assert_eq!(tree(&found), expected.map(|(name, parent)| (name.to_owned(), parent)));
    let kinds: Vec<_> = found[1..].iter().map(|span| span.kind).collect();
    assert_eq!(kinds, [SpanKind::Server, SpanKind::Server, SpanKind::Local, SpanKind::Server]);
    // Refused before it came to a driver, or a flush of what has no cache: no device did anything.
    let mut refused = trace.clone();
    refused.bios.truncate(1);
    refused.requests.clear();
    refused.bios[0].status = BlockStatus(10);
    assert_eq!(&*spans(&refused)[2].service, "block");
    (refused.bios[0].status, refused.bios[0].bytes) = (BlockStatus(0), 0);
    assert_eq!(&*spans(&refused)[2].service, "block");
}

#[test]
fn what_no_call_asked_for_says_who_did() {
    let (bio, request) = make::kernel(1, 2, (10, 20));
    let mut trace = make::trace(1);
    trace.root = Root::Kernel;
    (trace.bios, trace.requests) = (vec![bio], vec![request]);
    let asker =
        |trace: &Trace| spans(trace).iter().map(|span| span.remote_service.clone()).collect::<Vec<_>>();
    assert_eq!(asker(&trace), [None, None], "nobody knows");
    let worker = TaskEvent { kernel_thread: true, ..make::task(1, 0, 1, "kworker/u8:2") };
    trace.names.task = Some(Arc::new(worker));
    assert_eq!(asker(&trace), [Some("kernel".into()), None]);
    assert_eq!(asker(&named(trace)), [Some("sqlite3".into()), None], "by a page fault");
}

#[test]
fn an_empty_preflush_is_a_flush() {
    let mut trace = direct_write();
    let op = BlockOp(1 | 1 << 18);
    (trace.bios[0].op, trace.bios[0].bytes) = (op, 0);
    (trace.requests[0].op, trace.requests[0].bytes, trace.requests[0].issue) = (op, 0, None);
    let spans = spans(&trace);
    assert_eq!((&*spans[2].name, &*spans[3].name), ("bio flush", "request flush"));
    assert_eq!(tag(&spans[3], "disk.io.direction"), None);
    assert!(tag(&spans[3], "blkkin.flush").is_some());
}

#[test]
fn operations_have_no_numbers_and_few_names() {
    let all: HashSet<_> = SyscallId::all().map(super::names::operation).collect();
    assert!(all.iter().all(|name| !name.ends_with(|c: char| c.is_ascii_digit())), "{all:?}");
}

/// What must hold of all spans of a world together.
fn faults(spans: &[Span]) -> Vec<String> {
    let mut starts: HashMap<(TraceId, SpanId), u64> = HashMap::new();
    let mut faults = Vec::new();
    for span in spans {
        if starts.insert((span.trace, span.id), span.start.0).is_some() {
            faults.push(format!("{} twice in {}", span.id, span.trace));
        }
    }
    for span in spans {
        let Some(parent) = span.parent else { continue };
        // Of an operation nobody knows whether its parent will come: it is the daemon's word.
        let operation = &*span.service == "blkkin-nbd";
        let missing = operation || tag(span, "blkkin.missing.parent") == Some(parent.to_string());
        let here = starts.get(&(span.trace, parent));
        // A part that was lost may have come later, in a trace of the same id.
        if here.is_none() && !missing {
            faults.push(format!("{}'s parent {parent} is nowhere", span.id));
        }
        let commit = tag(span, "blkkin.caused_by").is_some();
        if here.is_some_and(|start| *start > span.start.0) && !commit {
            faults.push(format!("{} begins before its parent", span.id));
        }
    }
    faults
}

/// Every call's file has a name, so that each has a derived span too.
fn put_on_a_file_system(world: &mut World) {
    let name = make::file(make::file_id(12), 1, "/srv/test.db");
    for event in &mut world.events {
        if let LayerEvent::Syscall(call) = event {
            call.file = Some(make::open_file(3, 12));
        }
    }
    world.events.push(LayerEvent::File(name));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn spans_are_unique_and_have_their_parents(acts in acts(), open_max in 1_usize..50) {
        let mut world = World::build(&acts);
        put_on_a_file_system(&mut world);
        let config = JoinConfig { open_max, ..JoinConfig::default() };
        let (traces, _) = run(&config, vec![(world.events, u64::MAX)]);
        let all: Vec<Span> = traces.iter().flat_map(spans).collect();
        prop_assert_eq!(faults(&all), Vec::<String>::new());
        let events: usize = traces.iter().map(|trace| trace.bios.len() + trace.requests.len()).sum();
        let block = all.iter().filter(|span| ["bio ", "request "].iter().any(|kind| span.name.starts_with(kind))).count();
        prop_assert_eq!(block, events, "each bio and request is exported once");
    }

    #[test]
    fn a_replay_gives_the_same_spans(acts in acts()) {
        let replay = || {
            let (traces, _) = run(&JoinConfig::default(), vec![(World::build(&acts).events, u64::MAX)]);
            traces.iter().flat_map(spans).collect::<Vec<Span>>()
        };
        prop_assert_eq!(replay(), replay());
    }
}

#[test]
fn planted_faults_are_found() {
    let mut spans = spans(&direct_write());
    assert!(faults(&spans).is_empty());
    spans[3].parent = Some(SpanId(77));
    assert_eq!(faults(&spans).len(), 1);
    spans[2].start.0 -= 1_000;
    assert_eq!(faults(&spans).len(), 2);
    spans.push(spans[0].clone());
    assert_eq!(faults(&spans).len(), 3);
}
