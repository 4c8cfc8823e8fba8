//! Path walk: from a file's dentry upwards, across mount points, to the root of the host.
//!
//! *In*: a `struct file`'s address. *Out*: the path's number (`FileId::name`), and a `FileRecord`
//! with the path's components, leaf first.
//!
//! *The number* is a hash over each dentry on the way: the hash of its name and its d_seq. The
//! kernel increments d_seq whenever it moves or unhashes the dentry, also for a rename to a name
//! with the same hash. So a path that has changed has another number, and a file that is renamed
//! forth and back has a third one.
//!
//! *Invariant*: a record's text, metadata and number are of one moment. The walk that copies the text
//! is followed by one without text. Two equal numbers with even d_seqs prove that no dentry on the way
//! moved in between. Otherwise both are repeated.
//!
//! *Verifier*: the walk keeps its state in memory, not in registers, and [`climb`] and [`ascend`] are global
//! functions, so the verifier checks each once in each program: 3,300 instructions, and 8,400 if [`walk`] calls
//! [`climb`] itself. Each part of the walk is a function of its own with a
//! small frame, because Linux sums the stacks of nested calls (512 B). So the depth of a path costs no
//! verification: in one unbroken loop 24 levels took 374,284 instructions.
//!
//! A step reads a dentry's first 64 bytes at once (25 ns), and with text its name (30 ns).
//!
//! *Rejected*: bpf_d_path, which is refused in tracing programs (-EINVAL).

use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::Pointer;
use crate::runtime::ring;
use aya_ebpf::btf_maps::PerCpuArray;
use aya_ebpf::helpers::generated::{bpf_ktime_get_ns, bpf_probe_read_kernel, bpf_probe_read_kernel_str};
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Longest component (NAME_MAX, include/uapi/linux/limits.h) and its NUL.
const NAME_MAX: usize = 256;
/// Bytes read of a dentry. On all supported kernels its first cache line has all that is needed.
const HEAD: usize = 64;

/// The walk copies names.
const WITH_TEXT: u64 = 1;

/// Record under construction and state of the walk.
#[repr(C)]
struct PathDraft {
    record: FileRecord,
    path: [u8; FILE_PATH_MAX + NAME_MAX],
    /// Bytes of `path` that are in use.
    used: u64,
    dentry: u64,
    /// `struct mount` of the dentry, and its root.
    mount: u64,
    mount_root: u64,
    /// Number of the path so far.
    number: u64,
    /// Nonzero: a d_seq was odd, so its dentry is being moved.
    moving: u64,
    /// `WITH_TEXT`, or 0.
    mode: u64,
    head: [u8; HEAD],
    scratch: u64,
}

/// Number of drafts: one for each program that may name a file.
const DRAFTS: usize = 14;

#[btf_map]
static PATH_DRAFTS: PerCpuArray<PathDraft, DRAFTS> = PerCpuArray::new();

/// Returns the draft of the program with this slot number; none for a program that names no files.
#[inline(always)]
fn draft_of(slot: u64) -> Option<&'static mut PathDraft> {
    const REQUEST_START: u64 = Program::RequestStart as u64;
    const TASK_FORK: u64 = Program::TaskFork as u64;
    const COMMIT_START: u64 = Program::CommitStart as u64;
    const NBD_ENTER: u64 = Program::NbdEnter as u64;
    const ASYNC_SUBMIT: u64 = Program::AsyncSubmit as u64;
    const ASYNC_COMPLETE: u64 = Program::AsyncComplete as u64;
    const FAULT_END: u64 = Program::FaultEnd as u64;
    const DIRTY: u64 = Program::Dirty as u64;
    const WRITEBACK: u64 = Program::Writeback as u64;
    let index = match slot {
        0..=2 => slot,
        REQUEST_START => 3,
        TASK_FORK..=COMMIT_START => slot - 3,
        NBD_ENTER => 8,
        ASYNC_SUBMIT => 9,
        ASYNC_COMPLETE => 10,
        FAULT_END => 11,
        DIRTY => 12,
        WRITEBACK => 13,
        _ => return None,
    };
    // SAFETY: only the calling program uses the draft on this CPU.
    PATH_DRAFTS.get_ptr_mut(index as u32).map(|draft| unsafe { &mut *draft })
}

