//! `blkkin run --ust --nbd` around NBD clients that know nothing of it, and the server blkkin-nbd: each request is in one trace with the
//! server's operation of the same request, and with the system call below that.
//!
//! Clients are fio's nbd engine, nbdcopy (both libnbd) and qemu-img. Who asked for what is known twice, by either end's own words: offset
//! and length, of which no two requests have the same. The disk is full of what looks like replies, and what is written looks like
//! requests: nothing that is data may be taken for either.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use serde_json::Value;

use common::Run;
use support::lttng_namespace::LttngNamespace;
use support::nbd::{server, spans};
use support::{needs, or_skip};

const BYTES: u64 = 64 << 20;
const CONNECTIONS: u64 = 4;
/// That do requests, unless it is told otherwise.
const SERVER_THREADS: usize = 8;
const EACH: u64 = BYTES / CONNECTIONS;
/// "Request message" and "Simple reply message" of NBD's doc/proto.md.
const REQUEST: u32 = 0x2560_9513;
const REPLY: u32 = 0x6744_6698;

/// A disk of which each 16 bytes are a reply to a request that a client may well have in flight: libnbd counts cookies from 1.
fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let reply = |cookie: u64| [&REPLY.to_be_bytes()[..], &[0; 4], &(cookie % 64).to_be_bytes()].concat();
    let disk: Vec<u8> = (0..BYTES / 16).flat_map(|n| reply(n / 256)).collect();
    fs::write(home.path().join("disk"), disk).unwrap();
    home
}

/// Runs a script around the daemon; `$H` is the folder, `$U` where it listens.
fn traced(home: &Path, how: &[&str], listen: &str, script: &str) -> Run {
    let server = server().unwrap();
    let (home, server) = (home.to_str().unwrap(), server.to_str().unwrap());
    let script = format!(
        "H={home}; {server} $H/disk {listen} > $H/uri & P=$!; \
         until [ -s $H/uri ]; do sleep 0.02; done; U=$(head -n 1 $H/uri); {script}; kill $P; wait $P"
    );
    let to = format!("zipkin={home}/spans.json");
    let words = ["--ust", "--nbd", "--syscall", "pread64", "--syscall", "pwrite64", "--to", &to];
    let command = common::blkkin(&[&["run"], how, &words[..], &["--", "sh", "-c", &script]].concat());
    let room = LttngNamespace::new().unwrap();
    Run::from(room.enter(&command).output().unwrap())
}

/// fio asks for so many blocks over each connection, each at most once: connections have parts of the disk of their own.
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

/// What both ends say that was asked.
fn asked(span: &Value) -> (i64, i64) {
    (number(span, "nbd.offset").unwrap(), number(span, "nbd.length").unwrap())
}

/// Operations of this name, of clients and of servers.
fn ends<'a>(spans: &'a [Value], name: &str) -> [Vec<&'a Value>; 2] {
    ["CLIENT", "SERVER"].map(|kind| {
        let all = spans.iter().filter(|span| word(span, "name") == name && word(span, "kind") == kind);
        all.collect()
    })
}

/// The numbers of `nbd: 8000 requests, 8000 replies, 8000 linked to a daemon's span`.
fn told(run: &Run) -> Vec<u64> {
    let line = run.stderr.lines().find(|line| line.contains(" replies")).unwrap_or_default();
    let numbers = line.split(|letter: char| !letter.is_ascii_digit());
    numbers.filter_map(|number| number.parse().ok()).collect()
}

