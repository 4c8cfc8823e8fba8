//! Events that the kernel did not pass to a program, from the kernel's own counts.
//!
//! - A program that already runs on a CPU is not run recursively: `recursion_misses` in its fdinfo.
//! - A kprobe program is also skipped while another kprobe program runs on the same CPU, or while
//!   user space updates or reads a map there (`bpf_prog_active`). Since 6.7 the same counter
//!   includes these (dd8657894c11); before, nothing counts them.
//! - A kprobe that is hit inside another kprobe is skipped before any program runs: `missed` of its
//!   link, since 6.7 (3acf8ace6823).

use aya::programs::links::FdLink;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};

use crate::aya_error::error_chain;

/// Directory that describes each descriptor of this process.
const FDINFO: &str = "/proc/self/fdinfo";
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
    reserved2: u32,
    function: u64,
    function_bytes: u32,
    offset: u32,
    address: u64,
    missed: u64,
}

/// `union bpf_attr` of BPF_OBJ_GET_INFO_BY_FD.
#[repr(C)]
struct BpfAttr {
    fd: u32,
    bytes: u32,
    info: u64,
}

/// Returns the runs of a program that the kernel skipped, or why they cannot be read: without them
/// a loss would look like none.
pub(crate) fn of_program(program: &OwnedFd) -> Result<u64, String> {
    let path = format!("{FDINFO}/{}", program.as_raw_fd());
    let text = std::fs::read_to_string(&path).map_err(|error| format!("{path}: {error}"))?;
    parse(&text).ok_or_else(|| format!("{path} has no recursion_misses"))
}

fn parse(fdinfo: &str) -> Option<u64> {
    fdinfo.lines().find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse().ok())
}

/// Duplicates the descriptor of a link held by this process, which aya does not expose.
pub(crate) fn link_descriptor(link: &FdLink) -> Result<OwnedFd, String> {
    let info = link.info().map_err(|error| error_chain(&error))?;
    let id = format!("link_id:\t{}\n", info.id());
    let found = std::fs::read_dir(FDINFO)
        .map_err(|error| format!("{FDINFO}: {error}"))?
        .flatten()
        .find(|entry| std::fs::read_to_string(entry.path()).is_ok_and(|text| text.contains(&id)));
    let fd = found.and_then(|entry| entry.file_name().to_str()?.parse().ok());
    let fd = fd.ok_or_else(|| format!("{FDINFO} has no link {}", info.id()))?;
    // SAFETY: the link keeps it open.
    unsafe { BorrowedFd::borrow_raw(fd) }.try_clone_to_owned().map_err(|error| error.to_string())
}

/// Returns the runs of a kprobe that the kernel skipped, 0 if the kernel does not count them, or why
/// the count cannot be read.
pub(crate) fn of_kprobe(link: &OwnedFd) -> Result<u64, String> {
    let mut info = LinkInfo::default();
    let attributes = BpfAttr {
        fd: link.as_raw_fd() as u32,
        bytes: size_of::<LinkInfo>() as u32,
        info: (&raw mut info) as u64,
    };
    // SAFETY: the kernel writes no more than the given number of bytes; both live across the call.
    let result = unsafe {
        libc::syscall(libc::SYS_bpf, BPF_OBJ_GET_INFO_BY_FD, &raw const attributes, size_of::<BpfAttr>())
    };
    if result != 0 {
        return Err(format!("skipped runs of a kprobe: {}", std::io::Error::last_os_error()));
    }
    let is_kprobe = info.kind == BPF_LINK_TYPE_PERF_EVENT && info.event == BPF_PERF_EVENT_KPROBE;
    Ok(if is_kprobe { info.missed } else { 0 })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_absent_count_is_not_zero() {
        assert_eq!(parse("flags:\t02000002\nrecursion_misses:\t7\n"), Some(7));
        assert_eq!(parse("flags:\t02000002\nmemlock:\t4096\n"), None);
        let no_program = std::fs::File::open("/dev/null").unwrap().into();
        assert!(of_program(&no_program).unwrap_err().ends_with("has no recursion_misses"));
        assert!(of_kprobe(&no_program).unwrap_err().starts_with("skipped runs of a kprobe: "));
    }
}
