//! Daemon spans of a storage daemon that LTTng-UST instruments, with `blkkin run --ust` and
//! `blkkin agent --ust`: each span of a request is the parent of the system calls made for it.
//!
//! *Input*: `nbd-server/` under fio's nbd engine, with the real LTTng. The parent of a system call
//! is checked in two ways: by the context and the events of the daemon's threads, and by the
//! offset, which request and system call both name. fio's own count gives the number of requests.
//! The daemon does not sample, so that each request has its span.

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use blkkin_wire::daemon_span::AnnotationValue;
use blkkin_wire::event::LayerEvent;
use serde_json::Value;

use crate::broker::child::KillOnDrop;
use crate::common;
use crate::common::Run;
use crate::support::agent_recording;
use crate::support::live::eventually;
use crate::support::lttng_namespace::LttngNamespace;
use crate::support::metrics::{address, documented_families, families, get, is_lttng_family, value};
use crate::support::nbd::{server, spans};
use crate::support::service::Service;
use crate::support::{needs, or_skip};

const BYTES: u64 = 64 << 20;
const CONNECTIONS: u64 = 4;
const TIMEOUT: Duration = Duration::from_secs(60);
const UNPRIVILEGED: u32 = 65534;

/// Builds fio's command: `requests` random reads over each connection.
fn fio(requests: u64) -> String {
    format!(
        "fio --name=t --ioengine=nbd --uri=\"$(head -n 1 $H/uri)\" --rw=randread --bs=4k --iodepth=8 --numjobs={CONNECTIONS} \
         --thread --size={BYTES} --number_ios={requests} --output-format=json --output=$H/fio.json"
    )
}

/// Runs a script around the daemon; `$H` is the folder. A non-empty `by` is the program that starts
/// the daemon.
fn trace_started_by(home: &Path, by: &str, options: &str, script: &str) -> Run {
    let server = server().unwrap();
    let (home, server) = (home.to_str().unwrap(), server.to_str().unwrap());
    // The daemon writes its address once it is registered with LTTng.
    let script = format!(
        "H={home}; export BLKKIN_UST_ROOTS=0; {by} {server} $H/disk --unix $H/socket {options} > $H/uri & P=$!; \
         until [ -s $H/uri ]; do sleep 0.02; done; {script}"
    );
    let to = format!("zipkin={home}/spans.json");
    let args = ["run", "--ust", "--syscall", "pread64", "--syscall", "io_uring_enter", "--to", &to];
    let command = common::blkkin(&[&args[..], &["--", "sh", "-c", &script]].concat());
    let namespace = LttngNamespace::new().unwrap();
    Run::from(namespace.enter(&command).output().unwrap())
}

fn home() -> tempfile::TempDir {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    fs::write(home.path().join("disk"), vec![0xb1; BYTES as usize]).unwrap();
    home
}

fn number(span: &Value, key: &str) -> Option<u64> {
    span["tags"][key].as_str()?.parse().ok()
}

/// Returns the daemon spans by their span id, and all system calls that are children of one.
fn spans_and_calls(spans: &[Value]) -> (HashMap<&str, &Value>, Vec<&Value>) {
    let daemon_spans: HashMap<_, _> = spans
        .iter()
        .filter(|span| span["name"].as_str().unwrap().starts_with("nbd "))
        .map(|span| (span["id"].as_str().unwrap(), span))
        .collect();
    let children =
        spans.iter().filter(|span| span["parentId"].as_str().is_some_and(|id| daemon_spans.contains_key(id)));
    let children = children.collect();
    (daemon_spans, children)
}

fn requests_by_fio(home: &Path) -> u64 {
    let output = fs::read_to_string(home.join("fio.json")).unwrap();
    // fio may print lines of its own before the JSON.
    let output: Value = serde_json::from_str(&output[output.find("{\n").unwrap()..]).unwrap();
    output["jobs"].as_array().unwrap().iter().map(|job| job["read"]["total_ios"].as_u64().unwrap()).sum()
}

