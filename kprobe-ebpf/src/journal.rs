//! ext4's journal: which transaction an fsync waited for, and what the journal's thread wrote for it.
//!
//! An fsync that changed metadata does not write the journal itself: it asks jbd2's thread for a commit and waits.
//! Two records make the tie: the call says which transaction its inode belonged to (i_sync_tid, or i_datasync_tid
//! for fdatasync) when ext4_sync_file returned, and a `CommitRecord` says (device, transaction, begin, end). The
//! number is read at the *exit* of ext4_sync_file: delayed allocation happens inside it, in its write-out, and
//! moves the inode to a newer transaction than the one at entry.
//!
//! The commit is a span of its own, open in jbd2's thread between jbd2_start_commit and jbd2_end_commit: what that
//! thread queues meanwhile was submitted *by the commit*, and is caused by every fsync that waited. A commit is
//! nobody's child here.

use crate::access::{Access, Pointer, Probe};
use crate::filter::device_wanted;
use crate::layout::offset;
use crate::local::Local;
use crate::{block, ring, task};
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// ext4_sync_file_enter(file, datasync).
#[inline(always)]
pub fn sync_enter(datasync: u32) {
    let Some(state) = task::state(task::current()) else { return };
    state.datasync = datasync;
}

/// ext4_sync_file_exit(inode, ret).
#[inline(always)]
pub fn sync_exit(inode: Pointer) {
    let Some(state) = task::state(task::current()) else { return };
    if state.span == 0 {
        return;
    }
    let Some(local) = Local::of(Program::SyncExit) else { return };
    // ext4_inode_info lies around the inode and begins before it, where a typed pointer may not go.
    let info = (local.address(inode) as Pointer).wrapping_sub(offset!(ext4_vfs_inode) as usize);
    // SAFETY: reads by helper take any address.
    let tid = unsafe {
        if state.datasync != 0 {
            Probe::read::<u32>(info, offset!(ext4_datasync_tid))
        } else {
            Probe::read::<u32>(info, offset!(ext4_sync_tid))
        }
    };
    state.record.sync_tid = tid;
    state.record.header.flags |= CALL_HAS_SYNC_TID;
}

/// jbd2_start_commit(journal, transaction).
#[inline(always)]
pub fn commit_start<A: Access>(journal: Pointer, transaction: Pointer) {
    let Some(local) = Local::of(Program::CommitStart) else { return };
    // SAFETY: both are of the kind that A reads.
    let (dev, disk, tid) = unsafe {
        let bdev: Pointer = A::read(journal, offset!(journal_fs_dev));
        let disk: Pointer = A::read(bdev, offset!(bdev_disk));
        (
            A::read::<u32>(bdev, offset!(bdev_dev)),
            block::disk_number::<A>(disk),
            A::read::<u32>(transaction, offset!(transaction_tid)),
        )
    };
    if !device_wanted(dev, disk) {
        return;
    }
    let Some(state) = task::worker(local, Program::CommitStart) else { return };
    state.span = local.mint(Program::CommitStart);
    state.bios = 0;
    state.commit_dev = dev;
    state.commit_tid = tid;
    // SAFETY: the clock has no preconditions.
    state.commit_start_ns = unsafe { bpf_ktime_get_ns() };
}

/// jbd2_end_commit(journal, transaction).
#[inline(always)]
pub fn commit_end() {
    let Some(state) = task::state(task::current()) else { return };
    if state.commit_start_ns == 0 {
        return;
    }
    let Some(local) = Local::of(Program::CommitEnd) else { return };
    let record = CommitRecord {
        header: Header {
            tag: TAG_COMMIT,
            reserved: 0,
            flags: 0,
            len: size_of::<CommitRecord>() as u32,
            // SAFETY: the clock has no preconditions.
            time_ns: unsafe { bpf_ktime_get_ns() },
        },
        span: state.span,
        task: state.task,
        start_ns: state.commit_start_ns,
        dev: state.commit_dev,
        tid: state.commit_tid,
        bios: state.bios,
        task_version: state.version,
        reserved: 0,
    };
    state.span = 0;
    state.commit_start_ns = 0;
    // SAFETY: the record lies on the stack.
    unsafe { ring::write(local, TAG_COMMIT, (&raw const record).cast(), size_of::<CommitRecord>() as u64) };
}
