//! File paths, one record per file: from its dentry upwards, across mount points, to the root of
//! the host.
//!
//! *In*: a `struct file`'s address. *Out*: a `FileRecord` with the path's components, leaf first.
//!
//! A cache holds the (file, name) pairs already emitted. It is direct-mapped and written without
//! locks. An entry counts only if the whole identity is equal, so a collision or a torn entry
//! repeats a record but never suppresses one for good.
//! After a rename the name's hash or the parent differs, so the next open emits the new name. The
//! rename of a directory further up is not noticed until the entry is displaced: the path is the
//! one *as of the first open*, and the report labels it "as opened".
//!
//! The walk uses bpf_probe_read_kernel: 170 ns per component. System calls on a cached file do not
//! pay for it.

use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use crate::runtime::settings::setting;
use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_kernel_str};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::PATHS_FAILED;
use blkkin_probe_abi::record::{
    FILE_PATH_MAX, FILE_PATH_TRUNCATED, FileId, FileRecord, Header, PATH_DEPTH_MAX, TAG_FILE,
};
use blkkin_probe_abi::settings::PROGRAMS;

/// Entries of the cache: 16,384 files, 655 KB.
const EMITTED_PATHS_MAX: usize = 16_384;
/// Longest component (NAME_MAX, include/uapi/linux/limits.h) and its NUL.
const NAME_MAX: usize = 256;

#[repr(C)]
struct CachedPath {
    file: FileId,
    dentry: u64,
    name_hash: u64,
    parent: u64,
}

/// Record under construction and state of the walk. The walk keeps no state in registers between
/// two steps. So each step looks like the last one to the verifier, which checks one step instead
/// of 2^24 combinations of mount crossings.
#[repr(C)]
struct PathDraft {
    record: FileRecord,
    path: [u8; FILE_PATH_MAX + NAME_MAX],
    used: u64,
    dentry: u64,
    mount: u64,
    complete: u64,
}

#[btf_map]
static EMITTED_PATHS: Array<CachedPath, EMITTED_PATHS_MAX> = Array::new();

#[btf_map]
static PATH_DRAFTS: PerCpuArray<PathDraft, PROGRAMS> = PerCpuArray::new();

