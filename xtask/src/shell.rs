//! Running other programs: each failure names the command, how it ended, and what it said.

use std::fmt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

/// Lines of a failed command's standard error that are repeated in the error: enough for its last message.
const ERROR_LINES_MAX: usize = 12;

/// Runs `command` with this process's own output; an exit status other than 0 is an error.
pub(crate) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().with_context(|| format!("cannot start `{}`", Shown(command)))?;
    if !status.success() {
        bail!("`{}` failed ({status})", Shown(command));
    }
    Ok(())
}

/// Runs `command` and returns what it wrote to standard output.
pub(crate) fn capture(command: &mut Command) -> Result<String> {
    command.stdin(Stdio::null());
    let output = command.output().with_context(|| format!("cannot start `{}`", Shown(command)))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("`{}` failed ({}): {}", Shown(command), output.status, last_lines(&said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// As [`capture`], where only success is wanted.
pub(crate) fn run_quietly(command: &mut Command) -> Result<()> {
    capture(command).map(drop)
}

/// The program's path, as a shell finds it; the folders of administration are searched too, because a user's
/// PATH often lacks them and the program itself is there.
pub(crate) fn which(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administration = ["/usr/sbin", "/sbin", "/usr/local/sbin"].map(PathBuf::from);
    std::env::split_paths(&path)
        .chain(administration)
        .map(|folder| folder.join(program))
        .find(|file| is_executable(file))
}

/// Whether this process is root. `/proc/self` belongs to the effective user.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|owner| owner.uid() == 0)
}

/// `program` with root's rights: as it is when we are root, by sudo otherwise.
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

/// A command as one would type it.
struct Shown<'a>(&'a Command);

impl fmt::Display for Shown<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.get_program().display())?;
        self.0.get_args().try_for_each(|argument| write!(f, " {}", argument.display()))
    }
}

fn is_executable(file: &Path) -> bool {
    std::fs::metadata(file).is_ok_and(|found| found.is_file() && found.permissions().mode() & 0o111 != 0)
}

fn last_lines(text: &str) -> String {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    lines[lines.len().saturating_sub(ERROR_LINES_MAX)..].join("\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_names_the_command_and_what_it_said() {
        let error =
            capture(Command::new("sh").args(["-c", "echo no such disk >&2; exit 3"])).expect_err("exit 3");
        let text = error.to_string();
        assert!(text.contains("sh -c") && text.contains("3") && text.ends_with("no such disk"), "{text}");
    }

    #[test]
    fn which_finds_a_shell_and_nothing_made_up() {
        assert!(which("sh").is_some());
        assert!(which("blkkin-no-such-program").is_none());
    }

    #[test]
    fn an_error_repeats_only_the_end() {
        let many: String = (0..40).map(|line| format!("line {line}\n")).collect();
        let kept = last_lines(&many);
        assert!(kept.starts_with("line 28") && kept.ends_with("line 39"), "{kept}");
    }
}
