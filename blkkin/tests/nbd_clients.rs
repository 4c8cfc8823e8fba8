//! NBD clients without instrumentation and the server blkkin-nbd under `blkkin run --ust --nbd`:
//! each client request is in one trace with the server's daemon span of the same request and its
//! system call.
//!
//! *Input*: fio's nbd engine, nbdcopy (both libnbd) and qemu-img. Offset and length, which no two
//! requests share, identify a request at both ends. fio's own count gives the number of requests.
//!
//! The disk is full of bytes that look like replies, and the written data looks like requests. No
//! data may be taken for a header.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use crate::common;
use crate::common::Run;
use crate::support::lttng_namespace::LttngNamespace;
use crate::support::nbd::{server, spans};
use crate::support::{needs, or_skip};

const BYTES: u64 = 64 << 20;
const CONNECTIONS: u64 = 4;
/// Default number of the server's worker threads.
const SERVER_THREADS: usize = 8;
const EACH: u64 = BYTES / CONNECTIONS;
/// "Request message" and "Simple reply message" of NBD's doc/proto.md.
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// Creates a disk on which each 16 bytes are a reply to a request that may be in flight: libnbd
/// counts cookies from 1.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let reply = |cookie: u64| [&REPLY.to_be_bytes()[..], &[0; 4], &(cookie % 64).to_be_bytes()].concat();
    let disk: Vec<u8> = (0..BYTES / 16).flat_map(|n| reply(n / 256)).collect();
    fs::write(home.path().join("disk"), disk).unwrap();
    home
}

/// Runs a script around the daemon; `$H` is the folder, `$U` the server's URI.
fn trace(home: &Path, options: &[&str], listen: &str, script: &str) -> Run {
    let server = server().unwrap();
    let (home, server) = (home.to_str().unwrap(), server.to_str().unwrap());
    let script = format!(
        "H={home}; export BLKKIN_UST_ROOTS=0; {server} $H/disk {listen} > $H/uri & P=$!; \
         until [ -s $H/uri ]; do sleep 0.02; done; U=$(head -n 1 $H/uri); {script}; kill $P; wait $P"
    );
    let to = format!("zipkin={home}/spans.json");
    let args = ["--full", "--ust", "--nbd", "--syscall", "pread64", "--syscall", "pwrite64", "--to", &to];
    let command = common::blkkin(&[&["run"], options, &args[..], &["--", "sh", "-c", &script]].concat());
    let namespace = LttngNamespace::new().unwrap();
    Run::from(namespace.enter(&command).output().unwrap())
}

/// Builds fio's command with this many requests over each connection. No block is requested twice:
/// each connection has its own part of the disk.
fn fio(rw: &str, requests: u64) -> String {
    format!(
        "fio --name=t --ioengine=nbd --uri=\"$U\" --rw={rw} --bs=4k --iodepth=8 --numjobs={CONNECTIONS} --thread \
         --size={EACH} --offset_increment={EACH} --number_ios={requests} --buffer_pattern=0x25609513 \
         --output-format=json --output=$H/fio.json"
    )
}

fn word<'a>(span: &'a Value, key: &str) -> &'a str {
    span[key].as_str().unwrap_or_default()
}

fn number(span: &Value, key: &str) -> Option<i64> {
    span["tags"][key].as_str()?.parse().ok()
}

/// Returns offset and length of a request, as either end recorded them.
fn extent(span: &Value) -> (i64, i64) {
    (number(span, "nbd.offset").unwrap(), number(span, "nbd.length").unwrap())
}

/// Returns the client spans and the server spans of this name.
fn ends<'a>(spans: &'a [Value], name: &str) -> [Vec<&'a Value>; 2] {
    ["CLIENT", "SERVER"].map(|kind| {
        let all = spans.iter().filter(|span| word(span, "name") == name && word(span, "kind") == kind);
        all.collect()
    })
}

