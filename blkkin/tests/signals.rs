//! Signals and exit status: the command gets each signal once, and its exit status is passed on.
//! These tests run the tracer and need root.
//!
//! *Input*: this test binary itself as the command, in another role ([`signal_printer`]): it prints
//! each signal that it gets. No test depends on timing, because it continues when the signal is
//! printed. (A shell is no replacement: between fork and exec its children still have its traps,
//! and would swallow signals.)

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::thread;

use signal_hook::consts::{SIGCHLD, SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;

use crate::common;
use crate::common::blkkin;
use crate::support::needs;

/// Environment variable that makes this process the command.
const ROLE: &str = "BLKKIN_TEST_SIGNAL_PRINTER";
/// Prefix of the command's own lines; all others are the test harness's.
const PREFIX: &str = "signal_printer: ";

/// Command that the tests trace, and no test. It prints its process id and then each signal, exits
/// with 5 on SIGUSR1, and ignores the terminal's hangup.
#[test]
fn signal_printer() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    let mut signals = Signals::new([SIGHUP, SIGINT, SIGTERM, SIGUSR1]).unwrap();
    print_line(&std::process::id().to_string());
    for signal in signals.forever() {
        match signal {
            SIGINT => print_line("INT"),
            SIGTERM => print_line("TERM"),
            SIGUSR1 => std::process::exit(5),
            _ => {}
        }
    }
}

fn print_line(word: &str) {
    // One write, and on a separate line after any output of the harness.
    std::io::stdout().write_all(format!("\n{PREFIX}{word}\n").as_bytes()).unwrap();
    std::io::stdout().flush().unwrap();
}

/// Builds a command line of blkkin that traces the signal printer.
fn run_signal_printer(options: &[&str]) -> Command {
    let own = std::env::current_exe().unwrap();
    let mut command = blkkin(&["run"]);
    command
        .args(options)
        .arg("--")
        .arg(own)
        .args(["--exact", "signals::signal_printer", "--nocapture"])
        .env(ROLE, "yes");
    command
}

#[test]
fn exit_codes_and_fatal_signals_are_passed_on() {
    needs!();
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
fn stdin_and_stdout_are_the_commands() {
    needs!();
    let mut cat = blkkin(&["run", "--", "cat"]);
    let mut child = cat.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"words\n").unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.stdout, b"words\n");
    assert_eq!(output.status.code(), Some(0));
    assert!(!output.stderr.is_empty(), "the report");
}

#[test]
fn a_signal_to_blkkin_alone_reaches_the_command_once() {
    needs!();
    let mut traced = Traced::start(run_signal_printer(&["--no-report"]));
    send(traced.blkkin.id(), SIGTERM);
    assert_eq!(traced.line(), "TERM");
    send(traced.blkkin.id(), SIGINT);
    assert_eq!(traced.line(), "INT");
    send(traced.command, SIGUSR1);
    assert_eq!(traced.end(), (Some(5), vec![]));
}

#[test]
fn the_first_ctrl_c_reaches_the_command_once_and_tracing_continues() {
    needs!();
    let mut terminal = Terminal::open();
    let mut traced = Traced::start(terminal.attach(run_signal_printer(&[])));
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    // When this signal arrives, blkkin has already handled the first.
    send(traced.blkkin.id(), SIGTERM);
    assert_eq!(traced.line(), "TERM");
    send(traced.command, SIGUSR1);
    let mut report = String::new();
    traced.blkkin.stderr.take().unwrap().read_to_string(&mut report).unwrap();
    assert!(report.contains("lost"), "{report}");
    assert_eq!(traced.end(), (Some(5), vec![]));
}

#[test]
fn the_second_ctrl_c_exits_at_once_and_kills_nothing() {
    needs!();
    let mut terminal = Terminal::open();
    let mut traced = Traced::start(terminal.attach(run_signal_printer(&[])));
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    // The command may get its signal before blkkin does, and two equal pending signals become one:
    // wait until it is handled.
    send(traced.blkkin.id(), SIGTERM);
    assert_eq!(traced.line(), "TERM");
    terminal.press(CTRL_C);
    assert_eq!(traced.line(), "INT");
    assert_eq!(traced.blkkin.wait().unwrap().code(), Some(130));
    send(traced.command, SIGUSR1);
    // The command kept running and exits by SIGUSR1: its stdout closes without another line.
    assert_eq!(traced.rest(), Vec::<String>::new());
}

