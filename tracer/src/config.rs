//! What to trace, as a caller says it; and the same as the programs take it.

use std::ops::RangeInclusive;
use std::time::Duration;

use blkkin_probe_abi::settings::{
    CALL_NUMBERS, CONTEXTS_KEEP_SAMPLED, CONTEXTS_READ, CallShape, FILTERS_MAX, FOLLOW_ALL, FOLLOW_MARKED,
    HOPS_MAX, Hop, ORIGIN_ALL, ORIGIN_CALLS, ORIGIN_TASKS, Settings,
};
use blkkin_wire::calls::{Arch, CallId};
use blkkin_wire::clock::DurationNs;
use blkkin_wire::ids::{CgroupId, DeviceId, Pid, StartEpoch, Tid};

use crate::context::believed::Believed;
use crate::error::TracerError;
use crate::probes::AttachKind;
use crate::usdt;

/// Bytes of each CPU's ring, where the machine has up to 32 CPUs: at 128 B a record it holds 65,000 of them, or
/// 130 ms of 500,000 events a second on one CPU: more than the reader was ever kept from running on a busy machine.
pub const RING_BYTES: usize = 8 << 20;
/// All rings together at the most, on machines with more CPUs than that.
pub const RINGS_BYTES_MAX: usize = 256 << 20;
/// Each ring at the least.
pub const RING_BYTES_MIN: usize = 256 << 10;
/// How long the rings are left alone between two drains: so long that a drain finds about [`DRAIN_BYTES`] in the fullest ring,
/// and from 2 to 20 ms. A drain that finds little pays for cold caches with every event (2.3 µs with 250 of them, 0.5 with
/// thousands). One that finds much keeps a CPU from the load for as long as it takes; many short ones interrupt more of its
/// requests: with 1 ms instead of 5 the 99th percentile of a read went from 0.9 to 0.5 ms with io_uring at 250,000 reads/s, and
/// from 24 to 77 µs with psync at 60,000. A consumer that spins doubles the producer's cost.
pub const DRAIN_EVERY: RangeInclusive<Duration> = Duration::from_millis(2)..=Duration::from_millis(20);
/// 960 records of 136 B: with 100,000 reads/s of one CPU, 5 ms.
pub const DRAIN_BYTES: usize = 128 << 10;

/// Whom to follow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Follow {
    /// Marked tasks, and what they fork.
    Marked,
    /// Every task that passes the filter.
    All,
}

/// How much to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Detail {
    /// Only calls that reached the block layer.
    Requests,
    /// Every call, its path arguments, and the paths of its files.
    Calls,
    /// As `Calls`; exporters say every raw argument too.
    Everything,
}

/// What must hold for a call to be kept. Empty lists let everything pass; within a list one match is enough, and
/// every list that is not empty must match.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Processes (with [`Follow::All`]).
    pub pids: Vec<Pid>,
    /// Threads (with [`Follow::All`]).
    pub tids: Vec<Tid>,
    /// Names of threads (with [`Follow::All`]).
    pub comms: Vec<String>,
    /// Cgroups (with [`Follow::All`]).
    pub cgroups: Vec<CgroupId>,
    /// Devices: bios and requests of others are not followed, and calls that reached none of these are left out.
    pub devices: Vec<DeviceId>,
    /// System calls.
    pub calls: Vec<CallId>,
    /// Calls without block I/O that took less are left out. (Those with are judged as whole traces, later.)
    pub slower_than: Option<DurationNs>,
    /// Calls without block I/O that did not fail are left out.
    pub errors_only: bool,
    /// Neither of these two leaves out a call whose program samples the trace that it names (OpenTelemetry's thread context).
    pub or_sampled: bool,
}

/// One start of the tracer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracerConfig {
    /// Whom to follow.
    pub follow: Follow,
    /// What to keep.
    pub filter: Filter,
    /// How much of it.
    pub detail: Detail,
    /// Force one way of attaching; else the best that each probe allows.
    pub attach: Option<AttachKind>,
    /// Bytes of each CPU's ring, a power of two; else [`RING_BYTES`] or what [`RINGS_BYTES_MAX`] leaves.
    pub ring_bytes: Option<usize>,
    /// Also block I/O that no followed call asked for: write-back, metadata, page faults.
    pub kernel_origin: bool,
    /// Whose calls are below the span that their thread says it works for, where it says so (OpenTelemetry's thread context).
    pub contexts: Believed,
    /// What followed tasks ask NBD servers by sockets of their own.
    pub nbd: bool,
    /// Probes in programs of others, at which followed tasks are heard.
    pub probes: Vec<usdt::Probe>,
}

impl Default for TracerConfig {
    fn default() -> Self {
        TracerConfig {
            follow: Follow::Marked,
            filter: Filter::default(),
            detail: Detail::Calls,
            attach: None,
            ring_bytes: None,
            kernel_origin: false,
            contexts: Believed::Everybody,
            nbd: false,
            probes: Vec::new(),
        }
    }
}

