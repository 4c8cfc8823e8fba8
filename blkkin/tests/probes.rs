//! `blkkin run --probes` around a program that has probes: what it says there, above its system calls, also where much of it is lost.
//!
//! The program says at each turn which it is, and reads at that place of a file: so what a call was made for is known twice, by the
//! probes and by the call's own offset.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use serde_json::Value;
use tempfile::TempDir;

use common::Run;
use support::nbd::spans;
use support::tools::{capture, tool};
use support::{needs, skip};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/usdt/turns.c");
const RULES: &str = r#"
[[probe]]
name = "turns:begin"
text = "arg3"
[[probe]]
name = "turns:end"
[[rule]]
event = "turns:begin"
is = "begin"
key = ["arg1"]
scope = "thread"
on = true
name = "turn"
annotate = { number = "arg1", register = "arg2", memory = "arg4", constant = "arg5", words = "text" }
[[rule]]
event = "turns:end"
is = "end"
key = ["arg1"]
scope = "thread"
"#;

/// The program and its mapping, in a folder.
fn home() -> TempDir {
    let home = tempfile::tempdir_in("/dev/shm").unwrap();
    let program = home.path().join("turns");
    capture(tool("gcc").args(["-O1", "-o"]).arg(&program).arg(PROGRAM)).unwrap();
    probes(home.path(), &program, RULES);
    home
}

fn probes(home: &Path, program: &Path, rules: &str) {
    fs::write(home.join("probes.toml"), format!("program = {program:?}\n{rules}")).unwrap();
}

/// Runs the program with so many turns, traced.
fn traced(home: &Path, options: &[&str], turns: u64, more: &str) -> Run {
    fs::write(home.join("file"), vec![0xb1; 2 * turns as usize]).unwrap();
    let [program, file, probes] = ["turns", "file", "probes.toml"].map(|name| home.join(name));
    let [program, file, probes] = [&program, &file, &probes].map(|path| path.to_str().unwrap());
    let (to, turns) = (format!("zipkin={}/spans.json", home.display()), turns.to_string());
    let mut words = vec!["run", "--probes", probes, "--syscall", "pread64", "--to", &to];
    words.extend(options);
    words.extend(["--", program, file, &turns]);
    words.extend(more.split_whitespace());
    common::run(&words)
}

fn number(span: &Value, key: &str) -> i64 {
    span["tags"][key].as_str().unwrap_or_else(|| panic!("no {key}: {span}")).parse().unwrap()
}

/// The number in a line of the books.
fn told(run: &Run, words: &str) -> u64 {
    let lines = run.stderr.lines().filter_map(|line| line.strip_prefix("blkkin: usdt: "));
    let mut found = lines.filter_map(|line| line.split(", ").find(|part| part.contains(words)));
    found.next().map_or(0, |part| part.split(' ').next().unwrap().parse().unwrap())
}

/// Every call below a turn is that turn's; how many turns there are, and how many such calls.
fn assert_none_is_wrong(spans: &[Value], turns: u64) -> (u64, u64) {
    let of = |name| spans.iter().filter(move |span: &&Value| span["name"] == name);
    let operations: HashMap<&str, &Value> =
        of("turn").map(|span| (span["id"].as_str().unwrap(), span)).collect();
    for one in operations.values() {
        let turn = number(one, "number");
        assert_eq!(
            (number(one, "register"), number(one, "memory"), number(one, "constant")),
            (-turn, -turn, 7)
        );
        assert_eq!(one["tags"]["words"], "some words");
        assert_eq!(one["localEndpoint"]["serviceName"], "turns");
    }
    let mut below = 0;
    for call in of("pread64") {
        let offset = number(call, "blkkin.offset");
        let Some(operation) = call["parentId"].as_str().and_then(|id| operations.get(id)) else { continue };
        assert_eq!(offset, number(operation, "number"), "{call} below {operation}");
        assert!(offset < turns as i64, "it was made between two turns: {call}");
        assert!(call["tags"]["blkkin.link"].as_str().unwrap().starts_with("rule: "), "{call}");
        below += 1;
    }
    (operations.len() as u64, below)
}

