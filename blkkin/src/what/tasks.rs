//! `--pid`, `--tid`, `--tree`, `--comm`: tasks by number and by name.

use std::path::Path;

use blkkin_wire::ids::{Pid, Tid};

use crate::failure::Failure;

/// Bytes of a task's name: TASK_COMM_LEN (include/linux/sched.h) less the NUL.
const COMM_LEN_MAX: usize = 15;

/// A process that is there.
pub(crate) fn pid(option: &str, word: &str) -> Result<Pid, Failure> {
    number(option, word).map(Pid)
}

/// A thread that is there. /proc finds one by its number though it does not list it.
pub(crate) fn tid(word: &str) -> Result<Tid, Failure> {
    number("--tid", word).map(Tid)
}

/// A name that a task can have.
pub(crate) fn comm(word: &str) -> Result<String, Failure> {
    if word.is_empty() {
        return Err(Failure::usage("an empty --comm", "every task has a name", "leave --comm out"));
    }
    if word.len() > COMM_LEN_MAX {
        let mut end = COMM_LEN_MAX;
        while !word.is_char_boundary(end) {
            end -= 1;
        }
        return Err(Failure::usage(
            format!("no task is called `{word}`"),
            format!("the kernel cuts names of tasks to {COMM_LEN_MAX} bytes"),
            format!("--comm '{}'", &word[..end]),
        ));
    }
    Ok(word.to_owned())
}

fn number(option: &str, word: &str) -> Result<u32, Failure> {
    let number: u32 = word.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
        let remedy =
            format!("--comm '{word}' for tasks of that name, or {option} with a number that ps shows");
        Failure::usage(format!("bad number `{word}` for {option}"), "it is not a positive number", remedy)
    })?;
    if !Path::new("/proc").join(word).exists() {
        let remedy = "a number that ps -eL shows, or --comm for tasks that are still to come";
        return Err(Failure::usage(format!("no task {number} for {option}"), "it is not running", remedy));
    }
    Ok(number)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_task_must_be_there() {
        let own = std::process::id();
        assert_eq!(pid("--pid", &own.to_string()).unwrap(), Pid(own));
        for bad in ["0", "-1", "x", "", "4294967295", "1/../1"] {
            assert!(tid(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_name_is_as_long_as_the_kernel_keeps_it() {
        assert_eq!(comm("postgres").unwrap(), "postgres");
        assert_eq!(comm("a-name-of-16-byte").unwrap_err().remedy, "--comm 'a-name-of-16-by'");
        assert_eq!(comm("fourteen-bytesä").unwrap_err().remedy, "--comm 'fourteen-bytes'");
        assert!(comm("").is_err());
    }
}