#[test]
fn trace_ends_after_the_given_time() {
    needs!();
    let run = common::run(&["trace", "--for", "1ms"]).expect_code(0);
    assert!(run.stdout.contains("lost"), "{run:?}");
}

#[test]
fn the_first_signal_ends_a_trace_with_its_report() {
    needs!();
    let trace = Trace::start(&[]);
    send(trace.blkkin.id(), SIGINT);
    let output = trace.output();
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stdout).contains("lost"), "{output:?}");
}

#[test]
fn the_second_signal_ends_a_trace_at_once() {
    needs!();
    // A server that accepts connections and never answers, so that blkkin has to wait.
    let server = TcpListener::bind("127.0.0.1:0").unwrap();
    let to = format!("zipkin=http://{}", server.local_addr().unwrap());
    let trace = Trace::start(&["--to", &to]);
    tempfile::tempfile().unwrap().write_all(b"a call to be seen").unwrap();
    send(trace.blkkin.id(), SIGINT);
    // A different signal: of two equal ones the second is lost while the first is pending.
    send(trace.blkkin.id(), SIGTERM);
    let output = trace.output();
    assert_eq!(output.status.code(), Some(130), "{output:?}");
    assert!(output.stdout.is_empty(), "{output:?}");
}

/// A run of `blkkin trace`.
struct Trace {
    blkkin: Child,
}

impl Trace {
    /// Starts `blkkin trace` and waits until it handles signals.
    fn start(options: &[&str]) -> Trace {
        let mut command = blkkin(&["trace"]);
        let blkkin = command.args(options).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // The last signal for which it installs a handler.
        while !catches(blkkin.id(), SIGCHLD) {
            thread::yield_now();
        }
        Trace { blkkin }
    }

    fn output(self) -> Output {
        self.blkkin.wait_with_output().unwrap()
    }
}

/// Returns whether a process has a handler for a signal (proc_pid_status(5)).
fn catches(process: u32, signal: libc::c_int) -> bool {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    assert!(!status.contains("State:\tZ"), "it ended before it handled signals");
    let mask = status.lines().find_map(|line| line.strip_prefix("SigCgt:")).unwrap();
    u64::from_str_radix(mask.trim(), 16).unwrap() >> (signal - 1) & 1 != 0
}

/// ETX: the terminal's interrupt character (stty intr).
const CTRL_C: &[u8] = b"\x03";

/// `blkkin run` with a command that prints lines.
struct Traced {
    blkkin: Child,
    command: u32,
    stdout: BufReader<ChildStdout>,
}

impl Traced {
    /// Starts blkkin and waits for the command's first line.
    fn start(mut command: Command) -> Traced {
        let mut blkkin = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(blkkin.stdout.take().unwrap());
        let mut traced = Traced { blkkin, command: 0, stdout };
        traced.command = traced.line().parse().unwrap();
        traced
    }

    /// Returns the command's next line.
    fn line(&mut self) -> String {
        let word = self.lines().next();
        word.expect("the command ended without a word")
    }

    /// Returns all lines of the command until it exits.
    fn rest(&mut self) -> Vec<String> {
        self.lines().collect()
    }

    fn lines(&mut self) -> impl Iterator<Item = String> {
        let lines = self.stdout.by_ref().lines().map(Result::unwrap);
        lines.filter_map(|line| line.strip_prefix(PREFIX).map(str::to_owned))
    }

    /// Returns blkkin's exit code and the command's remaining lines.
    fn end(&mut self) -> (Option<i32>, Vec<String>) {
        let rest = self.rest();
        (self.blkkin.wait().unwrap().code(), rest)
    }
}

impl Drop for Traced {
    fn drop(&mut self) {
        // Nothing is left to do after a passed test. After a failure both are stopped; blkkin has
        // not been waited for if it still runs, so its pid is still valid.
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

/// A pseudo-terminal with its keyboard side.
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
        // SAFETY: the call has just opened both, and they have no other owner.
        unsafe { Terminal { keyboard: File::from_raw_fd(master), screen: OwnedFd::from_raw_fd(slave) } }
    }

    /// Makes this terminal the controlling terminal of `command`, in a new session.
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
