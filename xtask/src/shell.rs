//! Runs other programs. Every error contains the command, its exit status and the end of its
//! standard error.

use std::fmt;
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
pub(crate) use blkkin_guest_boot::programs::which;

/// Maximum number of lines of a failed command's standard error that the error repeats.
const ERROR_LINES_MAX: usize = 12;

/// Runs `command` with the output of this process. An exit status other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", CommandLine(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", CommandLine(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to standard output.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot start `{}`", CommandLine(command)))?;
    if !output.status.success() {
        let stderr = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", CommandLine(command), output.status, last_lines(&stderr));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Runs `command` like [`capture`] and discards its standard output.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// Returns whether this process is root: `/proc/self` belongs to the effective user.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|owner| owner.uid() == 0)
}

/// Prepares `program` with root privileges: unchanged if this process is root, with sudo otherwise.
pub(crate) fn privileged(program: &str, why: &str) -> Result<Command> {
    if is_root() {
        return Ok(Command::new(program));
    }
    let Some(sudo) = which("sudo") else {
        bail!("root is needed for {why}, and sudo is not installed: run this command as root");
    };
    println!("  asking for root by sudo: {why}");
    let mut command = Command::new(sudo);
    command.arg(program);
    Ok(command)
}

/// Displays a command as typed in a shell.
struct CommandLine<'a>(&'a Command);

impl fmt::Display for CommandLine<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.get_program().display())?;
        self.0.get_args().try_for_each(|argument| write!(f, " {}", argument.display()))
    }
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(ERROR_LINES_MAX)..].join("\n  ")
}

/// Gives this thread, and each process that the thread starts from now on, only CPU time that no other process wants
/// (SCHED_IDLE).
pub(crate) fn make_thread_idle() -> Result<()> {
    let thread = std::fs::read_link("/proc/thread-self").context("cannot read /proc/thread-self")?;
    let id = thread.file_name().context("/proc/thread-self has no thread id")?;
    run_quietly(Command::new("chrt").args(["--idle", "--pid", "0"]).arg(id))
}

/// Returns a command by which `program`, with these arguments before it, runs `command` in its place.
pub(crate) fn wrapped(program: &str, arguments: &[&str], command: &Command) -> Command {
    let mut wrapped = Command::new(program);
    wrapped.args(arguments).arg(command.get_program()).args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => wrapped.env(name, value),
            None => wrapped.env_remove(name),
        };
    }
    if let Some(folder) = command.get_current_dir() {
        wrapped.current_dir(folder);
    }
    wrapped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_names_command_and_stderr() {
        let error =
            capture(Command::new("sh").args(["-c", "echo no such disk >&2; exit 3"])).expect_err("exit 3");
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains("3") && text.ends_with("no such disk"), "{text}");
    }

    #[test]
    fn error_keeps_last_lines() {
        let lines: String = (0..40).map(|line| format!("line {line}\n")).collect();
        let tail = last_lines(&lines);
        assert!(tail.starts_with("line 28") && tail.ends_with("line 39"), "{tail}");
    }
}
