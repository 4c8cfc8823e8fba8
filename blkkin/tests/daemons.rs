//! `blkkin run --ust` around a storage daemon that says what it does: its operations above its system calls, request by request.
//!
//! The daemon is `nbd-server/`, the client fio's nbd engine, LTTng the real one. What each call was made for is known twice: by what
//! the daemon's threads published and said, and by the place that request and call name.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::time::Duration;

use blkkin_bus::recording::{Position, Recording};
use blkkin_wire::daemon_span::AnnotationValue;
use blkkin_wire::event::LayerEvent;
use blkkin_wire::v1;
use serde_json::Value;

use common::Run;
use support::live::eventually;
use support::lttng_namespace::LttngNamespace;
use support::metrics::{address, documented_families, families, get, is_lttng_family, value};
use support::nbd::{server, spans};
use support::service::Service;
use support::{needs, or_skip, skip};

const BYTES: u64 = 64 << 20;
const CONNECTIONS: u64 = 4;
const PATIENCE: Duration = Duration::from_secs(60);

/// fio asks so many times over each connection, and knows what it read: each block says where it lies.
fn fio(requests: u64) -> String {
    format!(
        "fio --name=t --ioengine=nbd --uri=\"$(head -n 1 $H/uri)\" --rw=randread --bs=4k --iodepth=8 --numjobs={CONNECTIONS} \
         --thread --size={BYTES} --number_ios={requests} --output-format=json --output=$H/fio.json"
    )
}

/// Runs a script around the daemon; `$H` is the folder.
///
/// The daemon is started by another program, if one is named.
fn traced_by(home: &Path, by: &str, options: &str, script: &str) -> Run {
    let server = server().unwrap();
    let (home, server) = (home.to_str().unwrap(), server.to_str().unwrap());
    // It says where it listens once it is known to LTTng.
    let script = format!(
        "H={home}; {by} {server} $H/disk --unix $H/socket {options} > $H/uri & P=$!; \
         until [ -s $H/uri ]; do sleep 0.02; done; {script}"
    );
    let to = format!("zipkin={home}/spans.json");
    let words = ["run", "--ust", "--syscall", "pread64", "--syscall", "io_uring_enter", "--to", &to];
    let command = common::blkkin(&[&words[..], &["--", "sh", "-c", &script]].concat());
    let room = LttngNamespace::new().unwrap();
    Run::from(room.enter(&command).output().unwrap())
}

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(home.path().join("disk"), vec![0xb1; BYTES as usize]).unwrap();
    home
}

fn number(span: &Value, key: &str) -> Option<u64> {
    span["tags"][key].as_str()?.parse().ok()
}

/// The daemon's operations, by their span, and all calls below any of them.
fn sorted(spans: &[Value]) -> (HashMap<&str, &Value>, Vec<&Value>) {
    let operations: HashMap<_, _> = spans
        .iter()
        .filter(|span| span["name"].as_str().unwrap().starts_with("nbd "))
        .map(|span| (span["id"].as_str().unwrap(), span))
        .collect();
    let below =
        spans.iter().filter(|span| span["parentId"].as_str().is_some_and(|id| operations.contains_key(id)));
    let below = below.collect();
    (operations, below)
}

fn asked(home: &Path) -> u64 {
    let told = fs::read_to_string(home.join("fio.json")).unwrap();
    // Words of fio's own may stand before it.
    let told: Value = serde_json::from_str(&told[told.find("{\n").unwrap()..]).unwrap();
    told["jobs"].as_array().unwrap().iter().map(|job| job["read"]["total_ios"].as_u64().unwrap()).sum()
}

/// Whether each thread of the daemon publishes what it works for, besides what it says in events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Published,
    Off,
}

