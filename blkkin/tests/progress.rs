//! Progress line of `run` and `trace`: shown only where no other program writes to the terminal.
//!
//! *Input*: the real binary on a pseudo-terminal; the assertions read what the terminal received.

use std::fs::File;

use crate::common::blkkin;
use crate::support::needs;
use crate::support::terminal::OnTerminal;

/// Beginning of every progress line.
const PROGRESS: &str = "traced ";

#[test]
fn trace_shows_progress_until_it_is_interrupted() {
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
    // `cat` runs until the interrupt.
    let mut run = OnTerminal::start(blkkin(&["run", "--", "cat"]), Some(elsewhere));
    assert!(run.wait_for(PROGRESS), "{}", run.wait_for_exit());
    run.interrupt();
    let shown = run.wait_for_exit();
    assert!(shown.contains("lost: "), "{shown}");
}

/// The progress line may not overwrite the command's output, whose last line can be without a
/// newline.
#[test]
fn run_shows_none_where_cmd_writes_to_the_terminal() {
    needs!();
    // Long enough for three progress lines. On a machine that is too slow the test proves less, but
    // does not fail.
    let script = "printf begun; sleep 1; printf ended";
    let shown = OnTerminal::start(blkkin(&["run", "--", "sh", "-c", script]), None).wait_for_exit();
    assert!(shown.starts_with("begunended"), "{shown}");
    assert!(shown.contains("lost: "), "{shown}");
}
