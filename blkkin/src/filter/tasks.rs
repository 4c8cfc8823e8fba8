//! `--pid`, `--tid`, `--tree`, `--comm`: tasks by number and by name.

use std::path::Path;

use blkkin_wire::ids::{Pid, Tid};

use crate::error::CliError;

/// Maximum length of a task's name in bytes: TASK_COMM_LEN (include/linux/sched.h) minus the NUL.
const COMM_LEN_MAX: usize = 15;

/// Parses the id of a running process.
pub(crate) fn pid(option: &str, value: &str) -> Result<Pid, CliError> {
    number(option, value).map(Pid)
}

/// Parses the id of a running thread. /proc resolves a thread id although it does not list it.
pub(crate) fn tid(value: &str) -> Result<Tid, CliError> {
    number("--tid", value).map(Tid)
}

/// Parses a task's name.
pub(crate) fn comm(value: &str) -> Result<String, CliError> {
    if value.is_empty() {
        return Err(CliError::usage("an empty --comm", "every task has a name", "leave --comm out"));
    }
    if value.len() > COMM_LEN_MAX {
        let mut end = COMM_LEN_MAX;
        while !value.is_char_boundary(end) {
            end -= 1;
        }
        return Err(CliError::usage(
            format!("no task has the name `{value}`"),
            format!("the kernel truncates task names to {COMM_LEN_MAX} bytes"),
            format!("--comm '{}'", &value[..end]),
        ));
    }
    Ok(value.to_owned())
}

fn number(option: &str, value: &str) -> Result<u32, CliError> {
    let number: u32 = value.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
        let remedy =
            format!("--comm '{value}' for tasks of that name, or {option} with a number that ps shows");
        CliError::usage(format!("bad number `{value}` for {option}"), "it is not a positive number", remedy)
    })?;
    if !Path::new("/proc").join(value).exists() {
        let remedy = "a number that ps -eL shows, or --comm for future tasks";
        return Err(CliError::usage(format!("no task {number} for {option}"), "it is not running", remedy));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn task_must_be_running() {
        let own = std::process::id();
        assert_eq!(pid("--pid", &own.to_string()).unwrap(), Pid(own));
        for bad in ["0", "-1", "x", "", "4294967295", "1/../1"] {
            assert!(tid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn comm_is_at_most_as_long_as_the_kernel_stores() {
        assert_eq!(comm("postgres").unwrap(), "postgres");
        assert_eq!(comm("a-name-of-16-byte").unwrap_err().remedy, "--comm 'a-name-of-16-by'");
        assert_eq!(comm("fourteen-bytesä").unwrap_err().remedy, "--comm 'fourteen-bytes'");
        assert!(comm("").is_err());
    }
}