/// Walks without text; returns the number of the path, or 0 while it is being moved.
#[inline(always)]
pub fn number(slot: u64) -> u64 {
    walk(slot, 0)
}

/// Writes the file's record; returns the number of the path in it, or 0 if there is none.
#[inline(always)]
pub fn emit_record(percpu: &mut PerCpuState, slot: u64) -> Option<u64> {
    let mut attempt = 0;
    while attempt < 3 {
        let number = walk(slot, WITH_TEXT);
        if number != 0 && describe(slot) != 0 && number == walk(slot, 0) {
            return write_record(percpu, slot, number).then_some(number);
        }
        attempt += 1;
    }
    None
}

/// Writes the drafted record under the path's number.
#[inline(always)]
fn write_record(percpu: &mut PerCpuState, slot: u64, number: u64) -> bool {
    let Some(draft) = draft_of(slot) else { return false };
    // SAFETY: a field of the draft.
    let used = unsafe { core::ptr::read_volatile(&raw const draft.used) };
    if used == 0 || used > FILE_PATH_MAX as u64 {
        return false;
    }
    let len = size_of::<FileRecord>() as u64 + used;
    draft.record.file.name = number;
    draft.record.header.tag = TAG_FILE;
    draft.record.header.sampling = 0;
    draft.record.header.len = len as u32;
    // SAFETY: no preconditions.
    draft.record.header.time_ns = match percpu.naming.now {
        0 => unsafe { bpf_ktime_get_ns() },
        now => now,
    };
    // SAFETY: the path lies directly behind the record.
    unsafe { ring::write(percpu, TAG_FILE, (&raw const *draft).cast(), len) }
}

/// Walks from the `struct file` in the slot's `naming` upwards.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn walk(slot: u64, mode: u64) -> u64 {
    if begin_walk(slot, mode) == 0 {
        return 0;
    }
    let mut ascents = 0;
    while ascents < ASCENTS_MAX && ascend(slot) != 0 {
        ascents += 1;
    }
    let Some(draft) = draft_of(slot) else { return 0 };
    // SAFETY: fields of the draft, which the walk changed.
    unsafe {
        if core::ptr::read_volatile(&raw const draft.moving) != 0 {
            return 0;
        }
        core::ptr::read_volatile(&raw const draft.number) | 1
    }
}

/// Fills in the start of the walk. Returns 0 on failure.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn begin_walk(slot: u64, mode: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    let Some(draft) = draft_of(slot) else { return 0 };
    let file = percpu.naming.file as Pointer;
    (draft.mode, draft.moving) = (mode, 0);
    let inode = percpu.naming.inode as Pointer;
    let sb = load(draft, inode, offset!(inode_sb)) as Pointer;
    let dev = load(draft, sb, offset!(sb_dev)) << 32;
    let generation = load(draft, inode, offset!(inode_generation)) as u32;
    draft.number = mix(load(draft, inode, offset!(inode_ino)), dev | generation as u64);
    draft.dentry = load(draft, file, offset!(file_dentry));
    let mount = load(draft, file, offset!(file_mnt)).wrapping_sub(offset!(mount_mnt) as u64);
    draft.mount = mount;
    draft.mount_root = load(draft, mount as Pointer, offset!(mount_mnt) + offset!(vfsmount_root));
    if mode == WITH_TEXT {
        draft.used = 0;
        draft.record.header.flags = FILE_PATH_TRUNCATED;
    }
    1
}

