//! Machine and versions of a figure.

use std::fs;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::affinity;

/// Machine and version of a measurement.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Machine {
    pub(crate) kernel: String,
    pub(crate) processor: String,
    pub(crate) cpus: usize,
    pub(crate) memory_gib: u64,
    pub(crate) system: String,
    /// Commit that was built, with a mark if the checkout was modified.
    pub(crate) commit: String,
    pub(crate) date: String,
}

impl Machine {
    pub(crate) fn this() -> Machine {
        Machine {
            kernel: read("/proc/sys/kernel/osrelease"),
            processor: processor(),
            cpus: affinity::online(),
            memory_gib: memory() >> 30,
            system: system(),
            commit: command_output("git", &["describe", "--always", "--dirty", "--exclude=*"]),
            date: command_output("date", &["--utc", "+%Y-%m-%d"]),
        }
    }

    /// Formats the machine in one line.
    pub(crate) fn summary(&self) -> String {
        format!(
            "Linux {}, {} × {}, {} GiB, {}; blkkin {}, {}",
            self.kernel, self.cpus, self.processor, self.memory_gib, self.system, self.commit, self.date
        )
    }
}

/// Runs a program and returns its output; empty if it cannot run.
pub(crate) fn command_output(program: &str, arguments: &[&str]) -> String {
    let output = Command::new(program).args(arguments).stdin(Stdio::null()).stderr(Stdio::null()).output();
    output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned()).unwrap_or_default()
}

fn read(path: &str) -> String {
    fs::read_to_string(path).unwrap_or_default().trim().to_owned()
}

fn processor() -> String {
    let text = read("/proc/cpuinfo");
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.to_owned())
}

fn memory() -> u64 {
    let text = read("/proc/meminfo");
    let total = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
    let kib = total.and_then(|rest| rest.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    // Round up to the next GiB, because firmware reserves a part.
    kib.map_or(0, |kib| (kib * 1024).next_multiple_of(1 << 30))
}

fn system() -> String {
    let text = read("/etc/os-release");
    let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
    name.unwrap_or("Linux").trim_matches('"').to_owned()
}