/// Parses the numbers of `nbd: 8000 requests, 8000 replies, 8000 linked to a daemon's span`.
fn nbd_counts(run: &Run) -> Vec<u64> {
    let line = run.stderr.lines().find(|line| line.contains(" replies")).unwrap_or_default();
    let numbers = line.split(|letter: char| !letter.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Asserts that each client request has exactly one child, the server's span of the same request,
/// and that this one has its own system calls. Returns the number of requests.
fn assert_each_request_has_its_server_span(
    spans: &[Value],
    name: &str,
    call: &str,
    unknown_max: usize,
) -> u64 {
    let [clients, servers] = ends(spans, name);
    let requests: HashMap<&str, &Value> = clients.iter().map(|span| (word(span, "id"), *span)).collect();
    assert_eq!(requests.len(), clients.len(), "each span once");
    let mut children: BTreeMap<&str, u64> = BTreeMap::new();
    for server in &servers {
        let client = requests.get(word(server, "parentId"));
        let client = client.unwrap_or_else(|| panic!("{server} has no client span"));
        assert_eq!(word(server, "traceId"), word(client, "traceId"));
        assert_eq!(extent(server), extent(client), "{server} as a child of {client}");
        let link = server["tags"]["blkkin.parent.evidence"].as_str().unwrap();
        assert!(link.starts_with("rule: nbd connection and cookie"), "{link}");
        assert_eq!(number(server, "blkkin.clock.shift.ns"), Some(0), "one clock: {server}");
        let [sent, received] = [client, server].map(|span| number(span, "blkkin.start.ns").unwrap());
        assert!(sent <= received, "{server} before {client}");
        *children.entry(word(client, "id")).or_default() += 1;
    }
    assert!(children.values().all(|count| *count == 1), "one request, one server span");
    assert_eq!(children.len(), clients.len(), "each request has a server span");
    let mut calls: HashMap<&str, u64> = HashMap::new();
    let by_id: HashMap<&str, &Value> = servers.iter().map(|span| (word(span, "id"), *span)).collect();
    for span in spans.iter().filter(|span| word(span, "name") == call) {
        let Some(server) = by_id.get(word(span, "parentId")) else { continue };
        assert_eq!(word(span, "traceId"), word(server, "traceId"), "{span}");
        let (offset, length) = extent(server);
        let call_offset = number(span, "blkkin.offset").unwrap();
        assert!((offset..offset + length).contains(&call_offset), "{span} as a child of {server}");
        *calls.entry(word(server, "id")).or_default() += 1;
    }
    // With raw_tp, which finds children by number, a thread is known from its first call on, and
    // that call has no parent: up to eight calls.
    let unknown = servers.len() - calls.len();
    assert!(unknown <= unknown_max, "{unknown} server spans without a {call}");
    let mut traces: Vec<_> = clients.iter().map(|span| word(span, "traceId")).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), clients.len(), "each request has its own trace");
    clients.len() as u64
}

/// Asserts that the report draws the slowest operations from the client down to the system call.
fn assert_report_draws(page: &str, call: &str) {
    let (_, page) = page.split_once("the 5 slowest operations").unwrap_or_else(|| panic!("{page}"));
    let (page, _) = page.split_once("slowest storage operations").unwrap_or((page, ""));
    let row = |text: &str| page.lines().filter(|line| line.trim_start().starts_with(text)).count();
    for text in ["fio: nbd ", "blkkin-nbd: nbd ", "in transit"] {
        assert_eq!(row(text), 5, "{text}: {page}");
    }
    // Without line breaks.
    let joined = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(row(call) >= 4 && joined.contains(" in transit to and from blkkin-nbd"), "{page}");
    assert_eq!(row("fio → blkkin-nbd · pid "), 5, "{page}");
    println!("{page}");
}

