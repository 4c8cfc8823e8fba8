//! Paths that a path filter excludes.
//!
//! *In*: the number of a file's path. *Out*: whether user space, which knows the path's text and the
//! patterns, has excluded it. *Invariant*: a path that user space does not know yet is not excluded,
//! so the filter loses nothing; its calls are recorded until the reader has seen its name.
//!
//! *Rejected*: patterns in the kernel. Wildcards need loops over text at each call, and the number
//! of a path already stands for the text. A filter by inode or directory: it has to be undone when
//! a file or a directory above it is renamed, while a number belongs to one path for good.

use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::excluded_paths::{EXCLUDED_SETS, ExcludedSet, set_of};

#[btf_map]
static EXCLUDED_PATHS: Array<ExcludedSet, EXCLUDED_SETS> = Array::new();

/// Returns whether the path with this number is excluded.
#[inline(always)]
pub fn is_excluded(name: u64) -> bool {
    let Some(set) = EXCLUDED_PATHS.get_ptr_mut(set_of(name)) else { return false };
    // SAFETY: words of a map's value, each read whole.
    let [first, second, third, fourth] = unsafe {
        [
            core::ptr::read_volatile(&raw const (*set)[0]),
            core::ptr::read_volatile(&raw const (*set)[1]),
            core::ptr::read_volatile(&raw const (*set)[2]),
            core::ptr::read_volatile(&raw const (*set)[3]),
        ]
    };
    name != 0 && (name == first || name == second || name == third || name == fourth)
}
