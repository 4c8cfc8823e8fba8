//! Field offsets of the running kernel, resolved from its BTF.
//!
//! The only module that knows the kernel's names and their changes between versions. A field may
//! have several spellings; the first that exists is used. A field without any is ABSENT, and only
//! the probes that need it are unavailable.

use std::collections::HashSet;

use blkkin_probe_abi::layout::{ABSENT, Layout};

use crate::attach::btf::Btf;
use crate::attach::modules::{self, UnreadModules};
use crate::attach::probes::{
    ASYNC_PROBES, AttachKind, FAULT_PROBES, Hook, Need, PROBES, Probe, SLEEP_PROBES,
};
use crate::attach::req_op::{self, ReqOpTable};
use crate::attach::stacked_layouts::{self, PointerPath};
use crate::attach::tracepoint_equivalents::{self, Equivalent};
use crate::error::TracerError;

/// Path of the kernel's BTF.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// Fields: the name in [`Layout`], and the spellings as `struct.member.member`.
const FIELDS: &[(&str, &[&str])] = &[
    ("task_pid", &["task_struct.pid"]),
    ("task_tgid", &["task_struct.tgid"]),
    ("task_comm", &["task_struct.comm"]),
    ("task_real_parent", &["task_struct.real_parent"]),
    ("task_files", &["task_struct.files"]),
    ("task_cred", &["task_struct.cred"]),
    ("task_cgroups", &["task_struct.cgroups"]),
    ("task_mm", &["task_struct.mm"]),
    ("task_flags", &["task_struct.flags"]),
    ("task_nvcsw", &["task_struct.nvcsw"]),
    // Only with CONFIG_SCHED_INFO, which Debian, Fedora and Ubuntu set.
    ("task_run_delay", &["task_struct.sched_info.run_delay"]),
    ("task_min_flt", &["task_struct.min_flt"]),
    ("task_maj_flt", &["task_struct.maj_flt"]),
    ("task_group_leader", &["task_struct.group_leader"]),
    ("task_signal", &["task_struct.signal"]),
    ("signal_live", &["signal_struct.live"]),
    ("task_thread_pid", &["task_struct.thread_pid"]),
    ("pid_level", &["pid.level"]),
    ("pid_numbers", &["pid.numbers"]),
    ("upid_nr", &["upid.nr"]),
    ("upid_ns", &["upid.ns"]),
    ("pid_ns_inum", &["pid_namespace.ns.inum"]),
    ("task_plug", &["task_struct.plug"]),
    ("task_stack", &["task_struct.stack"]),
    // x86 keeps TS_COMPAT in a separate word, arm64 a bit in the flags.
    ("task_compat", &["task_struct.thread_info.status", "task_struct.thread_info.flags"]),
    ("task_thread_pointer", &["task_struct.thread.fsbase", "task_struct.thread.uw.tp_value"]),
    ("cred_uid", &["cred.uid"]),
    ("css_set_dfl_cgrp", &["css_set.dfl_cgrp"]),
    ("cgroup_kn", &["cgroup.kn"]),
    ("kernfs_id", &["kernfs_node.id"]),
    ("mm_exe_file", &["mm_struct.exe_file"]),
    ("mm_start_stack", &["mm_struct.start_stack"]),
    ("mm_start_code", &["mm_struct.start_code"]),
    ("mm_lock", &["mm_struct.mmap_lock"]),
    ("files_fdt", &["files_struct.fdt"]),
    ("files_fdtab", &["files_struct.fdtab"]),
    ("files_fd_array", &["files_struct.fd_array"]),
    ("fdtable_max_fds", &["fdtable.max_fds"]),
    ("fdtable_fd", &["fdtable.fd"]),
    ("file_inode", &["file.f_inode"]),
    ("file_pos", &["file.f_pos"]),
    ("file_flags", &["file.f_flags"]),
    ("file_dentry", &["file.f_path.dentry"]),
    ("file_mnt", &["file.f_path.mnt"]),
    ("file_private_data", &["file.private_data"]),
    ("socket_sk", &["socket.sk"]),
    ("socket_inode", &["socket_alloc.vfs_inode"]),
    ("sock_socket", &["sock.sk_socket"]),
    ("sock_family", &["sock.__sk_common.skc_family"]),
    ("sock_num", &["sock.__sk_common.skc_num"]),
    ("sock_dport", &["sock.__sk_common.skc_dport"]),
    ("sock_rcv_saddr", &["sock.__sk_common.skc_rcv_saddr"]),
    ("sock_daddr", &["sock.__sk_common.skc_daddr"]),
    // Only with CONFIG_IPV6.
    ("sock_v6_rcv_saddr", &["sock.__sk_common.skc_v6_rcv_saddr"]),
    ("sock_v6_daddr", &["sock.__sk_common.skc_v6_daddr"]),
    ("sock_err", &["sock.sk_err"]),
    ("sock_shutdown", &["sock.sk_shutdown"]),
    ("unix_peer", &["unix_sock.peer"]),
    ("tcp_write_seq", &["tcp_sock.write_seq"]),
    ("tcp_snd_una", &["tcp_sock.snd_una"]),
    ("tcp_bytes_acked", &["tcp_sock.bytes_acked"]),
    ("skb_cb", &["sk_buff.cb"]),
    ("skb_cb_seq", &["tcp_skb_cb.seq"]),
    ("skb_cb_end_seq", &["tcp_skb_cb.end_seq"]),
    ("inode_sb", &["inode.i_sb"]),
    ("inode_ino", &["inode.i_ino"]),
    ("inode_generation", &["inode.i_generation"]),
    ("inode_mode", &["inode.i_mode"]),
    ("inode_rdev", &["inode.i_rdev"]),
    ("inode_lock", &["inode.i_rwsem"]),
    ("inode_invalidate_lock", &["inode.i_data.invalidate_lock"]),
    // An rt_mutex under PREEMPT_RT, without such a word.
    ("rwsem_owner", &["rw_semaphore.owner"]),
    ("mutex_owner", &["mutex.owner"]),
    ("sb_dev", &["super_block.s_dev"]),
    ("sb_type", &["super_block.s_type"]),
    ("sb_magic", &["super_block.s_magic"]),
    ("fstype_name", &["file_system_type.name"]),
    ("fstype_flags", &["file_system_type.fs_flags"]),
    ("dentry_parent", &["dentry.d_parent"]),
    // 6.17 made d_name const and added a writable alias in a union.
    ("dentry_name", &["dentry.d_name"]),
    ("dentry_inode", &["dentry.d_inode"]),
    ("dentry_seq", &["dentry.d_seq.seqcount.sequence", "dentry.d_seq.sequence"]),
    // The hash list's pointer to this dentry; null for an unhashed one.
    ("dentry_hashed", &["dentry.d_hash.pprev"]),
    ("vfsmount_root", &["vfsmount.mnt_root"]),
    ("mount_mnt", &["mount.mnt"]),
    ("mount_parent", &["mount.mnt_parent"]),
    ("mount_mountpoint", &["mount.mnt_mountpoint"]),
    ("mount_ns", &["mount.mnt_ns"]),
    ("binprm_file", &["linux_binprm.file"]),
    ("bio_next", &["bio.bi_next"]),
    ("bio_bdev", &["bio.bi_bdev"]),
    ("bio_opf", &["bio.bi_opf"]),
    ("bio_status", &["bio.bi_status"]),
    ("bio_sector", &["bio.bi_iter.bi_sector"]),
    ("bio_size", &["bio.bi_iter.bi_size"]),
    ("bio_end_io", &["bio.bi_end_io"]),
    ("bio_private", &["bio.bi_private"]),
    ("bio_flags", &["bio.bi_flags"]),
    ("bio_io_vec", &["bio.bi_io_vec"]),
    ("bio_vcnt", &["bio.bi_vcnt"]),
    ("bio_idx", &["bio.bi_iter.bi_idx"]),
    ("bio_bvec_done", &["bio.bi_iter.bi_bvec_done"]),
    ("bvec_page", &["bio_vec.bv_page"]),
    ("bvec_len", &["bio_vec.bv_len"]),
    ("bvec_offset", &["bio_vec.bv_offset"]),
    ("page_compound_head", &["page.compound_head"]),
    ("folio_mapping", &["folio.mapping"]),
    ("folio_index", &["folio.index"]),
    ("mapping_host", &["address_space.host"]),
    // 6.3 added the inode.
    ("btrfs_bio", &["btrfs_bio.bio"]),
    ("btrfs_bio_inode", &["btrfs_bio.inode"]),
    ("btrfs_bio_offset", &["btrfs_bio.file_offset"]),
    ("btrfs_bio_end_io", &["btrfs_bio.end_io"]),
    ("btrfs_vfs_inode", &["btrfs_inode.vfs_inode"]),
    ("btrfs_stripe_context", &["btrfs_io_stripe.bioc"]),
    ("btrfs_context_bio", &["btrfs_io_context.orig_bio"]),
    ("writeback_reason", &["wb_writeback_work.reason"]),
    ("bdev_dev", &["block_device.bd_dev"]),
    ("bdev_disk", &["block_device.bd_disk"]),
    ("disk_major", &["gendisk.major"]),
    ("disk_first_minor", &["gendisk.first_minor"]),
    ("disk_private", &["gendisk.private_data"]),
    ("rq_queue", &["request.q"]),
    ("rq_cmd_flags", &["request.cmd_flags"]),
    ("rq_flags", &["request.rq_flags"]),
    ("rq_tag", &["request.tag"]),
    ("rq_data_len", &["request.__data_len"]),
    ("rq_sector", &["request.__sector"]),
    ("rq_bio", &["request.bio"]),
    ("rq_hctx", &["request.mq_hctx"]),
    ("rq_queuelist", &["request.queuelist"]),
    ("rq_flush_list", &["request.flush.list"]),
    ("rq_part", &["request.part"]),
    ("rq_start_time", &["request.start_time_ns"]),
    ("rq_state", &["request.state"]),
    ("rq_end_io_data", &["request.end_io_data"]),
    ("queue_disk", &["request_queue.disk"]),
    ("hctx_fq", &["blk_mq_hw_ctx.fq"]),
    ("fq_flush_rq", &["blk_flush_queue.flush_rq"]),
    ("fq_flush_queue", &["blk_flush_queue.flush_queue"]),
    ("folio_flags", &["folio.flags"]),
    // Renamed in 6.16.
    ("folio_nr_pages", &["folio._nr_pages", "folio._folio_nr_pages"]),
    ("io_kiocb_opcode", &["io_kiocb.opcode"]),
    // 32 bits, 64 since 6.10; the lowest ones are those of the sqe.
    ("io_kiocb_flags", &["io_kiocb.flags"]),
    ("io_kiocb_user_data", &["io_kiocb.cqe.user_data"]),
    ("io_kiocb_result", &["io_kiocb.cqe.res"]),
    // Shares its place with the flags of the completion.
    ("io_kiocb_fd", &["io_kiocb.cqe.fd"]),
    ("io_kiocb_file", &["io_kiocb.file"]),
    ("io_kiocb_ctx", &["io_kiocb.ctx"]),
    ("io_kiocb_work", &["io_kiocb.work"]),
    ("io_ring_flags", &["io_ring_ctx.flags"]),
    ("io_rw_pos", &["io_rw.kiocb.ki_pos"]),
    ("io_rw_len", &["io_rw.len"]),
    ("task_worker", &["task_struct.worker_private"]),
    ("io_worker_work", &["io_worker.cur_work"]),
    ("aio_obj", &["aio_kiocb.ki_res.obj"]),
    ("aio_data", &["aio_kiocb.ki_res.data"]),
    ("aio_pos", &["aio_kiocb.rw.ki_pos"]),
    ("aio_file", &["aio_kiocb.ki_filp"]),
    ("overlay_vfs_inode", &["ovl_inode.vfs_inode"]),
    ("overlay_upper", &["ovl_inode.__upperdentry"]),
    ("overlay_flags", &["ovl_inode.flags"]),
    ("overlay_real_file", &["ovl_file.realfile"]),
    ("ext4_vfs_inode", &["ext4_inode_info.vfs_inode"]),
    ("ext4_sync_tid", &["ext4_inode_info.i_sync_tid"]),
    ("ext4_datasync_tid", &["ext4_inode_info.i_datasync_tid"]),
    ("journal_fs_dev", &["journal_s.j_fs_dev"]),
    ("transaction_tid", &["transaction_s.t_tid"]),
    ("iclog_bio", &["xlog_in_core.ic_bio"]),
    ("loop_file", &["loop_device.lo_backing_file"]),
    ("loop_offset", &["loop_device.lo_offset"]),
    ("loop_flags", &["loop_device.lo_flags"]),
];