/// Fills in what the record has in addition to the path, after a walk with text. Returns 0 on failure.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn describe(slot: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    let Some(draft) = draft_of(slot) else { return 0 };
    let file = percpu.naming.file as Pointer;
    let inode = percpu.naming.inode as Pointer;
    draft.record.file.generation = load(draft, inode, offset!(inode_generation)) as u32;
    draft.record.file.ino = load(draft, inode, offset!(inode_ino));
    draft.record.rdev = load(draft, inode, offset!(inode_rdev)) as u32;
    draft.record.mode = load(draft, inode, offset!(inode_mode)) as u16 as u32;
    let sb = load(draft, inode, offset!(inode_sb)) as Pointer;
    draft.record.file.dev = load(draft, sb, offset!(sb_dev)) as u32;
    let kind = load(draft, sb, offset!(sb_type)) as Pointer;
    let kind_name = load(draft, kind, offset!(fstype_name)) as Pointer;
    // SAFETY: a field of the draft; bpf_probe_read_kernel_str takes any address.
    unsafe {
        let name = (&raw mut draft.record.filesystem).cast::<u64>();
        name.write_volatile(0);
        name.add(1).write_volatile(0);
        bpf_probe_read_kernel_str(name.cast(), 16, kind_name.cast());
    }
    let dentry = load(draft, file, offset!(file_dentry));
    read_head(draft, dentry as Pointer);
    let hashed: u64 = field(draft, offset!(dentry_hashed));
    if hashed == 0 && field::<u64>(draft, offset!(dentry_parent)) != dentry {
        draft.record.header.flags |= FILE_NAME_REMOVED;
    }
    1
}

/// Climbs up to [`CLIMBS_MAX`] times, and across mount points. Returns 0 at the end of the walk.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ascend(slot: u64) -> u64 {
    let mut climbs = 0;
    while climbs < CLIMBS_MAX {
        let mut more = climb(slot);
        if more == 0 {
            more = leave_mount(slot);
        }
        // SAFETY: changes nothing. It keeps the two tests apart, so that the compiler does not rotate the
        // loop: Linux 6.1 refuses a loop whose way back is not a jump.
        unsafe { core::arch::asm!("{0} = {0}", inout(reg) more, options(nomem, nostack, preserves_flags)) };
        if more == 0 {
            return 0;
        }
        climbs += 1;
    }
    1
}

/// Takes up to [`CLIMB_STEPS`] steps; returns 0 at the root of a mount and where there is no way up.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn climb(slot: u64) -> u64 {
    let Some(draft) = draft_of(slot) else { return 0 };
    let mut step = 0;
    while step < CLIMB_STEPS {
        if !step_up(draft) {
            return 0;
        }
        step += 1;
    }
    1
}

/// Takes one step: adds the dentry and goes to its parent. Returns false at the root of a mount and
/// where there is no way up.
#[inline(always)]
fn step_up(draft: &mut PathDraft) -> bool {
    // SAFETY: fields of the draft, read and written whole.
    unsafe {
        let dentry = core::ptr::read_volatile(&raw const draft.dentry);
        read_head(draft, dentry as Pointer);
        let parent: u64 = field(draft, offset!(dentry_parent));
        if dentry == core::ptr::read_volatile(&raw const draft.mount_root) || dentry == parent {
            return false;
        }
        core::ptr::write_volatile(&raw mut draft.dentry, parent);
        add_dentry(draft);
        parent != 0
    }
}

/// Goes from the root of a mount to its mount point. Returns 0 at the end of the walk: at the root of
/// the host, of an unmounted file system, or of a dentry that has no path.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn leave_mount(slot: u64) -> u64 {
    let Some(draft) = draft_of(slot) else { return 0 };
    // SAFETY: fields of the draft, read and written whole.
    unsafe {
        let dentry = core::ptr::read_volatile(&raw const draft.dentry);
        if dentry == 0 {
            return 0;
        }
        let at_root = dentry == core::ptr::read_volatile(&raw const draft.mount_root);
        let mount = core::ptr::read_volatile(&raw const draft.mount);
        let upper = load(draft, mount as Pointer, offset!(mount_parent));
        let number = core::ptr::read_volatile(&raw const draft.number);
        core::ptr::write_volatile(&raw mut draft.number, mix(number, mount));
        if at_root && upper != mount {
            let point = load(draft, mount as Pointer, offset!(mount_mountpoint));
            let root = load(draft, upper as Pointer, offset!(mount_mnt) + offset!(vfsmount_root));
            core::ptr::write_volatile(&raw mut draft.dentry, point);
            core::ptr::write_volatile(&raw mut draft.mount, upper);
            core::ptr::write_volatile(&raw mut draft.mount_root, root);
            return 1;
        }
        if draft.mode != WITH_TEXT {
            return 0;
        }
        let used = core::ptr::read_volatile(&raw const draft.used);
        // A pipe, a socket or a memory file is its own root: its own name is the whole path. A
        // dentry that was moved out of its bind mount has no path from there.
        let whole = at_root || used == 0;
        if used == 0 {
            copy_name(draft);
        }
        if whole {
            draft.record.header.flags &= !FILE_PATH_TRUNCATED;
        }
        if at_root && load(draft, mount as Pointer, offset!(mount_ns)) == 0 {
            draft.record.header.flags |= FILE_UNMOUNTED;
        }
        0
    }
}

