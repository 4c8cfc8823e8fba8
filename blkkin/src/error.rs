//! Errors for the user: what failed, why, and a remedy.

use std::any::Any;
use std::fmt;
use std::io;
use std::process::ExitCode;

use blkkin_tracer::TracerError;
use tracing::error;

use crate::log;

/// Exit status of blkkin itself; CMD's own statuses are passed on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// Success.
    Success,
    /// A requested part failed: a destination, a check.
    Failed,
    /// The command line is invalid.
    Usage,
    /// Tracing could not start (env(1), timeout(1)).
    CannotTrace,
    /// CMD was found and cannot be executed (env(1)).
    NotExecutable,
    /// CMD was not found (env(1)).
    NotFound,
    /// The user left by a second Ctrl-C: 128 + SIGINT, as shells have it.
    Interrupted,
}

impl Status {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(self.number())
    }

    pub(crate) fn number(self) -> u8 {
        match self {
            Status::Success => 0,
            Status::Failed => 1,
            Status::Usage => 2,
            Status::CannotTrace => 125,
            Status::NotExecutable => 126,
            Status::NotFound => 127,
            Status::Interrupted => 130,
        }
    }
}

/// An error, printed as one block of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CliError {
    /// The failed action, with the name of its object.
    pub(crate) what: String,
    /// The reason, from the system or the violated rule.
    pub(crate) why: String,
    /// The suggested remedy.
    pub(crate) remedy: String,
    /// The exit status.
    pub(crate) status: Status,
}

impl CliError {
    /// Creates an error for an invalid argument.
    pub(crate) fn usage(what: impl Into<String>, why: impl fmt::Display, remedy: impl Into<String>) -> Self {
        CliError { what: what.into(), why: why.to_string(), remedy: remedy.into(), status: Status::Usage }
    }

    /// Creates an error that prevents tracing.
    pub(crate) fn cannot_trace(
        what: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        CliError { status: Status::CannotTrace, ..CliError::usage(what, why, remedy) }
    }

    /// Maps the status to 125 before CMD runs, since statuses below 125 belong to CMD.
    pub(crate) fn before_command(self) -> Self {
        match self.status {
            Status::Usage | Status::Failed => CliError { status: Status::CannotTrace, ..self },
            _ => self,
        }
    }

    /// Prints the error to stderr and returns the exit code.
    #[allow(clippy::print_stderr, reason = "this is where errors are shown")]
    pub(crate) fn print(&self) -> ExitCode {
        if log::is_json() {
            error!(why = self.why, remedy = self.remedy, "{}", self.what);
        } else {
            eprintln!("{self}");
        }
        self.status.code()
    }
}

impl fmt::Display for CliError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blkkin: {}", self.what)?;
        paragraph(f, "why", &self.why)?;
        paragraph(f, "try", &self.remedy)
    }
}

/// Writes a labelled paragraph; further lines are indented.
fn paragraph(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    for (number, line) in text.trim().lines().enumerate() {
        match number {
            0 => write!(f, "\n  {label}: {line}")?,
            _ => write!(f, "\n       {line}")?,
        }
    }
    Ok(())
}

impl From<TracerError> for CliError {
    fn from(error: TracerError) -> CliError {
        CliError::cannot_trace("cannot trace", &error, error.remedy())
    }
}

/// Converts the payload of a thread's panic.
pub(crate) fn panicked(part: &str, panic: &(dyn Any + Send)) -> CliError {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned()).unwrap_or_default();
    CliError {
        status: Status::Failed,
        ..CliError::usage(
            format!("{part} panicked, and the trace is incomplete"),
            text,
            "report this with the command line: it is an error in blkkin",
        )
    }
}

/// Converts the error of a thread that the system refused to create.
pub(crate) fn cannot_spawn(what: &str, error: &io::Error) -> CliError {
    CliError::cannot_trace(what, error, "a higher limit of threads (ulimit -u, the cgroup's pids.max)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn displays_problem_reason_and_remedy() {
        let error = CliError::usage("unknown device sdx", "not in\n/sys/class/block", "--device sda");
        assert_eq!(
            error.to_string(),
            "blkkin: unknown device sdx\n  why: not in\n       /sys/class/block\n  try: --device sda"
        );
    }

    #[test]
    fn statuses_below_125_belong_to_the_command() {
        let error = CliError::usage("", "", "");
        assert_eq!(error.before_command().status, Status::CannotTrace);
        let error = CliError { status: Status::NotFound, ..CliError::usage("", "", "") };
        assert_eq!(error.before_command().status, Status::NotFound);
    }
}
