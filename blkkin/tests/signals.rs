//! Signals and ends: what reaches CMD, how often, and what becomes of its status. These run the tracer and need
//! root.
//!
//! CMD is this very program in another role ([`telltale`]): it says each signal it gets, and nothing is timed, for
//! a test goes on when CMD has said so. (A shell will not do: between fork and exec its children still have its
//! traps, and swallow what is meant to end them.)

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod common;

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use common::{blkkin, is_root};

/// Set: this process is the command.
const ROLE: &str = "BLKKIN_TEST_TELLTALE";
/// What it says begins so; the rest is the test harness's.
const SAYS: &str = "telltale: ";

/// Not a test, but the command that the tests trace: says its process id, then each signal, and ends with 5 at
/// SIGUSR1. It does not mind the terminal's end.
#[test]
fn telltale() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1]).unwrap();
    say(&std::process::id().to_string());
    for signal in signals.forever() {
        match signal {
            SIGINT => say("INT"),
            SIGTERM => say("TERM"),
            SIGUSR1 => std::process::exit(5),
            _ => {}
        }
    }
}

fn say(word: &str) {
    // In one write, on a line of its own whatever the harness has written before it.
    std::io::stdout().write_all(format!("\n{SAYS}{word}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// A command line of blkkin that traces the telltale.
fn run_telltale(options: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = blkkin(&["run"]);
    command.args(options).arg("--").arg(own).args(["--exact", "telltale", "--nocapture"]).env(ROLE, "yes");
    command
}

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
    let mut traced = Traced::start(run_telltale(&["--no-report"]));
    send(traced.blkkin.id(), SIGTERM);
    assert_eq!(traced.line(), "TERM");
    send(traced.blkkin.id(), SIGINT);
    assert_eq!(traced.line(), "INT");
    send(traced.command, SIGUSR1);
    assert_eq!(traced.end(), (Some(5), vec![]));
}

#[test]
fn the_first_ctrl_c_reaches_the_command_once_and_tracing_goes_on_to_its_end() {
    needs_root!();
    let mut terminal = Terminal::open();
    let mut traced = Traced::start(terminal.attach(run_telltale(&[])));
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    // Whatever blkkin wanted to pass on of the first it has done when this comes through.
    send(traced.blkkin.id(), SIGTERM);
    assert_eq!(traced.line(), "TERM");
    send(traced.command, SIGUSR1);
    let mut report = String::new();
    traced.blkkin.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(report.contains("lost"), "{report}");
    assert_eq!(traced.end(), (Some(5), vec![]));
}

#[test]
fn the_second_ctrl_c_leaves_at_once_and_kills_nothing() {
    needs_root!();
    let mut terminal = Terminal::open();
    let mut traced = Traced::start(terminal.attach(run_telltale(&[])));
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    // The command may have its signal before blkkin has its own, and two that wait are one: let it be handled.
    send(traced.blkkin.id(), SIGTERM);
    assert_eq!(traced.line(), "TERM");
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    assert_eq!(traced.blkkin.wait().unwrap().code(), Some(130));
    send(traced.command, SIGUSR1);
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

#[test]
fn the_first_signal_ends_a_trace_with_its_report() {
    needs_root!();
    let trace = Trace::start(&[]);
    send(trace.blkkin.id(), SIGINT);
    let output = trace.output();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("lost"), "{output:?}");
}

#[test]
fn the_second_signal_leaves_a_trace_at_once() {
    needs_root!();
    // A server that takes connections and never answers: there is something to wait for.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("zipkin=http://{}", server.local_addr().unwrap());
    let trace = Trace::start(&["--to", &to]);
    tempfile::tempfile().unwrap().write_all(b"a call to be seen").unwrap();
    send(trace.blkkin.id(), SIGINT);
    // Another one: of two that are equal the second is lost while the first waits.
    send(trace.blkkin.id(), SIGTERM);
    let output = trace.output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// A trace of the node.
struct Trace {
    blkkin: Child,
}

impl Trace {
    /// Starts it and waits until it listens to signals.
    fn start(options: &[&str]) -> Trace {
        let mut command = blkkin(&["trace"]);
        let blkkin = command.args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The last of those that it asks for.
        while !catches(blkkin.id(), SIGCHLD) {
            thread::yield_now();
        }
        Trace { blkkin }
    }

    fn output(self) -> Output {
        self.blkkin.wait_with_output().unwrap()
    }
}

/// Whether a process has a handler for a signal (proc_pid_status(5)).
fn catches(process: u32, signal: libc::c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    assert!(!status.contains("State:\tZ"), "it ended before it listened");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 != 0
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
        let word = self.said().next();
        word.expect("the command ended without a word")
    }

    /// All its words until it ends.
    fn rest(&mut self) -> Vec<String> {
        self.said().collect()
    }

    fn said(&mut self) -> impl Iterator<Item = String> {
        let lines = self.words.by_ref().lines().map(Result::unwrap);
        lines.filter_map(|line| line.strip_prefix(SAYS).map(str::to_owned))
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
            send(self.command, SIGUSR1);
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
