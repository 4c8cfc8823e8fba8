//! USDT events with `blkkin run --probes`: spans of a program's probes are the parents of its
//! system calls, also when many events are lost.
//!
//! *Input*: a C program with two probes per turn that reads at the offset of its turn. The parent
//! of a call is checked in two ways, by the probes' arguments and by the call's own offset; the
//! number of events follows from the number of turns.

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;
use tempfile::TempDir;

use crate::broker::child::{KillOnDrop, end_with_test};
use crate::common;
use crate::common::Run;
use crate::support::nbd::spans;
use crate::support::tools::{capture, tool};
use crate::support::{needs, skip};

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

/// Creates a folder with the program and its mapping.
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

/// Traces the program with this number of turns.
fn trace(home: &Path, options: &[&str], turns: u64, more: &str) -> Run {
    fs::write(home.join("file"), vec![0xb1; 2 * turns as usize]).unwrap();
    let [program, file, probes] = ["turns", "file", "probes.toml"].map(|name| home.join(name));
    let [program, file, probes] = [&program, &file, &probes].map(|path| path.to_str().unwrap());
    let (to, turns) = (format!("zipkin={}/spans.json", home.display()), turns.to_string());
    let mut args = vec!["run", "--probes", probes, "--syscall", "pread64", "--to", &to];
    args.extend(options);
    args.extend(["--", program, file, &turns]);
    args.extend(more.split_whitespace());
    common::run(&args)
}

fn number(span: &Value, key: &str) -> i64 {
    span["tags"][key].as_str().unwrap_or_else(|| panic!("no {key}: {span}")).parse().unwrap()
}

/// Parses the number before these words in the summary of USDT events.
fn summary_count(run: &Run, args: &str) -> u64 {
    let lines = run.stderr.lines().filter_map(|line| line.strip_prefix("blkkin: usdt: "));
    let mut found = lines.filter_map(|line| line.split(", ").find(|part| part.contains(args)));
    found.next().map_or(0, |part| part.split(' ').next().unwrap().parse().unwrap())
}

/// Asserts that every call that is a child of a turn belongs to that turn. Returns the number of
/// turns and of such calls.
fn assert_none_is_wrong(spans: &[Value], turns: u64) -> (u64, u64) {
    let of = |name| spans.iter().filter(move |span: &&Value| span["name"] == name);
    let turn_spans: HashMap<&str, &Value> =
        of("turn").map(|span| (span["id"].as_str().unwrap(), span)).collect();
    for one in turn_spans.values() {
        let turn = number(one, "number");
        assert_eq!(
            (number(one, "register"), number(one, "memory"), number(one, "constant")),
            (-turn, -turn, 7)
        );
        assert_eq!(one["tags"]["words"], "some words");
        assert_eq!(one["localEndpoint"]["serviceName"], "turns");
    }
    let mut children = 0;
    for call in of("pread64") {
        let offset = number(call, "blkkin.offset");
        let Some(turn_span) = call["parentId"].as_str().and_then(|id| turn_spans.get(id)) else { continue };
        assert_eq!(offset, number(turn_span, "number"), "{call} as a child of {turn_span}");
        assert!(offset < turns as i64, "the call was made between two turns: {call}");
        assert!(call["tags"]["blkkin.parent.evidence"].as_str().unwrap().starts_with("rule: "), "{call}");
        children += 1;
    }
    (turn_spans.len() as u64, children)
}

#[test]
fn each_call_is_a_child_of_its_threads_last_event() {
    needs!("gcc");
    const TURNS: u64 = 5_000;
    let home = home();
    let run = trace(home.path(), &[], TURNS, "").expect_code(0);
    // The program saw that its probes are enabled, and worked as usual.
    assert!(run.stdout.contains("1 0\n"), "{}", run.stdout);
    assert!(
        run.stderr.contains("turns:begin in ") && run.stderr.contains("each event costs about "),
        "{}",
        run.stderr
    );
    let (turn_spans, children) = assert_none_is_wrong(&spans(home.path()), TURNS);
    assert_eq!((turn_spans, children), (TURNS, TURNS), "{}", run.stderr);
    assert_eq!(
        (summary_count(&run, "events"), summary_count(&run, "spans"), summary_count(&run, "lost")),
        (2 * TURNS, TURNS, 0)
    );
}

#[test]
fn lost_events_are_counted_and_no_parent_is_wrong() {
    needs!("gcc");
    const TURNS: u64 = 20_000;
    let home = home();
    // A ring of 256 KiB has room for 300 turns of about 840 B: for the first hundred of a cycle,
    // but not for the rest.
    let run = trace(home.path(), &["--ring-size", "256K"], TURNS, "2000").expect_code(0);
    let lost = summary_count(&run, "events were lost");
    assert!(lost > 0, "{}", run.stderr);
    assert_eq!(summary_count(&run, "events") + lost, 2 * TURNS, "{}", run.stderr);
    let (turn_spans, children) = assert_none_is_wrong(&spans(home.path()), TURNS);
    println!("{lost} of {} events lost, {turn_spans} spans, {children} child calls, none wrong", 2 * TURNS);
    assert!(children > 0, "{}", run.stderr);
}

#[test]
fn unusable_probes_are_refused_before_the_command_runs() {
    needs!("gcc");
    let home = home();
    let refused = |why: &str, remedy: &str| {
        let run = trace(home.path(), &[], 1, "");
        run.assert_refused(125, "cannot use the probes of ", remedy);
        assert!(run.stderr.contains(why), "{}", run.stderr);
        assert_eq!(run.stdout, "");
    };
    let program = home.path().join("turns");
    let named = |name: &str| format!("[[probe]]\nname = \"{name}\"\n");
    probes(home.path(), &program, &named("turns:begni"));
    refused("has no probe turns:begni", "`turns:begin` is the nearest");
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

/// The mapping inside the binary is about the program that runs, wherever its file is; blkkin does not choose between two.
#[test]
fn a_built_in_mapping_finds_the_running_program() {
    needs!();
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let start = |folder: &TempDir| {
        let program = folder.path().join("postgres");
        capture(tool("cp").arg("/bin/sleep").arg(&program)).unwrap();
        let process = KillOnDrop(end_with_test(Command::new(&program).arg("60")).spawn().unwrap());
        (process, program.display().to_string())
    };
    let (_first, first) = start(&one);
    let run = common::run(&["run", "--probes", "postgresql", "--", "true"]);
    // It has no probes, but it is the one.
    run.assert_refused(125, "cannot use the probes of postgresql", "name in `program` the file");
    assert!(run.stderr.contains(&first) && run.stderr.contains("no USDT probes"), "{run:?}");
    let (_second, second) = start(&other);
    let run = common::run(&["run", "--probes", "postgresql", "--", "true"]);
    run.assert_refused(125, "cannot use the probes of postgresql", "copy the mapping from configs/mappings");
    assert!(run.stderr.contains(&first) && run.stderr.contains(&second), "{run:?}");
}

#[test]
fn without_privilege_the_missing_right_is_named() {
    if !common::is_root() {
        skip!("becoming an unprivileged user needs root");
    }
    needs!("gcc");
    let home = home();
    capture(tool("chmod").args(["-R", "a+rX"]).arg(home.path())).unwrap();
    let probes = home.path().join("probes.toml");
    let run = common::run_unprivileged(&["run", "--probes", probes.to_str().unwrap(), "--", "true"]);
    run.assert_refused(125, "cannot trace", "run as root");
}