fn each_is_below_its_own(context: Context, options: &str, requests: u64, call: &str) {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    let home = home();
    let by = if context == Context::Off { "env BLKKIN_UST_CONTEXT=0" } else { "" };
    let run = traced_by(home.path(), by, options, &format!("{}; kill $P; wait $P", fio(requests)));
    assert_eq!(run.code, Some(0), "{run:?}");
    assert_eq!(asked(home.path()), CONNECTIONS * requests);
    let spans = spans(home.path());
    let (operations, below) = sorted(&spans);
    let reads = operations.values().filter(|operation| operation["name"] == "nbd read").count() as u64;
    assert_eq!(reads, CONNECTIONS * requests, "each request is one operation: {}", run.stderr);
    let mut calls: HashMap<&str, u64> = HashMap::new();
    let (mut exact, mut by_rule) = (Vec::new(), Vec::new());
    for span in below {
        let parent = span["parentId"].as_str().unwrap();
        let operation = operations[parent];
        assert_eq!(span["traceId"], operation["traceId"], "{span}");
        assert_eq!(span["name"], call, "{span}");
        let link = span["tags"]["blkkin.link"].as_str().unwrap();
        let links = [&mut exact, &mut by_rule];
        let known = ["exact: the thread's own context named this operation", "rule: the thread's last event"];
        let which =
            known.iter().position(|words| link.starts_with(words)).unwrap_or_else(|| panic!("{link}"));
        links.into_iter().nth(which).unwrap().push(number(span, "blkkin.start.ns").unwrap());
        if call == "pread64" {
            assert_eq!(
                number(span, "blkkin.offset"),
                number(operation, "nbd.offset"),
                "{span} below {operation}"
            );
        }
        let [from, until] = [span, operation].map(|span| number(span, "blkkin.start.ns").unwrap());
        assert!(from >= until, "{span} before {operation}");
        *calls.entry(parent).or_default() += 1;
    }
    let without =
        operations.iter().filter(|(id, one)| one["name"] == "nbd read" && !calls.contains_key(*id)).count();
    assert_eq!(without, 0, "every request is read by a call of its own: {}", run.stderr);
    // Each in a trace of its own, begun by it.
    let mut traces: Vec<_> = operations.values().map(|one| one["traceId"].as_str().unwrap()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), operations.len());
    assert!(operations.values().all(|one| one["kind"] == "SERVER" && one.get("error").is_none()));
    assert!(!run.stderr.contains("were lost"), "{}", run.stderr);
    println!("{reads} requests, {} calls below them exactly, {} by rule", exact.len(), by_rule.len());
    match context {
        Context::Off => assert_eq!(exact.len(), 0),
        // Once the place is found, which takes some ms after the daemon has loaded it, nothing is left to the rule.
        Context::Published => {
            let found = exact.iter().min().expect("none is exact");
            assert!(by_rule.iter().all(|at| at < found), "by rule although its thread published it");
        }
    }
    let told = format!("({} by exact thread context)", exact.len());
    assert!(run.stderr.contains(&told) && !run.stderr.contains("contradicts the daemon"), "{}", run.stderr);
}

#[test]
fn each_call_of_a_thread_pool_is_below_the_request_that_it_was_made_for() {
    each_is_below_its_own(Context::Published, "", 5_000, "pread64");
}

#[test]
fn where_no_thread_publishes_what_it_works_for_its_last_word_counts() {
    each_is_below_its_own(Context::Off, "", 2_500, "pread64");
}

#[test]
fn each_submission_to_a_ring_is_below_the_request_that_it_was_made_for() {
    each_is_below_its_own(Context::Published, "--rings 2", 2_500, "io_uring_enter");
}

#[test]
fn what_a_killed_daemon_had_in_hand_says_so() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter", "strace");
    or_skip!(server());
    let home = home();
    // Each read of the daemon's takes 3 s to begin: strace sees to that, as the daemon's grandchild.
    let slow = "strace -D -f -qq -o /dev/null -e trace=pread64 -e inject=pread64:delay_enter=3s";
    let client = format!("{} >/dev/null 2>&1 & F=$!", fio(1_000));
    // Both have told of it when the kernel sees no more of them: the operations' begin, and the end of the process.
    let script = format!("{client}; sleep 1; kill -9 $P; wait $P; kill -9 $F; wait $F; true");
    let run = traced_by(home.path(), slow, "", &script);
    let spans = spans(home.path());
    let (operations, _) = sorted(&spans);
    let unfinished: Vec<_> =
        operations.values().filter(|one| one["tags"]["blkkin.incomplete"].is_string()).collect();
    assert!(!unfinished.is_empty(), "{}", run.stderr);
    for one in &unfinished {
        assert!(one["tags"]["error"].as_str().unwrap().contains("was killed"), "{one}");
        // Until the process was gone, and not until somebody found that out.
        let took = number(one, "blkkin.duration.ns").unwrap();
        assert!((500_000_000..10_000_000_000).contains(&took), "{one}");
    }
    // No more than there can be: the client has so many under way.
    assert!(unfinished.len() as u64 <= CONNECTIONS * 8, "{}", unfinished.len());
    assert!(run.stderr.contains(&format!("({} without an end)", unfinished.len())), "{}", run.stderr);
}

