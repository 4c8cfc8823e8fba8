//! Origin of a bio's pages: the file, and the range in it.
//!
//! *In*: a bio that is being queued. *Out*: a [`BioPagesRecord`] for a bio that carries pages of a
//! page cache, metadata, log or swap. *Invariant*: the record names a file only if the kernel's own
//! pointers lead from the bio to the file's inode.
//!
//! *Which bios*: the completion function (`bi_end_io`) identifies the code that built the bio, and
//! so the kind of its pages. Only the functions that the tracer's `page_completions` lists count. A
//! bio of direct I/O carries memory of a program, which can be a mapping of another file: its first
//! page would lead to the wrong inode.
//!
//! *Range*: `folio→index` of the first page gives the offset. A bio's pages are in ascending order
//! of the file (`folio_batch` order of write-back and read-ahead), each once. So if the last page
//! ends `bi_size` bytes after the offset, the pages between are consecutive too. ext4 puts pages
//! into one bio if their *blocks* are consecutive, so there it is tested, not assumed.
//!
//! *Rejected*: a hook where the file system builds the bio (`wbc_writepage`, ext4's and xfs'
//! tracepoints). Each file system has others, and none has the bio.

use crate::file::{inode, page};
use crate::runtime::deferred;
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use crate::runtime::settings::setting;
use crate::task::{self, page_writes};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::counters::{PAGES_DROPPED, PAGES_FIRED};
use blkkin_probe_abi::layout::ABSENT;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::*;

/// Bytes of a page and of its `struct page` (x86-64 and arm64 with pages of 4 KiB).
const PAGE_SHIFT: u64 = 12;
const STRUCT_PAGE_SHIFT: u64 = 6;

/// Returns the rule for the origin of a bio with this completion function; 0 for none.
#[inline(always)]
pub fn rule(end_io: u64) -> u32 {
    let mut rule = 0;
    let mut i = 0;
    while i < PAGE_COMPLETIONS_MAX {
        if setting!(page_completions[i].end_io) != 0 && setting!(page_completions[i].end_io) == end_io {
            rule = setting!(page_completions[i].rule);
        }
        i += 1;
    }
    rule
}

/// Finds the origin of a bio's pages by `rule`, and stores it in the slot's `pages`. Returns the
/// kind of the pages; 0 if there is none. A global function, which the verifier checks once.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn find_pages(bio: u64, rule: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    percpu.pages.file = FileId::default();
    percpu.pages.offset = 0;
    percpu.pages.open_writes = 0;
    percpu.pages.header.flags = 0;
    percpu.pages.kind = match rule as u32 {
        PAGES_BY_MAPPING => by_mapping(percpu, bio as Pointer),
        PAGES_BY_BTRFS_BIO | PAGES_BY_BTRFS_COPY => {
            let is_copy = rule as u32 == PAGES_BY_BTRFS_COPY;
            by_btrfs_bio(percpu, if is_copy { copied_bio(bio as Pointer) } else { bio as Pointer })
        }
        PAGES_ARE_METADATA => PAGES_METADATA,
        PAGES_ARE_LOG => PAGES_LOG,
        PAGES_ARE_SWAP => PAGES_SWAP,
        _ => 0,
    };
    percpu.pages.kind as u64
}

/// Follows the bio's first page to the inode of its mapping.
#[inline(always)]
fn by_mapping(percpu: &mut PerCpuState, bio: Pointer) -> u16 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let vector: Pointer = ProbeRead::read(bio, offset!(bio_io_vec));
        let index: u32 = ProbeRead::read(bio, offset!(bio_idx));
        let done: u32 = ProbeRead::read(bio, offset!(bio_bvec_done));
        let first = vector.wrapping_add(index as usize * BIO_VEC);
        let page: u64 = ProbeRead::read(first, offset!(bvec_page));
        if page == 0 {
            return 0;
        }
        let folio = page::folio(page);
        let Some(inode) = page::inode(folio) else { return 0 };
        let within: u32 = ProbeRead::read(first, offset!(bvec_offset));
        let start = file_offset(page, folio) + within as u64 + done as u64;
        percpu.pages.offset = start;
        let vectors: u16 = ProbeRead::read(bio, offset!(bio_vcnt));
        let size: u32 = ProbeRead::read(bio, offset!(bio_size));
        let last = vector.wrapping_add((vectors as usize).wrapping_sub(1) * BIO_VEC);
        let (last_start, length) = segment(last);
        let end = last_start + length as u64;
        if vectors == 0 || end != start + size as u64 {
            percpu.pages.header.flags = PAGES_NOT_CONSECUTIVE;
        }
        by_inode(percpu, inode)
    }
}

