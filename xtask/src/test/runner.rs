//! Runs a test program, prints its output as it arrives, and counts its tests.

use std::io::{BufRead, BufReader, IsTerminal, PipeReader};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::Report;
use super::programs::{TestProgram, Tier};
use super::stats::{ProgramStats, TestStats};
use crate::dist;
use crate::setup::{broker_jars, collector, java_jars, prometheus, schemas, server_jar, tracers};
use crate::shell;
use crate::timing::seconds;
use crate::workspace::Workspace;

/// Time limit of a test program; the longest known takes a tenth of it.
const PROGRAM_SECONDS_MAX: u32 = 1200;
/// Time limit of a test program at idle priority, which may get no CPU time until the guests have ended.
const IDLE_SECONDS_MAX: u32 = 7200;
/// Time limit for output after the program ended: a grandchild can keep the pipe open.
const REST_OF_OUTPUT: Duration = Duration::from_secs(1);
/// Interval of checks whether the program ended.
const POLL: Duration = Duration::from_millis(50);

/// Runs the tests of a program whose name contains `filter`, or all.
pub(super) fn run(
    workspace: &Workspace,
    program: &TestProgram,
    filter: Option<&str>,
    stats: &mut TestStats,
) -> Result<()> {
    match command(workspace, program, filter)? {
        Some(command) => run_counted(&program.name, command, stats),
        None => Ok(()),
    }
}

/// Like [`run`], and reports when it is over; `None` if no test is selected.
pub(super) fn run_concurrently(
    workspace: &Workspace,
    program: &TestProgram,
    filter: Option<&str>,
) -> Result<Option<Report>> {
    let Some(command) = command(workspace, program, filter)? else { return Ok(None) };
    let mut lines = Vec::new();
    let (count, status) = count(&program.name, command, |line| lines.push(line.to_owned()))?;
    Ok(Some(Box::new(move |stats| {
        println!("{}", lines.join("\n"));
        stats.add(count, status);
    })))
}

/// Returns the command that runs a program's tests; `None` if no test is selected.
fn command(workspace: &Workspace, program: &TestProgram, filter: Option<&str>) -> Result<Option<Command>> {
    // libtest's own filter, as it is given, or the names that contain it.
    let selected: Vec<&str> = match &program.module_tests {
        None => filter.into_iter().collect(),
        Some(tests) => {
            let matching = tests.iter().filter(|test| filter.is_none_or(|part| test.contains(part)));
            ["--exact"].into_iter().chain(matching.map(String::as_str)).collect()
        }
    };
    if selected == ["--exact"] {
        return Ok(None);
    }
    let mut command = match program.tier {
        Tier::System | Tier::Service | Tier::Waiting if shell::is_root() || can_become_root() => {
            shell::privileged("env", &format!("{}, which traces the kernel", program.name))?
        }
        // Without root, the tests that need it report that they are skipped.
        _ => Command::new("env"),
    };
    command.arg(format!("CARGO_MANIFEST_DIR={}", program.folder.display()));
    command.arg(format!("BLKKIN_ZIPKIN_JAR={}", server_jar(workspace).display()));
    command.arg(format!("BLKKIN_KAFKA_JARS={}", broker_jars(workspace).display()));
    command.arg(format!("BLKKIN_JAVA_JARS={}", java_jars(workspace).display()));
    command.arg(format!("BLKKIN_OTELCOL={}", collector(workspace).display()));
    command.arg(format!("BLKKIN_PROMETHEUS={}", prometheus(workspace).display()));
    command.arg(format!("BLKKIN_SCHEMAS={}", schemas(workspace).display()));
    command.arg(format!("BLKKIN_TRACERS={}", tracers(workspace).display()));
    command.arg(format!("BLKKIN_STATIC={}", dist::test_binary(workspace).display()));
    let seconds_max = if program.tier == Tier::Idle { IDLE_SECONDS_MAX } else { PROGRAM_SECONDS_MAX };
    // In the foreground, so that Ctrl-C reaches the test too.
    command.args(["timeout", "--foreground", "--kill-after=10", &seconds_max.to_string()]);
    command.arg(&program.executable).arg("--show-output").args(selected);
    if matches!(program.tier, Tier::System | Tier::Service | Tier::Waiting) {
        command.arg("--test-threads=1");
    }
    // Relative paths in a test start at its crate, as with cargo.
    command.current_dir(&program.folder);
    Ok(Some(command))
}

