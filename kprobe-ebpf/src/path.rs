//! A file's path, once for each file: from its dentry upwards, over mount points, to the root of the host.
//!
//! *In*: a `struct file`'s address. *Out*: a `FileRecord` with the path's components, leaf first.
//!
//! A cache says which (file, name) was said already. It is direct-mapped and written without locks: a collision
//! or a torn entry makes a name be said again, never be left out for good, because an entry counts only if the
//! whole identity is equal. After a rename the name's hash or the parent differs, so the next open says the new
//! name; the rename of a directory further up is not noticed until the entry is displaced: the path is the one
//! *as of the first open*, and the report says "as opened".
//!
//! The walk reads by helper: 170 ns a component. It is not on the path of a call whose file is known.

use crate::access::{Access, Pointer, Probe};
use crate::layout::offset;
use crate::local::Local;
use crate::{file, ring};
use aya_ebpf::btf_maps::{Array, PerCpuArray};
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_kernel_str};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::PATHS_FAILED;
use blkkin_probe_abi::record::{
    FILE_PATH_MAX, FILE_PATH_TRUNCATED, FileId, FileRecord, Header, PATH_DEPTH_MAX, TAG_FILE,
};
use blkkin_probe_abi::settings::PROGRAMS;

/// Entries of the cache: 16,384 files, 655 KB.
const SAID_MAX: usize = 16_384;
/// Longest component (NAME_MAX, include/uapi/linux/limits.h) and its NUL.
const NAME_MAX: usize = 256;

#[repr(C)]
struct Said {
    file: FileId,
    dentry: u64,
    name_hash: u64,
    parent: u64,
}

/// A name in the making, and how far the walk is. The walk keeps nothing in registers from one step to the next: to
/// the verifier each step then looks like the last, and it checks one, not 2^24 ways of crossing mounts.
#[repr(C)]
struct Draft {
    record: FileRecord,
    path: [u8; FILE_PATH_MAX + NAME_MAX],
    used: u64,
    dentry: u64,
    mount: u64,
    whole: u64,
}

#[btf_map]
static SAID: Array<Said, SAID_MAX> = Array::new();

#[btf_map]
static DRAFTS: PerCpuArray<Draft, PROGRAMS> = PerCpuArray::new();

/// Says the path of the file at address `file`, unless it was said. It bears the time `now`, or the clock's if that is 0:
/// a call that opens a file must not end before its file has a name.
#[inline(always)]
pub fn announce(local: &mut Local, file: u64, id: &FileId, opened: bool, now: u64) {
    let hash = (id.ino ^ (id.generation as u64) << 32 ^ id.dev as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let Some(said) = SAID.get_ptr_mut((hash >> 40) as u32 & (SAID_MAX as u32 - 1)) else { return };
    // SAFETY: an entry of the map.
    let said = unsafe { &mut *said };
    let known = said.file == *id;
    if known && !opened {
        return;
    }
    let file = file as Pointer;
    // SAFETY: reads by helper take any address.
    let seen = unsafe {
        let dentry: Pointer = Probe::read(file, offset!(file_dentry));
        Said {
            file: *id,
            dentry: dentry as u64,
            name_hash: Probe::read(dentry, offset!(dentry_name)),
            parent: Probe::read(dentry, offset!(dentry_parent)),
        }
    };
    if known && said.dentry == seen.dentry && said.name_hash == seen.name_hash && said.parent == seen.parent {
        return;
    }
    if name_file(file as u64, local.slot() as u64, now) != 0 {
        *said = seen;
    }
}

/// Walks from a `struct file` upwards and writes its record; 1 if that was possible. `slot` is the caller's.
///
/// A global function for the verifier: it takes numbers only, and is checked once, not at each caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn name_file(file: u64, slot: u64, now: u64) -> u64 {
    let Some(local) = Local::at(slot as u32) else { return 0 };
    let Some(draft) = DRAFTS.get_ptr_mut(slot as u32) else { return 0 };
    // SAFETY: the draft is the calling program's alone on this CPU; reads by helper take any address.
    let draft = unsafe { &mut *draft };
    describe(draft, file as Pointer);
    let mut step = 0;
    while step < PATH_DEPTH_MAX {
        if !climb(draft) {
            break;
        }
        step += 1;
    }
    // SAFETY: a field of the draft.
    let used = unsafe { core::ptr::read_volatile(&raw const draft.used) };
    if used == 0 || used > FILE_PATH_MAX as u64 {
        local.count(PATHS_FAILED);
        return 0;
    }
    let len = size_of::<FileRecord>() as u64 + used;
    draft.record.header = Header {
        tag: TAG_FILE,
        reserved: 0,
        flags: if draft.whole != 0 { 0 } else { FILE_PATH_TRUNCATED },
        len: len as u32,
        // SAFETY: no preconditions.
        time_ns: if now != 0 { now } else { unsafe { bpf_ktime_get_ns() } },
    };
    // SAFETY: the path lies directly behind the record.
    unsafe { ring::write(local, TAG_FILE, (&raw const *draft).cast(), len) as u64 }
}

