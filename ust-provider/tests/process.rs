//! Who a process says it is, as a reader in another language finds it (`programs/read_process.py`), also while it is said anew all the time.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use support::{compile, make, succeed};

/// Reads, states and kinds of them that the reader has to meet.
const MANY: [&str; 3] = ["2000", "100", "2"];
const ONE: [&str; 3] = ["1", "1", "1"];

/// What the reader says of a process; none where it may not look at it.
fn read(pid: u32, least: [&str; 3]) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/read_process.py");
    let Output { status, stdout, stderr } =
        Command::new("python3").arg(script).arg(pid.to_string()).args(least).output().ok()?;
    let complaint = String::from_utf8_lossy(&stderr);
    if complaint.contains("PermissionError") {
        return None;
    }
    assert!(status.success(), "{complaint}");
    Some(String::from_utf8(stdout).unwrap())
}

/// The reader's lines for these two states, and how many reads of how many states there were.
fn judge(said: &str, expected: [String; 2]) {
    let mut lines: Vec<&str> = said.lines().collect();
    let counts = lines.pop().unwrap();
    println!("{counts}");
    assert_eq!(lines, expected);
}

/// As the reader prints it.
fn state(name: &str, long: usize, threads: bool) -> String {
    let beside = match threads {
        true => {
            r#"{"threadlocal.attribute_key_map": ["http.route", "user.id"], "threadlocal.schema_version": "tlsdesc_v1_dev"}"#
        }
        false => "{}",
    };
    let long = "x".repeat(long);
    format!(r#"{{"beside": {beside}, "resource": {{"long": "{long}", "service.name": "{name}"}}}}"#)
}

/// Ends whoever goes on until then, also where a test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// This very process.
#[test]
fn a_rust_program_says_who_it_is_and_is_read_whole_whenever_it_says_it_anew() {
    let long = "x".repeat(3_000);
    let say = |turn: u32| match turn % 2 {
        0 => blkkin_ust::publish_process(&[("service.name", "other"), ("long", &long)]),
        _ => blkkin_ust::publish_process(&[("service.name", "one"), ("long", "")]),
    };
    say(1).unwrap();
    let Some(once) = read(std::process::id(), ONE) else {
        return println!("skipped: python3 is not installed, or may not read this process");
    };
    assert_eq!(once, format!("{}\n1 reads of 1 states\n", state("one", 0, false)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two threads: what is said is of one of them.
        for first in 0..2 {
            let (say, done) = (&say, &done);
            scope.spawn(move || {
                (first..).take_while(|_| !done.load(Ordering::Relaxed)).for_each(|turn| say(turn).unwrap());
            });
        }
        let _done = Done(&done);
        let said = read(std::process::id(), MANY);
        judge(&said.unwrap(), [state("one", 0, false), state("other", 3_000, false)]);
    });
    // Nobody has called `init`, so no thread says anything.
    let unnamed = blkkin_ust::thread_key("http.route");
    assert_eq!(
        unnamed,
        Err(blkkin_ust::ProcessContextError::ThreadContext(blkkin_ust::ThreadContextError::NotInitialized))
    );
    let too_long = "x".repeat(65 << 10);
    let refused = blkkin_ust::publish_process(&[("service.name", &too_long)]);
    assert_eq!(refused, Err(blkkin_ust::ProcessContextError::TooLong));
}

#[test]
fn a_c_program_says_who_it_is_and_is_read_whole_whenever_it_says_it_anew() {
    let build = tempfile::tempdir().unwrap();
    let build = build.path();
    succeed(make(build).output().unwrap());
    let program = compile(
        build,
        &build.join("libblkkin-ust.a"),
        "process_context.c",
        "process_context",
        &["-std=gnu11", "-Wno-pedantic"],
    );
    let mut command = Command::new(&program);
    command.env_remove("BLKKIN_UST_CONTEXT").env("BLKKIN_UST", "0");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut publishes = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut publishes).unwrap();
    let said = read(child.id(), MANY);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(publishes, "0\n");
    match said {
        Some(said) => judge(&said, [state("one", 0, true), state("other", 3_000, true)]),
        None => println!("skipped: python3 is not installed, or may not read this process"),
    }
    let taken =
        succeed(Command::new(&program).arg("taken").env_remove("BLKKIN_UST_CONTEXT").output().unwrap());
    assert_eq!(taken, format!("{}\n", -libc::EBUSY));
    let off = Command::new(&program).env("BLKKIN_UST_CONTEXT", "0").stdin(Stdio::null()).status().unwrap();
    assert_eq!(off.code(), Some(1));
}
