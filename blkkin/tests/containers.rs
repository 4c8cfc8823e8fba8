//! Daemons in pid namespaces of their own, whose processes and threads have the numbers of others outside of them, and of one
//! another's: each call is below the operation that it was made for.
//!
//! Three servers run at once, one on the machine and two in namespaces, and their process and thread ids are the same numbers, as each
//! sees them: the next number of a namespace can be chosen (`ns_last_pid`). None publishes what its threads work for, so all depends on
//! what they say in events. What was made for what is known by offset, and by the file: each has a disk of its own.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::{HashMap, HashSet};
use std::fs;

use serde_json::Value;

use common::Run;
use support::nbd::{server, spans};
use support::room::Room;
use support::{needs, or_skip};

const BYTES: u64 = 16 << 20;
/// Of each server's client, over two connections.
const REQUESTS: u64 = 1_500;
const SERVERS: [&str; 3] = ["outside", "first", "second"];

/// One server is started here; two in namespaces of their own, where the next number is made that of the first.
const SCRIPT: &str = r#"
set -e
serve() { exec env BLKKIN_UST_CONTEXT=0 $SERVER $H/$1.disk --unix $H/$1.socket --threads 4 > $H/$1.uri; }
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

fn word<'a>(span: &'a Value, key: &str) -> &'a str {
    span[key].as_str().unwrap_or_default()
}

fn tag<'a>(span: &'a Value, key: &str) -> &'a str {
    span["tags"][key].as_str().unwrap_or_default()
}

#[test]
fn each_call_is_below_the_operation_of_its_own_namespace() {
    needs!("fio", "lttng", "lttng-relayd", "nsenter", "unshare", "bash");
    let server = or_skip!(server());
    if !fs::exists("/proc/sys/kernel/ns_last_pid").unwrap() {
        support::skip!("this kernel lets nobody choose numbers (CONFIG_CHECKPOINT_RESTORE)");
    }
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    for name in SERVERS {
        fs::write(home.path().join(format!("{name}.disk")), vec![0xb1; BYTES as usize]).unwrap();
    }
    let to = format!("zipkin={}/spans.json", home.path().display());
    let words = ["run", "--ust", "--syscall", "pread64", "--to", &to, "--", "bash", "-c", SCRIPT];
    let mut command = common::blkkin(&words);
    command.env("H", home.path()).env("SERVER", server);
    command.env("REQUESTS", REQUESTS.to_string());
    let room = or_skip!(Room::make());
    let run = Run::from(room.moved(&command).output().unwrap());
    assert_eq!(run.code, Some(0), "{run:?}");
    // They had the same number, each in its own eyes.
    let pids = SERVERS.map(|name| fs::read_to_string(home.path().join(format!("{name}.pid"))).unwrap());
    let number = pids[0].trim();
    assert!(pids.iter().all(|pid| pid.trim() == number), "{pids:?}");

    let spans = spans(home.path());
    let reads: HashMap<&str, &Value> = spans
        .iter()
        .filter(|span| word(span, "name") == "nbd read" && word(span, "kind") == "SERVER")
        .map(|span| (word(span, "id"), span))
        .collect();
    let asked = SERVERS.len() as u64 * 2 * REQUESTS;
    // Whose a process is says the file that it reads.
    let mut disks: HashMap<&str, HashSet<&str>> = HashMap::new();
    let mut called = HashSet::new();
    for call in spans.iter().filter(|span| word(span, "name") == "pread64") {
        let Some(read) = reads.get(word(call, "parentId")) else { continue };
        assert_eq!(tag(call, "blkkin.offset"), tag(read, "nbd.offset"), "{call} below {read}");
        assert_eq!(tag(call, "process.pid"), tag(read, "process.pid"), "{call} below {read}");
        assert!(tag(call, "blkkin.link").starts_with("rule: the thread's last event"), "{call}");
        disks.entry(tag(read, "process.pid")).or_default().insert(tag(call, "file.path"));
        assert!(called.insert(word(read, "id")), "one read, one call: {read}");
    }
    println!(
        "{asked} requests of three servers called {number}: {} operations, {} with a call of their own",
        reads.len(),
        called.len()
    );
    assert_eq!(called.len(), reads.len(), "{}", run.stderr);
    // A server waits for LTTng for 3 s at the most: on a machine that has too much to do, what it does first may be said to nobody.
    // From the first that was heard on all is there.
    for name in SERVERS {
        let disk = home.path().join(format!("{name}.disk")).display().to_string();
        let of_disk = spans
            .iter()
            .filter(|span| word(span, "name") == "pread64" && tag(span, "file.path") == disk.as_str());
        let (said, unsaid): (Vec<_>, Vec<_>) =
            of_disk.partition(|call| reads.contains_key(word(call, "parentId")));
        assert_eq!((said.len() + unsaid.len()) as u64, 2 * REQUESTS, "as many as fio asked: {name}");
        let at = |call: &&Value| call["timestamp"].as_u64().unwrap();
        let (first, last) = (said.iter().map(at).min().unwrap(), unsaid.iter().map(at).max());
        assert!(
            last.is_none_or(|last| last <= first),
            "{name}: a call below nothing in between: {}",
            run.stderr
        );
        println!("{name}: {} calls before it was heard", unsaid.len());
    }
    let mut found: Vec<&str> = Vec::new();
    for (pid, of) in &disks {
        assert_eq!(of.len(), 1, "{pid} is one server, and reads one disk: {of:?}");
        found.extend(of);
    }
    found.sort_unstable();
    let mut meant = SERVERS.map(|name| home.path().join(format!("{name}.disk")).display().to_string());
    meant.sort_unstable();
    assert_eq!(found, meant);
    // By the machine's numbers, of which two are others than these have in their own eyes.
    assert!(disks.contains_key(number) && disks.len() == 3 && !disks.contains_key("0"), "{disks:?}");
    assert!(!run.stderr.contains("another pid namespace"), "{}", run.stderr);
}