/// Each request of the client's has one operation of the server's below it, and no other's; each of those has calls of its own. How
/// many there are.
fn each_meets_its_own(spans: &[Value], name: &str, call: &str, unknown_max: usize) -> u64 {
    let [clients, servers] = ends(spans, name);
    let asks: HashMap<&str, &Value> = clients.iter().map(|span| (word(span, "id"), *span)).collect();
    assert_eq!(asks.len(), clients.len(), "each span once");
    let mut met: BTreeMap<&str, u64> = BTreeMap::new();
    for server in &servers {
        let client = asks.get(word(server, "parentId"));
        let client = client.unwrap_or_else(|| panic!("{server} met nobody"));
        assert_eq!(word(server, "traceId"), word(client, "traceId"));
        assert_eq!(asked(server), asked(client), "{server} below {client}");
        let link = server["tags"]["blkkin.link"].as_str().unwrap();
        assert!(link.starts_with("rule: nbd connection and cookie"), "{link}");
        assert_eq!(number(server, "blkkin.clock.shift.ns"), Some(0), "one clock: {server}");
        let [sent, taken] = [client, server].map(|span| number(span, "blkkin.start.ns").unwrap());
        assert!(sent <= taken, "{server} before {client}");
        *met.entry(word(client, "id")).or_default() += 1;
    }
    assert!(met.values().all(|count| *count == 1), "one request, one operation");
    assert_eq!(met.len(), clients.len(), "each request is heard");
    let mut called: HashMap<&str, u64> = HashMap::new();
    let by_id: HashMap<&str, &Value> = servers.iter().map(|span| (word(span, "id"), *span)).collect();
    for span in spans.iter().filter(|span| word(span, "name") == call) {
        let Some(server) = by_id.get(word(span, "parentId")) else { continue };
        assert_eq!(word(span, "traceId"), word(server, "traceId"), "{span}");
        let (offset, length) = asked(server);
        let called_at = number(span, "blkkin.offset").unwrap();
        assert!((offset..offset + length).contains(&called_at), "{span} below {server}");
        *called.entry(word(server, "id")).or_default() += 1;
    }
    // By number, as raw_tp knows children, a thread is known from its first call on, and that one is below nothing: eight at the most.
    let unknown = servers.len() - called.len();
    assert!(unknown <= unknown_max, "{unknown} operations without a {call}");
    let mut traces: Vec<_> = clients.iter().map(|span| word(span, "traceId")).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), clients.len(), "each request is a trace of its own");
    clients.len() as u64
}

/// The slowest are drawn from who asked down to the call.
fn drawn(page: &str, call: &str) {
    let (_, page) = page.split_once("the 5 slowest operations").unwrap_or_else(|| panic!("{page}"));
    let (page, _) = page.split_once("slowest requests").unwrap_or((page, ""));
    let row = |words: &str| page.lines().filter(|line| line.trim_start().starts_with(words)).count();
    for words in ["fio: nbd ", "blkkin-nbd: nbd ", "on the way"] {
        assert_eq!(row(words), 5, "{words}: {page}");
    }
    // Wherever the line was broken.
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(row(call) >= 4 && words.contains(" on the way to blkkin-nbd and back"), "{page}");
    assert_eq!(row("fio → blkkin-nbd · pid "), 5, "{page}");
    println!("{page}");
}

#[test]
fn the_slowest_are_told_as_trees_each_of_one_request() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    let home = home();
    let listen = format!("--unix {}/socket", home.path().display());
    let json = format!("--json={}/report.json", home.path().display());
    let run = traced(home.path(), &[&json, "--slowest", "200"], &listen, &fio("randread", 1_000));
    assert_eq!(run.code, Some(0), "{run:?}");
    let report = fs::read(home.path().join("report.json")).unwrap();
    let report: Value = serde_json::from_slice(&report).unwrap();
    let trees = report["slowest_operations"].as_array().unwrap();
    assert_eq!(trees.len(), 200);
    let times: Vec<u64> = trees.iter().map(|tree| tree["duration_ns"].as_u64().unwrap()).collect();
    assert!(times.is_sorted_by(|one, next| one >= next), "the slowest first");
    let note = |one: &Value, key: &str| {
        let notes = one["notes"].as_array().unwrap();
        let note = notes.iter().find(|note| note["key"] == key);
        note.unwrap_or_else(|| panic!("{one}"))["value"].as_i64().unwrap()
    };
    let reads: Vec<&Value> = trees.iter().filter(|tree| tree["operation"] == "nbd read").collect();
    assert!(reads.len() > 150, "but for what opens and closes connections: {}", reads.len());
    let spans = spans(home.path());
    let shown: HashMap<&str, &str> =
        spans.iter().map(|span| (word(span, "id"), word(span, "traceId"))).collect();
    for tree in reads {
        assert_eq!((&tree["service"], &tree["link"]), (&Value::from("fio"), &Value::Null), "{tree}");
        let [server] = &tree["below"].as_array().unwrap()[..] else { panic!("{tree}") };
        assert_eq!(server["service"], "blkkin-nbd");
        assert!(server["link"].as_str().unwrap().starts_with("rule: nbd connection and cookie"), "{server}");
        assert_eq!(note(server, "nbd.offset"), note(tree, "nbd.offset"));
        let [call] = &server["below"].as_array().unwrap()[..] else { panic!("{server}") };
        let read = call["call"].as_str().unwrap();
        let offset = note(tree, "nbd.offset").to_string();
        assert!(read.starts_with("pread64(") && read.contains(&offset), "{call}");
        // All of its time is somewhere, and nowhere twice.
        let classes = ["device", "block_queue", "journal", "calls", "cpu_wait", "programs", "way", "own"];
        let split = classes.map(|class| tree[format!("{class}_ns")].as_u64().unwrap());
        assert_eq!(split.iter().sum::<u64>(), tree["duration_ns"].as_u64().unwrap(), "{tree}");
        // The very trace that is shown elsewhere, of both.
        let trace = tree["trace"].as_str().unwrap();
        for one in [tree, server] {
            assert_eq!(shown.get(one["span"].as_str().unwrap()), Some(&trace), "{one}");
        }
    }
}

