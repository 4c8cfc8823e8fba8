//! ext4's journal: the transaction that an fsync waited for, and the I/O of its commit.
//!
//! An fsync that changed metadata does not write the journal itself: it requests a commit from
//! jbd2's thread and waits. Two records link them. The system call record has the transaction of
//! its inode (i_sync_tid, or i_datasync_tid for fdatasync) as of the return of ext4_sync_file; a
//! `CommitRecord` has (device, transaction, begin, end).
//! The number is read at the *exit* of ext4_sync_file: its write-out does the delayed allocation,
//! which moves the inode to a newer transaction than the one at entry.
//!
//! The commit is a span, open in jbd2's thread between jbd2_start_commit and jbd2_end_commit. It is
//! the parent of the bios that the thread queues meanwhile; every fsync that waited for it gets a
//! span link. A commit has no parent here. `xfs_log` finds what an fsync on xfs waits for.

pub mod xfs_log;

use crate::block::device::{device_passes, disk_number};
use crate::runtime::layout::offset;
use crate::runtime::percpu::PerCpuState;
use crate::runtime::read::{KernelRead, Pointer, ProbeRead};
use crate::runtime::ring;
use crate::task;
use aya_ebpf::helpers::generated::bpf_ktime_get_ns;
use blkkin_probe_abi::record::*;
use blkkin_probe_abi::settings::Program;

/// Handles ext4_sync_file_enter(file, datasync).
#[inline(always)]
pub fn sync_enter(datasync: u32) {
    let Some(state) = task::state(task::current()) else { return };
    state.datasync = datasync;
}

/// Handles ext4_sync_file_exit(inode, ret).
#[inline(always)]
pub fn sync_exit(inode: Pointer) {
    let Some(state) = task::state(task::current()) else { return };
    if state.span == 0 {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::SyncExit) else { return };
    // ext4_inode_info contains the inode and begins before it, where a typed pointer may not point.
    let info = (percpu.address(inode) as Pointer).wrapping_sub(offset!(ext4_vfs_inode) as usize);
    // SAFETY: bpf_probe_read_kernel takes any address.
    let tid = unsafe {
        if state.datasync != 0 {
            ProbeRead::read::<u32>(info, offset!(ext4_datasync_tid))
        } else {
            ProbeRead::read::<u32>(info, offset!(ext4_sync_tid))
        }
    };
    state.record.sync_tid = tid;
    state.record.header.flags |= SYSCALL_HAS_SYNC_TID;
}

/// Handles jbd2_start_commit(journal, transaction).
#[inline(always)]
pub fn commit_start<R: KernelRead>(journal: Pointer, transaction: Pointer) {
    let Some(percpu) = PerCpuState::of(Program::CommitStart) else { return };
    // SAFETY: both are of the kind that R reads.
    let (dev, disk, tid) = unsafe {
        let bdev: Pointer = R::read(journal, offset!(journal_fs_dev));
        let disk: Pointer = R::read(bdev, offset!(bdev_disk));
        (
            R::read::<u32>(bdev, offset!(bdev_dev)),
            disk_number::<R>(disk),
            R::read::<u32>(transaction, offset!(transaction_tid)),
        )
    };
    if !device_passes(dev, disk) {
        return;
    }
    let Some(state) = task::kernel_worker(percpu, Program::CommitStart) else { return };
    state.span = percpu.next_span_id(Program::CommitStart);
    state.bios = 0;
    state.commit_dev = dev;
    state.commit_tid = tid;
    // SAFETY: the clock has no preconditions.
    state.span_start_ns = unsafe { bpf_ktime_get_ns() };
}

/// Handles jbd2_end_commit(journal, transaction).
#[inline(always)]
pub fn commit_end() {
    let Some(state) = task::state(task::current()) else { return };
    if state.span == 0 || state.span_start_ns == 0 {
        return;
    }
    let Some(percpu) = PerCpuState::of(Program::CommitEnd) else { return };
    let record = CommitRecord {
        header: Header {
            tag: TAG_COMMIT,
            sampling: 0,
            flags: 0,
            len: size_of::<CommitRecord>() as u32,
            // SAFETY: the clock has no preconditions.
            time_ns: unsafe { bpf_ktime_get_ns() },
        },
        span: state.span,
        task: state.task,
        start_ns: state.span_start_ns,
        dev: state.commit_dev,
        tid: state.commit_tid,
        bios: state.bios,
        task_version: state.version,
        reserved: 0,
    };
    state.span = 0;
    state.span_start_ns = 0;
    // SAFETY: the record lies on the stack.
    unsafe { ring::write(percpu, TAG_COMMIT, (&raw const record).cast(), size_of::<CommitRecord>() as u64) };
}