/// Enum of the bits of `ovl_inode.flags`, and the bit of a file whose data is on the upper layer.
const OVERLAY_UPPER_DATA: (&str, &str) = ("ovl_inode_flag", "OVL_UPPERDATA");

/// Enum of the bits of `rq_flags`, and its enumerator for RQF_FLUSH_SEQ. 6.11 made the flags an
/// enum (5f89154e8e9e, "block: Use enum to define RQF_x bit indexes"), at first an unnamed one.
/// Before, the flag was bit 4 (include/linux/blk-mq.h), which now means a scheduler's tag.
const FLUSH_SEQUENCE: (&str, &str) = ("rqf_flags", "__RQF_FLUSH_SEQ");
const FLUSH_SEQUENCE_BEFORE_ENUM: u32 = 4;

/// Bio flag that marks a bio whose queueing was traced already (include/linux/blk_types.h; an
/// unnamed enum).
const BIO_TRACED_FLAG: &str = "BIO_TRACE_COMPLETION";

/// Bit field, located by a bit offset.
const FLUSH_RUNNING: &str = "blk_flush_queue.flush_running_idx";

/// Bit of a task inside a page fault of its user mode. It exists with CONFIG_MEMCG, since 6.12 with
/// CONFIG_MEMCG_V1.
const IN_USER_FAULT: &str = "task_struct.in_user_fault";

