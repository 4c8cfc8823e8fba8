//! `--keep`: rules by which operations are kept when they end, though head sampling does not draw them.

use std::collections::HashSet;

use blkkin_tracer::enrich::devices::disk_of_partition;
use blkkin_tracer::selection::keep::{DISKS_MAX, KeepRule, KeptOperations, PERCENTILES_MAX, Percentile};
use blkkin_wire::async_io;
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::ids::DeviceId;
use blkkin_wire::syscalls::SyscallId;
use tracing::warn;

use crate::cli::{FilterArgs, units};
use crate::error::CliError;
use crate::suggest::suggest;

use super::devices;

/// Disks that rules may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Disks {
    /// Disks of this machine.
    Present,
    /// Disks of any machine: a rule about one that this machine does not have has no effect
    /// ([`without_effect`]). Machines of a fleet have different disks, and a disk may be removed.
    Any,
    /// Disks of other machines: a rule about one is checked, and not resolved.
    Elsewhere,
}

/// Resolves the rules, and refuses filters that they contradict.
pub(crate) fn rules(args: &FilterArgs, disks: Disks) -> Result<Vec<KeepRule>, CliError> {
    let filters = [("--slower-than", args.slower_than.is_some()), ("--errors-only", args.errors_only)];
    if let Some((option, _)) = filters.into_iter().find(|(_, given)| *given && !args.keep.is_empty()) {
        return Err(CliError::usage(
            format!("--keep does not work with {option}"),
            format!("{option} drops everything else, and --keep adds to what --sample records"),
            "--keep 10ms,failed",
        ));
    }
    let parse = |rule: &String| parse(rule.trim(), |name| disks.resolve(name)).transpose();
    let rules = args.keep.iter().filter_map(parse).collect::<Result<Vec<_>, _>>()?;
    let percentiles = rules.iter().filter(|rule| matches!(rule, KeepRule::SlowerThanMost(..))).count();
    if percentiles > PERCENTILES_MAX {
        return Err(CliError::usage(
            format!("{percentiles} rules with a percentile for --keep"),
            format!("the kernel side compares operations for at most {PERCENTILES_MAX} rules"),
            "--keep 'read>p99.9,write>p99.9,sync>p99.9'; read, write and sync mean all operations of that kind",
        ));
    }
    let of_rules: HashSet<DeviceId> = rules.iter().filter_map(KeepRule::disk).collect();
    if of_rules.len() > DISKS_MAX {
        return Err(CliError::usage(
            format!("rules about {} disks for --keep", of_rules.len()),
            format!("the kernel side has times for at most {DISKS_MAX} disks"),
            "--keep '10ms,read@nvme0n1>2ms'; a rule without a disk is about all of them",
        ));
    }
    if disks == Disks::Present && !of_rules.is_empty() {
        let recorded = args.device.iter().map(|name| super::device(name)).collect::<Result<Vec<_>, _>>()?;
        let of_disk = |device: &DeviceId| disk_of_partition(*device).unwrap_or(*device);
        let is_recorded = |disk: &&DeviceId| recorded.iter().any(|device| of_disk(device) == **disk);
        if !recorded.is_empty() && !of_rules.iter().all(|disk| is_recorded(&disk)) {
            return Err(CliError::usage(
                "a rule of --keep is about a disk that --device drops",
                "I/O at other devices is not recorded",
                "--device with that disk too",
            ));
        }
    }
    Ok(rules)
}

impl Disks {
    /// Resolves the disk of a rule; none if the rule has no effect here.
    fn resolve(self, name: &str) -> Result<Option<DeviceId>, CliError> {
        if self == Disks::Elsewhere || (self == Disks::Any && devices::is_absent(name)) {
            return Ok(None);
        }
        super::disk(name, |name| format!("--keep 'read@{name}>2ms'")).map(Some)
    }
}

/// Returns the rules about disks that this machine does not have.
pub(crate) fn without_effect(rules: &[String]) -> Vec<&str> {
    let is_about_absent = |rule: &&str| {
        let disk = rule.split_once('>').and_then(|(operations, _)| Some(operations.split_once('@')?.1));
        disk.is_some_and(devices::is_absent)
    };
    rules.iter().map(|rule| rule.trim()).filter(is_about_absent).collect()
}

/// Logs the rules about disks that this machine does not have.
pub(crate) fn warn_without_effect(rules: &[String]) {
    for rule in without_effect(rules) {
        warn!("the rule {rule} of --keep has no effect: this machine has no such disk");
    }
}

