//! fio, untraced or under `blkkin run`: random reads of 4 KiB, direct.

use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::process::{self, Usage};

/// Seconds of a run, and of the part before it that is not counted.
pub(crate) const SECONDS: u32 = 2;
pub(crate) const RAMP: u32 = 1;

/// How fio reads.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Job {
    pub(crate) name: &'static str,
    pub(crate) engine: &'static str,
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
}

/// What came of it.
pub(crate) struct Run {
    pub(crate) iops: f64,
    /// Mean time of a read.
    pub(crate) latency_us: f64,
    /// What blkkin took, and its books; none where it did not run.
    pub(crate) blkkin: Option<(Usage, Books)>,
}

/// blkkin's books.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Books {
    pub(crate) fired: u64,
    pub(crate) lost: u64,
}

/// Runs fio without blkkin.
pub(crate) fn plain(job: Job, device: &str) -> Result<Run> {
    let mut fio = Command::new("fio");
    let output = fio.args(arguments(job, device)).stdin(Stdio::null()).output();
    let output = output.context("cannot start fio (`cargo xtask setup --tests` installs it)")?;
    if !output.status.success() {
        bail!("fio failed ({}): {}", output.status, String::from_utf8_lossy(&output.stderr).trim());
    }
    run(&output.stdout, None)
}

/// Runs fio under `blkkin run`.
pub(crate) fn traced(job: Job, device: &str, blkkin: &Path, folder: &Path) -> Result<Run> {
    let report = folder.join("iops-report.json");
    let said = folder.join("iops-fio.json");
    let mut command = Command::new(blkkin);
    command.arg("run").arg(format!("--json={}", report.display())).args(["--", "fio"]);
    command.args(arguments(job, device)).arg(format!("--output={}", said.display()));
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()?;
    let usage = process::wait(&mut child)?;
    if !usage.status.success() {
        bail!("fio under blkkin failed ({})", usage.status);
    }
    let report: Value = serde_json::from_slice(&std::fs::read(&report)?)?;
    let count = |name: &str| {
        report["losses"][name].as_u64().with_context(|| format!("no losses.{name} in the report"))
    };
    let books = Books { fired: count("fired")?, lost: count("total")? };
    run(&std::fs::read(&said)?, Some((usage, books)))
}

fn run(json: &[u8], blkkin: Option<(Usage, Books)>) -> Result<Run> {
    let json: Value = serde_json::from_slice(json).context("fio said no JSON")?;
    let job = &json["jobs"][0];
    let number = |value: &Value| value.as_f64().context("fio's JSON lacks a number");
    let iops = number(&job["read"]["iops"])?;
    let latency_us = number(&job["read"]["clat_ns"]["mean"])? / 1e3;
    Ok(Run { iops, latency_us, blkkin })
}

fn arguments(job: Job, device: &str) -> Vec<String> {
    let words = [
        "--name=read".to_owned(),
        format!("--filename={device}"),
        format!("--ioengine={}", job.engine),
        format!("--iodepth={}", job.depth),
        format!("--numjobs={}", job.jobs),
        format!("--runtime={SECONDS}"),
        format!("--ramp_time={RAMP}"),
        "--readonly".to_owned(),
        "--rw=randread".to_owned(),
        "--bs=4k".to_owned(),
        "--direct=1".to_owned(),
        "--time_based".to_owned(),
        "--group_reporting".to_owned(),
        "--randrepeat=1".to_owned(),
        "--norandommap".to_owned(),
        "--output-format=json".to_owned(),
    ];
    words.into()
}
