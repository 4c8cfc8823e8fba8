//! fio: a program that says itself, to the last request, what it did.

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
    /// Where it writes its own account.
    pub(crate) account: &'a Path,
}

/// What it says that it did.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Said {
    pub(crate) requests: u64,
    pub(crate) mean_ns: f64,
}

impl Fio<'_> {
    /// The command line. Each job is a process and has a part of the disk for itself.
    pub(crate) fn words(&self) -> Vec<String> {
        let size = u64::from(self.requests) * u64::from(self.bytes);
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
            format!("--output={}", self.account.display()),
        ])
        .collect()
    }

    /// The call that it makes for each request.
    pub(crate) fn call(&self) -> &'static str {
        if self.pattern.ends_with("write") { "pwrite64" } else { "pread64" }
    }

    /// What it said after it ran.
    pub(crate) fn said(&self) -> Said {
        let text = fs::read_to_string(self.account).unwrap();
        // Remarks may stand before the object.
        let json: Value = serde_json::from_str(&text[text.find('{').unwrap()..]).unwrap();
        let side = if self.pattern.ends_with("write") { "write" } else { "read" };
        let side = &json["jobs"][0][side];
        Said {
            requests: side["total_ios"].as_u64().unwrap(),
            mean_ns: side["clat_ns"]["mean"].as_f64().unwrap(),
        }
    }
}