/// Adds the dentry whose head was read to the number and, with text, to the path. Without room for
/// its name the walk goes on without text: the path begins below this dentry.
#[inline(always)]
fn add_dentry(draft: &mut PathDraft) {
    let name_hash: u64 = field(draft, offset!(dentry_name));
    let sequence = field::<u32>(draft, offset!(dentry_seq)) as u64;
    // SAFETY: fields of the draft, read and written whole.
    unsafe {
        let number = core::ptr::read_volatile(&raw const draft.number);
        core::ptr::write_volatile(&raw mut draft.number, mix(number ^ name_hash, sequence));
        if sequence & 1 != 0 {
            core::ptr::write_volatile(&raw mut draft.moving, 1);
        }
        if core::ptr::read_volatile(&raw const draft.mode) == WITH_TEXT && !copy_name(draft) {
            core::ptr::write_volatile(&raw mut draft.mode, 0);
        }
    }
}

/// Appends the name of the dentry whose head was read, with its NUL. Returns false without name, or
/// without room for all of it.
#[inline(always)]
fn copy_name(draft: &mut PathDraft) -> bool {
    // SAFETY: `used` is checked, and a name is at most NAME_MAX longer than the checked limit.
    unsafe {
        let used = core::ptr::read_volatile(&raw const draft.used);
        if used >= FILE_PATH_MAX as u64 {
            return false;
        }
        let name: Pointer = field(draft, offset!(dentry_name) + 8);
        let to = (&raw mut draft.path).cast::<u8>().add(used as usize);
        let copied = bpf_probe_read_kernel_str(to.cast(), NAME_MAX as u32, name.cast());
        if copied <= 0 || used + copied as u64 > FILE_PATH_MAX as u64 {
            return false;
        }
        core::ptr::write_volatile(&raw mut draft.used, used + copied as u64);
        true
    }
}

/// Reads the dentry's head; zeros if it cannot be read.
#[inline(always)]
fn read_head(draft: &mut PathDraft, dentry: Pointer) {
    // SAFETY: bpf_probe_read_kernel writes HEAD bytes or zeros; any address is allowed.
    unsafe { bpf_probe_read_kernel((&raw mut draft.head).cast(), HEAD as u32, dentry.cast()) };
}

/// Returns the value at this offset of the head.
#[inline(always)]
fn field<T: Copy>(draft: &PathDraft, offset: u32) -> T {
    // SAFETY: the offset is a constant to the verifier, which checks it.
    unsafe { core::ptr::read_volatile((&raw const draft.head).cast::<u8>().add(offset as usize).cast()) }
}

/// Returns the word at `base + offset`, read into the draft: it uses no stack.
#[inline(always)]
fn load(draft: &mut PathDraft, base: Pointer, offset: u32) -> u64 {
    // SAFETY: bpf_probe_read_kernel writes 8 bytes or zeros; any address is allowed.
    unsafe {
        bpf_probe_read_kernel(
            (&raw mut draft.scratch).cast(),
            size_of::<u64>() as u32,
            base.wrapping_add(offset as usize).cast(),
        );
        core::ptr::read_volatile(&raw const draft.scratch)
    }
}

/// Folds two words into one.
#[inline(always)]
fn mix(a: u64, b: u64) -> u64 {
    let folded = a.wrapping_mul(0xbf58_476d_1ce4_e5b9).rotate_left(31) ^ b;
    folded.wrapping_mul(0x94d0_49bb_1331_11eb).rotate_left(29)
}
