//! The line that says that something is going on: shown where nobody else writes to the terminal, and only there.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::fs::File;

use common::blkkin;
use support::needs;
use support::terminal::OnTerminal;

/// How every line of progress begins.
const PROGRESS: &str = "traced ";

#[test]
fn trace_shows_progress_until_it_is_told_to_end() {
    needs!();
    let mut trace = OnTerminal::start(blkkin(&["trace", "--syscall", "fsync"]), None);
    assert!(trace.wait_for(PROGRESS), "{}", trace.wait_for_exit());
    trace.interrupt();
    let shown = trace.wait_for_exit();
    assert!(shown.contains("lost: "), "{shown}");
}

#[test]
fn run_shows_progress_while_cmd_writes_elsewhere() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let elsewhere = File::create(folder.path().join("out")).unwrap();
    // It ends when the person has seen enough.
    let mut run = OnTerminal::start(blkkin(&["run", "--", "cat"]), Some(elsewhere));
    assert!(run.wait_for(PROGRESS), "{}", run.wait_for_exit());
    run.interrupt();
    let shown = run.wait_for_exit();
    assert!(shown.contains("lost: "), "{shown}");
}

/// What CMD says must not be cut by us: its last line may stand without an end, where we would overwrite it.
#[test]
fn run_shows_none_where_cmd_writes_to_the_terminal() {
    needs!();
    // Long enough for three lines of progress; a machine too slow for them makes this say less, not something false.
    let script = "printf begun; sleep 1; printf ended";
    let shown = OnTerminal::start(blkkin(&["run", "--", "sh", "-c", script]), None).wait_for_exit();
    assert!(shown.starts_with("begunended"), "{shown}");
    assert!(shown.contains("lost: "), "{shown}");
}
