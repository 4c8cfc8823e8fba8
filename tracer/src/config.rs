//! Tracing configuration, and its conversion to the settings of the eBPF programs.

use std::ops::RangeInclusive;
use std::time::Duration;

use blkkin_probe_abi::settings::{
    BLOCK_ONLY_ALL, CONTEXTS_KEEP_SAMPLED, CONTEXTS_READ, FILTERS_MAX, ORIGIN_ALL, ORIGIN_PAGES,
    ORIGIN_SYSCALLS, ORIGIN_TASKS, PAGE_COMPLETIONS_MAX, POINTER_STEPS_MAX, PageCompletion, PointerStep,
    ProbeSettings, SYSCALL_NUMBERS, SyscallShape, TRACE_ALL, TRACE_MARKED,
};
use blkkin_wire::async_io;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::head_sampling::HeadSampling;
use blkkin_wire::ids::{CgroupId, DeviceId, Pid, StartEpoch, Tid};
use blkkin_wire::syscalls::{Arch, SyscallClass, SyscallId};

use crate::attach::probes::AttachKind;
use crate::enrich::contexts::policy::ContextPolicy;
use crate::enrich::usdt;
use crate::error::TracerError;
use crate::selection::budget::Budget;
use crate::selection::keep::KeepRule;
use crate::selection::path_filter::pattern::PathPattern;

/// Bytes of each CPU's ring on machines with up to 32 CPUs. With records of 128 B a ring holds
/// 65,000, or 130 ms of 500,000 events/s on one CPU. The reader was never delayed that long, even
/// on a busy machine.
pub const RING_BYTES: usize = 8 << 20;
/// Maximum bytes of all rings together, on machines with more CPUs.
pub const RINGS_BYTES_MAX: usize = 256 << 20;
/// Minimum bytes of each ring.
pub const RING_BYTES_MIN: usize = 256 << 10;
/// Interval between two polls of the rings: long enough for a poll to find about
/// [`POLL_TARGET_BYTES`] in the fullest ring, within 2 to 20 ms. A poll that finds little pays for
/// cold caches with every event (2.3 µs each with 250 events, 0.5 µs with thousands). A poll that
/// finds much occupies a CPU for as long as it takes; many short polls interrupt more of the load's
/// requests. With 1 ms instead of 5, the 99th percentile of a read went from 0.9 to 0.5 ms with
/// io_uring at 250,000 reads/s, and from 24 to 77 µs with psync at 60,000. A spinning consumer
/// doubles the producer's cost.
pub const POLL_INTERVAL: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(20);
/// Target bytes per poll: 960 records of 136 B, or 5 ms of 100,000 reads/s on one CPU.
pub const POLL_TARGET_BYTES: usize = 128 << 10;

/// Selection of traced tasks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TraceScope {
    #[default]
    /// Marked tasks and their descendants.
    Marked,
    /// Every task that passes the filter.
    All,
}

/// Amount of data to record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Only system calls that reached the block layer.
    Requests,
    /// Every system call, its path arguments, and the paths of its files.
    Syscalls,
    /// The data of `Syscalls`; exporters also write every raw argument.
    Full,
}

/// Conditions for a system call to be recorded. An empty list accepts everything; a non-empty list
/// accepts any of its items; all lists must accept.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Processes.
    pub pids: Vec<Pid>,
    /// Threads.
    pub tids: Vec<Tid>,
    /// Thread names.
    pub comms: Vec<String>,
    /// Cgroups.
    pub cgroups: Vec<CgroupId>,
    /// Devices. Bios and requests of other devices are not traced, and calls that reached none of
    /// these are dropped.
    pub devices: Vec<DeviceId>,
    /// System calls.
    pub syscalls: Vec<SyscallId>,
    /// Paths, one of which a file of the call must match. What the filter cannot decide it records:
    /// see [`path_filter`](crate::selection::path_filter).
    pub paths: Vec<PathPattern>,
    /// Minimum duration of calls without block I/O. (Calls with block I/O are filtered as whole
    /// traces, later.)
    pub slower_than: Option<DurationNs>,
    /// Drops calls without block I/O that succeeded.
    pub errors_only: bool,
    /// Exempts calls from the previous two filters if their application samples the trace that it
    /// names in its OpenTelemetry thread context.
    pub keep_sampled: bool,
}

