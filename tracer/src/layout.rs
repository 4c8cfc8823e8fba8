//! Where the running kernel keeps its fields: names to offsets, from its own type information.
//!
//! The one place that knows the kernel's names and how they drifted. A field may have several spellings; the first
//! that exists is taken. A field that has none is ABSENT, and only the probes that need it go without.

use std::collections::HashSet;

use blkkin_probe_abi::layout::{ABSENT, Layout};

use crate::btf::Btf;
use crate::edges::{self, Way};
use crate::error::TracerError;
use crate::functions::{self, Twin};
use crate::operations::{self, Operations};
use crate::probes::{AttachKind, Hook, Need, PROBES, Probe};

/// Where the kernel says its types.
pub const VMLINUX: &str = "/sys/kernel/btf/vmlinux";

/// One field: its name in [`Layout`], and its spellings as `struct.member.member`.
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
    // x86 keeps TS_COMPAT in a word of its own, arm64 a bit in the flags.
    ("task_compat", &["task_struct.thread_info.status", "task_struct.thread_info.flags"]),
    ("task_thread_pointer", &["task_struct.thread.fsbase", "task_struct.thread.uw.tp_value"]),
    ("cred_uid", &["cred.uid"]),
    ("css_set_dfl_cgrp", &["css_set.dfl_cgrp"]),
    ("cgroup_kn", &["cgroup.kn"]),
    ("kernfs_id", &["kernfs_node.id"]),
    ("mm_exe_file", &["mm_struct.exe_file"]),
    ("mm_start_stack", &["mm_struct.start_stack"]),
    ("mm_start_code", &["mm_struct.start_code"]),
    ("files_fdt", &["files_struct.fdt"]),
    ("files_fdtab", &["files_struct.fdtab"]),
    ("files_fd_array", &["files_struct.fd_array"]),
    ("fdtable_max_fds", &["fdtable.max_fds"]),
    ("fdtable_fd", &["fdtable.fd"]),
    ("file_inode", &["file.f_inode"]),
    ("file_pos", &["file.f_pos"]),
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
    ("sb_dev", &["super_block.s_dev"]),
    ("sb_type", &["super_block.s_type"]),
    ("fstype_name", &["file_system_type.name"]),
    ("dentry_parent", &["dentry.d_parent"]),
    // 6.17 made d_name const and added a writable alias in a union.
    ("dentry_name", &["dentry.d_name"]),
    ("dentry_inode", &["dentry.d_inode"]),
    ("vfsmount_root", &["vfsmount.mnt_root"]),
    ("mount_mnt", &["mount.mnt"]),
    ("mount_parent", &["mount.mnt_parent"]),
    ("mount_mountpoint", &["mount.mnt_mountpoint"]),
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
    ("bdev_dev", &["block_device.bd_dev"]),
    ("bdev_disk", &["block_device.bd_disk"]),
    ("disk_major", &["gendisk.major"]),
    ("disk_first_minor", &["gendisk.first_minor"]),
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
    ("rq_end_io_data", &["request.end_io_data"]),
    ("queue_disk", &["request_queue.disk"]),
    ("hctx_fq", &["blk_mq_hw_ctx.fq"]),
    ("fq_flush_rq", &["blk_flush_queue.flush_rq"]),
    ("fq_flush_queue", &["blk_flush_queue.flush_queue"]),
    ("ext4_vfs_inode", &["ext4_inode_info.vfs_inode"]),
    ("ext4_sync_tid", &["ext4_inode_info.i_sync_tid"]),
    ("ext4_datasync_tid", &["ext4_inode_info.i_datasync_tid"]),
    ("journal_fs_dev", &["journal_s.j_fs_dev"]),
    ("transaction_tid", &["transaction_s.t_tid"]),
];

/// The enum whose members are the bits of `rq_flags`, and the one of RQF_FLUSH_SEQ. 6.11 made the flags an enum
/// (5f89154e8e9e, "block: Use enum to define RQF_x bit indexes"), at first one without a name; before, it was bit 4
/// (include/linux/blk-mq.h), which means something else since: a scheduler's tag.
const FLUSH_SEQUENCE: (&str, &str) = ("rqf_flags", "__RQF_FLUSH_SEQ");
const FLUSH_SEQUENCE_BEFORE_ENUM: u32 = 4;

/// The bit of a bio's flags that says that it was announced once (include/linux/blk_types.h; an enum without a name).
const ANNOUNCED: &str = "BIO_TRACE_COMPLETION";

/// A bit field: its place is a number of bits.
const FLUSH_RUNNING: &str = "blk_flush_queue.flush_running_idx";

/// A tracepoint's type in the kernel's, before its name: the function that it calls (include/trace/bpf_probe.h).
const TRACEPOINT: &str = "btf_trace_";

/// What the kernel's types say.
pub struct Types {
    /// Where its fields are.
    pub layout: Layout,
    /// How it numbers operations.
    pub(crate) operations: Operations,
    /// The ways upwards from a bio.
    pub(crate) ways: Vec<Way>,
    /// Tracepoints that it has, of those in [`PROBES`]. A module's are not among them.
    tracepoints: HashSet<&'static str>,
    /// Functions that it has, of those that stand for tracepoints.
    functions: HashSet<&'static str>,
}