fn fio_meets(how: &[&str], listen: &str, rw: &str, requests: u64) {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    let home = home();
    let run =
        traced(home.path(), how, &listen.replace("$H", home.path().to_str().unwrap()), &fio(rw, requests));
    assert_eq!(run.code, Some(0), "{run:?}");
    let spans = spans(home.path());
    let (name, call) = if rw == "randread" { ("nbd read", "pread64") } else { ("nbd write", "pwrite64") };
    let [clients, servers] = ends(&spans, name);
    assert_eq!(clients.len() as u64, CONNECTIONS * requests, "as many as fio says: {}", run.stderr);
    assert_eq!(servers.len(), clients.len(), "{}", run.stderr);
    let unknown_max = if how.contains(&"raw_tp") { SERVER_THREADS } else { 0 };
    assert_eq!(each_meets_its_own(&spans, name, call, unknown_max), CONNECTIONS * requests);
    assert!(clients.iter().all(|one| one["localEndpoint"]["serviceName"] == "fio"), "{}", clients[0]);
    assert!(clients.iter().all(|one| one.get("error").is_none() && one["tags"].get("error").is_none()));
    let told = told(&run);
    assert!(
        told[0] >= CONNECTIONS * requests && told.iter().all(|count| *count == told[0]),
        "{}",
        run.stderr
    );
    // Nothing was missed, and nothing that is data was taken for a header.
    for trouble in
        ["no reply that was seen", "replies without a request", "partial header", "records were lost"]
    {
        assert!(!run.stderr.contains(trouble), "{}", run.stderr);
    }
    let looked_like_requests = run.stderr.contains("within expected data");
    assert_eq!(looked_like_requests, rw == "randwrite", "{}", run.stderr);
    drawn(&run.stderr, call);
    println!("{} requests, each met its own: {rw} {listen} {how:?}", CONNECTIONS * requests);
}

#[test]
fn reads_of_fio_by_unix_sockets_meet_the_operations_that_answered_them() {
    fio_meets(&[], "--unix $H/socket", "randread", 2_000);
}

#[test]
fn reads_of_fio_by_tcp_meet_them_as_well() {
    fio_meets(&[], "--tcp 127.0.0.1:0", "randread", 1_000);
}

#[test]
fn writes_of_what_looks_like_requests_are_writes_and_nothing_else() {
    fio_meets(&[], "--unix $H/socket", "randwrite", 1_000);
}

#[test]
fn the_untyped_kind_of_probe_sees_the_same() {
    fio_meets(&["--attach", "raw_tp"], "--tcp 127.0.0.1:0", "randread", 500);
}

/// Each read of the server's is below somebody's request for the same, and no request is without one.
fn copy_meets(script: &str, service: &str) {
    let home = home();
    let listen = format!("--unix {}/socket", home.path().display());
    let run = traced(home.path(), &[], &listen, script);
    assert_eq!(run.code, Some(0), "{run:?}");
    let spans = spans(home.path());
    let count = each_meets_its_own(&spans, "nbd read", "pread64", 0);
    let [clients, _] = ends(&spans, "nbd read");
    let bytes: i64 = clients.iter().map(|one| asked(one).1).sum();
    assert!(bytes as u64 >= BYTES, "{bytes} bytes asked for: {}", run.stderr);
    assert!(clients.iter().all(|one| one["localEndpoint"]["serviceName"] == service), "{}", clients[0]);
    assert!(!run.stderr.contains("no reply that was seen"), "{}", run.stderr);
    println!("{service}: {count} reads, each met its own");
}

