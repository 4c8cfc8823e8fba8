//! Events on top of tasks that the kernel hides from eBPF, by ftrace.
//!
//! *In*: tracepoints that fire in interrupts, on top of any running task. *Out*: those that were on
//! top of hidden tasks. Some kernels run no eBPF program on top of some tasks
//! (docs/limits.md, "Completions without our program"), while ftrace has the event. *Weakness*: a
//! task that is hidden from eBPF is recognised by its executable, which is hidden from root as
//! well.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::ftrace::Ftrace;

/// Records tracepoints until it is asked what was on top of hidden tasks.
pub(crate) struct HiddenTasks(Ftrace);

impl HiddenTasks {
    /// Starts recording these events, named `system/event`, in `kib` KiB for each CPU (an event
    /// takes about 150 B); or returns why ftrace is not available. tracefs is mounted in `folder`.
    pub(crate) fn start(folder: &Path, kib: &str, events: &[&str]) -> Result<HiddenTasks, String> {
        let trace = Ftrace::create(folder, kib)?;
        trace.set("options/record-tgid", "1")?;
        for event in events {
            trace.set(&format!("events/{event}/enable"), "1")?;
        }
        Ok(HiddenTasks(trace))
    }

    /// Stops, and returns the lines of the events on top of hidden tasks.
    pub(crate) fn events(self) -> Vec<String> {
        let text = self.0.finish();
        let lines = text.lines().filter(|line| process(line).is_some_and(is_hidden));
        lines.map(str::to_owned).collect()
    }
}

/// Returns the process of a line `fio-123     (    120) [000] ..s1. 123.456789: tcp_retransmit_skb: …`.
/// A task's name may contain any character. A thread may have ended, so its process is asked for.
fn process(line: &str) -> Option<&str> {
    let is_number = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    line.match_indices(") [").find_map(|(end, _)| {
        let cpu = line[end + 3..].split_once(']')?.0;
        let (_, process) = line[..end].rsplit_once('(')?;
        (is_number(cpu) && is_number(process.trim())).then(|| process.trim())
    })
}

/// Checks whether reading the process's executable is denied. A kernel thread has no executable and
/// an ended process no entry; neither is a denial.
fn is_hidden(process: &str) -> bool {
    fs::read_link(format!("/proc/{process}/exe"))
        .is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}
