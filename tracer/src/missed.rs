//! Events that the kernel did not hand to a program, by its own counts.
//!
//! - A program that runs already on a CPU is not run on top of itself: `recursion_misses` in its fdinfo.
//! - A kprobe program is not run either where any other kprobe program runs below it on the same CPU, or a map is changed or read
//!   from user space there (`bpf_prog_active`): counted in the same place since 6.7 (dd8657894c11), nowhere before.
//! - A kprobe that is hit on top of another kprobe is skipped before any program: `missed` of its link, since 6.7
//!   (3acf8ace6823).

use aya::programs::links::FdLink;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

/// What each descriptor of this process is.
const DESCRIPTORS: &str = "/proc/self/fdinfo";
const BPF_OBJ_GET_INFO_BY_FD: libc::c_long = 15;
const BPF_LINK_TYPE_PERF_EVENT: u32 = 7;
const BPF_PERF_EVENT_KPROBE: u32 = 3;

/// `struct bpf_link_info` of a kprobe (include/uapi/linux/bpf.h).
#[repr(C)]
#[derive(Default)]
struct LinkInfo {
    kind: u32,
    id: u32,
    program: u32,
    reserved: u32,
    event: u32,
    reserved_too: u32,
    function: u64,
    function_bytes: u32,
    offset: u32,
    address: u64,
    missed: u64,
}

/// `union bpf_attr` for the command.
#[repr(C)]
struct Info {
    fd: u32,
    bytes: u32,
    info: u64,
}

/// Runs of a program that the kernel skipped.
pub(crate) fn by_program(program: &OwnedFd) -> u64 {
    let info = std::fs::read_to_string(format!("{DESCRIPTORS}/{}", program.as_raw_fd()));
    let count = |text: String| {
        text.lines().find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse::<u64>().ok())
    };
    info.ok().and_then(count).unwrap_or(0)
}

/// A descriptor of a link that this process holds, which aya keeps to itself.
pub(crate) fn descriptor(link: &FdLink) -> Option<OwnedFd> {
    let id = format!("link_id:\t{}\n", link.info().ok()?.id());
    let found = std::fs::read_dir(DESCRIPTORS)
        .ok()?
        .flatten()
        .find(|entry| std::fs::read_to_string(entry.path()).is_ok_and(|text| text.contains(&id)))?;
    let fd = found.file_name().to_str()?.parse().ok()?;
    // SAFETY: the link holds it open.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().ok()
}

/// Hits of a kprobe that the kernel skipped; 0 where it does not say.
pub(crate) fn by_kprobe(link: &OwnedFd) -> u64 {
    let mut info = LinkInfo::default();
    let attributes = Info {
        fd: link.as_raw_fd() as u32,
        bytes: size_of::<LinkInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: the kernel writes no more than the bytes it is told; both live across the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw const attributes, size_of::<Info>())
    };
    let is_kprobe = info.kind == BPF_LINK_TYPE_PERF_EVENT && info.event == BPF_PERF_EVENT_KPROBE;
    if result == 0 && is_kprobe { info.missed } else { 0 }
}