/// Size of `struct bio_vec` (include/linux/bvec.h).
const BIO_VEC: usize = 16;

/// Reads inode and offset of the `struct btrfs_bio` around the bio (fs/btrfs/bio.h, since 6.3).
#[inline(always)]
fn by_btrfs_bio(percpu: &mut PerCpuState, bio: Pointer) -> u16 {
    if bio.is_null() || offset!(btrfs_bio) == ABSENT || offset!(btrfs_bio_inode) == ABSENT {
        return 0;
    }
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let container = bio.wrapping_sub(offset!(btrfs_bio) as usize);
        let end_io: u64 = ProbeRead::read(container, offset!(btrfs_bio_end_io));
        let inode: u64 = ProbeRead::read(container, offset!(btrfs_bio_inode));
        if inode == 0 || end_io == setting!(btrfs_direct_end_io) {
            return 0;
        }
        percpu.pages.offset = ProbeRead::read(container, offset!(btrfs_bio_offset));
        let inode = inode + offset!(btrfs_vfs_inode) as u64;
        // The inode of the trees may have the type of the memory's last user: nothing initializes it.
        if ProbeRead::read::<u64>(inode as Pointer, offset!(inode_ino)) == BTRFS_BTREE_INODE {
            return PAGES_METADATA;
        }
        by_inode(percpu, inode as Pointer)
    }
}

/// Number of the inode that has btrfs' trees (BTRFS_BTREE_INODE_OBJECTID, include/uapi/linux/btrfs_tree.h).
/// Files begin at 256.
const BTRFS_BTREE_INODE: u64 = 1;

/// Returns the bio of which btrfs made a copy for another mirror; 0 if this kernel's layout is unknown.
#[inline(always)]
fn copied_bio(copy: Pointer) -> Pointer {
    if offset!(btrfs_stripe_context) == ABSENT || offset!(btrfs_context_bio) == ABSENT {
        return core::ptr::null();
    }
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let stripe: Pointer = ProbeRead::read(copy, offset!(bio_private));
        let context: Pointer = ProbeRead::read(stripe, offset!(btrfs_stripe_context));
        ProbeRead::read(context, offset!(btrfs_context_bio))
    }
}

/// Reads the identity of the inode, and returns the kind of its pages.
///
/// # Safety
/// `inode` is any address.
#[inline(always)]
unsafe fn by_inode(percpu: &mut PerCpuState, inode: Pointer) -> u16 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        match inode::file_type::<ProbeRead>(inode) {
            inode::S_IFBLK => return PAGES_DEVICE,
            // An inode without a type is one of the file system itself.
            0 => return PAGES_METADATA,
            _ => {}
        }
        percpu.pages.file = inode::identity::<ProbeRead>(inode);
    }
    percpu.pages.open_writes = page_writes::open(inode as u64);
    PAGES_FILE
}

/// Returns the start of a segment (`struct bio_vec`) in its file, and its bytes.
#[inline(always)]
fn segment(vector: Pointer) -> (u64, u32) {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let page: u64 = ProbeRead::read(vector, offset!(bvec_page));
        let within: u32 = ProbeRead::read(vector, offset!(bvec_offset));
        let length: u32 = ProbeRead::read(vector, offset!(bvec_len));
        (file_offset(page, page::folio(page)) + within as u64, length)
    }
}

/// Returns the offset of a page in its file.
#[inline(always)]
fn file_offset(page: u64, folio: u64) -> u64 {
    // SAFETY: bpf_probe_read_kernel takes any address.
    let index: u64 = unsafe { ProbeRead::read(folio as Pointer, offset!(folio_index)) };
    index.wrapping_add(page.wrapping_sub(folio) >> STRUCT_PAGE_SHIFT) << PAGE_SHIFT
}