#[test]
fn reads_of_nbdcopy_meet_the_operations_that_answered_them() {
    needs!("nbdcopy", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    copy_meets("nbdcopy \"$U\" null:", "nbdcopy");
}

#[test]
fn reads_of_qemu_which_receives_magics_by_themselves_meet_them_too() {
    needs!("qemu-img", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    copy_meets("qemu-img convert -f raw -O raw \"$U\" $H/copy", "qemu-img");
}

/// What the hostile program is told by.
const STRANGER: &str = "BLKKIN_TEST_STRANGER";

fn request(cookie: u64, offset: u64) -> Vec<u8> {
    let words =
        [&REQUEST.to_be_bytes()[..], &[0; 4], &cookie.to_be_bytes(), &offset.to_be_bytes(), &[0, 0, 16, 0]];
    words.concat()
}

/// Not a test by itself: writes what looks like requests to what is no NBD server, when it is told to.
#[test]
fn stranger() {
    let Some(folder) = std::env::var_os(STRANGER) else { return };
    fs::write(Path::new(&folder).join("file"), request(1, 4096)).unwrap();
    let (mut out, mut into) = std::io::pipe().unwrap();
    into.write_all(&request(2, 8192)).unwrap();
    out.read_exact(&mut [0; 28]).unwrap();
    // A socket, and at its other end somebody who answers another request.
    let (mut client, mut other) = UnixStream::pair().unwrap();
    client.write_all(&request(3, 12_288)).unwrap();
    other.read_exact(&mut [0; 28]).unwrap();
    let reply = [&REPLY.to_be_bytes()[..], &[0; 4], &4_u64.to_be_bytes()].concat();
    other.write_all(&reply).unwrap();
    client.read_exact(&mut [0; 16]).unwrap();
    // Half of a header, and a socket on which nothing was asked and that answers all the same.
    client.write_all(&request(5, 0)[..20]).unwrap();
    let (mut quiet, mut loud) = UnixStream::pair().unwrap();
    loud.write_all(&reply).unwrap();
    quiet.read_exact(&mut [0; 16]).unwrap();
}

#[test]
fn what_only_looks_like_requests_is_nothing_or_has_no_answer() {
    needs!();
    let home = tempfile::tempdir().unwrap();
    let to = format!("zipkin={}/spans.json", home.path().display());
    let program = std::env::current_exe().unwrap();
    let words = ["run", "--nbd", "--to", &to, "--", program.to_str().unwrap(), "--exact", "stranger"];
    let run = Run::from(common::blkkin(&words).env(STRANGER, home.path()).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    let spans = spans(home.path());
    let [clients, servers] = ends(&spans, "nbd read");
    let [one] = clients[..] else { panic!("{clients:?}") };
    assert!(servers.is_empty(), "{servers:?}");
    assert_eq!((asked(one), number(one, "nbd.cookie")), ((12_288, 4096), Some(3)));
    assert_eq!(one["tags"]["nbd.reply"], "not observed", "{one}");
    assert!(one["tags"]["blkkin.incomplete"].is_string(), "{one}");
    assert_eq!(told(&run), [1, 0, 0], "{}", run.stderr);
    for said in ["1 requests have no reply", "1 replies without a request", "1 buffers with a partial header"]
    {
        assert!(run.stderr.contains(said), "{said}: {}", run.stderr);
    }
}

#[test]
fn kinds_that_are_put_at_functions_are_refused_in_words() {
    needs!();
    let run = common::run(&["run", "--nbd", "--attach", "kprobe", "--", "true"]);
    assert_eq!(run.code, Some(125), "{run:?}");
    assert!(run.stderr.contains("tp_btf, raw_tp"), "{}", run.stderr);
}

#[test]
fn who_does_not_ask_for_it_sees_nothing_of_it() {
    needs!();
    let home = tempfile::tempdir().unwrap();
    let to = format!("zipkin={}/spans.json", home.path().display());
    let program = std::env::current_exe().unwrap();
    let words = ["run", "--to", &to, "--", program.to_str().unwrap(), "--exact", "stranger"];
    let run = Run::from(common::blkkin(&words).env(STRANGER, home.path()).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(!run.stderr.contains("nbd:"), "{}", run.stderr);
    let spans = spans(home.path());
    assert!(spans.iter().all(|span| !word(span, "name").starts_with("nbd ")), "{spans:?}");
}
