//! Pages of memory: their folio, and the inode whose page cache they are part of.
//!
//! All reads are by bpf_probe_read_kernel, which takes any address.

use crate::runtime::layout::offset;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};

/// Returns the folio of a page: the page itself, or the head that a tail page points at
/// (include/linux/page-flags.h, compound_head).
#[inline(always)]
pub fn folio(page: u64) -> u64 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    let head: u64 = unsafe { ProbeRead::read(page as Pointer, offset!(page_compound_head)) };
    if head & 1 != 0 { head - 1 } else { page }
}

/// Returns the inode whose page cache a folio is part of; none for memory of a program and for pages
/// that a driver may move, which the low bits of the mapping mark (PAGE_MAPPING_FLAGS).
#[inline(always)]
pub fn inode(folio: u64) -> Option<Pointer> {
    // SAFETY: as above.
    unsafe {
        let mapping: u64 = ProbeRead::read(folio as Pointer, offset!(folio_mapping));
        if mapping == 0 || mapping & 3 != 0 {
            return None;
        }
        let inode: Pointer = ProbeRead::read(mapping as Pointer, offset!(mapping_host));
        if inode.is_null() { None } else { Some(inode) }
    }
}