/// What is known of the file without its path, and where the walk begins.
#[inline(always)]
fn describe(draft: &mut Draft, file: Pointer) {
    // SAFETY: reads by helper take any address.
    unsafe {
        let inode: Pointer = Probe::read(file, offset!(file_inode));
        let sb: Pointer = Probe::read(inode, offset!(inode_sb));
        let kind: Pointer = Probe::read(sb, offset!(sb_type));
        let kind_name: Pointer = Probe::read(kind, offset!(fstype_name));
        draft.record.file = file::identity::<Probe>(file);
        draft.record.rdev = Probe::read(inode, offset!(inode_rdev));
        draft.record.mode = Probe::read::<u16>(inode, offset!(inode_mode)) as u32;
        draft.record.filesystem = [0; 16];
        bpf_probe_read_kernel_str((&raw mut draft.record.filesystem).cast(), 16, kind_name.cast());
        let mount: u64 = Probe::read(file, offset!(file_mnt));
        draft.dentry = Probe::read(file, offset!(file_dentry));
        draft.mount = mount.wrapping_sub(offset!(mount_mnt) as u64);
        draft.used = 0;
        draft.whole = 0;
    }
}

/// One step: copies the dentry's name and goes to its parent, or, at the root of a mount, to the mount point. False
/// when the walk is over.
#[inline(always)]
fn climb(draft: &mut Draft) -> bool {
    // SAFETY: fields of the draft, read and written whole; reads by helper take any address.
    unsafe {
        let dentry = core::ptr::read_volatile(&raw const draft.dentry) as Pointer;
        let mount = core::ptr::read_volatile(&raw const draft.mount) as Pointer;
        let root: u64 = Probe::read(mount, offset!(mount_mnt) + offset!(vfsmount_root));
        let parent: u64 = Probe::read(dentry, offset!(dentry_parent));
        if dentry as u64 != root && dentry as u64 != parent {
            core::ptr::write_volatile(&raw mut draft.dentry, parent);
            return copy_name(draft, dentry);
        }
        let above: u64 = Probe::read(mount, offset!(mount_parent));
        if above != mount as u64 {
            let point: u64 = Probe::read(mount, offset!(mount_mountpoint));
            core::ptr::write_volatile(&raw mut draft.dentry, point);
            core::ptr::write_volatile(&raw mut draft.mount, above);
            return true;
        }
        // A pipe, a socket or a file in memory is a root by itself: its own name is all there is.
        if core::ptr::read_volatile(&raw const draft.used) == 0 {
            copy_name(draft, dentry);
        }
        core::ptr::write_volatile(&raw mut draft.whole, 1);
        false
    }
}

/// Appends the dentry's name with its NUL. False when there is no room or no name.
#[inline(always)]
fn copy_name(draft: &mut Draft, dentry: Pointer) -> bool {
    // SAFETY: `used` is checked, and a name is at most NAME_MAX longer than what is checked for.
    unsafe {
        let used = core::ptr::read_volatile(&raw const draft.used);
        if used >= FILE_PATH_MAX as u64 {
            return false;
        }
        let name: Pointer = Probe::read(dentry, offset!(dentry_name) + 8);
        let to = (&raw mut draft.path).cast::<u8>().add(used as usize);
        let copied = bpf_probe_read_kernel_str(to.cast(), NAME_MAX as u32, name.cast());
        if copied <= 0 {
            return false;
        }
        core::ptr::write_volatile(&raw mut draft.used, used + copied as u64);
        true
    }
}
