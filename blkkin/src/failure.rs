//! What a person reads when something cannot be done: what failed, why, and the remedy.

use std::fmt;
use std::process::ExitCode;

/// How blkkin itself ends; CMD's own statuses are passed on as they are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Status {
    /// All went well.
    Success,
    /// Something asked for did not work: a destination, a check.
    Failed,
    /// The command line makes no sense.
    Usage,
    /// Tracing could not start (env(1), timeout(1)).
    CannotTrace,
    /// CMD was found and cannot be executed (env(1)).
    NotExecutable,
    /// CMD was not found (env(1)).
    NotFound,
    /// The person left by a second Ctrl-C: 128 + SIGINT, as shells have it.
    Interrupted,
}

impl Status {
    pub(crate) fn code(self) -> ExitCode {
        ExitCode::from(match self {
            Status::Success => 0,
            Status::Failed => 1,
            Status::Usage => 2,
            Status::CannotTrace => 125,
            Status::NotExecutable => 126,
            Status::NotFound => 127,
            Status::Interrupted => 130,
        })
    }
}

/// One error, as one block of text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure {
    /// What could not be done, with the name of the thing.
    pub(crate) what: String,
    /// The reason, as the system or the rule has it.
    pub(crate) why: String,
    /// What to do about it.
    pub(crate) remedy: String,
    /// How blkkin ends.
    pub(crate) status: Status,
}

impl Failure {
    /// A word of the command line that means nothing here.
    pub(crate) fn usage(what: impl Into<String>, why: impl fmt::Display, remedy: impl Into<String>) -> Self {
        Failure { what: what.into(), why: why.to_string(), remedy: remedy.into(), status: Status::Usage }
    }

    /// Tracing cannot start.
    pub(crate) fn cannot_trace(
        what: impl Into<String>,
        why: impl fmt::Display,
        remedy: impl Into<String>,
    ) -> Self {
        Failure { status: Status::CannotTrace, ..Failure::usage(what, why, remedy) }
    }

    /// The same failure where statuses below 125 belong to CMD.
    pub(crate) fn before_command(self) -> Self {
        match self.status {
            Status::Usage | Status::Failed => Failure { status: Status::CannotTrace, ..self },
            _ => self,
        }
    }

    /// Says it on stderr.
    #[allow(clippy::print_stderr, reason = "this is where errors are shown")]
    pub(crate) fn print(&self) -> ExitCode {
        eprintln!("{self}");
        self.status.code()
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "blkkin: {}", self.what)?;
        paragraph(f, "why", &self.why)?;
        paragraph(f, "try", &self.remedy)
    }
}

/// A labelled line; further lines of the text are indented below it.
fn paragraph(f: &mut fmt::Formatter<'_>, label: &str, text: &str) -> fmt::Result {
    for (number, line) in text.trim().lines().enumerate() {
        match number {
            0 => write!(f, "\n  {label}: {line}")?,
            _ => write!(f, "\n       {line}")?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_one_block_of_what_why_and_remedy() {
        let failure = Failure::usage("unknown device sdx", "not in\n/sys/class/block", "--device sda");
        assert_eq!(
            failure.to_string(),
            "blkkin: unknown device sdx\n  why: not in\n       /sys/class/block\n  try: --device sda"
        );
    }

    #[test]
    fn statuses_below_125_are_commands_own() {
        let failure = Failure::usage("", "", "");
        assert_eq!(failure.before_command().status, Status::CannotTrace);
        let failure = Failure { status: Status::NotFound, ..Failure::usage("", "", "") };
        assert_eq!(failure.before_command().status, Status::NotFound);
    }
}