/// Configuration of one tracer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracerConfig {
    /// Selection of traced tasks.
    pub scope: TraceScope,
    /// Conditions for recording.
    pub filter: Filter,
    /// Amount of data to record.
    pub detail: Detail,
    /// Attach kind to use; if none, the best that each probe supports.
    pub attach: Option<AttachKind>,
    /// Bytes of each CPU's ring, a power of two; if none, [`RING_BYTES`] or the share of
    /// [`RINGS_BYTES_MAX`].
    pub ring_bytes: Option<usize>,
    /// Traces block I/O that no traced call issued: write-back, metadata, page faults.
    pub kernel_origin: bool,
    /// Processes whose OpenTelemetry thread contexts become the parents of their calls.
    pub contexts: ContextPolicy,
    /// Traces NBD requests that traced tasks send through their own sockets.
    pub nbd: bool,
    /// Records the pages that stores of traced tasks into mappings make dirty.
    pub dirty_pages: bool,
    /// Records where in the kernel system calls sleep. It needs the addresses of kernel functions.
    pub sleeps: bool,
    /// Names this machine's disks as its host does: it is a virtual machine whose host links its requests.
    pub machine_disks: bool,
    /// Reports the disks of this machine's virtual machines: the events of guests are linked with QEMU's.
    pub image_disks: bool,
    /// Ratio by which roots are recorded at first; none: each root, and the ratio cannot be changed.
    /// It drops the kernel's own work ([`TracerConfig::kernel_origin`]).
    pub head_sampling: Option<HeadSampling>,
    /// Rules by which an operation that head sampling does not draw is kept at its end. Empty: none, and nothing is
    /// deferred until then. Head sampling must be on.
    pub keep: Vec<KeepRule>,
    /// Rules may be added while the trace runs. Head sampling must be on.
    pub keep_changeable: bool,
    /// Share of the machine's CPUs that tracing may take. Head sampling keeps it, so it must be on.
    pub budget: Option<Budget>,
    /// USDT probes to attach; traced tasks record events there.
    pub usdt_probes: Vec<usdt::UsdtProbe>,
}

impl Default for TracerConfig {
    fn default() -> Self {
        TracerConfig {
            scope: TraceScope::Marked,
            filter: Filter::default(),
            detail: Detail::Syscalls,
            attach: None,
            ring_bytes: None,
            kernel_origin: false,
            contexts: ContextPolicy::All,
            nbd: false,
            dirty_pages: false,
            sleeps: false,
            machine_disks: false,
            image_disks: false,
            head_sampling: None,
            keep: Vec::new(),
            keep_changeable: false,
            budget: None,
            usdt_probes: Vec::new(),
        }
    }
}

impl TracerConfig {
    /// Bytes of each ring on a machine with `cpus` CPUs.
    pub fn ring_bytes(&self, cpus: usize) -> Result<usize, TracerError> {
        match self.ring_bytes {
            Some(bytes) if bytes.is_power_of_two() && (4096..=1 << 30).contains(&bytes) => Ok(bytes),
            Some(bytes) => Err(TracerError::RingSize { bytes }),
            None => {
                let share = RINGS_BYTES_MAX / cpus.max(1);
                let share = if share.is_power_of_two() { share } else { share.next_power_of_two() / 2 };
                Ok(share.clamp(RING_BYTES_MIN, RING_BYTES))
            }
        }
    }

    /// Returns whether an operation may be deferred until its end.
    pub(crate) fn defers(&self) -> bool {
        self.head_sampling.is_some() && (self.keep_changeable || !self.keep.is_empty())
    }