/// Recorded: each operation's offset by its span, and each call's offset with the operation that it was made for.
fn recorded(folder: &Path) -> (HashMap<u64, i64>, Vec<(u64, u64)>) {
    let mut recording = Recording::open(folder, Position::default()).unwrap();
    let (mut operations, mut calls) = (HashMap::new(), Vec::new());
    while let Some((bytes, _)) = recording.read().unwrap() {
        for event in v1::decode(&bytes).unwrap().batch.events {
            match event {
                LayerEvent::DaemonSpan(operation) if &*operation.name == "nbd read" => {
                    let offset =
                        operation.annotations.iter().find(|note| &*note.key == "nbd.offset").unwrap();
                    let AnnotationValue::Number(offset) = offset.value else { panic!("{operation:?}") };
                    assert_eq!(operations.insert(operation.span.0, offset), None, "told once");
                }
                LayerEvent::Syscall(call) => {
                    calls.extend(call.context.map(|context| (context.span.0, call.args[3])));
                }
                _ => {}
            }
        }
    }
    (operations, calls)
}

/// A server outside of any `blkkin run`; killed with the test.
struct Daemon(Child);

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// As a service does for weeks: also when somebody ends its session, which is made anew.
#[test]
fn an_agent_hears_daemons_and_goes_on_when_its_session_is_destroyed() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    let (server, home) = (or_skip!(server()), home());
    let of_home = |name: &str| home.path().join(name).display().to_string();
    let words = ["agent", "--ust", "--record", &of_home("recording"), "--syscall", "pread64"];
    let room = or_skip!(LttngNamespace::new());
    let words = [&words[..], &["--metrics", "127.0.0.1:0"]].concat();
    let agent = Service::start_with(home.path(), "agent", &words, |command| room.enter(&command));
    agent.wait_for_output("tracing; events go to", PATIENCE);
    let figure = |name: &str| value(&get(address(&agent.output()), "/metrics"), &format!("blkkin_{name}"));
    let said = fs::File::create(home.path().join("uri")).unwrap();
    let mut command = room.command(server.to_str().unwrap());
    let daemon = command.args([of_home("disk"), "--unix".to_owned(), of_home("socket")]).stdout(said);
    let daemon = Daemon(daemon.spawn().unwrap());
    // It says where it listens once it is known to LTTng.
    assert!(eventually(|| fs::metadata(home.path().join("uri")).unwrap().len() > 0));
    const REQUESTS: u64 = 1_000;
    let ask = |rounds: u64| {
        let script = format!("H={}; {}", home.path().display(), fio(REQUESTS));
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        assert_eq!(asked(home.path()), CONNECTIONS * REQUESTS);
        let all = (rounds * CONNECTIONS * REQUESTS) as f64;
        let heard = || figure("daemon_spans_total") >= all || agent.output().contains("stuck");
        assert!(eventually(heard), "{}", get(address(&agent.output()), "/metrics"));
    };
    ask(1);
    let sessions = room.command("lttng").args(["--mi", "xml", "list"]).output().unwrap();
    let sessions = String::from_utf8(sessions.stdout).unwrap();
    let ours = format!("blkkin-{}-", agent.id());
    let begin = sessions.find(&ours).unwrap_or_else(|| panic!("no {ours} in {sessions}"));
    let name = sessions[begin..].split('<').next().unwrap();
    assert!(room.command("lttng").args(["destroy", name]).status().unwrap().success());
    assert!(eventually(|| figure("daemon_session_restarts_total") == 1.0), "{}", agent.output());
    ask(2);
    let of_daemons =
        |all: BTreeSet<String>| all.into_iter().filter(|name| is_lttng_family(name)).collect::<Vec<_>>();
    let shown = of_daemons(families(&get(address(&agent.output()), "/metrics")));
    assert_eq!(
        (shown.len(), &shown),
        (8, &of_daemons(documented_families())),
        "the table in docs/operating.md"
    );
    drop(daemon);
    let (status, said) = agent.finish();
    assert_eq!(status, Some(0), "{said}");
    assert!(said.contains("another process destroyed the session"), "{said}");
    let (operations, calls) = recorded(&home.path().join("recording"));
    let served: HashMap<u64, u64> = calls.iter().copied().collect();
    let of_another = operations
        .iter()
        .filter(|(span, offset)| served.get(span).is_some_and(|served| *served != **offset as u64));
    assert_eq!(of_another.count(), 0, "a call below another request's operation");
    println!("{} operations, {} calls below them", operations.len(), calls.len());
    let behind = ["stuck", "too late", "were correlated", "were lost"];
    if let Some(why) = said.lines().find(|line| behind.iter().any(|word| line.contains(word))) {
        skip!("that all are there: this machine has too much to do: {why}");
    }
    assert_eq!(operations.len() as u64, 2 * CONNECTIONS * REQUESTS, "{said}");
    assert!(operations.keys().all(|span| served.contains_key(span)), "each has a call: {said}");
}