#[test]
fn the_slowest_operations_are_trees_of_one_request_each() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    let home = home();
    let listen = format!("--unix {}/socket", home.path().display());
    let json = format!("--json={}/report.json", home.path().display());
    trace(home.path(), &[&json, "--slowest", "200"], &listen, &fio("randread", 1_000)).expect_code(0);
    let report = fs::read(home.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let trees = report["slowest_operations"].as_array().unwrap();
    assert_eq!(trees.len(), 200);
    let times: Vec<u64> = trees.iter().map(|tree| tree["duration_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted_by(|one, next| one >= next), "the slowest first");
    let note = |one: &Value, key: &str| {
        let notes = one["annotations"].as_array().unwrap();
        let note = notes.iter().find(|note| note["key"] == key);
        note.unwrap_or_else(|| panic!("{one}"))["value"].as_i64().unwrap()
    };
    let reads: Vec<&Value> = trees.iter().filter(|tree| tree["operation"] == "nbd read").collect();
    assert!(reads.len() > 150, "all except opening and closing of connections: {}", reads.len());
    let spans = spans(home.path());
    let trace_ids: HashMap<&str, &str> =
        spans.iter().map(|span| (word(span, "id"), word(span, "traceId"))).collect();
    for tree in reads {
        assert_eq!((&tree["service"], &tree["link"]), (&Value::from("fio"), &Value::Null), "{tree}");
        let [server] = &tree["children"].as_array().unwrap()[..] else { panic!("{tree}") };
        assert_eq!(server["service"], "blkkin-nbd");
        assert!(server["link"].as_str().unwrap().starts_with("rule: nbd connection and cookie"), "{server}");
        assert_eq!(note(server, "nbd.offset"), note(tree, "nbd.offset"));
        let [call] = &server["children"].as_array().unwrap()[..] else { panic!("{server}") };
        let read = call["call"].as_str().unwrap();
        let offset = note(tree, "nbd.offset").to_string();
        assert!(read.starts_with("pread64(") && read.contains(&offset), "{call}");
        // The latency classes add up to the duration.
        let classes =
            ["device", "block_queue", "journal", "calls", "cpu_wait", "programs", "in_transit", "own"];
        let split = classes.map(|class| tree[format!("{class}_ns")].as_u64().unwrap());
        assert_eq!(split.iter().sum::<u64>(), tree["duration_ns"].as_u64().unwrap(), "{tree}");
        // The report and Zipkin have the same trace id.
        let trace = tree["trace"].as_str().unwrap();
        for one in [tree, server] {
            assert_eq!(trace_ids.get(one["span"].as_str().unwrap()), Some(&trace), "{one}");
        }
    }
}

fn assert_fio_linked(options: &[&str], listen: &str, rw: &str, requests: u64) {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    let home = home();
    let run =
        trace(home.path(), options, &listen.replace("$H", home.path().to_str().unwrap()), &fio(rw, requests))
            .expect_code(0);
    let spans = spans(home.path());
    let (name, call) = if rw == "randread" { ("nbd read", "pread64") } else { ("nbd write", "pwrite64") };
    let [clients, servers] = ends(&spans, name);
    assert_eq!(clients.len() as u64, CONNECTIONS * requests, "the number of fio's requests: {}", run.stderr);
    assert_eq!(servers.len(), clients.len(), "{}", run.stderr);
    let unknown_max = if options.contains(&"raw_tp") { SERVER_THREADS } else { 0 };
    assert_eq!(
        assert_each_request_has_its_server_span(&spans, name, call, unknown_max),
        CONNECTIONS * requests
    );
    assert!(clients.iter().all(|one| one["localEndpoint"]["serviceName"] == "fio"), "{}", clients[0]);
    assert!(clients.iter().all(|one| one.get("error").is_none() && one["tags"].get("error").is_none()));
    let nbd_counts = nbd_counts(&run);
    assert!(
        nbd_counts[0] >= CONNECTIONS * requests && nbd_counts.iter().all(|count| *count == nbd_counts[0]),
        "{}",
        run.stderr
    );
    // No event was missed, and no data was taken for a header.
    for warning in ["no observed reply", "replies without a request", "partial header", "records were lost"] {
        assert!(!run.stderr.contains(warning), "{}", run.stderr);
    }
    let looked_like_requests = run.stderr.contains("within expected data");
    assert_eq!(looked_like_requests, rw == "randwrite", "{}", run.stderr);
    assert_report_draws(&run.stderr, call);
    println!(
        "{} requests, each linked to its server span: {rw} {listen} {options:?}",
        CONNECTIONS * requests
    );
}

#[test]
fn reads_of_fio_over_unix_sockets_are_linked() {
    assert_fio_linked(&[], "--unix $H/socket", "randread", 2_000);
}

#[test]
fn reads_of_fio_over_tcp_are_linked() {
    assert_fio_linked(&[], "--tcp 127.0.0.1:0", "randread", 1_000);
}

#[test]
fn written_data_that_looks_like_requests_is_not_parsed() {
    assert_fio_linked(&[], "--unix $H/socket", "randwrite", 1_000);
}

#[test]
fn the_untyped_attach_kind_links_the_same() {
    assert_fio_linked(&["--attach", "raw_tp"], "--tcp 127.0.0.1:0", "randread", 500);
}

/// Asserts that each read of the server is a child of a client's request for the same bytes, and
/// that every request has one.
fn assert_copy_linked(script: &str, service: &str) {
    let home = home();
    let listen = format!("--unix {}/socket", home.path().display());
    let run = trace(home.path(), &[], &listen, script).expect_code(0);
    let spans = spans(home.path());
    let count = assert_each_request_has_its_server_span(&spans, "nbd read", "pread64", 0);
    let [clients, _] = ends(&spans, "nbd read");
    let bytes: i64 = clients.iter().map(|one| extent(one).1).sum();
    assert!(bytes as u64 >= BYTES, "{bytes} bytes requested: {}", run.stderr);
    assert!(clients.iter().all(|one| one["localEndpoint"]["serviceName"] == service), "{}", clients[0]);
    assert!(!run.stderr.contains("no observed reply"), "{}", run.stderr);
    println!("{service}: {count} reads, each linked to its server span");
}

#[test]
fn reads_of_nbdcopy_are_linked() {
    needs!("nbdcopy", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    assert_copy_linked("nbdcopy \"$U\" null:", "nbdcopy");
}

#[test]
fn reads_of_qemu_which_receives_magics_alone_are_linked() {
    needs!("qemu-img", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    assert_copy_linked("qemu-img convert -f raw -O raw \"$U\" $H/copy", "qemu-img");
}

/// Environment variable that turns [`unrelated_program`] on.
const UNRELATED: &str = "BLKKIN_TEST_UNRELATED";

fn request(cookie: u64, offset: u64) -> Vec<u8> {
    let parts =
        [&REQUEST.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), &offset.to_be_bytes(), &[0, 0, 16, 0]];
    parts.concat()
}

/// Child program of other tests, which does nothing without the environment variable. It writes
/// bytes that look like requests to files, pipes and sockets without an NBD server.
#[test]
fn unrelated_program() {
    let Some(folder) = std::env::var_os(UNRELATED) else { return };
    fs::write(Path::new(&folder).join("file"), request(1, 4096)).unwrap();
    let (mut out, mut into) = std::io::pipe().unwrap();
    into.write_all(&request(2, 8192)).unwrap();
    out.read_exact(&mut [0; 28]).unwrap();
    // A socket whose other end replies to another request.
    let (mut client, mut other) = UnixStream::pair().unwrap();
    client.write_all(&request(3, 12_288)).unwrap();
    other.read_exact(&mut [0; 28]).unwrap();
    let reply = [&REPLY.to_be_bytes()[..], &[0; 4], &4_u64.to_be_bytes()].concat();
    other.write_all(&reply).unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    // A partial header, and a socket that receives a reply without a request.
    client.write_all(&request(5, 0)[..20]).unwrap();
    let (mut receiver, mut sender) = UnixStream::pair().unwrap();
    sender.write_all(&reply).unwrap();
    receiver.read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn data_that_only_looks_like_requests_has_no_server_span() {
    needs!();
    let home = tempfile::tempdir().unwrap();
    let to = format!("zipkin={}/spans.json", home.path().display());
    let program = std::env::current_exe().unwrap();
    let args = [
        "run",
        "--nbd",
        "--to",
        &to,
        "--",
        program.to_str().unwrap(),
        "--exact",
        "nbd_clients::unrelated_program",
    ];
    let run = Run::from(common::blkkin(&args).env(UNRELATED, home.path()).output().unwrap()).expect_code(0);
    let spans = spans(home.path());
    let [clients, servers] = ends(&spans, "nbd read");
    let [one] = clients[..] else { panic!("{clients:?}") };
    assert!(servers.is_empty(), "{servers:?}");
    assert_eq!((extent(one), number(one, "nbd.cookie")), ((12_288, 4096), Some(3)));
    assert_eq!(one["tags"]["nbd.reply"], "not observed", "{one}");
    assert!(one["tags"]["blkkin.incomplete"].is_string(), "{one}");
    assert_eq!(nbd_counts(&run), [1, 0, 0], "{}", run.stderr);
    for warning in [
        "1 requests have no observed reply",
        "1 replies without a request",
        "1 buffers with a partial header",
    ] {
        assert!(run.stderr.contains(warning), "{warning}: {}", run.stderr);
    }
}

#[test]
fn function_attach_kinds_are_refused_with_the_alternatives() {
    needs!();
    let run = common::run(&["run", "--nbd", "--attach", "kprobe", "--", "true"]).expect_code(125);
    assert!(run.stderr.contains("tp_btf, raw_tp"), "{}", run.stderr);
}

#[test]
fn without_the_option_no_nbd_request_is_recorded() {
    needs!();
    let home = tempfile::tempdir().unwrap();
    let to = format!("zipkin={}/spans.json", home.path().display());
    let program = std::env::current_exe().unwrap();
    let args =
        ["run", "--to", &to, "--", program.to_str().unwrap(), "--exact", "nbd_clients::unrelated_program"];
    let run = Run::from(common::blkkin(&args).env(UNRELATED, home.path()).output().unwrap()).expect_code(0);
    assert!(!run.stderr.contains("nbd:"), "{}", run.stderr);
    let spans = spans(home.path());
    assert!(spans.iter().all(|span| !word(span, "name").starts_with("nbd ")), "{spans:?}");
}