/// Refuses rules without head sampling, which records everything.
pub(super) fn check(keeps: bool, sampling: Option<HeadSampling>) -> Result<(), CliError> {
    if !keeps || sampling.is_some() {
        return Ok(());
    }
    Err(CliError::usage(
        "--keep without --sample or --budget",
        "each operation is recorded, so there is nothing to add",
        "--sample 1/1024 --keep 10ms, or --slower-than 10ms to see only those",
    ))
}

/// Parses `failed`, `LIMIT`, `OPERATION>LIMIT`, `OPERATION@DISK>TIME` or `@DISK>TIME`, of which LIMIT is a time or a
/// percentile. `disk` resolves a disk. None if the rule has no effect here.
fn parse(
    rule: &str,
    disk: impl Fn(&str) -> Result<Option<DeviceId>, CliError>,
) -> Result<Option<KeepRule>, CliError> {
    if rule == "failed" {
        return Ok(Some(KeepRule::Failed));
    }
    let is_number = |text: &str| text.starts_with(|first: char| first.is_ascii_digit() || first == '.');
    let (operations, limit) = match rule.split_once('>') {
        Some((name, limit)) => match name.split_once('@') {
            Some((name, at)) => return at_disk(rule, [name, at, limit], disk),
            None => (named(name, "", limit)?, limit),
        },
        None if is_number(rule.strip_prefix('p').unwrap_or(rule)) => (KeptOperations::All, rule),
        None => {
            return Err(CliError::usage(
                format!("bad rule `{rule}` for --keep"),
                "a rule is a time, a percentile, an operation with one of these, one at a disk with a time, or `failed`",
                "--keep '10ms,fsync>20ms,read@sda>2ms,read>p99.9,failed'",
            ));
        }
    };
    let Some(digits) = limit.strip_prefix('p') else {
        return Ok(Some(KeepRule::SlowerThan(operations, units::duration("--keep", limit)?)));
    };
    let percentile = Percentile::parse(digits).ok_or_else(|| {
        CliError::usage(
            format!("bad percentile `{limit}` for --keep"),
            "it must be above 0 and below 100, with at most three digits after the decimal point",
            "--keep 'read>p99.9'",
        )
    })?;
    Ok(Some(KeepRule::SlowerThanMost(operations, percentile)))
}

/// Parses a rule about a disk, of these parts.
fn at_disk(
    rule: &str,
    [name, at, limit]: [&str; 3],
    disk: impl Fn(&str) -> Result<Option<DeviceId>, CliError>,
) -> Result<Option<KeepRule>, CliError> {
    let operations =
        if name.is_empty() { KeptOperations::All } else { named(name, &format!("@{at}"), limit)? };
    if at.is_empty() || limit.starts_with('p') {
        return Err(CliError::usage(
            format!("bad rule `{rule}` for --keep"),
            "a rule about a disk has its name and a time: a percentile compares the operations of all disks",
            "--keep 'read@nvme0n1>2ms,read>p99.9'",
        ));
    }
    let time = units::duration("--keep", limit)?;
    Ok(disk(at)?.map(|disk| KeepRule::SlowerThanAt(operations, disk, time)))
}

fn named(name: &str, at: &str, limit: &str) -> Result<KeptOperations, CliError> {
    KeptOperations::named(name).ok_or_else(|| unknown(name, at, limit))
}