impl Types {
    /// What this probe needs and the kernel has not, in words, if it is to be attached by this kind.
    pub(crate) fn missing(&self, probe: &Probe, kind: AttachKind) -> Vec<String> {
        let fields = probe.fields.iter().filter(|name| self.lacks(name));
        let fields = fields.map(|name| format!("field {}", kernel_name(name)));
        let no_hook =
            self.hook(probe, kind).is_none().then(|| format!("tracepoint {}", probe.hook.tracepoint));
        no_hook.into_iter().chain(fields).collect()
    }

    /// Where this probe is put here; none where the kernel has none of its hooks.
    pub(crate) fn hook(&self, probe: &Probe, kind: AttachKind) -> Option<Hook> {
        let found = probe.hooks().find(|hook| {
            self.tracepoints.contains(hook.tracepoint)
                || (kind.is_at_functions() && self.function(*hook, kind).is_ok())
        });
        // An optional one's may be in a module, whose types are elsewhere: attaching it tells.
        found.or((probe.need == Need::Optional).then_some(probe.hook))
    }

    /// The function that stands for a hook's tracepoint here, by a kind that is put at functions; or why there is none.
    pub(crate) fn function(&self, hook: Hook, kind: AttachKind) -> Result<&'static str, String> {
        match functions::twin(hook.tracepoint) {
            Twin::None(reason) => Err(reason.to_owned()),
            Twin::Function(function) => {
                let mut functions = [Some(function.name), function.beside].into_iter().flatten();
                if let Some(absent) = functions.find(|name| !self.functions.contains(name)) {
                    return Err(format!("this kernel has no function {absent}"));
                }
                if let (AttachKind::Kprobe, Some(reason)) = (kind, function.not_by_kprobe) {
                    return Err(reason.to_owned());
                }
                match function.fields.iter().find(|field| self.lacks(field)) {
                    Some(field) => Err(format!("this kernel has no field {}", kernel_name(field))),
                    None => Ok(function.name),
                }
            }
        }
    }

    fn lacks(&self, field: &str) -> bool {
        let mut layout = self.layout;
        layout.field_mut(field).is_none_or(|offset| *offset == ABSENT)
    }

    /// Whether requests are announced only by the bios that they are taken for.
    pub(crate) fn requests_begin_late(&self) -> bool {
        let late = |probe: &Probe| self.hook(probe, AttachKind::TpBtf) == probe.older;
        PROBES.iter().any(|probe| probe.older.is_some() && late(probe))
    }
}

/// What the running kernel has.
pub fn resolve() -> Result<Types, TracerError> {
    let bytes = std::fs::read(VMLINUX).map_err(|error| TracerError::NoBtf { reason: error.to_string() })?;
    let wanted: HashSet<&str> = FIELDS
        .iter()
        .flat_map(|(_, spellings)| *spellings)
        .filter_map(|spelling| Some(spelling.split_once('.')?.0))
        .chain([FLUSH_SEQUENCE.0, operations::ENUM])
        .chain(edges::structs())
        .chain(functions::names())
        .collect();
    let btf = Btf::parse(&bytes, |name| wanted.contains(name) || name.starts_with(TRACEPOINT))
        .ok_or_else(|| TracerError::NoBtf { reason: "it cannot be understood".to_owned() })?;
    let names = PROBES.iter().flat_map(Probe::hooks).map(|hook| hook.tracepoint);
    let tracepoints = names.filter(|name| btf.has(&format!("{TRACEPOINT}{name}"))).collect();
    let functions = functions::names().filter(|name| btf.has(name)).collect();
    let edges = edges::resolve(&btf);
    let layout = Layout { loop_kiocb: edges.loop_kiocb, ..layout(&btf) };
    let operations = Operations::of(&btf);
    Ok(Types { layout, tracepoints, functions, ways: edges.ways, operations })
}

fn layout(btf: &Btf<'_>) -> Layout {
    let mut layout = Layout::EMPTY;
    for (name, spellings) in FIELDS {
        let found = spellings.iter().find_map(|spelling| btf.offset(spelling));
        if let (Some(offset), Some(field)) = (found, layout.field_mut(name)) {
            *field = offset;
        }
    }
    layout.op_driver_in = btf.value(operations::ENUM, operations::DRIVER_IN).unwrap_or(ABSENT);
    layout.fq_running_bit = btf.bit_offset(FLUSH_RUNNING).unwrap_or(ABSENT);
    let (flags, bit) = FLUSH_SEQUENCE;
    layout.bio_traced_bit = btf.value("", ANNOUNCED).unwrap_or(ABSENT);
    layout.rqf_flush_seq_bit = btf.value(flags, bit).unwrap_or(FLUSH_SEQUENCE_BEFORE_ENUM);
    layout
}

/// `bio.bi_bdev` for `bio_bdev`: a person knows the kernel's names.
fn kernel_name(field: &str) -> &str {
    FIELDS.iter().find(|(name, _)| *name == field).map_or(field, |(_, spellings)| spellings[0])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_table_is_one_of_the_layout() {
        let mut layout = Layout::EMPTY;
        for (name, spellings) in FIELDS {
            assert!(layout.field_mut(name).is_some(), "{name} is not in probe_abi::layout");
            assert!(!spellings.is_empty());
        }
    }
}