#[test]
fn each_call_is_below_what_its_thread_said_last() {
    needs!("gcc");
    const TURNS: u64 = 5_000;
    let home = home();
    let run = traced(home.path(), &[], TURNS, "");
    assert_eq!(run.code, Some(0), "{run:?}");
    // The program saw that somebody listens, and itself was not disturbed.
    assert!(run.stdout.contains("1 0\n"), "{}", run.stdout);
    assert!(
        run.stderr.contains("turns:begin in ") && run.stderr.contains("each event costs about "),
        "{}",
        run.stderr
    );
    let (operations, below) = assert_none_is_wrong(&spans(home.path()), TURNS);
    assert_eq!((operations, below), (TURNS, TURNS), "{}", run.stderr);
    assert_eq!((told(&run, "events"), told(&run, "spans"), told(&run, "lost")), (2 * TURNS, TURNS, 0));
}

#[test]
fn where_hits_are_lost_they_are_counted_and_nothing_is_below_another() {
    needs!("gcc");
    const TURNS: u64 = 20_000;
    let home = home();
    // Rings of 256 KiB have room for 300 turns of some 840 B: for the first hundred of a cycle, and not for the rest.
    let run = traced(home.path(), &["--ring-size", "256K"], TURNS, "2000");
    assert_eq!(run.code, Some(0), "{run:?}");
    let lost = told(&run, "events were lost");
    assert!(lost > 0, "{}", run.stderr);
    assert_eq!(told(&run, "events") + lost, 2 * TURNS, "{}", run.stderr);
    let (operations, below) = assert_none_is_wrong(&spans(home.path()), TURNS);
    println!(
        "{lost} of {} hits lost, {operations} operations, {below} calls below them, none wrong",
        2 * TURNS
    );
    assert!(below > 0, "{}", run.stderr);
}

#[test]
fn what_cannot_be_listened_to_is_refused_before_anything_runs() {
    needs!("gcc");
    let home = home();
    let refused = |why: &str, remedy: &str| {
        let run = traced(home.path(), &[], 1, "");
        run.assert_refused(125, "cannot use the probes of ", remedy);
        assert!(run.stderr.contains(why), "{}", run.stderr);
        assert_eq!(run.stdout, "");
    };
    let program = home.path().join("turns");
    let named = |name: &str| format!("[[probe]]\nname = \"{name}\"\n");
    probes(home.path(), &program, &named("turns:begni"));
    refused("has no probe turns:begni", "turns:begin, perhaps");
    probes(home.path(), Path::new("/bin/sh"), &named("turns:begin"));
    refused("no USDT probes", "name in `program` the file");
    probes(home.path(), Path::new(PROGRAM), &named("turns:begin"));
    refused("not a 64-bit ELF file", "name in `program` the file");
    probes(home.path(), &home.path().join("nothing"), &named("turns:begin"));
    refused("No such file", "name in `program` the file");
    probes(home.path(), &program, &(named("turns:begin") + "text = \"arg6\"\n"));
    refused("has 5 arguments; argument 6 does not exist", "name an existing argument");
    let rule = "[[rule]]\nevent = \"turns:begin\"\nis = \"end\"\nkey = [\"arg9\"]\n";
    probes(home.path(), &program, &(named("turns:begin") + rule));
    refused("turns:begin has no field `arg9`", "configs/mappings/postgresql.toml explains");
    probes(home.path(), &program, &(named("turns:end") + rule));
    refused("no `probe` has this name", "name the probe in the file");
    probes(home.path(), &program, "[[probe]]\nnames = \"turns:begin\"\n");
    refused("unknown field `names`", "configs/mappings/postgresql.toml explains");
    let run = common::run(&["run", "--probes", "/nonexistent.toml", "--", "true"]);
    run.assert_refused(125, "cannot use the probes of /nonexistent.toml", "configs/mappings");
}

#[test]
fn without_privilege_it_says_what_is_missing() {
    if !common::is_root() {
        skip!("to become nobody takes root");
    }
    needs!("gcc");
    let home = home();
    capture(tool("chmod").args(["-R", "a+rX"]).arg(home.path())).unwrap();
    let probes = home.path().join("probes.toml");
    let run = common::run_unprivileged(&["run", "--probes", probes.to_str().unwrap(), "--", "true"]);
    run.assert_refused(125, "cannot trace", "run as root");
}
