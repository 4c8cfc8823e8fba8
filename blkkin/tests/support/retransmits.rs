//! TCP retransmissions by ftrace, with the task that each one interrupted: retransmission timers
//! fire on top of any running task.
//!
//! *Out*: retransmissions on top of tasks that the kernel hides. Some kernels run no eBPF program
//! on top of some tasks (docs/limits.md, "Completions without our program"), while ftrace has the
//! event. *Weakness*: a task that is hidden from eBPF is recognised by its executable, which is
//! hidden from root as well.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::ftrace::Ftrace;

/// ftrace buffer of each CPU: 1 MiB, about 150 B an event.
const KIB: &str = "1024";

pub(crate) struct Retransmits(Ftrace);

impl Retransmits {
    /// Starts recording, or returns why ftrace is not available.
    pub(crate) fn start(folder: &Path) -> Result<Retransmits, String> {
        let trace = Ftrace::create(folder, KIB)?;
        trace.set("events/tcp/tcp_retransmit_skb/enable", "1")?;
        Ok(Retransmits(trace))
    }

    /// Stops, and counts the segments from `address` that were retransmitted on top of a hidden
    /// task.
    pub(crate) fn on_hidden_tasks(self, address: &str) -> usize {
        let (text, from) = (self.0.finish(), format!(" saddr={address} "));
        let tasks = text.lines().filter(|line| line.contains(&from)).filter_map(task);
        tasks.filter(|task| is_hidden(*task)).count()
    }
}

/// Returns the task of a line `fio-123  [000] ..s1. 123.456789: tcp_retransmit_skb: …`.
/// A task's name may contain any character.
fn task(line: &str) -> Option<u32> {
    let (front, _) = line.split_once(": tcp_retransmit_skb: ")?;
    let (front, _) = front.rsplit_once(" [")?;
    front.trim_end().rsplit_once('-')?.1.parse().ok()
}

/// Checks whether reading the task's executable is denied. A kernel thread has no executable and an
/// ended task no entry; neither is a denial.
fn is_hidden(task: u32) -> bool {
    fs::read_link(format!("/proc/{task}/exe")).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}
