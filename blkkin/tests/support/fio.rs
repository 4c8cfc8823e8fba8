//! Runs of fio, whose JSON report counts its own requests: the independent count of many tests.

use std::fs;
use std::path::Path;

use serde_json::Value;

/// A run of fio.
#[derive(Clone, Debug)]
pub(crate) struct Fio<'a> {
    pub(crate) target: &'a Path,
    pub(crate) pattern: &'static str,
    pub(crate) jobs: u32,
    /// Requests of each job.
    pub(crate) requests: u32,
    /// Bytes of each request.
    pub(crate) bytes: u32,
    /// File of its JSON report.
    pub(crate) report: &'a Path,
}

/// Counts of fio's report.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FioReport {
    pub(crate) requests: u64,
    pub(crate) mean_ns: f64,
}

impl Fio<'_> {
    /// Returns the command line. Each job is a process with its own part of the disk.
    pub(crate) fn args(&self) -> Vec<String> {
        let size = u64::from(self.requests) * u64::from(self.bytes);
        // A written block repeats its own offset, and nothing is read back.
        let offsets = ["--verify=pattern", "--verify_pattern=%o", "--do_verify=0", "--verify_state_save=0"];
        let offsets = offsets.iter().filter(|_| self.call() == "pwrite64");
        [
            "fio",
            "--name=t",
            "--ioengine=psync",
            "--direct=1",
            "--norandommap=0",
            "--randrepeat=1",
            "--allow_file_create=0",
            "--group_reporting",
            "--output-format=json",
            "--eta=never",
        ]
        .map(str::to_owned)
        .into_iter()
        .chain([
            format!("--filename={}", self.target.display()),
            format!("--rw={}", self.pattern),
            format!("--numjobs={}", self.jobs),
            format!("--bs={}", self.bytes),
            format!("--size={size}"),
            format!("--offset_increment={size}"),
            format!("--output={}", self.report.display()),
        ])
        .chain(offsets.map(|option| (*option).to_owned()))
        .collect()
    }

    /// Returns the system call that it makes for each request.
    pub(crate) fn call(&self) -> &'static str {
        if self.pattern.ends_with("write") { "pwrite64" } else { "pread64" }
    }

    /// Parses its report after it ran.
    pub(crate) fn parse_report(&self) -> FioReport {
        let text = fs::read_to_string(self.report).unwrap();
        // Notes may precede the JSON object.
        let json: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let side = if self.pattern.ends_with("write") { "write" } else { "read" };
        let side = &json["jobs"][0][side];
        FioReport {
            requests: side["total_ios"].as_u64().unwrap(),
            mean_ns: side["clat_ns"]["mean"].as_f64().unwrap(),
        }
    }
}

/// Returns the command line of direct random reads of 4 KiB by an asynchronous engine, each block of `size` bytes
/// once, with one request at a time unless `more` has another depth.
pub(crate) fn asynchronous_reads(
    engine: &str,
    target: &Path,
    size: u64,
    report: &Path,
    more: &[String],
) -> Vec<String> {
    let fixed =
        ["fio", "--name=t", "--direct=1", "--rw=randread", "--bs=4k", "--norandommap=0", "--eta=never"];
    let chosen = [
        format!("--ioengine={engine}"),
        format!("--filename={}", target.display()),
        format!("--size={size}"),
        format!("--output={}", report.display()),
    ];
    fixed.map(str::to_owned).into_iter().chain(chosen).chain(more.iter().cloned()).collect()
}