/// Enum of the bits of a page's flags, and the enumerator of those of a large folio.
const FOLIO_HEAD: (&str, &str) = ("pageflags", "PG_head");

/// Tracepoint of the pauses of tasks that make pages dirty. The pause in ticks is the last argument but
/// one, of 8 or 12 (include/trace/events/writeback.h).
const DIRTY_PAUSE: &str = "btf_trace_balance_dirty_pages";

/// Prefix of a tracepoint's typedef, which is the type of its probe function
/// (include/trace/bpf_probe.h).
const TRACEPOINT: &str = "btf_trace_";

/// Facts about the running kernel from its BTF.
pub struct KernelTypes {
    /// Field offsets.
    pub layout: Layout,
    /// Numbering of block operations.
    pub(crate) operations: ReqOpTable,
    /// Pointer paths from bios to what they were issued for.
    pub(crate) paths: Vec<PointerPath>,
    /// Modules that were not loaded.
    pub(crate) unread_modules: UnreadModules,
    /// Tracepoints of [`PROBES`], [`FAULT_PROBES`] and [`ASYNC_PROBES`] that the kernel has. Those of
    /// modules are not included.
    tracepoints: HashSet<&'static str>,
    /// Equivalent functions that the kernel has.
    functions: HashSet<&'static str>,
}

