//! Daemons in pid namespaces whose process and thread ids equal those of other processes: each call
//! is a child of the daemon span that it was made for.
//!
//! *Input*: three NBD servers at once, one on the machine and two in namespaces. They have the same
//! process and thread ids, each in its own namespace: a namespace's next id can be chosen
//! (`ns_last_pid`). None publishes a thread context, so everything depends on LTTng events.
//! *Independent count*: the offset of each request, and the file: each server has a disk of its
//! own.

use std::collections::{HashMap, HashSet};
use std::fs;

use serde_json::Value;

use crate::common;
use crate::common::Run;
use crate::support;
use crate::support::lttng_namespace::LttngNamespace;
use crate::support::nbd::{server, spans};
use crate::support::{needs, or_skip};

const BYTES: u64 = 16 << 20;
/// Requests of each connection; each server's client has two.
const REQUESTS: u64 = 1_500;
const SERVERS: [&str; 3] = ["outside", "first", "second"];

/// Starts one server on the machine, and two in namespaces whose next process id is set to that of
/// the first.
const SCRIPT: &str = r#"
set -e
serve() { exec env BLKKIN_UST_CONTEXT=0 BLKKIN_UST_ROOTS=0 $SERVER $H/$1.disk --unix $H/$1.socket --threads 4 > $H/$1.uri; }
until_over() { until [ -e $H/over ]; do sleep 0.05; done; kill $1; wait $1; }
export -f serve until_over
serve outside & N=$!
echo $N > $H/outside.pid
export N
for name in first second; do
    unshare --pid --fork --mount-proc bash -c "echo \$((N - 1)) > /proc/sys/kernel/ns_last_pid
        serve $name & echo \$! > $H/$name.pid; until_over \$!" &
done
for name in outside first second; do
    until [ -s $H/$name.uri ]; do sleep 0.02; done
    fio --name=t --ioengine=nbd --uri="$(head -n 1 $H/$name.uri)" --rw=randread --bs=4k --iodepth=8 --numjobs=2 --thread \
        --size=16m --number_ios=$REQUESTS --output-format=json --output=$H/$name.json & CLIENTS="$CLIENTS $!"
done
wait $CLIENTS
touch $H/over
until_over $N
wait
"#;

fn field<'a>(span: &'a Value, key: &str) -> &'a str {
    span[key].as_str().unwrap_or_default()
}

fn tag<'a>(span: &'a Value, key: &str) -> &'a str {
    span["tags"][key].as_str().unwrap_or_default()
}

#[test]
fn each_call_is_a_child_of_the_daemon_span_of_its_own_namespace() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter", "unshare", "bash");
    let server = or_skip!(server());
    if !fs::exists("/proc/sys/kernel/ns_last_pid").unwrap() {
        support::skip!("this kernel does not allow choosing process ids (CONFIG_CHECKPOINT_RESTORE)");
    }
    let folder = tempfile::tempdir_in("/dev/shm").unwrap();
    for name in SERVERS {
        fs::write(folder.path().join(format!("{name}.disk")), vec![0xb1; BYTES as usize]).unwrap();
    }
    let to = format!("zipkin={}/spans.json", folder.path().display());
    let args = ["run", "--ust", "--syscall", "pread64", "--to", &to, "--", "bash", "-c", SCRIPT];
    let mut command = common::blkkin(&args);
    command.env("H", folder.path()).env("SERVER", server);
    command.env("REQUESTS", REQUESTS.to_string());
    let namespace = or_skip!(LttngNamespace::new());
    let run = Run::from(namespace.enter(&command).output().unwrap()).expect_code(0);
    // All servers had the same process id, each in its own namespace.
    let pids = SERVERS.map(|name| fs::read_to_string(folder.path().join(format!("{name}.pid"))).unwrap());
    let number = pids[0].trim();
    assert!(pids.iter().all(|pid| pid.trim() == number), "{pids:?}");

    let spans = spans(folder.path());
    let reads: HashMap<&str, &Value> = spans
        .iter()
        .filter(|span| field(span, "name") == "nbd read" && field(span, "kind") == "SERVER")
        .map(|span| (field(span, "id"), span))
        .collect();
    let requests = SERVERS.len() as u64 * 2 * REQUESTS;
    // The file that a process reads identifies the server.
    let mut disks: HashMap<&str, HashSet<&str>> = HashMap::new();
    let mut reads_with_call = HashSet::new();
    for call in spans.iter().filter(|span| field(span, "name") == "pread64") {
        let Some(read) = reads.get(field(call, "parentId")) else { continue };
        assert_eq!(tag(call, "blkkin.offset"), tag(read, "nbd.offset"), "{call} under {read}");
        assert_eq!(tag(call, "process.pid"), tag(read, "process.pid"), "{call} under {read}");
        assert!(tag(call, "blkkin.parent.evidence").starts_with("rule: the thread's last event"), "{call}");
        disks.entry(tag(read, "process.pid")).or_default().insert(tag(call, "file.path"));
        assert!(reads_with_call.insert(field(read, "id")), "one read, one call: {read}");
    }
    println!(
        "{requests} requests of three servers with process id {number}: {} daemon spans, {} with a call of their own",
        reads.len(),
        reads_with_call.len()
    );
    assert_eq!(reads_with_call.len(), reads.len(), "{}", run.stderr);
    // A server waits up to 3 s for LTTng, so on a busy machine its first events may be lost. From
    // the first received event on, every call has its span.
    for name in SERVERS {
        let disk = folder.path().join(format!("{name}.disk")).display().to_string();
        let of_disk = spans
            .iter()
            .filter(|span| field(span, "name") == "pread64" && tag(span, "file.path") == disk.as_str());
        let (with_span, without_span): (Vec<_>, Vec<_>) =
            of_disk.partition(|call| reads.contains_key(field(call, "parentId")));
        assert_eq!(
            (with_span.len() + without_span.len()) as u64,
            2 * REQUESTS,
            "as many as fio requested: {name}"
        );
        let time = |call: &&Value| call["timestamp"].as_u64().unwrap();
        let (first, last) = (with_span.iter().map(time).min().unwrap(), without_span.iter().map(time).max());
        assert!(
            last.is_none_or(|last| last <= first),
            "{name}: a later call without a daemon span: {}",
            run.stderr
        );
        println!("{name}: {} calls before its first received event", without_span.len());
    }
    let mut found: Vec<&str> = Vec::new();
    for (pid, paths) in &disks {
        assert_eq!(paths.len(), 1, "{pid} is one server, and reads one disk: {paths:?}");
        found.extend(paths);
    }
    found.sort_unstable();
    let mut expected = SERVERS.map(|name| folder.path().join(format!("{name}.disk")).display().to_string());
    expected.sort_unstable();
    assert_eq!(found, expected);
    // The machine's process ids, of which two differ from the ids inside the namespaces.
    assert!(disks.contains_key(number) && disks.len() == 3 && !disks.contains_key("0"), "{disks:?}");
    assert!(!run.stderr.contains("of an unknown process"), "{}", run.stderr);
}
