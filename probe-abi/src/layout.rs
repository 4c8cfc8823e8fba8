//! Byte offsets of the kernel fields that the programs read. The loader takes them from the running
//! kernel's BTF and freezes them into the programs.
//!
//! rustc emits no CO-RE relocations, so the offsets travel as data. Only the tracer's `layout.rs`
//! knows the fields' names and their changes between kernels; only the eBPF side's `layout.rs`
//! reads them.

use crate::plain;

/// Offset of a field that this kernel does not have. Programs that need the field are not attached,
/// or work without it.
pub const ABSENT: u32 = u32::MAX;

macro_rules! layout {
    ($($(#[$doc:meta])* $field:ident),+ $(,)?) => {
        #[allow(missing_docs, reason = "a field is named after the kernel's own: struct_member")]
        /// Byte offsets, one for each field read; [`ABSENT`] where this kernel has no such field.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(C)]
        pub struct Layout { $($(#[$doc])* pub $field: u32),+ }
        impl Layout {
            /// Field names, in order.
            pub const FIELDS: &[&str] = &[$(stringify!($field)),+];
            /// Layout with every field absent.
            pub const EMPTY: Layout = Layout { $($field: ABSENT),+ };
            /// Returns the field of this name, to be set.
            pub fn field_mut(&mut self, name: &str) -> Option<&mut u32> {
                match name { $(stringify!($field) => Some(&mut self.$field),)+ _ => None }
            }
        }
    };
}

layout! {
    /// struct task_struct
    task_pid, task_tgid, task_comm, task_real_parent, task_files, task_cred, task_cgroups, task_mm, task_flags,
    task_nvcsw, task_run_delay, task_group_leader, task_signal, task_plug, task_stack,
    /// struct task_struct: counters of ended page faults
    task_min_flt, task_maj_flt,
    /// bit of in_user_fault in struct task_struct: a number, not an offset
    task_in_user_fault_bit,
    /// task_struct.thread_info.status (x86: TS_COMPAT)
    task_compat,
    /// signal_struct.live: threads of a process that have not exited
    signal_live,
    /// struct task_struct, pid, upid, pid_namespace: a task's ids in its own pid namespace
    task_thread_pid, pid_level, pid_numbers, upid_nr, upid_ns, pid_ns_inum,
    /// struct task_struct: the thread pointer of its user space (x86: FS base)
    task_thread_pointer,
    /// struct cred
    cred_uid,
    /// struct css_set, cgroup, kernfs_node
    css_set_dfl_cgrp, cgroup_kn, kernfs_id,
    /// struct mm_struct
    mm_exe_file, mm_start_stack, mm_start_code, mm_lock,
    /// struct files_struct, fdtable
    files_fdt, files_fdtab, files_fd_array, fdtable_max_fds, fdtable_fd,
    /// struct file
    file_inode, file_pos, file_flags, file_dentry, file_mnt, file_private_data,
    /// struct inode
    inode_sb, inode_ino, inode_generation, inode_mode, inode_rdev, inode_lock, inode_invalidate_lock,
    /// owner of struct rw_semaphore and struct mutex
    rwsem_owner, mutex_owner,
    /// argument of the tracepoint balance_dirty_pages that has the pause in ticks: a number, not an
    /// offset
    dirty_pause_argument,
    /// struct super_block, file_system_type
    sb_dev, sb_type, sb_magic, fstype_name, fstype_flags,
    /// struct ovl_inode around struct inode, with its dentry on the upper layer; struct ovl_file
    overlay_vfs_inode, overlay_upper, overlay_flags, overlay_real_file,
    /// bit of OVL_UPPERDATA in `ovl_inode.flags`: a number, not an offset
    overlay_upper_data_bit,
    /// struct dentry
    dentry_parent, dentry_name, dentry_inode, dentry_seq, dentry_hashed,
    /// struct vfsmount inside struct mount, and fields of struct mount
    vfsmount_root, mount_mnt, mount_parent, mount_mountpoint, mount_ns,
    /// struct linux_binprm
    binprm_file,
    /// struct socket, its inode (struct socket_alloc), sock, sock_common, unix_sock
    socket_sk, socket_inode, sock_socket, sock_family, sock_num, sock_dport, sock_rcv_saddr, sock_daddr,
    sock_v6_rcv_saddr, sock_v6_daddr, sock_err, sock_shutdown, unix_peer,
    /// struct tcp_sock; struct sk_buff with TCP's control block (struct tcp_skb_cb)
    tcp_write_seq, tcp_snd_una, tcp_bytes_acked, skb_cb, skb_cb_seq, skb_cb_end_seq,
    /// struct bio
    bio_next, bio_bdev, bio_opf, bio_status, bio_sector, bio_size, bio_end_io, bio_private, bio_flags,
    bio_io_vec, bio_vcnt, bio_idx, bio_bvec_done,
    /// struct bio_vec, page, folio, address_space: from a bio to the inode of its pages
    bvec_page, bvec_len, bvec_offset, page_compound_head, folio_mapping, folio_index, mapping_host,
    /// struct btrfs_bio around struct bio, with its inode (struct btrfs_inode around struct inode)
    btrfs_bio, btrfs_bio_inode, btrfs_bio_offset, btrfs_bio_end_io, btrfs_vfs_inode,
    /// struct btrfs_io_stripe, btrfs_io_context: from a copy of a bio to the bio
    btrfs_stripe_context, btrfs_context_bio,
    /// struct wb_writeback_work
    writeback_reason,
    /// struct block_device
    bdev_dev, bdev_disk,
    /// struct gendisk
    disk_major, disk_first_minor, disk_private,
    /// struct request
    rq_queue, rq_cmd_flags, rq_flags, rq_tag, rq_data_len, rq_sector, rq_bio, rq_hctx, rq_queuelist,
    rq_flush_list, rq_part, rq_end_io_data, rq_start_time, rq_state,
    /// struct request_queue
    queue_disk,
    /// struct blk_mq_hw_ctx, blk_flush_queue
    hctx_fq, fq_flush_rq, fq_flush_queue, fq_running_bit,
    /// distance from a loop device's request to the kiocb of its file
    loop_kiocb,
    /// struct loop_device: its file, the offset of its first byte in it, and LO_FLAGS_*
    loop_file, loop_offset, loop_flags,
    /// struct io_kiocb with its result (struct io_cqe), io_ring_ctx; struct io_rw, which is the
    /// io_kiocb of a read or write
    io_kiocb_opcode, io_kiocb_flags, io_kiocb_user_data, io_kiocb_result, io_kiocb_fd, io_kiocb_file,
    io_kiocb_ctx, io_kiocb_work, io_ring_flags, io_rw_pos, io_rw_len,
    /// struct task_struct, io_worker: the request that a worker of io_uring executes
    task_worker, io_worker_work,
    /// struct aio_kiocb, with the event that its program will receive (struct io_event)
    aio_obj, aio_data, aio_pos, aio_file,
    /// REQ_OP_DRV_IN: a number, not an offset
    op_driver_in,
    /// bit of RQF_FLUSH_SEQ in `rq_flags`: a number, not an offset
    rqf_flush_seq_bit,
    /// bit of BIO_TRACE_COMPLETION in `bi_flags`: a number, not an offset
    bio_traced_bit,
    /// struct ext4_inode_info around struct inode: offset of vfs_inode, i_sync_tid, i_datasync_tid
    ext4_vfs_inode, ext4_sync_tid, ext4_datasync_tid,
    /// struct folio
    folio_flags, folio_nr_pages,
    /// bit of PG_head in `folio.flags`: a number, not an offset
    folio_head_bit,
    /// struct journal_s, transaction_s
    journal_fs_dev, transaction_tid,
    /// bio in struct xlog_in_core, a buffer of the log of xfs
    iclog_bio,
}

// The number of fields may be odd or even: u32 alone needs no padding.
plain! { Layout = 4 * Layout::FIELDS.len() }
