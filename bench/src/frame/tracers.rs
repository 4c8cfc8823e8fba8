//! Other tracers on this machine, whose hooks would slow every measured call.
//!
//! They are found by their objects in the kernel (eBPF programs on tracepoints and functions,
//! ftrace tracers and events, traced block devices), and by the names of programs that stop or
//! sample processes. Without root, objects that only root can see are missed.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use aya::programs::{ProgramInfo, loaded_programs};
use aya_obj::generated::bpf_prog_type::{
    self, BPF_PROG_TYPE_KPROBE, BPF_PROG_TYPE_PERF_EVENT, BPF_PROG_TYPE_RAW_TRACEPOINT,
    BPF_PROG_TYPE_TRACEPOINT, BPF_PROG_TYPE_TRACING,
};

/// Command names of tracers.
const PROGRAMS: &[&str] =
    &["strace", "ltrace", "perf", "bpftrace", "blktrace", "blkkin", "trace-cmd", "lttng-sessiond", "sysdig"];
/// Program types that run inside measured operations.
const TYPES: &[bpf_prog_type] = &[
    BPF_PROG_TYPE_KPROBE,
    BPF_PROG_TYPE_TRACEPOINT,
    BPF_PROG_TYPE_PERF_EVENT,
    BPF_PROG_TYPE_RAW_TRACEPOINT,
    BPF_PROG_TYPE_TRACING,
];

/// Time limit for the kernel to free the programs of an ended tracer, such as that of the previous
/// benchmark.
const FREE_TIMEOUT: Duration = Duration::from_secs(5);
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Describes the tracers that run now.
pub(crate) fn find_running() -> Vec<String> {
    let mut found = processes(Path::new("/proc"));
    let programs = remaining_programs();
    if programs > 0 {
        found.push(format!("{programs} eBPF tracing programs"));
    }
    found.extend(ftrace(Path::new("/sys/kernel/tracing")));
    found.extend(traced_disks(Path::new("/sys/block")));
    found
}

fn remaining_programs() -> usize {
    let started = Instant::now();
    loop {
        let programs = loaded_programs().filter_map(Result::ok).filter(is_tracing).count();
        if programs == 0 || started.elapsed() > FREE_TIMEOUT {
            return programs;
        }
        std::thread::sleep(POLL_INTERVAL);
    }
}

fn is_tracing(program: &ProgramInfo) -> bool {
    TYPES.contains(&program.program_type())
}

fn processes(proc: &Path) -> Vec<String> {
    let entries = fs::read_dir(proc).into_iter().flatten().flatten();
    let mut names: Vec<String> = entries
        .filter(|entry| entry.file_name().to_string_lossy().bytes().all(|byte| byte.is_ascii_digit()))
        .filter_map(|entry| Some(fs::read_to_string(entry.path().join("comm")).ok()?.trim().to_owned()))
        .filter(|comm| PROGRAMS.contains(&comm.as_str()))
        .collect();
    names.sort_unstable();
    names.dedup();
    names
}

/// Describes active ftrace tracers and events; `None` if tracefs is not mounted.
fn ftrace(folder: &Path) -> Option<String> {
    let tracer = fs::read_to_string(folder.join("current_tracer")).unwrap_or_default();
    let events = fs::read_to_string(folder.join("set_event")).unwrap_or_default();
    match (tracer.trim(), events.lines().count()) {
        ("" | "nop", 0) => None,
        ("" | "nop", events) => Some(format!("ftrace with {events} events")),
        (tracer, _) => Some(format!("ftrace's {tracer}")),
    }
}

fn traced_disks(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let traced = entries.filter(|disk| {
        fs::read_to_string(disk.path().join("trace/enable")).is_ok_and(|enabled| enabled.trim() == "1")
    });
    traced.map(|disk| format!("blktrace of {}", disk.file_name().to_string_lossy())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tracing_processes_are_found_and_others_are_not() {
        let proc = tempfile::tempdir().unwrap();
        for (pid, comm) in [("7", "strace"), ("8", "sh"), ("9", "strace"), ("self", "perf")] {
            fs::create_dir(proc.path().join(pid)).unwrap();
            fs::write(proc.path().join(pid).join("comm"), format!("{comm}\n")).unwrap();
        }
        assert_eq!(processes(proc.path()), ["strace"]);
    }

    #[test]
    fn ftrace_is_idle_with_nop_and_no_events() {
        let folder = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| fs::write(folder.path().join(name), text).unwrap();
        assert_eq!(ftrace(folder.path()), None);
        put("current_tracer", "nop\n");
        put("set_event", "");
        assert_eq!(ftrace(folder.path()), None);
        put("set_event", "block:block_rq_issue\n");
        assert_eq!(ftrace(folder.path()).as_deref(), Some("ftrace with 1 events"));
        put("current_tracer", "function\n");
        assert_eq!(ftrace(folder.path()).as_deref(), Some("ftrace's function"));
    }
}