/// Emits the path of the file at address `file`, unless the cache has it. The record has time
/// `now`, or the clock's if that is 0: a system call that opens a file must not end before its file
/// has a name.
#[inline(always)]
fn emit_path(percpu: &mut PerCpuState, file: u64, id: &FileId, opened: bool, now: u64) {
    let hash = (id.ino ^ (id.generation as u64) << 32 ^ id.dev as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let Some(cached) = EMITTED_PATHS.get_ptr_mut((hash >> 40) as u32 & (EMITTED_PATHS_MAX as u32 - 1)) else {
        return;
    };
    // SAFETY: an entry of the map.
    let cached = unsafe { &mut *cached };
    let known = cached.file == *id;
    if known && !opened {
        return;
    }
    let file = file as Pointer;
    // SAFETY: bpf_probe_read_kernel takes any address.
    let current = unsafe {
        let dentry: Pointer = ProbeRead::read(file, offset!(file_dentry));
        CachedPath {
            file: *id,
            dentry: dentry as u64,
            name_hash: ProbeRead::read(dentry, offset!(dentry_name)),
            parent: ProbeRead::read(dentry, offset!(dentry_parent)),
        }
    };
    if known
        && cached.dentry == current.dentry
        && cached.name_hash == current.name_hash
        && cached.parent == current.parent
    {
        return;
    }
    if emit_file_record(file as u64, percpu.slot() as u64, now) != 0 {
        *cached = current;
    }
}

/// Returns whether no path of this file was emitted, and stores that one is: for a caller that calls
/// [`emit_file_record`] from a place with more stack.
#[inline(always)]
pub fn claim(file: u64, id: &FileId) -> bool {
    let hash = (id.ino ^ (id.generation as u64) << 32 ^ id.dev as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let Some(cached) = EMITTED_PATHS.get_ptr_mut((hash >> 40) as u32 & (EMITTED_PATHS_MAX as u32 - 1)) else {
        return false;
    };
    // SAFETY: an entry of the map; bpf_probe_read_kernel takes any address.
    unsafe {
        if setting!(file_paths) == 0 || (*cached).file == *id {
            return false;
        }
        (*cached).file = *id;
        let dentry: Pointer = ProbeRead::read(file as Pointer, offset!(file_dentry));
        (*cached).dentry = dentry as u64;
        (*cached).name_hash = ProbeRead::read(dentry, offset!(dentry_name));
        (*cached).parent = ProbeRead::read(dentry, offset!(dentry_parent));
    }
    true
}

/// Walks from a `struct file` upwards and writes its record; returns 1 on success. `slot` is the
/// caller's slot number.
///
/// A global function: it takes only numbers, and the verifier checks it once instead of at each
/// caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn emit_file_record(file: u64, slot: u64, now: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    let Some(draft) = PATH_DRAFTS.get_ptr_mut(slot as u32) else { return 0 };
    // SAFETY: only the calling program uses the draft on this CPU; bpf_probe_read_kernel takes any
    // address.
    let draft = unsafe { &mut *draft };
    fill_identity(draft, file as Pointer);
    let mut step = 0;
    while step < PATH_DEPTH_MAX {
        if !step_up(draft) {
            break;
        }
        step += 1;
    }
    // SAFETY: a field of the draft.
    let used = unsafe { core::ptr::read_volatile(&raw const draft.used) };
    if used == 0 || used > FILE_PATH_MAX as u64 {
        percpu.count(PATHS_FAILED);
        return 0;
    }
    let len = size_of::<FileRecord>() as u64 + used;
    draft.record.header = Header {
        tag: TAG_FILE,
        reserved: 0,
        flags: if draft.complete != 0 { 0 } else { FILE_PATH_TRUNCATED },
        len: len as u32,
        // SAFETY: no preconditions.
        time_ns: if now != 0 { now } else { unsafe { bpf_ktime_get_ns() } },
    };
    // SAFETY: the path lies directly behind the record.
    unsafe { ring::write(percpu, TAG_FILE, (&raw const *draft).cast(), len) as u64 }
}

/// Fills in the file's metadata, and the start of the walk.
#[inline(always)]
fn fill_identity(draft: &mut PathDraft, file: Pointer) {
    // SAFETY: bpf_probe_read_kernel takes any address.
    unsafe {
        let inode: Pointer = ProbeRead::read(file, offset!(file_inode));
        let sb: Pointer = ProbeRead::read(inode, offset!(inode_sb));
        let kind: Pointer = ProbeRead::read(sb, offset!(sb_type));
        let kind_name: Pointer = ProbeRead::read(kind, offset!(fstype_name));
        draft.record.file = super::identity::<ProbeRead>(file);
        draft.record.rdev = ProbeRead::read(inode, offset!(inode_rdev));
        draft.record.mode = ProbeRead::read::<u16>(inode, offset!(inode_mode)) as u32;
        draft.record.filesystem = [0; 16];
        bpf_probe_read_kernel_str((&raw mut draft.record.filesystem).cast(), 16, kind_name.cast());
        let mount: u64 = ProbeRead::read(file, offset!(file_mnt));
        draft.dentry = ProbeRead::read(file, offset!(file_dentry));
        draft.mount = mount.wrapping_sub(offset!(mount_mnt) as u64);
        draft.used = 0;
        draft.complete = 0;
    }
}

/// Takes one step: copies the dentry's name and goes to its parent, or, at the root of a mount, to
/// the mount point. Returns false at the end of the walk.
#[inline(always)]
fn step_up(draft: &mut PathDraft) -> bool {
    // SAFETY: fields of the draft, read and written whole; bpf_probe_read_kernel takes any address.
    unsafe {
        let dentry = core::ptr::read_volatile(&raw const draft.dentry) as Pointer;
        let mount = core::ptr::read_volatile(&raw const draft.mount) as Pointer;
        let root: u64 = ProbeRead::read(mount, offset!(mount_mnt) + offset!(vfsmount_root));
        let parent: u64 = ProbeRead::read(dentry, offset!(dentry_parent));
        if dentry as u64 != root && dentry as u64 != parent {
            core::ptr::write_volatile(&raw mut draft.dentry, parent);
            return copy_name(draft, dentry);
        }
        let parent_mount: u64 = ProbeRead::read(mount, offset!(mount_parent));
        if parent_mount != mount as u64 {
            let point: u64 = ProbeRead::read(mount, offset!(mount_mountpoint));
            core::ptr::write_volatile(&raw mut draft.dentry, point);
            core::ptr::write_volatile(&raw mut draft.mount, parent_mount);
            return true;
        }
        // A pipe, a socket or a memory file is its own root: its own name is the whole path.
        if core::ptr::read_volatile(&raw const draft.used) == 0 {
            copy_name(draft, dentry);
        }
        core::ptr::write_volatile(&raw mut draft.complete, 1);
        false
    }
}

/// Appends the dentry's name with its NUL. Returns false without name, or without room for all of
/// it: the path then begins below this dentry.
#[inline(always)]
fn copy_name(draft: &mut PathDraft, dentry: Pointer) -> bool {
    // SAFETY: `used` is checked, and a name is at most NAME_MAX longer than the checked limit.
    unsafe {
        let used = core::ptr::read_volatile(&raw const draft.used);
        if used >= FILE_PATH_MAX as u64 {
            return false;
        }
        let name: Pointer = ProbeRead::read(dentry, offset!(dentry_name) + 8);
        let to = (&raw mut draft.path).cast::<u8>().add(used as usize);
        let copied = bpf_probe_read_kernel_str(to.cast(), NAME_MAX as u32, name.cast());
        if copied <= 0 || used + copied as u64 > FILE_PATH_MAX as u64 {
            return false;
        }
        core::ptr::write_volatile(&raw mut draft.used, used + copied as u64);
        true
    }
}

/// Emits the file's path if paths are enabled and this identity's path was not emitted before. For
/// a file just opened, a new name is emitted too.
#[inline(always)]
pub fn emit(percpu: &mut PerCpuState, file: u64, id: &FileId, opened: bool, now: u64) {
    if setting!(file_paths) != 0 {
        emit_path(percpu, file, id, opened, now);
    }
}