/// Thread contexts of the daemon, which it can publish in addition to its events.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Context {
    Published,
    Off,
}

fn assert_each_call_has_its_request_as_parent(context: Context, options: &str, requests: u64, call: &str) {
    needs!("fio", "lttng", "lttng-relayd", "nsenter");
    or_skip!(server());
    let home = home();
    let by = if context == Context::Off { "env BLKKIN_UST_CONTEXT=0" } else { "" };
    let run = trace_started_by(home.path(), by, options, &format!("{}; kill $P; wait $P", fio(requests)))
        .expect_code(0);
    assert_eq!(requests_by_fio(home.path()), CONNECTIONS * requests);
    let spans = spans(home.path());
    let (daemon_spans, children) = spans_and_calls(&spans);
    let reads = daemon_spans.values().filter(|daemon_span| daemon_span["name"] == "nbd read").count() as u64;
    assert_eq!(reads, CONNECTIONS * requests, "each request is one operation: {}", run.stderr);
    let mut calls: HashMap<&str, u64> = HashMap::new();
    let (mut exact, mut by_rule) = (Vec::new(), Vec::new());
    for span in children {
        let parent = span["parentId"].as_str().unwrap();
        let daemon_span = daemon_spans[parent];
        assert_eq!(span["traceId"], daemon_span["traceId"], "{span}");
        assert_eq!(span["name"], call, "{span}");
        let link = span["tags"]["blkkin.parent.evidence"].as_str().unwrap();
        let links = [&mut exact, &mut by_rule];
        let known =
            ["exact: the thread's own context named this daemon span", "rule: the thread's last event"];
        let index = known.iter().position(|text| link.starts_with(text)).unwrap_or_else(|| panic!("{link}"));
        links.into_iter().nth(index).unwrap().push(number(span, "blkkin.start.ns").unwrap());
        if call == "pread64" {
            assert_eq!(
                number(span, "blkkin.offset"),
                number(daemon_span, "nbd.offset"),
                "{span} as a child of {daemon_span}"
            );
        }
        let [from, until] = [span, daemon_span].map(|span| number(span, "blkkin.start.ns").unwrap());
        assert!(from >= until, "{span} before {daemon_span}");
        *calls.entry(parent).or_default() += 1;
    }
    let childless =
        daemon_spans.iter().filter(|(id, one)| one["name"] == "nbd read" && !calls.contains_key(*id)).count();
    assert_eq!(childless, 0, "every request is the parent of a system call: {}", run.stderr);
    // Each span is the root of its own trace.
    let mut traces: Vec<_> = daemon_spans.values().map(|one| one["traceId"].as_str().unwrap()).collect();
    traces.sort_unstable();
    traces.dedup();
    assert_eq!(traces.len(), daemon_spans.len());
    assert!(daemon_spans.values().all(|one| one["kind"] == "SERVER" && one.get("error").is_none()));
    assert!(!run.stderr.contains("were lost"), "{}", run.stderr);
    println!("{reads} requests, {} of their calls exact, {} by rule", exact.len(), by_rule.len());
    match context {
        Context::Off => assert_eq!(exact.len(), 0),
        // Some ms after the daemon loads it, the slot is found; from then on no call needs the
        // rule.
        Context::Published => {
            let found = exact.iter().min().expect("none is exact");
            assert!(by_rule.iter().all(|at| at < found), "by rule although its thread published a context");
        }
    }
    let output = format!("({} by exact thread context)", exact.len());
    assert!(run.stderr.contains(&output) && !run.stderr.contains("contradicts the daemon"), "{}", run.stderr);
}

#[test]
fn each_call_of_a_thread_pool_is_a_child_of_its_request() {
    assert_each_call_has_its_request_as_parent(Context::Published, "", 5_000, "pread64");
}

#[test]
fn without_thread_contexts_the_threads_last_event_gives_the_parent() {
    assert_each_call_has_its_request_as_parent(Context::Off, "", 2_500, "pread64");
}