/// Writes the record of a bio whose origin [`find_pages`] has stored. Returns the bio's flag:
/// BIO_HAS_PAGES if there was room.
#[inline(always)]
pub fn emit(
    percpu: &mut PerCpuState,
    bio: u64,
    [span, root]: [u64; 2],
    (bytes, writes): (u32, bool),
    now: u64,
) -> u16 {
    let is_deferred = deferred::is_on() && percpu.walk.status != 0;
    let pages = &mut percpu.pages;
    pages.header.tag = TAG_BIO_PAGES;
    if writes {
        pages.header.flags |= PAGES_WRITTEN;
        if is_deferred {
            pages.header.flags |= PAGES_DEFERRED;
        }
    }
    pages.header.len = size_of::<BioPagesRecord>() as u32;
    pages.header.time_ns = now;
    (pages.span, pages.root, pages.bytes) = (span, root, bytes);
    // What a read brings into the page cache is known as late as the rest of its operation, and in one record.
    if is_deferred && !writes {
        // SAFETY: the record is a part of the slot that no counter touches.
        let record = unsafe { &*(&raw const percpu.pages) };
        let Some(operation) = deferred::operation(root) else { return 0 };
        deferred::put(percpu, operation, TAG_BIO_PAGES, record);
        return BIO_HAS_PAGES;
    }
    if pages.header.flags & PAGES_NOT_CONSECUTIVE != 0 {
        emit_parts(bio);
    }
    if put(percpu) { BIO_HAS_PAGES } else { 0 }
}

/// Writes the record of a bio that is dropped and writes pages of a file: no earlier write is a writer of what
/// the next bio carries.
#[inline(always)]
pub fn emit_unsampled(percpu: &mut PerCpuState, bio: u64, bytes: u32) {
    percpu.pages.header.flags |= PAGES_UNSAMPLED;
    percpu.walk.status = 0;
    // SAFETY: the clock has no preconditions.
    emit(percpu, bio, [0, 1], (bytes, true), unsafe { bpf_ktime_get_ns() });
}

/// Writes the slot's record.
#[inline(always)]
fn put(percpu: &mut PerCpuState) -> bool {
    // SAFETY: the record is a part of the slot that no counter touches.
    let record = unsafe { &*(&raw const percpu.pages) };
    ring::put_counted(percpu, PAGES_FIRED, PAGES_DROPPED, record)
}

/// Maximum segments of a bio: BIO_MAX_VECS (include/linux/bio.h). In fragmented memory each page is a segment.
const SEGMENTS_MAX: u16 = 256;

/// Writes a record for each consecutive part of the bio's pages. A global function, which the
/// verifier checks once. The current part is in the slot's walk: its start in `budget`, its end in
/// `now`.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn emit_parts(bio: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    let bio = bio as Pointer;
    let (whole, whole_bytes) = (percpu.pages.offset, percpu.pages.bytes);
    let flags = percpu.pages.header.flags;
    percpu.pages.header.flags = PAGES_PART;
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let vector: Pointer = ProbeRead::read(bio, offset!(bio_io_vec));
        let segments: u16 = ProbeRead::read(bio, offset!(bio_vcnt));
        (percpu.walk.budget, percpu.walk.now) = (whole, whole);
        let mut i = 0;
        while i < SEGMENTS_MAX {
            if i >= segments {
                break;
            }
            add_segment(vector as u64 + i as u64 * BIO_VEC as u64);
            i += 1;
        }
    }
    // SAFETY: words of the slot, which `add_segment` changed.
    let (start, end) = unsafe {
        (
            core::ptr::read_volatile(&raw const percpu.walk.budget),
            core::ptr::read_volatile(&raw const percpu.walk.now),
        )
    };
    put_part(start, end);
    percpu.pages.header.flags = flags;
    (percpu.pages.offset, percpu.pages.bytes) = (whole, whole_bytes);
    0
}

/// Adds a segment to the current part, or writes the record of that part and begins another one. The part is in the
/// slot's walk, as in [`emit_parts`]. A global function, which the verifier checks once instead of for each segment.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn add_segment(at: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    let (start, length) = segment(at as Pointer);
    if start != percpu.walk.now {
        put_part(percpu.walk.budget, percpu.walk.now);
        percpu.walk.budget = start;
    }
    percpu.walk.now = start + length as u64;
    0
}

/// Writes the record of a part, which has this range in its file. A global function, like its caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn put_part(start: u64, end: u64) -> u64 {
    let Some(percpu) = PerCpuState::of(Program::BioQueue) else { return 0 };
    percpu.pages.offset = start;
    percpu.pages.bytes = (end - start) as u32;
    put(percpu);
    0
}

/// Handles writeback_start(wb, work) and writeback_written(wb, work): a kernel worker begins or
/// ends a write-back.
#[inline(always)]
pub fn worker_reason<R: KernelRead>(work: Option<Pointer>) {
    let Some(percpu) = PerCpuState::of(Program::Writeback) else { return };
    let Some(state) = task::kernel_worker(percpu, Program::Writeback) else { return };
    state.writeback_reason = match work {
        // SAFETY: `work` is of the kind that R reads.
        Some(work) => 1 + unsafe { R::read::<u32>(work, offset!(writeback_reason)) },
        None => 0,
    };
}