fn unknown(name: &str, at: &str, limit: &str) -> CliError {
    let calls = SyscallId::all().map(SyscallId::name);
    let remedy = match suggest(name, calls.chain(async_io::names()).chain(["read", "write", "sync"])) {
        Some(near) => format!("--keep '{near}{at}>{limit}'"),
        None => format!("--keep 'read{at}>{limit}'; read, write and sync mean all operations of that kind"),
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

    const DISK: DeviceId = DeviceId { major: 8, minor: 16 };

    fn parse(rule: &str) -> Result<KeepRule, CliError> {
        let parsed = super::parse(rule, |name| match name {
            "sdb" => Ok(Some(DISK)),
            _ => Err(CliError::usage(format!("no disk {name}"), "", "")),
        });
        parsed.map(Option::unwrap)
    }

    #[test]
    fn a_rule_may_name_a_disk() {
        let at = |operations| KeepRule::SlowerThanAt(operations, DISK, DurationNs(2_000_000));
        assert_eq!(parse("read@sdb>2ms").unwrap(), at(KeptOperations::Reads));
        assert_eq!(parse("@sdb>2ms").unwrap(), at(KeptOperations::All));
        assert_eq!(parse("fsync@sdb>2ms").unwrap(), at(KeptOperations::named("fsync").unwrap()));
        assert_eq!(parse("read@sdc>2ms").unwrap_err().what, "no disk sdc");
        assert!(parse("read@sdb>p99").unwrap_err().why.contains("all disks"));
        assert_eq!(parse("fsnyc@sdb>1ms").unwrap_err().remedy, "--keep 'fsync@sdb>1ms'");
        assert_eq!(super::parse("read@sdb>1ms", |_| Ok(None)).unwrap(), None);
        for bad in
            ["read@>2ms", "read@sdb", "@>2ms", "@sdb", "@", "read@sdb>", "read@sdb>2", "failed@sdb>1ms"]
        {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn rules_are_parsed() {
        let slower = |operations, ns| KeepRule::SlowerThan(operations, DurationNs(ns));
        assert_eq!(parse("failed").unwrap(), KeepRule::Failed);
        assert_eq!(parse("10ms").unwrap(), slower(KeptOperations::All, 10_000_000));
        assert_eq!(parse(".5s").unwrap(), slower(KeptOperations::All, 500_000_000));
        assert_eq!(parse("read>2us").unwrap(), slower(KeptOperations::Reads, 2_000));
        let named = KeptOperations::named("io_uring read").unwrap();
        assert_eq!(parse("io_uring read>1ms").unwrap(), slower(named, 1_000_000));
        let most =
            |operations, digits| KeepRule::SlowerThanMost(operations, Percentile::parse(digits).unwrap());
        assert_eq!(parse("p99").unwrap(), most(KeptOperations::All, "99"));
        assert_eq!(parse("sync>p99.9").unwrap(), most(KeptOperations::Syncs, "99.900"));
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
            "p",
            "p.9",
            "p100",
            "pread64",
            "fsync>p",
            "fsync>p0",
            "fsync>p99ms",
        ] {
            assert!(parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_disk_that_is_not_here_is_refused_or_ignored() {
        let args = |keep: &str| FilterArgs { keep: vec![keep.to_owned()], ..FilterArgs::default() };
        for name in ["nosuchdisk", "4095:1048575", "/dev/nosuchdisk"] {
            let rule = format!("read@{name}>2ms");
            assert!(super::rules(&args(&rule), Disks::Present).is_err(), "{rule}");
            assert_eq!(super::rules(&args(&rule), Disks::Any).unwrap(), [], "{rule}");
            assert_eq!(super::rules(&args(&rule), Disks::Elsewhere).unwrap(), [], "{rule}");
            assert_eq!(without_effect(&["10ms".to_owned(), format!(" {rule}")]), [rule]);
        }
        for bad in ["read@/dev/null>2ms", "fsnyc@nosuchdisk>2ms", "read@nosuchdisk>2"] {
            assert!(super::rules(&args(bad), Disks::Any).is_err(), "{bad}");
        }
        assert!(super::rules(&args("read@nosuchdisk>p9"), Disks::Elsewhere).is_err());
    }

    #[test]
    fn rules_add_to_a_sample() {
        let args = |keep: &str| FilterArgs { keep: vec![keep.to_owned()], ..FilterArgs::default() };
        let rules = |args: &FilterArgs| super::rules(args, Disks::Present);
        assert_eq!(rules(&args("1ms")).unwrap().len(), 1);
        assert!(check(true, HeadSampling::from_one_in(2)).is_ok() && check(false, None).is_ok());
        assert!(check(true, None).unwrap_err().remedy.contains("--slower-than"));
        let many: Vec<String> = (1..=PERCENTILES_MAX + 1).map(|n| format!("p{n}")).collect();
        let many = |count: usize| FilterArgs { keep: many[..count].to_vec(), ..FilterArgs::default() };
        assert!(rules(&many(PERCENTILES_MAX)).is_ok());
        assert!(rules(&many(PERCENTILES_MAX + 1)).unwrap_err().why.contains("at most 8"));
        assert!(
            rules(&FilterArgs { errors_only: true, ..args("1ms") })
                .unwrap_err()
                .what
                .contains("--errors-only")
        );
    }
}