#[test]
fn each_submission_to_a_ring_is_a_child_of_its_request() {
    assert_each_call_has_its_request_as_parent(Context::Published, "--rings 2", 2_500, "io_uring_enter");
}

#[test]
fn requests_in_flight_of_a_killed_daemon_are_incomplete() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter", "strace");
    or_skip!(server());
    let home = home();
    // strace delays each of the daemon's reads by 3 s; -D makes strace the daemon's grandchild.
    let slow = "strace -D -f -qq -o /dev/null -e trace=pread64 -e inject=pread64:delay_enter=3s";
    let client = format!("{} >/dev/null 2>&1 & F=$!", fio(1_000));
    // The kernel cannot report these spans: LTTng reports their begin and the process's exit.
    let script = format!("{client}; sleep 1; kill -9 $P; wait $P; kill -9 $F; wait $F; true");
    let run = trace_started_by(home.path(), slow, "", &script);
    let spans = spans(home.path());
    let (daemon_spans, _) = spans_and_calls(&spans);
    let unfinished: Vec<_> =
        daemon_spans.values().filter(|one| one["tags"]["blkkin.incomplete"].is_string()).collect();
    assert!(!unfinished.is_empty(), "{}", run.stderr);
    for one in &unfinished {
        assert!(one["tags"]["error"].as_str().unwrap().contains("was killed"), "{one}");
        // The span lasts until the process exits, not until the exit is noticed.
        let took = number(one, "blkkin.duration.ns").unwrap();
        assert!((500_000_000..10_000_000_000).contains(&took), "{one}");
    }
    // Upper bound: the number of requests that the client has in flight.
    assert!(unfinished.len() as u64 <= CONNECTIONS * 8, "{}", unfinished.len());
    assert!(run.stderr.contains(&format!("({} without an end)", unfinished.len())), "{}", run.stderr);
}

/// Reads the offset of each recorded daemon span by span id, and the offset of each system call
/// with the span id of its daemon span.
fn recorded(folder: &Path) -> (HashMap<u64, i64>, Vec<(u64, u64)>) {
    let (mut daemon_spans, mut calls) = (HashMap::new(), Vec::new());
    for batch in agent_recording::batches(folder) {
        for event in batch.events {
            match event {
                LayerEvent::DaemonSpan(daemon_span) if &*daemon_span.name == "nbd read" => {
                    let offset =
                        daemon_span.annotations.iter().find(|note| &*note.key == "nbd.offset").unwrap();
                    let AnnotationValue::Number(offset) = offset.value else { panic!("{daemon_span:?}") };
                    assert_eq!(daemon_spans.insert(daemon_span.span.0, offset), None, "recorded once");
                }
                LayerEvent::Syscall(call) => {
                    calls.extend(call.context.map(|context| (context.span.0, call.args[3])));
                }
                _ => {}
            }
        }
    }
    (daemon_spans, calls)
}

/// Limit of runs in which the agent reports that the machine was too slow for it. A quiet machine has
/// none; one that has three in a row is too slow for the test, which then fails.
const OVERLOADED_MAX: usize = 3;

/// The agent creates a new session when another process destroys its own. The session daemon that it
/// then starts serves the programs of other users too, so it has the capabilities for that.
#[test]
fn an_agent_reads_daemons_and_recovers_when_its_session_is_destroyed() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter", "setpriv");
    let server = or_skip!(server());
    for _ in 0..OVERLOADED_MAX {
        let namespace = or_skip!(LttngNamespace::new());
        match read_and_recover(&server, &namespace) {
            Ok(()) => return,
            Err(why) => println!("repeated, because the agent was overloaded: {why}"),
        }
    }
    panic!("the agent was overloaded in each of {OVERLOADED_MAX} runs");
}

