//! fio: command lines and results. All blocks are 4 KiB.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::disk::{BYTES, DiskTarget};

/// File size of write + fsync: the journal takes the time, not the file.
const FSYNC_BYTES: u64 = 256 << 20;

/// Prepares fio with direct I/O on a device at a fixed rate per job. It generates a load to
/// observe, so only its errors matter. The caller adds the operation.
pub(crate) fn steady(device: &str, rate: u64, length: Duration, output: &Path) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=steady", "--bs=4k", "--direct=1", "--ioengine=psync", "--time_based"]);
    command.arg(format!("--filename={device}")).arg(format!("--rate_iops={rate}"));
    command.arg(format!("--runtime={}", length.as_secs())).arg(format!("--output={}", output.display()));
    command.stdin(Stdio::null()).stdout(Stdio::null());
    command
}

/// Prepares fio with random reads from the Unix socket of an NBD server.
pub(crate) fn nbd(socket: &Path, depth: u32, length: Duration) -> Command {
    let mut command = Command::new("fio");
    command.args(["--name=x", "--ioengine=nbd", "--rw=randread", "--bs=4k", "--thread", "--time_based"]);
    command.args([
        "--norandommap",
        &format!("--iodepth={depth}"),
        &format!("--runtime={}", length.as_secs()),
    ]);
    command.arg(format!("--uri=nbd+unix:///?socket={}", socket.display()));
    command.stdin(Stdio::null()).stderr(Stdio::null());
    command
}

/// Duration of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Length {
    pub(crate) run_ms: u32,
    /// Ramp time before the run, not counted.
    pub(crate) ramp_ms: u32,
}

/// Kind of operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    RandomRead,
    RandomWrite,
    /// Buffered write, then fsync, alternating.
    WriteFsync,
}

impl Op {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Op::RandomRead => "random read",
            Op::RandomWrite => "random write",
            Op::WriteFsync => "write + fsync",
        }
    }
}

/// Engine, operation, jobs and depth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Job {
    pub(crate) engine: &'static str,
    pub(crate) op: Op,
    pub(crate) jobs: u32,
    pub(crate) depth: u32,
}

/// Result of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Result4k {
    pub(crate) iops: f64,
    /// 99th percentile in µs; of fsync for [`Op::WriteFsync`].
    pub(crate) p99: f64,
}

impl Job {
    /// Formats `psync, random read, 1 job, depth 1`.
    pub(crate) fn name(self) -> String {
        let jobs = if self.jobs == 1 { "1 job".to_owned() } else { format!("{} jobs", self.jobs) };
        let depth = if self.engine == "psync" { String::new() } else { format!(", depth {}", self.depth) };
        format!("{}, {}, {jobs}{depth}", self.engine, self.op.name())
    }

    /// Returns the command line; the jobs run on `cpus`.
    pub(crate) fn command(
        self,
        place: &DiskTarget,
        length: Length,
        cpus: &str,
        output: &Path,
    ) -> Vec<String> {
        let mut words = vec![
            "fio".to_owned(),
            "--name=bench".to_owned(),
            format!("--filename={}", place.target.display()),
            format!("--size={}", if self.op == Op::WriteFsync { FSYNC_BYTES } else { BYTES }),
            format!("--ioengine={}", self.engine),
            format!("--iodepth={}", self.depth),
            format!("--numjobs={}", self.jobs),
            format!("--runtime={}ms", length.run_ms),
            format!("--ramp_time={}ms", length.ramp_ms),
            format!("--cpus_allowed={cpus}"),
            format!("--output={}", output.display()),
        ];
        let shared = ["--bs=4k", "--time_based", "--group_reporting", "--randrepeat=1", "--norandommap"];
        let op: &[&str] = match self.op {
            Op::RandomRead => &["--rw=randread", "--direct=1", "--readonly"],
            Op::RandomWrite => &["--rw=randwrite", "--direct=1"],
            Op::WriteFsync => &["--rw=write", "--fsync=1"],
        };
        let rest = shared.iter().chain(op).chain(&["--fallocate=none", "--output-format=json"]);
        words.extend(rest.map(|&word| word.to_owned()));
        words
    }

    /// Parses the result that fio wrote.
    pub(crate) fn result(self, output: &Path) -> Result<Result4k> {
        let text = std::fs::read(output).with_context(|| format!("fio wrote no {}", output.display()))?;
        let json: Value = serde_json::from_slice(&text).context("fio wrote no JSON")?;
        result(&json["jobs"][0], self.op).context("fio's JSON lacks a number")
    }
}

fn result(job: &Value, op: Op) -> Option<Result4k> {
    let side = &job[if op == Op::RandomRead { "read" } else { "write" }];
    let times = if op == Op::WriteFsync { &job["sync"]["lat_ns"] } else { &side["clat_ns"] };
    Some(Result4k { iops: side["iops"].as_f64()?, p99: times["percentile"]["99.000000"].as_f64()? / 1e3 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn p99_of_write_and_fsync_is_that_of_fsync() {
        let json: Value = serde_json::from_str(
            r#"{"write":{"iops":500.5,"clat_ns":{"percentile":{"99.000000":1000}}},
            "sync":{"lat_ns":{"percentile":{"99.000000":250000}}}}"#,
        )
        .unwrap();
        let of = |op| result(&json, op).map(|result| (result.iops, result.p99));
        assert_eq!(of(Op::WriteFsync), Some((500.5, 250.0)));
        assert_eq!(of(Op::RandomWrite), Some((500.5, 1.0)));
        assert_eq!(of(Op::RandomRead), None);
    }

    #[test]
    fn name_contains_depth_only_with_a_queue() {
        let job = Job { engine: "psync", op: Op::RandomRead, jobs: 1, depth: 1 };
        assert_eq!(job.name(), "psync, random read, 1 job");
        assert_eq!(
            Job { engine: "io_uring", jobs: 2, depth: 32, ..job }.name(),
            "io_uring, random read, 2 jobs, depth 32"
        );
    }
}
