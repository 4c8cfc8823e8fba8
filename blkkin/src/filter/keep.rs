//! `--keep`: rules by which operations are kept when they end, though head sampling does not draw them.

use blkkin_tracer::keep::{KeepRule, KeptOperations};
use blkkin_wire::async_io;
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::syscalls::SyscallId;

use crate::cli::{FilterArgs, units};
use crate::error::CliError;
use crate::suggest::suggest;

/// Resolves the rules, and refuses filters that they contradict.
pub(crate) fn rules(args: &FilterArgs) -> Result<Vec<KeepRule>, CliError> {
    let filters = [("--slower-than", args.slower_than.is_some()), ("--errors-only", args.errors_only)];
    if let Some((option, _)) = filters.into_iter().find(|(_, given)| *given && !args.keep.is_empty()) {
        return Err(CliError::usage(
            format!("--keep does not work with {option}"),
            format!("{option} leaves out everything else, and --keep adds to what --sample records"),
            "--keep 10ms,failed",
        ));
    }
    args.keep.iter().map(|rule| parse(rule.trim())).collect()
}

/// Refuses rules without head sampling, which records everything.
pub(super) fn check(keep: &[KeepRule], sampling: Option<HeadSampling>) -> Result<(), CliError> {
    if keep.is_empty() || sampling.is_some() {
        return Ok(());
    }
    Err(CliError::usage(
        "--keep without --sample or --budget",
        "each operation is recorded, so there is nothing to add",
        "--sample 1/1024 --keep 10ms, or --slower-than 10ms to see only those",
    ))
}

/// Parses `failed`, `TIME` or `OPERATION>TIME`.
fn parse(rule: &str) -> Result<KeepRule, CliError> {
    if rule == "failed" {
        return Ok(KeepRule::Failed);
    }
    let (operations, time) = match rule.split_once('>') {
        Some((name, time)) => (KeptOperations::named(name).ok_or_else(|| unknown(name, time))?, time),
        None if rule.starts_with(|first: char| first.is_ascii_digit() || first == '.') => {
            (KeptOperations::All, rule)
        }
        None => {
            return Err(CliError::usage(
                format!("bad rule `{rule}` for --keep"),
                "a rule is a time, an operation with a time, or `failed`",
                "--keep '10ms,fsync>20ms,failed'",
            ));
        }
    };
    Ok(KeepRule::SlowerThan(operations, units::duration("--keep", time)?))
}

fn unknown(name: &str, time: &str) -> CliError {
    let calls = SyscallId::all().map(SyscallId::name);
    let remedy = match suggest(name, calls.chain(async_io::names()).chain(["read", "write", "sync"])) {
        Some(near) => format!("--keep '{near}>{time}'"),
        None => format!("--keep 'read>{time}'; read, write and sync mean all operations of that kind"),
    };
    CliError::usage(
        format!("unknown operation `{name}` for --keep"),
        "blkkin traces none of that name",
        remedy,
    )
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use blkkin_wire::clock::DurationNs;

    #[test]
    fn rules_are_parsed() {
        let slower = |operations, ns| KeepRule::SlowerThan(operations, DurationNs(ns));
        assert_eq!(parse("failed").unwrap(), KeepRule::Failed);
        assert_eq!(parse("10ms").unwrap(), slower(KeptOperations::All, 10_000_000));
        assert_eq!(parse(".5s").unwrap(), slower(KeptOperations::All, 500_000_000));
        assert_eq!(parse("read>2us").unwrap(), slower(KeptOperations::Reads, 2_000));
        let named = KeptOperations::named("io_uring read").unwrap();
        assert_eq!(parse("io_uring read>1ms").unwrap(), slower(named, 1_000_000));
        assert_eq!(parse("fsnyc>1ms").unwrap_err().remedy, "--keep 'fsync>1ms'");
        assert!(parse("connect>1ms").unwrap_err().remedy.contains("all operations of that kind"));
        for bad in [
            "",
            "slow",
            "fsync",
            ">",
            "fsync>",
            "fsync>10",
            "10",
            "0ms",
            "-1ms",
            "fsync>1ms>2ms",
            "fsync<1ms",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_add_to_a_sample() {
        let args = |keep: &str| FilterArgs { keep: vec![keep.to_owned()], ..FilterArgs::default() };
        let kept = rules(&args("1ms")).unwrap();
        assert!(check(&kept, HeadSampling::from_one_in(2)).is_ok() && check(&[], None).is_ok());
        assert!(check(&kept, None).unwrap_err().remedy.contains("--slower-than"));
        assert!(
            rules(&FilterArgs { errors_only: true, ..args("1ms") })
                .unwrap_err()
                .what
                .contains("--errors-only")
        );
    }
}