/// Asserts that no call has a wrong parent and that every span and call is read, or returns the
/// agent's own report that it was overloaded.
fn read_and_recover(server: &Path, namespace: &LttngNamespace) -> Result<(), String> {
    let home = home();
    let path_of = |name: &str| home.path().join(name).display().to_string();
    for path in [home.path().to_owned(), home.path().join("disk")] {
        std::os::unix::fs::chown(path, Some(UNPRIVILEGED), Some(UNPRIVILEGED)).unwrap();
    }
    fs::copy(server, home.path().join("server")).unwrap();
    let args = ["agent", "--ust", "--record", &path_of("recording"), "--syscall", "pread64"];
    let args = [&args[..], &["--metrics", "127.0.0.1:0"]].concat();
    let agent = Service::start_with(home.path(), "agent", &args, |command| namespace.enter(&command));
    agent.wait_for_output("tracing; events go to", TIMEOUT);
    let metric = |name: &str| value(&get(address(&agent.output()), "/metrics"), &format!("blkkin_{name}"));
    let log = fs::File::create(home.path().join("uri")).unwrap();
    let mut command = namespace.command("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups", "--", &path_of("server")]);
    command.env("BLKKIN_UST_ROOTS", "0");
    let daemon = command.args([path_of("disk"), "--unix".to_owned(), path_of("socket")]).stdout(log);
    let daemon = KillOnDrop(daemon.spawn().unwrap());
    // The daemon writes its address once it is registered with LTTng.
    assert!(eventually(|| fs::metadata(home.path().join("uri")).unwrap().len() > 0));
    const REQUESTS: u64 = 1_000;
    let run_fio = |rounds: u64| {
        let script = format!("H={}; {}", home.path().display(), fio(REQUESTS));
        assert!(Command::new("sh").args(["-c", &script]).status().unwrap().success());
        assert_eq!(requests_by_fio(home.path()), CONNECTIONS * REQUESTS);
        let all = (rounds * CONNECTIONS * REQUESTS) as f64;
        let received = || metric("daemon_spans_total") >= all || agent.output().contains("stuck");
        assert!(eventually(received), "{}", get(address(&agent.output()), "/metrics"));
    };
    run_fio(1);
    let sessions = namespace.command("lttng").args(["--mi", "xml", "list"]).output().unwrap();
    let sessions = String::from_utf8(sessions.stdout).unwrap();
    let prefix = format!("blkkin-{}-", agent.id());
    let begin = sessions.find(&prefix).unwrap_or_else(|| panic!("no {prefix} in {sessions}"));
    let name = sessions[begin..].split('<').next().unwrap();
    assert!(namespace.command("lttng").args(["destroy", name]).status().unwrap().success());
    assert!(eventually(|| metric("daemon_session_restarts_total") == 1.0), "{}", agent.output());
    run_fio(2);
    let lttng_families =
        |all: BTreeSet<String>| all.into_iter().filter(|name| is_lttng_family(name)).collect::<Vec<_>>();
    let shown = lttng_families(families(&get(address(&agent.output()), "/metrics")));
    assert_eq!(
        (shown.len(), &shown),
        (9, &lttng_families(documented_families())),
        "the table in docs/operating.md"
    );
    drop(daemon);
    let log = agent.finish_without_error();
    assert!(log.contains("another process destroyed the session"), "{log}");
    let (daemon_spans, calls) = recorded(&home.path().join("recording"));
    let served: HashMap<u64, u64> = calls.iter().copied().collect();
    let wrong_parents = daemon_spans
        .iter()
        .filter(|(span, offset)| served.get(span).is_some_and(|served| *served != **offset as u64));
    assert_eq!(wrong_parents.count(), 0, "a call whose parent is another request's span");
    println!("{} daemon spans, {} calls that are children of them", daemon_spans.len(), calls.len());
    let overload_texts = ["stuck", "too late", "were correlated", "were lost"];
    if let Some(why) = log.lines().find(|line| overload_texts.iter().any(|word| line.contains(word))) {
        return Err(why.to_owned());
    }
    assert_eq!(daemon_spans.len() as u64, 2 * CONNECTIONS * REQUESTS, "{log}");
    assert!(daemon_spans.keys().all(|span| served.contains_key(span)), "each has a call: {log}");
    Ok(())
}
