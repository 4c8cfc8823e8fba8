//! What TCP sends once more, as ftrace has it, and on top of which task: the timers that do it interrupt whoever runs.
//!
//! *Out*: how often that was a task which the kernel hides: there are kernels that run no eBPF program on top of some tasks
//! (docs/limits.md, "Completions without our program"), and ftrace's event they have. *Weakness*: what hides a task from eBPF is taken
//! to hide its executable from root as well.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;

use super::ftrace::Ftrace;

/// Of each CPU: 1 MiB, some 150 B an event.
const KIB: &str = "1024";

pub(crate) struct Resends(Ftrace);

impl Resends {
    /// Begins; or why nobody can watch here.
    pub(crate) fn watch(folder: &Path) -> Result<Resends, String> {
        let trace = Ftrace::make(folder, KIB)?;
        trace.set("events/tcp/tcp_retransmit_skb/enable", "1")?;
        Ok(Resends(trace))
    }

    /// Ends; how many segments of this address were sent once more on top of a task that is hidden.
    pub(crate) fn on_top_of_hidden(self, address: &str) -> usize {
        let (text, from) = (self.0.finish(), format!(" saddr={address} "));
        let tasks = text.lines().filter(|line| line.contains(&from)).filter_map(task);
        tasks.filter(|task| is_hidden(*task)).count()
    }
}

/// `            fio-123     [000] ..s1. 123.456789: tcp_retransmit_skb: …`: a task's name may hold anything.
fn task(line: &str) -> Option<u32> {
    let (front, _) = line.split_once(": tcp_retransmit_skb: ")?;
    let (front, _) = front.rsplit_once(" [")?;
    front.trim_end().rsplit_once('-')?.1.parse().ok()
}

/// A kernel's own thread has none, and one that has ended is not there: neither is denied.
fn is_hidden(task: u32) -> bool {
    fs::read_link(format!("/proc/{task}/exe")).is_err_and(|error| error.kind() == ErrorKind::PermissionDenied)
}