impl KernelTypes {
    /// Lists, as text, what the probe needs under this kind and the kernel lacks.
    pub(crate) fn missing(&self, probe: &Probe, kind: AttachKind) -> Vec<String> {
        let fields = probe.fields.iter().filter(|name| self.is_absent(name));
        let fields = fields.map(|name| format!("field {}", kernel_name(name)));
        let no_hook =
            self.hook(probe, kind).is_none().then(|| format!("tracepoint {}", probe.hook.tracepoint));
        no_hook.into_iter().chain(fields).collect()
    }

    /// Selects the hook of a probe; none if the kernel has none of its hooks.
    pub(crate) fn hook(&self, probe: &Probe, kind: AttachKind) -> Option<Hook> {
        let found = probe.hooks().find(|hook| {
            self.tracepoints.contains(hook.tracepoint)
                || (kind.uses_functions() && self.function(*hook, kind).is_ok())
        });
        // An optional probe's tracepoint may be in a module, with separate BTF; attaching it will
        // show.
        found.or((probe.need == Need::Optional).then_some(probe.hook))
    }

    /// Selects the function equivalent to a hook's tracepoint for a kind that uses functions, or
    /// explains why there is none.
    pub(crate) fn function(&self, hook: Hook, kind: AttachKind) -> Result<&'static str, String> {
        match tracepoint_equivalents::equivalent(hook.tracepoint) {
            Equivalent::None(reason) => Err(reason.to_owned()),
            Equivalent::Function(function) => {
                let mut functions = [Some(function.name), function.requires].into_iter().flatten();
                if let Some(absent) = functions.find(|name| !self.functions.contains(name)) {
                    return Err(format!("this kernel has no function {absent}"));
                }
                if let (AttachKind::Kprobe, Some(reason)) = (kind, function.kprobe_unsuitable) {
                    return Err(reason.to_owned());
                }
                match function.fields.iter().find(|field| self.is_absent(field)) {
                    Some(field) => Err(format!("this kernel has no field {}", kernel_name(field))),
                    None => Ok(function.name),
                }
            }
        }
    }

    fn is_absent(&self, field: &str) -> bool {
        let mut layout = self.layout;
        layout.field_mut(field).is_none_or(|offset| *offset == ABSENT)
    }

    /// Returns whether requests are observed at block_getrq, for lack of block_io_start.
    pub(crate) fn uses_legacy_request_start(&self) -> bool {
        let late = |probe: &Probe| self.hook(probe, AttachKind::TpBtf) == probe.fallback;
        PROBES.iter().any(|probe| probe.fallback.is_some() && late(probe))
    }
}