    /// Settings to embed in the programs.
    pub fn settings(&self, epoch: StartEpoch) -> Result<ProbeSettings, TracerError> {
        let filter = &self.filter;
        let (pids, pids_len) = filter_list("process", &filter.pids, |pid| pid.0)?;
        let (tids, tids_len) = filter_list("thread", &filter.tids, |tid| tid.0)?;
        let (devices, devices_len) = filter_list("device", &filter.devices, |device| device.to_kernel())?;
        let (cgroups, cgroups_len) = filter_list("cgroup", &filter.cgroups, |cgroup| cgroup.0)?;
        let (comms, comms_len) = filter_list("thread name", &filter.comms, |comm| comm_key(comm))?;
        Ok(ProbeSettings {
            seed: epoch.0,
            slower_than_ns: filter.slower_than.map_or(0, |limit| limit.0),
            trace_mode: match self.scope {
                TraceScope::Marked => TRACE_MARKED,
                TraceScope::All => TRACE_ALL,
            },
            errors_only: filter.errors_only.into(),
            block_only: match (self.detail, filter.devices.is_empty()) {
                (Detail::Requests, _) => BLOCK_ONLY_ALL,
                (_, no_device) => (!no_device).into(),
            },
            path_args: (self.detail >= Detail::Syscalls).into(),
            file_paths: 1,
            kernel_origin: match (self.kernel_origin, filter.syscalls.is_empty()) {
                (true, _) => ORIGIN_ALL,
                (false, false) => ORIGIN_SYSCALLS,
                // A worker's bio may be below an operation that is dropped.
                (false, true) if filter.paths.is_empty() && self.head_sampling.is_none() => ORIGIN_TASKS,
                (false, true) => ORIGIN_PAGES,
            },
            inherit_by_tid: self.attach.is_some_and(|kind| !kind.is_typed()).into(),
            // Determined by the kernel, not the user; the loader sets them.
            bio_chain_endio: 0,
            btrfs_direct_end_io: 0,
            scheduler_begin: 0,
            scheduler_end: 0,
            legacy_request_start: 0,
            stacked: 0,
            contexts: self.contexts_bits(),
            async_io: self.traces_async_io().into(),
            tick_ns: 0,
            head_sampling: self.head_sampling.is_some().into(),
            timed: self.budget.is_some().into(),
            defers: self.defers().into(),
            disk_total_sets: 0,
            async_operations: async_io::traced_operations(),
            pointer_steps: [PointerStep::default(); POINTER_STEPS_MAX],
            page_completions: [PageCompletion::default(); PAGE_COMPLETIONS_MAX],
            pids_len,
            tids_len,
            comms_len,
            cgroups_len,
            devices_len,
            own_pid: std::process::id(),
            pids,
            tids,
            devices,
            cgroups,
            comms,
        })
    }

    /// Returns whether the events include every file mapping, and so reveal what a process loads.
    pub(crate) fn sees_mappings(&self) -> bool {
        let syscalls = &self.filter.syscalls;
        let asked_for =
            syscalls.is_empty() || SyscallId::by_name("mmap").is_some_and(|mmap| syscalls.contains(&mmap));
        asked_for && self.keeps_calls_without_io()
    }

    /// Returns whether calls that queued no bio are recorded like others.
    fn keeps_calls_without_io(&self) -> bool {
        let Filter { devices, slower_than, errors_only, .. } = &self.filter;
        devices.is_empty() && slower_than.is_none() && !errors_only && self.detail != Detail::Requests
    }

    /// Returns whether submissions of asynchronous I/O are traced: where a call that submits is.
    pub(crate) fn traces_async_io(&self) -> bool {
        let asked_for = |call: &SyscallId| SUBMITTERS.contains(&call.name());
        self.filter.syscalls.is_empty() || self.filter.syscalls.iter().any(asked_for)
    }

    fn contexts_bits(&self) -> u32 {
        match (self.contexts.is_enabled(), self.filter.keep_sampled) {
            (false, _) => 0,
            (true, false) => CONTEXTS_READ,
            (true, true) => CONTEXTS_READ | CONTEXTS_KEEP_SAMPLED,
        }
    }

    /// Returns the table of system calls, indexed by this machine's numbers.
    pub fn syscall_table(&self) -> [u32; SYSCALL_NUMBERS] {
        let mut table = [0; SYSCALL_NUMBERS];
        for call in SyscallId::all() {
            let wanted = self.filter.syscalls.is_empty() || self.filter.syscalls.contains(&call);
            let number = call.spec().number(Arch::HOST).map(usize::from);
            if let (true, Some(slot)) = (wanted, number.and_then(|number| table.get_mut(number))) {
                // Of reads that found all in memory some would be missing, of the others none.
                let left_out = if self.keeps_calls_without_io() { 0 } else { SyscallShape::READS };
                *slot = shape(call).0 & !left_out;
                if !self.filter.paths.is_empty() && is_excludable(call) {
                    *slot |= SyscallShape::EXCLUDABLE;
                }
            }
        }
        if let (true, Some(slot)) = (self.contexts.is_enabled(), table.get_mut(MUNMAP)) {
            *slot |= SyscallShape::UNMAPS;
        }
        for number in MOVES {
            if let Some(slot) = table.get_mut(*number as usize) {
                *slot |= SyscallShape::MOVES;
            }
        }
        table
    }
}