/// Runs the examples in the documentation, which only cargo can build.
pub(super) fn run_documentation(
    workspace: &Workspace,
    filter: Option<&str>,
    stats: &mut TestStats,
) -> Result<()> {
    let mut command = workspace.cargo();
    command.args(["test", "--doc", "--workspace", "--no-fail-fast", "--", "--show-output"]).args(filter);
    run_counted("documentation", command, stats)
}

fn run_counted(name: &str, command: Command, stats: &mut TestStats) -> Result<()> {
    let (count, status) = count(name, command, |line| println!("{line}"))?;
    stats.add(count, status);
    Ok(())
}

/// Runs a program, counts its tests, and passes each line to print to `print`.
fn count(name: &str, command: Command, mut print: impl FnMut(&str)) -> Result<(ProgramStats, ExitStatus)> {
    print(&format!("\n== {name}"));
    let mut count = ProgramStats::new(name);
    let start = Instant::now();
    let status = each_line(command, |line| {
        if count.line(line) {
            print(line);
        }
    })?;
    print(&format!("{name}: {}", seconds(start.elapsed())));
    Ok((count, status))
}

/// Runs `command`, passes each line of its output to `line`, and returns its exit status.
pub(crate) fn each_line(mut command: Command, line: impl FnMut(&str)) -> Result<ExitStatus> {
    let (reader, writer) = std::io::pipe().context("cannot make a pipe")?;
    let second = writer.try_clone().context("cannot make a pipe")?;
    let mut child =
        command.stdin(Stdio::null()).stdout(writer).stderr(second).spawn().context("cannot start")?;
    // The command owns the writing ends; the reader sees the end of the output only after they are
    // closed.
    drop(command);
    for_each_line(&mut child, reader, line)?;
    child.wait().context("cannot wait for the test program")
}

/// Calls `line` with each line until the output ends, or until [`REST_OF_OUTPUT`] after the program
/// ended.
fn for_each_line(child: &mut Child, reader: PipeReader, mut line: impl FnMut(&str)) -> Result<()> {
    let lines = lines_of(reader);
    let mut ended_at = None;
    loop {
        match lines.recv_timeout(POLL) {
            Ok(text) => line(&text),
            Err(RecvTimeoutError::Disconnected) => return Ok(()),
            Err(RecvTimeoutError::Timeout)
                if ended_at.is_some_and(|at: Instant| at.elapsed() > REST_OF_OUTPUT) =>
            {
                return Ok(());
            }
            Err(RecvTimeoutError::Timeout) => {}
        }
        if ended_at.is_none() && child.try_wait().context("cannot wait for the test program")?.is_some() {
            ended_at = Some(Instant::now());
        }
    }
}

/// Reads lines in a thread. The channel holds 1024 lines: a test that prints faster than the
/// terminal is slowed down.
fn lines_of(reader: PipeReader) -> Receiver<String> {
    let (sender, receiver) = mpsc::sync_channel(1024);
    std::thread::spawn(move || {
        let mut reader = BufReader::new(reader);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line).is_ok_and(|length| length > 0) {
            let text = String::from_utf8_lossy(&line).trim_end().to_owned();
            line.clear();
            if sender.send(text).is_err() {
                return;
            }
        }
    });
    receiver
}

/// Checks whether sudo works without a password, or a terminal is there to enter it.
fn can_become_root() -> bool {
    let sudo = || Command::new("sudo").args(["-n", "true"]).stderr(Stdio::null()).status();
    shell::which("sudo").is_some()
        && (std::io::stdin().is_terminal() || sudo().is_ok_and(|status| status.success()))
}