/// Resolves everything for the running kernel.
pub fn resolve() -> Result<KernelTypes, TracerError> {
    let bytes = std::fs::read(VMLINUX).map_err(|error| TracerError::NoBtf { reason: error.to_string() })?;
    let wanted: HashSet<&str> = FIELDS
        .iter()
        .flat_map(|(_, spellings)| *spellings)
        .filter_map(|spelling| Some(spelling.split_once('.')?.0))
        .chain([FLUSH_SEQUENCE.0, FOLIO_HEAD.0, OVERLAY_UPPER_DATA.0, req_op::REQ_OP_ENUM])
        .chain(stacked_layouts::struct_names())
        .chain(tracepoint_equivalents::function_names())
        .collect();
    let is_wanted = |name: &str| wanted.contains(name) || name.starts_with(TRACEPOINT);
    let btf = Btf::parse(&bytes, is_wanted)
        .ok_or_else(|| TracerError::NoBtf { reason: "it cannot be parsed".to_owned() })?;
    let (files, unread_modules) = modules::read();
    let modules: Vec<Btf<'_>> =
        files.iter().filter_map(|bytes| btf.parse_module(bytes, |name| wanted.contains(name))).collect();
    let probes = PROBES.iter().chain(FAULT_PROBES).chain(ASYNC_PROBES).chain(SLEEP_PROBES);
    let names = probes.flat_map(Probe::hooks).map(|hook| hook.tracepoint);
    let tracepoints = names.filter(|name| btf.has(&format!("{TRACEPOINT}{name}"))).collect();
    let functions = tracepoint_equivalents::function_names().filter(|name| btf.has(name)).collect();
    let edges = stacked_layouts::resolve(&btf, &modules);
    let layout = Layout { loop_kiocb: edges.loop_kiocb, ..layout(&btf, &modules) };
    let operations = ReqOpTable::from_btf(&btf);
    Ok(KernelTypes { layout, tracepoints, functions, paths: edges.paths, operations, unread_modules })
}

fn layout(btf: &Btf<'_>, modules: &[Btf<'_>]) -> Layout {
    let mut layout = Layout::EMPTY;
    for (name, spellings) in FIELDS {
        let in_module = |spelling: &&str| modules.iter().find_map(|module| module.offset(spelling));
        let found = spellings.iter().find_map(|spelling| btf.offset(spelling));
        let found = found.or_else(|| spellings.iter().find_map(in_module));
        if let (Some(offset), Some(field)) = (found, layout.field_mut(name)) {
            *field = offset;
        }
    }
    let (flags, upper_data) = OVERLAY_UPPER_DATA;
    let of_overlay = [btf].into_iter().chain(modules).find_map(|types| types.value(flags, upper_data));
    layout.overlay_upper_data_bit = of_overlay.unwrap_or(ABSENT);
    layout.op_driver_in = btf.value(req_op::REQ_OP_ENUM, req_op::DRIVER_IN).unwrap_or(ABSENT);
    layout.fq_running_bit = btf.bit_offset(FLUSH_RUNNING).unwrap_or(ABSENT);
    layout.task_in_user_fault_bit = btf.bit_offset(IN_USER_FAULT).unwrap_or(ABSENT);
    layout.folio_head_bit = btf.value(FOLIO_HEAD.0, FOLIO_HEAD.1).unwrap_or(ABSENT);
    // The function's first parameter is the probe's own.
    let parameters = btf.function_parameters(DIRTY_PAUSE).filter(|number| matches!(number, 9 | 13));
    layout.dirty_pause_argument = parameters.map_or(ABSENT, |number| number - 3);
    let (flags, bit) = FLUSH_SEQUENCE;
    layout.bio_traced_bit = btf.value("", BIO_TRACED_FLAG).unwrap_or(ABSENT);
    layout.rqf_flush_seq_bit = btf.value(flags, bit).unwrap_or(FLUSH_SEQUENCE_BEFORE_ENUM);
    layout
}

/// Returns the kernel spelling of a field, for messages: `bio.bi_bdev` for `bio_bdev`.
fn kernel_name(field: &str) -> &str {
    FIELDS.iter().find(|(name, _)| *name == field).map_or(field, |(_, spellings)| spellings[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_table_exists_in_the_layout() {
        let mut layout = Layout::EMPTY;
        for (name, spellings) in FIELDS {
            assert!(layout.field_mut(name).is_some(), "{name} is not in probe_abi::layout");
            assert!(!spellings.is_empty());
        }
    }
}
