//! What TCP sends once more, as ftrace has it, and on top of which task: the timers that do it interrupt whoever runs.
//!
//! *Out*: how often that was a task which the kernel hides: there are kernels that run no eBPF program on top of some tasks
//! (docs/limits.md, "Completions without our program"), and ftrace's event they have. *Weakness*: what hides a task from eBPF is taken
//! to hide its executable from root as well.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::tools::{capture, tool};

const EVENT: &str = "events/tcp/tcp_retransmit_skb/enable";
/// Of each CPU: 1 MiB, some 150 B an event.
const KIB: &str = "1024";

/// An instance of ftrace of our own.
pub(crate) struct Resends {
    mounted: PathBuf,
    instance: PathBuf,
}

impl Resends {
    /// Begins; or why nobody can watch here.
    pub(crate) fn watch(folder: &Path) -> Result<Resends, String> {
        let mounted = folder.join("tracefs");
        fs::create_dir_all(&mounted).map_err(|error| error.to_string())?;
        capture(tool("mount").args(["-t", "tracefs", "nodev"]).arg(&mounted))?;
        let instance = mounted.join("instances").join(format!("blkkin-resends-{}", std::process::id()));
        let watch = Resends { mounted, instance };
        fs::create_dir(&watch.instance).map_err(|error| error.to_string())?;
        watch.set("buffer_size_kb", KIB)?;
        watch.set(EVENT, "1")?;
        Ok(watch)
    }

    fn set(&self, name: &str, value: &str) -> Result<(), String> {
        fs::write(self.instance.join(name), value).map_err(|error| format!("{name}: {error}"))
    }

    /// How many segments of this address were sent once more on top of a task that is hidden.
    pub(crate) fn on_top_of_hidden(&self, address: &str) -> usize {
        let text = fs::read_to_string(self.instance.join("trace")).unwrap();
        let from = format!(" saddr={address} ");
        let tasks = text.lines().filter(|line| line.contains(&from)).filter_map(task);
        tasks.filter(|task| is_hidden(*task)).count()
    }
}

impl Drop for Resends {
    fn drop(&mut self) {
        let _ = self.set(EVENT, "0");
        let _ = fs::remove_dir(&self.instance);
        let _ = capture(tool("umount").arg(&self.mounted));
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
