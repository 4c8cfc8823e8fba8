//! Signals and ends: what reaches CMD, how often, and what becomes of its status. These run the tracer and need
//! root.
//!
//! CMD is a shell that says each signal it gets. Nothing is timed: a test goes on when CMD has said so, and a
//! CMD that is not told to end would stay for ever (its `sleep` is only what it waits at).

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};

use common::{blkkin, is_root};

/// Says its process id, then each signal; ends with 5 at SIGUSR1. It does not mind the terminal's end.
const TELLTALE: &str = "trap '' HUP; trap 'echo INT' INT; trap 'echo TERM' TERM; trap 'kill $p; exit 5' USR1; \
    sleep 100000 & p=$!; echo $$; while :; do wait $p; done";

macro_rules! needs_root {
    () => {
        if !is_root() {
            eprintln!("skipped: to load programs takes root");
            return;
        }
    };
}

#[test]
fn statuses_and_deadly_signals_are_passed_on() {
    needs_root!();
    for (script, code) in [
        ("exit 0", 0),
        ("exit 3", 3),
        ("kill -KILL $$", 128 + 9),
        ("kill -SEGV $$", 128 + 11),
        ("kill -TERM $$", 128 + 15),
    ] {
        let run = common::run(&["run", "--no-report", "--", "sh", "-c", script]);
        assert_eq!(run.code, Some(code), "{script}: {run:?}");
        assert!(run.stdout.is_empty(), "{script}: {run:?}");
    }
}

#[test]
fn stdin_and_stdout_are_commands_own() {
    needs_root!();
    let mut cat = blkkin(&["run", "--", "cat"]);
    let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"words\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"words\n");
    assert_eq!(output.status.code(), Some(0));
    assert!(!output.stderr.is_empty(), "the report");
}

#[test]
fn what_is_sent_to_blkkin_alone_reaches_the_command_once() {
    needs_root!();
    let mut traced = Traced::start(blkkin(&["run", "--no-report", "--", "sh", "-c", TELLTALE]));
    send(traced.blkkin.id(), libc::SIGTERM);
    assert_eq!(traced.line(), "TERM");
    send(traced.blkkin.id(), libc::SIGINT);
    assert_eq!(traced.line(), "INT");
    send(traced.command, libc::SIGUSR1);
    assert_eq!(traced.end(), (Some(5), vec![]));
}

#[test]
fn the_first_ctrl_c_reaches_the_command_once_and_tracing_goes_on_to_its_end() {
    needs_root!();
    let mut terminal = Terminal::open();
    let mut traced = Traced::start(terminal.attach(blkkin(&["run", "--", "sh", "-c", TELLTALE])));
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    // Whatever blkkin wanted to pass on of the first it has done when this comes through.
    send(traced.blkkin.id(), libc::SIGTERM);
    assert_eq!(traced.line(), "TERM");
    send(traced.command, libc::SIGUSR1);
    let mut report = String::new();
    traced.blkkin.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(report.contains("lost"), "{report}");
    assert_eq!(traced.end(), (Some(5), vec![]));
}

#[test]
fn the_second_ctrl_c_leaves_at_once_and_kills_nothing() {
    needs_root!();
    let mut terminal = Terminal::open();
    let mut traced = Traced::start(terminal.attach(blkkin(&["run", "--", "sh", "-c", TELLTALE])));
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    // The command may have its signal before blkkin has its own, and two that wait are one: let it be handled.
    send(traced.blkkin.id(), libc::SIGTERM);
    assert_eq!(traced.line(), "TERM");
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    assert_eq!(traced.blkkin.wait().unwrap().code(), Some(130));
    send(traced.command, libc::SIGUSR1);
    // The command lived on, and ends by its own will: its stdout closes without another word.
    assert_eq!(traced.rest(), Vec::<String>::new());
}

#[test]
fn trace_ends_by_itself_after_the_time_given() {
    needs_root!();
    let run = common::run(&["trace", "--for", "1ms"]);
    assert_eq!(run.code, Some(0), "{run:?}");
    assert!(run.stdout.contains("lost"), "{run:?}");
}

/// ETX: the terminal's interrupt character (stty intr).
const CTRL_C: &[u8] = b"\x03";

/// blkkin at work on a command that talks.
struct Traced {
    blkkin: Child,
    command: u32,
    words: BufReader<ChildStdout>,
}

impl Traced {
    /// Starts it and waits for the command's first word.
    fn start(mut command: Command) -> Traced {
        let mut blkkin = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let words = BufReader::new(blkkin.stdout.take().unwrap());
        let mut traced = Traced { blkkin, command: 0, words };
        traced.command = traced.line().parse().unwrap();
        traced
    }

    /// The command's next word.
    fn line(&mut self) -> String {
        let mut line = String::new();
        self.words.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    /// All its words until it ends.
    fn rest(&mut self) -> Vec<String> {
        self.words.by_ref().lines().map(Result::unwrap).collect()
    }

    /// blkkin's status, and what the command said that nobody waited for.
    fn end(&mut self) -> (Option<i32>, Vec<String>) {
        let rest = self.rest();
        (self.blkkin.wait().unwrap().code(), rest)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Harmless where all is over; else the test has failed, and leaves nothing behind. blkkin first: it has not
        // been waited for when it still runs, so its number is its own.
        if self.blkkin.try_wait().is_ok_and(|status| status.is_none()) {
            send(self.command, libc::SIGUSR1);
            let _ = self.blkkin.kill();
            let _ = self.blkkin.wait();
        }
    }
}

fn send(process: u32, signal: libc::c_int) {
    // SAFETY: takes numbers only.
    unsafe { libc::kill(process as libc::pid_t, signal) };
}

/// A terminal of the test's own: its keyboard.
struct Terminal {
    keyboard: File,
    screen: OwnedFd,
}

impl Terminal {
    fn open() -> Terminal {
        let (mut master, mut slave) = (-1, -1);
        let (name, mode, size) = (std::ptr::null_mut(), std::ptr::null(), std::ptr::null());
        // SAFETY: both numbers are written by the call and outlive it; the rest asks for defaults.
        assert_eq!(unsafe { libc::openpty(&mut master, &mut slave, name, mode, size) }, 0);
        // SAFETY: the call has just made both, and nobody else owns them.
        unsafe { Terminal { keyboard: File::from_raw_fd(master), screen: OwnedFd::from_raw_fd(slave) } }
    }

    /// Makes it the controlling terminal of what is started, in a session of its own.
    fn attach(&self, mut command: Command) -> Command {
        command.stdin(Stdio::from(self.screen.try_clone().unwrap()));
        // SAFETY: setsid and ioctl are async-signal-safe; stdin is the terminal by then.
        unsafe {
            command.pre_exec(|| {
                let attached = libc::setsid() >= 0 && libc::ioctl(0, libc::TIOCSCTTY, 0) == 0;
                if attached { Ok(()) } else { Err(std::io::Error::last_os_error()) }
            });
        }
        command
    }

    fn press(&mut self, keys: &[u8]) {
        self.keyboard.write_all(keys).unwrap();
    }
}
