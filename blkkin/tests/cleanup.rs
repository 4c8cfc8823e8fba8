//! Cleanup: after blkkin exits, is killed, or drops a tracer, none of its programs, maps and links
//! is left in the kernel.
//!
//! *Input*: the ids in `/proc/PID/fdinfo`, and the kernel's own answer for each id (`bpf(2)`).

use std::collections::BTreeSet;
use std::fs;

use blkkin_tracer::attach::probes::{ASYNC_PROBES, DIRTY_PROBES, FAULT_PROBES, PROBES};
use blkkin_tracer::{Tracer, TracerConfig};

use crate::support::live::{LiveTrace, eventually};
use crate::support::needs;

/// bpf(2) commands (include/uapi/linux/bpf.h).
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;

#[test]
fn after_a_normal_exit() {
    needs!();
    assert_gone_after(|live| {
        live.finish();
    });
}

#[test]
fn after_kill_9() {
    needs!();
    assert_gone_after(|live| {
        live.kill();
    });
}

fn assert_gone_after(end: impl FnOnce(LiveTrace)) {
    let folder = tempfile::tempdir().unwrap();
    let live =
        LiveTrace::trace(&["--pid", &std::process::id().to_string()], folder.path().join("report.json"));
    let objects = objects_of(live.pid());
    assert_plausible(&objects);
    end(live);
    assert_gone(&objects);
}

#[test]
fn after_a_tracer_is_dropped() {
    needs!();
    let before = objects_of(std::process::id());
    let tracer = Tracer::load(&TracerConfig::default()).unwrap();
    let objects: BTreeSet<Object> = objects_of(std::process::id()).difference(&before).copied().collect();
    assert_plausible(&objects);
    drop(tracer);
    assert_gone(&objects);
}

/// An object in the kernel: the command that looks it up, and its id.
type Object = (libc::c_long, u32);

/// Returns the programs, maps and links to which a process has descriptors.
fn objects_of(pid: u32) -> BTreeSet<Object> {
    let mut objects = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        let number = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        objects.extend(number("link_id:").map(|id| (BPF_LINK_GET_FD_BY_ID, id)));
        objects.extend(number("prog_id:").map(|id| (BPF_PROG_GET_FD_BY_ID, id)));
        objects.extend(number("map_id:").map(|id| (BPF_MAP_GET_FD_BY_ID, id)));
    }
    objects
}

/// Asserts a program and a link for each probe, and some maps, all of which exist.
fn assert_plausible(objects: &BTreeSet<Object>) {
    let count = |command| objects.iter().filter(|object| object.0 == command).count();
    let probes = PROBES.len() + FAULT_PROBES.len() + ASYNC_PROBES.len();
    let (links, programs) = (count(BPF_LINK_GET_FD_BY_ID), count(BPF_PROG_GET_FD_BY_ID));
    assert!(programs == probes || programs == probes + DIRTY_PROBES.len(), "{programs} programs");
    // The program at the end of page faults has a link for each CPU.
    let cpus = std::thread::available_parallelism().unwrap().get();
    assert!(links >= programs - 1 + cpus, "{links} links");
    assert!(count(BPF_MAP_GET_FD_BY_ID) >= 3);
    assert!(objects.iter().all(|object| exists(*object)));
}

/// Asserts that no object is left. The kernel frees objects after a grace period.
fn assert_gone(objects: &BTreeSet<Object>) {
    let left = || objects.iter().copied().filter(|object| exists(*object)).collect::<Vec<_>>();
    assert!(eventually(|| left().is_empty()), "left in the kernel: {:?}", left());
}

fn exists((command, id): Object) -> bool {
    // The commands' attributes begin with the id; the rest is zero.
    let attributes = [id, 0, 0, 0];
    // SAFETY: the kernel reads this many bytes, which outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) };
    if fd >= 0 {
        // SAFETY: a descriptor that the call has just returned.
        unsafe { libc::close(fd as i32) };
    }
    fd >= 0
}