/// Numbers of the calls after which a path may be another one: they rename a file or directory, or
/// change a mount.
const MOVES: &[libc::c_long] = &[
    #[cfg(target_arch = "x86_64")]
    libc::SYS_rename,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_pivot_root,
];

/// Number of munmap, which is not a traced call.
const MUNMAP: usize = libc::SYS_munmap as usize;

/// Calls that submit asynchronous I/O.
const SUBMITTERS: [&str; 2] = [IO_SUBMIT, "io_uring_enter"];
const IO_SUBMIT: &str = "io_submit";

/// Facts about a system call that the kernel side needs.
fn shape(call: SyscallId) -> SyscallShape {
    let spec = call.spec();
    let mut bits = SyscallShape::TRACED;
    if spec.uses_position() {
        bits |= SyscallShape::POSITION;
    }
    if spec.returns_descriptor_of_file() {
        bits |= SyscallShape::OPENS;
    }
    if spec.writes_primary_file() {
        bits |= SyscallShape::WRITES;
    }
    if spec.class == SyscallClass::Read && spec.moves_data() {
        bits |= SyscallShape::READS;
    }
    if spec.writes_second_file() {
        bits |= SyscallShape::WRITES_SECOND;
    }
    if spec.class == SyscallClass::Truncate {
        bits |= SyscallShape::UNSAMPLED;
    }
    if SUBMITTERS.contains(&call.name()) {
        bits |= SyscallShape::SUBMITS;
    }
    if call.name() == IO_SUBMIT {
        bits |= SyscallShape::SUBMITS_IOCBS;
    }
    let [path, second_path] = spec.path_args();
    SyscallShape::new(bits, spec.fd_arg(), spec.second_fd_arg(), path, second_path)
}

/// Returns whether the files of the call's descriptors are all that it is about. syncfs writes other files
/// of the file system as well, and the mappings of all files are needed to find thread contexts.
fn is_excludable(call: SyscallId) -> bool {
    let spec = call.spec();
    let by_class = match spec.class {
        SyscallClass::Close
        | SyscallClass::Read
        | SyscallClass::Write
        | SyscallClass::Sync
        | SyscallClass::Position
        | SyscallClass::Truncate
        | SyscallClass::Allocate
        | SyscallClass::Hint
        | SyscallClass::Transfer
        | SyscallClass::Descriptor
        | SyscallClass::Metadata => true,
        SyscallClass::Open
        | SyscallClass::Map
        | SyscallClass::Control
        | SyscallClass::Namespace
        | SyscallClass::Async
        | SyscallClass::Execute => false,
    };
    by_class && spec.fd_arg().is_some() && spec.path_args() == [None, None] && call.name() != "syncfs"
}

fn filter_list<T, U: Copy + Default>(
    what: &'static str,
    wanted: &[T],
    word: impl Fn(&T) -> U,
) -> Result<([U; FILTERS_MAX], u32), TracerError> {
    let mut words = [U::default(); FILTERS_MAX];
    if wanted.len() > FILTERS_MAX {
        return Err(TracerError::TooManyFilters { what, given: wanted.len() });
    }
    for (slot, item) in words.iter_mut().zip(wanted) {
        *slot = word(item);
    }
    // At most FILTERS_MAX, as checked above.
    Ok((words, wanted.len() as u32))
}

/// Returns the thread name in the form that the kernel side compares: up to 15 bytes, NUL-padded to
/// 16 (TASK_COMM_LEN, include/linux/sched.h).
fn comm_key(comm: &str) -> [u64; 2] {
    let mut bytes = [0u8; 16];
    let length = comm.len().min(15);
    bytes[..length].copy_from_slice(&comm.as_bytes()[..length]);
    let (low, high) = bytes.split_at(8);
    let word = |half: &[u8]| half.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    [word(low), word(high)]
}
