//! The process context as an independent reader decodes it (`programs/read_process.py`), also while
//! it is updated all the time.

#![allow(clippy::unwrap_used, clippy::print_stdout, reason = "a test fails by panicking, and prints results")]

mod support;

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use support::{compile, make, succeed};

/// Minimum numbers of reads, states and distinct payloads for the reader.
const MANY: [&str; 3] = ["2000", "100", "2"];
const ONE: [&str; 3] = ["1", "1", "1"];

/// Runs the reader on a process. None if it has no permission.
fn read(pid: u32, minimum: [&str; 3]) -> Option<String> {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs/read_process.py");
    let Output { status, stdout, stderr } =
        Command::new("python3").arg(script).arg(pid.to_string()).args(minimum).output().ok()?;
    let stderr_text = String::from_utf8_lossy(&stderr);
    if stderr_text.contains("PermissionError") {
        return None;
    }
    assert!(status.success(), "{stderr_text}");
    Some(String::from_utf8(stdout).unwrap())
}

/// Checks the reader's output: these two payloads, and a line with its counts.
fn check(stdout: &str, expected: [String; 2]) {
    let mut lines: Vec<&str> = stdout.lines().collect();
    let counts = lines.pop().unwrap();
    println!("{counts}");
    assert_eq!(lines, expected);
}

/// A payload as the reader prints it.
fn state(name: &str, long: usize, threads: bool) -> String {
    let extra = match threads {
        true => {
            r#"{"threadlocal.attribute_key_map": ["http.route", "user.id"], "threadlocal.schema_version": "tlsdesc_v1_dev"}"#
        }
        false => "{}",
    };
    let long = "x".repeat(long);
    format!(r#"{{"extra": {extra}, "resource": {{"long": "{long}", "service.name": "{name}"}}}}"#)
}

/// Stops the updating threads when dropped, even if the test fails.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The publisher is the test process.
#[test]
fn a_rust_process_context_is_never_read_torn_during_updates() {
    let long = "x".repeat(3_000);
    let publish = |update: u32| match update % 2 {
        0 => blkkin_ust::publish_process(&[("service.name", "other"), ("long", &long)]),
        _ => blkkin_ust::publish_process(&[("service.name", "one"), ("long", "")]),
    };
    publish(1).unwrap();
    let Some(once) = read(std::process::id(), ONE) else {
        return println!("skipped: python3 is not installed, or may not read this process");
    };
    assert_eq!(once, format!("{}\n1 reads of 1 states\n", state("one", 0, false)));
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Two threads update; each state is of one of them.
        for first in 0..2 {
            let (publish, done) = (&publish, &done);
            scope.spawn(move || {
                (first..)
                    .take_while(|_| !done.load(Ordering::Relaxed))
                    .for_each(|update| publish(update).unwrap());
            });
        }
        let _done = Done(&done);
        let stdout = read(std::process::id(), MANY);
        check(&stdout.unwrap(), [state("one", 0, false), state("other", 3_000, false)]);
    });
    // `init` was not called, so thread contexts are not published.
    let without_init = blkkin_ust::thread_key("http.route");
    assert_eq!(
        without_init,
        Err(blkkin_ust::ProcessContextError::ThreadContext(blkkin_ust::ThreadContextError::NotInitialized))
    );
    let too_long = "x".repeat(65 << 10);
    let refused = blkkin_ust::publish_process(&[("service.name", &too_long)]);
    assert_eq!(refused, Err(blkkin_ust::ProcessContextError::TooLong));
}

#[test]
fn a_c_process_context_is_never_read_torn_during_updates() {
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
    let stdout = read(child.id(), MANY);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    assert_eq!(publishes, "0\n");
    match stdout {
        Some(stdout) => check(&stdout, [state("one", 0, true), state("other", 3_000, true)]),
        None => println!("skipped: python3 is not installed, or may not read this process"),
    }
    let already_published = succeed(
        Command::new(&program).arg("already_published").env_remove("BLKKIN_UST_CONTEXT").output().unwrap(),
    );
    assert_eq!(already_published, format!("{}\n", -libc::EBUSY));
    let off = Command::new(&program).env("BLKKIN_UST_CONTEXT", "0").stdin(Stdio::null()).status().unwrap();
    assert_eq!(off.code(), Some(1));
}