impl TracerConfig {
    /// Bytes of each ring on a machine of `cpus` CPUs.
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

    /// The settings to freeze into the programs.
    pub fn settings(&self, epoch: StartEpoch) -> Result<Settings, TracerError> {
        let filter = &self.filter;
        let (pids, pids_len) = list("process", &filter.pids, |pid| pid.0)?;
        let (tids, tids_len) = list("thread", &filter.tids, |tid| tid.0)?;
        let (devices, devices_len) = list("device", &filter.devices, |device| device.to_kernel())?;
        let (cgroups, cgroups_len) = list("cgroup", &filter.cgroups, |cgroup| cgroup.0)?;
        let (comms, comms_len) = list("thread name", &filter.comms, |comm| comm_words(comm))?;
        Ok(Settings {
            seed: epoch.0,
            slower_than_ns: filter.slower_than.map_or(0, |limit| limit.0),
            follow: match self.follow {
                Follow::Marked => FOLLOW_MARKED,
                Follow::All => FOLLOW_ALL,
            },
            errors_only: filter.errors_only.into(),
            block_only: (self.detail == Detail::Requests || !filter.devices.is_empty()).into(),
            path_args: (self.detail >= Detail::Calls).into(),
            file_paths: 1,
            kernel_origin: match (self.kernel_origin, filter.calls.is_empty()) {
                (true, _) => ORIGIN_ALL,
                (false, true) => ORIGIN_TASKS,
                (false, false) => ORIGIN_CALLS,
            },
            adopt_by_number: self.attach.is_some_and(|kind| !kind.is_typed()).into(),
            // The kernel's matter, not the user's: the loader knows.
            bio_chain_endio: 0,
            requests_begin_late: 0,
            stacked: 0,
            contexts: self.contexts_bits(),
            hops: [Hop::default(); HOPS_MAX],
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

    /// Whether each mapping of a file is among the events: what a process loads is seen then.
    pub(crate) fn sees_mappings(&self) -> bool {
        let Filter { calls, devices, slower_than, errors_only, .. } = &self.filter;
        let asked_for = calls.is_empty() || CallId::by_name("mmap").is_some_and(|mmap| calls.contains(&mmap));
        let all = devices.is_empty() && slower_than.is_none() && !errors_only;
        asked_for && all && self.detail != Detail::Requests
    }

    fn contexts_bits(&self) -> u32 {
        match (self.contexts.anybody(), self.filter.or_sampled) {
            (false, _) => 0,
            (true, false) => CONTEXTS_READ,
            (true, true) => CONTEXTS_READ | CONTEXTS_KEEP_SAMPLED,
        }
    }

    /// The table of calls, by this machine's numbers.
    pub fn shapes(&self) -> [u32; CALL_NUMBERS] {
        let mut table = [0; CALL_NUMBERS];
        for call in CallId::all() {
            let wanted = self.filter.calls.is_empty() || self.filter.calls.contains(&call);
            let number = call.spec().number(Arch::HOST).map(usize::from);
            if let (true, Some(slot)) = (wanted, number.and_then(|number| table.get_mut(number))) {
                *slot = shape(call).0;
            }
        }
        if let (true, Some(slot)) = (self.contexts.anybody(), table.get_mut(MUNMAP)) {
            *slot |= CallShape::UNMAPS;
        }
        table
    }
}

/// munmap's number, which is no call that is followed.
const MUNMAP: usize = libc::SYS_munmap as usize;

/// What the kernel side must know of a call.
fn shape(call: CallId) -> CallShape {
    let spec = call.spec();
    let mut bits = CallShape::FOLLOWED;
    if spec.uses_position() {
        bits |= CallShape::POSITION;
    }
    if spec.returns_descriptor_of_file() {
        bits |= CallShape::OPENS;
    }
    let [path, second_path] = spec.path_args();
    CallShape::new(bits, spec.fd_arg(), spec.second_fd_arg(), path, second_path)
}

fn list<T, U: Copy + Default>(
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
    // At most FILTERS_MAX, checked above.
    Ok((words, wanted.len() as u32))
}

/// A thread's name as the kernel compares it: at most 15 bytes, NUL padded to 16 (TASK_COMM_LEN,
/// include/linux/sched.h).
fn comm_words(comm: &str) -> [u64; 2] {
    let mut bytes = [0u8; 16];
    let kept = comm.len().min(15);
    bytes[..kept].copy_from_slice(&comm.as_bytes()[..kept]);
    let (low, high) = bytes.split_at(8);
    let word = |half: &[u8]| half.iter().rev().fold(0u64, |word, byte| word << 8 | u64::from(*byte));
    [word(low), word(high)]
}
