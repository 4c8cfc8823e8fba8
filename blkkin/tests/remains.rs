//! Nothing is left in the kernel when blkkin is gone, however it went.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::BTreeSet;
use std::fs;

use blkkin_tracer::{Tracer, TracerConfig};

use support::live::{LiveTrace, eventually};
use support::needs;

/// bpf(2) commands (include/uapi/linux/bpf.h).
const BPF_PROG_GET_FD_BY_ID: libc::c_long = 13;
const BPF_MAP_GET_FD_BY_ID: libc::c_long = 14;
const BPF_LINK_GET_FD_BY_ID: libc::c_long = 30;

#[test]
fn after_an_ordinary_end() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let live =
        LiveTrace::trace(&["--pid", &std::process::id().to_string()], folder.path().join("report.json"));
    let held = held_by(live.pid());
    assert_plausible(&held);
    live.finish();
    assert_gone(&held);
}

#[test]
fn after_kill_9() {
    needs!();
    let folder = tempfile::tempdir().unwrap();
    let live =
        LiveTrace::trace(&["--pid", &std::process::id().to_string()], folder.path().join("report.json"));
    let held = held_by(live.pid());
    assert_plausible(&held);
    live.kill();
    assert_gone(&held);
}

#[test]
fn after_a_tracer_is_dropped() {
    needs!();
    let before = held_by(std::process::id());
    let tracer = Tracer::load(&TracerConfig::default()).unwrap();
    let held: BTreeSet<Object> = held_by(std::process::id()).difference(&before).copied().collect();
    assert_plausible(&held);
    drop(tracer);
    assert_gone(&held);
}

/// Something in the kernel: the command that finds it, and its id.
type Object = (libc::c_long, u32);

/// Programs, maps and links that a process has descriptors of.
fn held_by(pid: u32) -> BTreeSet<Object> {
    let mut held = BTreeSet::new();
    for entry in fs::read_dir(format!("/proc/{pid}/fdinfo")).unwrap().flatten() {
        let info = fs::read_to_string(entry.path()).unwrap_or_default();
        let number = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)?.trim().parse().ok());
        held.extend(number("link_id:").map(|id| (BPF_LINK_GET_FD_BY_ID, id)));
        held.extend(number("prog_id:").map(|id| (BPF_PROG_GET_FD_BY_ID, id)));
        held.extend(number("map_id:").map(|id| (BPF_MAP_GET_FD_BY_ID, id)));
    }
    held
}

/// A program and a link for each probe, and some maps; all of them there.
fn assert_plausible(held: &BTreeSet<Object>) {
    let count = |command| held.iter().filter(|object| object.0 == command).count();
    let probes = blkkin_tracer::attach::probes::PROBES.len();
    assert_eq!((count(BPF_LINK_GET_FD_BY_ID), count(BPF_PROG_GET_FD_BY_ID)), (probes, probes));
    assert!(count(BPF_MAP_GET_FD_BY_ID) >= 3);
    assert!(held.iter().all(|object| exists(*object)));
}

/// The kernel takes things down after a grace period.
fn assert_gone(held: &BTreeSet<Object>) {
    let left = || held.iter().copied().filter(|object| exists(*object)).collect::<Vec<_>>();
    assert!(eventually(|| left().is_empty()), "left in the kernel: {:?}", left());
}

fn exists((command, id): Object) -> bool {
    // The commands' attributes begin with the id; the rest is zero.
    let attributes = [id, 0, 0, 0];
    // SAFETY: the kernel reads so many bytes, which outlive the call.
    let fd = unsafe { libc::syscall(libc::SYS_bpf, command, attributes.as_ptr(), size_of_val(&attributes)) };
    if fd >= 0 {
        // SAFETY: a descriptor that the kernel has just given us.
        unsafe { libc::close(fd as i32) };
    }
    fd >= 0
}
