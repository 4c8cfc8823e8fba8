//! Loading and attaching of the eBPF programs.
//!
//! *In*: a [`TracerConfig`]. *Out*: an attached [`Tracer`] whose rings fill; nothing is read yet.
//!
//! *Order*: the kernel verifies every program before anything is attached (`load_all`). Then ends
//! are attached before begins, sys_enter last (see `probes`). *Invariant*: everything is held by
//! descriptors of this process, so the kernel removes it on any exit. Only counters may outlive the
//! process, if the caller pins them (`persistent_counters`).

mod usdt;
mod verification;

use aya::maps::of_maps::ArrayOfMaps;
use aya::maps::{Array, Map, MapData, PerCpuArray};
use aya::{Btf, Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;
use blkkin_probe_abi::CPUS_MAX;
use blkkin_probe_abi::deferred::{
    DEFERRED_MAP, DEFERRED_SETS, KEEP_DISK_LIMITS_MAP, KEEP_HISTOGRAMS, KEEP_LATENCIES_MAP, KEEP_WORDS,
};
use blkkin_probe_abi::excluded_paths::EXCLUDED_SETS;
use blkkin_probe_abi::in_flight::ASYNC_SETS;
use blkkin_probe_abi::settings::{POINTER_STEPS_MAX, PointerStep, ProbeSettings, STEP_TO_BIO};
use blkkin_wire::ids::{Pid, Source};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;

use crate::attach::attach_point::{AttachPoint, Attached};
use crate::attach::attach_probe::{AttachAttempt, AttachResult, ProbeAttempts};
use crate::attach::layout::{self, KernelTypes};
use crate::attach::modules::UnreadModules;
use crate::attach::page_completions::{self, BTRFS_DIRECT};
use crate::attach::perf_link::PerfLink;
use crate::attach::probes::{
    ASYNC_PROBES, AttachKind, DIRTY_PROBES, FAULT_PROBES, MAJOR_FAULTS, NBD_PROBES, Need, PROBES, Probe,
    ProbeReport, ProbeStatus, SLEEP_PROBES,
};
use crate::attach::req_op::ReqOpTable;
use crate::attach::symbols::{KernelSymbol, Symbols};
use crate::attach::{OBJECT, kernel};
use crate::aya_error::{error_chain, missing_map};
use crate::capture::CaptureControl;
use crate::clock;
use crate::config::{TraceScope, TracerConfig};
use crate::enrich::contexts::config::ContextConfig;
use crate::enrich::contexts::policy::ContextPolicy;
use crate::enrich::contexts::tls_slots::TlsSlots;
use crate::enrich::devices::DeviceNames;
use crate::enrich::machine_disks;
use crate::enrich::nbd::{NbdRequests, NbdStatsHandle};
use crate::enrich::tasks::{FollowOnForkGuard, TaskMarks};
use crate::enrich::usdt::UsdtProbe;
use crate::enrich::usdt::events::UsdtCollector;
use crate::enrich::virtual_machines::MachineWatcher;
use crate::error::TracerError;
use crate::identity;
use crate::privilege;
use crate::read::decode::bytes_of;
use crate::read::in_flight::InFlightTables;
use crate::read::kernel_functions::KernelFunctions;
use crate::read::ring::Ring;
use crate::read::rings::RingReader;
use crate::selection::budget::BudgetStatus;
use crate::selection::path_filter::{self, PathFilter};
use crate::stats::counters::KernelCounters;
use crate::stats::device_bytes::DeviceBytesHandle;
use crate::stats::persistent_counters::CounterHandles;
use crate::stats::progress_map::ProgressMap;
use crate::totals;

/// Sets of the table of NBD connections, of four connections each. The map has one if NBD is not
/// traced, since a map cannot be empty.
const NBD_CONNECTIONS: u32 = 1_024;

/// Maximum number of children that have not run yet, where the fork hook knows them by tid only.
/// The map has 1 entry elsewhere.
const PENDING_CHILDREN: u32 = 65_536;

/// Function that ends the front part of a split bio.
const SPLIT_END_IO: KernelSymbol = KernelSymbol { name: "bio_chain_endio", module: None };

/// Begin and end of the scheduler's functions (include/asm-generic/vmlinux.lds.h).
const SCHEDULER: [KernelSymbol; 2] = [
    KernelSymbol { name: "__sched_text_start", module: None },
    KernelSymbol { name: "__sched_text_end", module: None },
];

/// An attached tracer.
pub struct Tracer {
    /// Identity of this source.
    pub(crate) source: Source,
    pub(crate) ebpf: Ebpf,
    /// Created, not mapped yet: see [`Tracer::map_rings`].
    rings: Vec<MapData>,
    pub(crate) counters: KernelCounters,
    /// Descriptor of the map of the counters, for a process that preserves it after a crash.
    pub(crate) counters_map: OwnedFd,
    /// Map that records the reader's progress, if counters are exported.
    pub(crate) progress: Option<Arc<ProgressMap>>,
    pub(crate) tables: InFlightTables,
    /// Map of TLS slots and the configuration of the scanner; none if thread contexts are off.
    pub(crate) contexts: Option<(TlsSlots, ContextConfig)>,
    /// Block operation numbers of this kernel.
    pub(crate) operations: ReqOpTable,
    unread_modules: UnreadModules,
    pub(crate) attached: Vec<Attached>,
    /// Attached USDT probes.
    pub(crate) usdt_links: Vec<PerfLink>,
    /// USDT probes to attach, and the overhead of one event in ns.
    pub(crate) pending_usdt: Option<(Vec<UsdtProbe>, f64)>,
    pub(crate) usdt_collector: Option<UsdtCollector>,
    /// Shared NBD counters, if NBD is traced.
    pub(crate) nbd_handle: Option<NbdStatsHandle>,
    pub(crate) device_bytes: DeviceBytesHandle,
    /// Block devices present before tracing began.
    pub(crate) devices: DeviceNames,
    task_marks: TaskMarks,
    probe_reports: Vec<ProbeReport>,
    fault_reports: Vec<ProbeReport>,
    /// Dirty pages are published, for a subscriber that knows them.
    pub(crate) keeps_dirty_events: bool,
    /// Watches for QEMU's processes. Its thread starts here, while capabilities can still be dropped.
    pub(crate) machines: Option<MachineWatcher>,
    /// Filter of calls by path, if one is set.
    pub(crate) path_filter: Option<PathFilter>,
    /// The kernel's own I/O is recorded for every task.
    whole_machine: bool,
    /// Names of the kernel's functions, if sleeps are recorded, until the rings are mapped.
    functions: Option<KernelFunctions>,
    /// Head sampling with its rules and budget, if it is on.
    pub(crate) capture: Option<CaptureControl>,
}

/// Results of a trial of each probe.
#[derive(Default)]
pub(crate) struct AllKinds {
    /// Each probe of every trace under each kind.
    pub(crate) attempts: Vec<ProbeAttempts>,
    /// The probes of `--nbd`, each under its best kind.
    pub(crate) nbd: Vec<ProbeReport>,
    /// The probe of `--sleeps`, under its best kind.
    pub(crate) sleeps: Vec<ProbeReport>,
}

impl Tracer {
    /// Loads and attaches all programs, by the requested kind, or by the best kind under which
    /// every required probe works.
    pub fn load(config: &TracerConfig) -> Result<Tracer, TracerError> {
        privilege::check()?;
        if let Some(kind) = config.attach {
            return Tracer::load_as(config, kind).map_err(|error| requested_kind_error(kind, error));
        }
        let mut first = None;
        let suits = |kind: &AttachKind| {
            (!config.nbd || !kind.uses_functions()) && (!config.sleeps || kind.is_typed())
        };
        for kind in AttachKind::ALL.into_iter().filter(suits) {
            let config = TracerConfig { attach: Some(kind), ..config.clone() };
            match Tracer::load_as(&config, kind) {
                // If every kind fails, the first error is the most useful.
                Err(error @ (TracerError::Probe { .. } | TracerError::MissingKernelTypes { .. })) => {
                    first.get_or_insert(error);
                }
                other => return other,
            }
        }
        Err(first.expect("invariant: there are kinds, and each failed"))
    }

    fn load_as(config: &TracerConfig, kind: AttachKind) -> Result<Tracer, TracerError> {
        let types = layout::resolve()?;
        kernel::check(&types, kind)?;
        let btf = kernel::btf()?;
        let mut tracer = Tracer::load_object(config, &types)?;
        if config.machine_disks {
            // Before any program is attached, because reading them makes requests.
            tracer.devices.set_machine_disks(machine_disks::of_guest(Path::new("/")));
        }
        let extra = tracer.extra_probes(config, kind)?;
        let of_faults = fault_probes(config);
        tracer.load_all(extra.iter().chain(&of_faults).copied(), kind, &btf, &types);
        for probe in of_faults {
            let report = tracer.attach(probe, kind, &btf, &types);
            tracer.fault_reports.push(report);
        }
        for probe in extra.into_iter().chain(PROBES) {
            let report = tracer.attach(probe, kind, &btf, &types);
            if report.status != ProbeStatus::Works && probe.need == Need::Required {
                return Err(probe_error(probe, report.reason));
            }
            tracer.probe_reports.push(report);
        }
        tracer.prepare_usdt(&config.usdt_probes)?;
        let no_thread =
            |error: io::Error| TracerError::System { path: "a thread".into(), reason: error.to_string() };
        tracer.machines =
            Some(MachineWatcher::start(config.contexts.is_enabled(), config.image_disks).map_err(no_thread)?);
        Ok(tracer)
    }

    /// Tries each probe under each kind, and the probes of options under their best one. Consumes the tracer.
    pub(crate) fn try_all_kinds(mut self) -> Result<AllKinds, TracerError> {
        let (types, btf) = (layout::resolve()?, kernel::btf()?);
        let attempts = PROBES.iter().map(|probe| {
            let attempts = AttachKind::ALL.map(|kind| self.try_one(probe, kind, &btf, &types));
            ProbeAttempts { probe, attempts: attempts.to_vec() }
        });
        let attempts = attempts.collect();
        let mut best = |probes: &'static [Probe], suits: fn(AttachKind) -> bool| {
            let best = probes.iter().map(|probe| {
                let kinds = AttachKind::ALL.into_iter().filter(|kind| suits(*kind));
                let mut reports = kinds.map(|kind| self.attach(probe, kind, &btf, &types));
                let first = reports.next().expect("invariant: there are kinds");
                let works = |report: &ProbeReport| report.status == ProbeStatus::Works;
                if works(&first) { first } else { reports.find(works).unwrap_or(first) }
            });
            best.collect()
        };
        Ok(AllKinds {
            attempts,
            nbd: best(NBD_PROBES, |kind| !kind.uses_functions()),
            sleeps: best(SLEEP_PROBES, AttachKind::is_typed),
        })
    }

    /// Loads the object without attaching anything.
    pub(crate) fn load_unattached() -> Result<Tracer, TracerError> {
        Tracer::load_object(&TracerConfig::default(), &layout::resolve()?)
    }

    fn try_one(&mut self, probe: &Probe, kind: AttachKind, btf: &Btf, types: &KernelTypes) -> AttachAttempt {
        let known = self
            .probe_reports
            .iter()
            .find(|known| known.probe.name == probe.name && known.kind == Some(kind));
        if let Some(known) = known {
            return AttachAttempt { kind, result: AttachResult::Attached, detail: known.at.to_owned() };
        }
        let (result, detail) = match types.missing(probe, kind) {
            missing if !missing.is_empty() => {
                (AttachResult::Missing, format!("this kernel has no {}", missing.join(", ")))
            }
            _ => match AttachPoint::resolve(types.hook(probe, kind).unwrap_or(probe.hook), kind, types) {
                Err(reason) => (AttachResult::KeepsTracepoint, reason),
                Ok(point) => match point.attach(&mut self.ebpf, btf) {
                    Ok(_) => (AttachResult::Attached, point.name.to_owned()),
                    Err(reason) => (AttachResult::Refused, reason),
                },
            },
        };
        AttachAttempt { kind, result, detail }
    }

    /// Creates the maps and prepares the programs.
    fn load_object(config: &TracerConfig, types: &KernelTypes) -> Result<Tracer, TracerError> {
        let source = identity::source();
        let settings = kernel_settings(config.settings(source.epoch)?, types, config.sleeps);
        if config.sleeps && settings.scheduler_end == 0 {
            return Err(TracerError::HiddenFunctions);
        }
        let shapes: Vec<u8> = config.syscall_table().iter().flat_map(|word| word.to_ne_bytes()).collect();
        let by_tid = settings.inherit_by_tid != 0;
        let mut ebpf = EbpfLoader::new()
            .override_global("LAYOUT", bytes_of(&types.layout), true)
            .override_global("SETTINGS", bytes_of(&settings), true)
            .override_global("SYSCALLS", shapes.as_slice(), true)
            .map_max_entries("SUBMISSIONS", if settings.async_io != 0 { ASYNC_SETS as u32 } else { 1 })
            .map_max_entries("NBD_CONNECTIONS", if config.nbd { NBD_CONNECTIONS } else { 1 })
            .map_max_entries(
                path_filter::MAP,
                if config.filter.paths.is_empty() { 1 } else { EXCLUDED_SETS as u32 },
            )
            .map_max_entries(DEFERRED_MAP, if settings.defers != 0 { DEFERRED_SETS as u32 } else { 1 })
            .map_max_entries(
                KEEP_LATENCIES_MAP,
                if settings.defers != 0 { KEEP_HISTOGRAMS as u32 } else { 1 },
            )
            .map_max_entries(KEEP_DISK_LIMITS_MAP, if settings.defers != 0 { KEEP_WORDS as u32 } else { 1 })
            .map_max_entries("PENDING_CHILDREN", if by_tid { PENDING_CHILDREN } else { 1 })
            .map_max_entries(totals::MAPS[0], 1)
            .map_max_entries(totals::MAPS[1], 1)
            .map_max_entries(totals::MAPS[2], 1)
            .allow_unsupported_maps()
            .load(OBJECT)
            .map_err(|error| TracerError::Load { reason: error_chain(&error) })?;
        let rings = make_rings(&mut ebpf, config)?;
        let (counters, counters_map) = take_counters(&mut ebpf)?;
        let tables = InFlightTables::take(&mut ebpf)?;
        // If contexts are off the maps stay in the object: the programs refer to their descriptors
        // until they are loaded.
        let contexts = match &config.contexts {
            ContextPolicy::None => None,
            policy => {
                let (scan_existing, periodic_rescan) =
                    (config.scope == TraceScope::All, !config.sees_mappings());
                let contexts_config =
                    ContextConfig { scan_existing, policy: policy.clone(), periodic_rescan };
                Some((TlsSlots::take(&mut ebpf)?, contexts_config))
            }
        };
        distrust_moves(&mut ebpf)?;
        let path_filter = match &config.filter.paths[..] {
            [] => None,
            patterns => Some(PathFilter::take(&mut ebpf, patterns.to_vec(), config.nbd)?),
        };
        let capture = CaptureControl::take(&mut ebpf, config)?;
        let task_marks = task_marks(&ebpf)?;
        let (attached, probe_reports) = (Vec::new(), Vec::new());
        let operations = types.operations.clone();
        let unread_modules = types.unread_modules.clone();
        let progress = None;
        Ok(Tracer {
            source,
            ebpf,
            rings,
            counters,
            counters_map,
            progress,
            tables,
            contexts,
            operations,
            unread_modules,
            attached,
            usdt_links: Vec::new(),
            pending_usdt: None,
            usdt_collector: None,
            nbd_handle: config.nbd.then(NbdStatsHandle::default),
            device_bytes: DeviceBytesHandle::default(),
            devices: DeviceNames::snapshot(),
            task_marks,
            probe_reports,
            fault_reports: Vec::new(),
            machines: None,
            keeps_dirty_events: false,
            path_filter,
            functions: config.sleeps.then(KernelFunctions::read),
            whole_machine: config.kernel_origin,
            capture,
        })
    }

    /// Maps the rings into this process. Not earlier: mapped rings count as process memory, and
    /// loading needs 33 MiB that it then releases.
    pub(crate) fn map_rings(&mut self) -> Result<RingReader, TracerError> {
        let failed = |error: io::Error| TracerError::Map { map: "RINGS", reason: error.to_string() };
        let rings = std::mem::take(&mut self.rings).into_iter().map(Ring::map);
        let mut reader =
            RingReader::new(rings.collect::<io::Result<_>>().map_err(failed)?, self.operations.clone());
        reader.page_origins.set_whole_machine(self.whole_machine);
        if self.capture.is_some() {
            reader.page_origins.set_sampled();
        }
        reader.functions = self.functions.take();
        reader.usdt = self.usdt_collector.take();
        reader.nbd = self.nbd_handle.is_some().then(|| NbdRequests::new(self.source));
        Ok(reader)
    }

    /// Returns the result of each probe.
    pub fn probes(&self) -> &[ProbeReport] {
        &self.probe_reports
    }

    /// Returns the results of the probes of page faults and dirty pages.
    pub fn fault_probes(&self) -> &[ProbeReport] {
        &self.fault_reports
    }

    /// Publishes the events of dirty pages too, which are dropped otherwise.
    pub fn keep_dirty_events(&mut self) {
        self.keeps_dirty_events = true;
    }

    /// Returns the NBD counters, if NBD is traced.
    pub fn nbd_stats(&self) -> Option<NbdStatsHandle> {
        self.nbd_handle.clone()
    }

    /// Returns the modules whose structures are unknown.
    pub fn unread_modules(&self) -> UnreadModules {
        self.unread_modules.clone()
    }

    /// Returns the bytes of each device by cause.
    pub fn device_bytes(&self) -> DeviceBytesHandle {
        self.device_bytes.clone()
    }

    /// Returns the maps to be held by a longer-lived process, and starts to record progress in
    /// them.
    pub fn export_counters(&mut self) -> io::Result<CounterHandles> {
        let (map, progress) = ProgressMap::create()?;
        let progress = Arc::new(progress);
        self.progress = Some(Arc::clone(&progress));
        Ok(CounterHandles {
            epoch: self.source.epoch,
            counters: self.counters_map.try_clone()?,
            progress_map: map.fd().as_fd().try_clone_to_owned()?,
            progress,
        })
    }

    /// Returns whether the tracer will look for contexts in the memory of other processes.
    pub fn reads_contexts(&self) -> bool {
        self.contexts.is_some()
    }

    /// Returns the identity that batches carry.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Traces children of the process's main thread from their exec on, while the guard lives.
    pub fn trace_children_of_this_thread(&self) -> Result<FollowOnForkGuard<'_>, TracerError> {
        self.task_marks.follow_on_fork()
    }

    /// Traces a living process, its living descendants, and their future children. Returns the
    /// number of threads marked now.
    pub fn trace_process_tree(&self, pid: Pid) -> Result<usize, TracerError> {
        self.task_marks.mark_tree(pid)
    }

    /// Returns what the budget does, if there is one.
    pub fn budget(&self) -> Option<BudgetStatus> {
        self.capture.as_ref().and_then(CaptureControl::budget)
    }

    /// Returns the handle that changes what is recorded; none without head sampling.
    pub fn capture(&self) -> Option<CaptureControl> {
        self.capture.clone()
    }

    /// Returns a second handle of the marks of traced tasks.
    pub fn task_marks(&self) -> Result<TaskMarks, TracerError> {
        task_marks(&self.ebpf)
    }

    /// Lists the probes that this configuration adds to those of every trace.
    fn extra_probes(
        &self,
        config: &TracerConfig,
        kind: AttachKind,
    ) -> Result<Vec<&'static Probe>, TracerError> {
        let nbd = match (self.nbd_handle.is_some(), kind.uses_functions()) {
            (false, _) => &[],
            (true, false) => NBD_PROBES,
            (true, true) => return Err(TracerError::NbdKind { kind: kind.name() }),
        };
        let sleeps = match (config.sleeps, kind.is_typed()) {
            (false, _) => &[],
            (true, true) => SLEEP_PROBES,
            (true, false) => return Err(TracerError::SleepsKind { kind: kind.name() }),
        };
        let asynchronous = if config.traces_async_io() { ASYNC_PROBES } else { &[] };
        Ok(nbd.iter().chain(sleeps).chain(asynchronous).collect())
    }

    /// Has the kernel verify every program before any is attached. If each program were attached
    /// right after its verification, events between the first and the last hook would be recorded
    /// in part. Requests of calls from that time would then look like the kernel's own.
    fn load_all<'a>(
        &mut self,
        extra: impl IntoIterator<Item = &'a Probe>,
        kind: AttachKind,
        btf: &Btf,
        types: &KernelTypes,
    ) {
        let probes = extra.into_iter().chain(PROBES).filter(|probe| types.missing(probe, kind).is_empty());
        verification::verify(&mut self.ebpf, probes.map(|probe| attach_points(probe, kind, types)), btf);
    }

    fn attach(
        &mut self,
        probe: &'static Probe,
        kind: AttachKind,
        btf: &Btf,
        types: &KernelTypes,
    ) -> ProbeReport {
        let missing = types.missing(probe, kind);
        if !missing.is_empty() {
            return ProbeReport::missing(probe, &missing);
        }
        let mut refused = Vec::new();
        for point in attach_points(probe, kind, types) {
            match point.attach(&mut self.ebpf, btf) {
                Ok(attached) => {
                    self.attached.push(attached);
                    return ProbeReport::works(probe, point.hook, point.name, point.kind);
                }
                Err(reason) => refused.push(format!("{}: {reason}", point.kind)),
            }
        }
        let (hook, reason) = (types.hook(probe, kind).unwrap_or(probe.hook), refused.join("; "));
        ProbeReport::refused(probe, hook, reason)
    }

    /// Returns the number of events that the kernel passed to no program, as far as it counts them
    /// (`recursion_misses.rs`). Fails if one count cannot be read now: descriptors may be used up.
    pub(crate) fn recursion_misses(&self) -> Result<u64, String> {
        self.attached.iter().map(Attached::recursion_misses).sum()
    }
}

/// Lists the probes of page faults and, on request, of dirty pages. None is required.
fn fault_probes(config: &TracerConfig) -> Vec<&'static Probe> {
    let dirty = if config.dirty_pages { DIRTY_PROBES } else { &[] };
    dirty.iter().chain(FAULT_PROBES).collect()
}

/// Lists the attach points of a probe under this kind, best first. A tracepoint without an
/// equivalent function is used directly, typed like the kind: the fork hook and the others must
/// agree on how children inherit tracing. An optional probe may fall back to untyped arguments: its
/// tracepoint may be in a module, whose types tp_btf does not see.
fn attach_points(probe: &Probe, kind: AttachKind, types: &KernelTypes) -> Vec<AttachPoint> {
    let hook = types.hook(probe, kind).unwrap_or(probe.hook);
    if hook.tracepoint == MAJOR_FAULTS {
        return AttachPoint::resolve(hook, AttachKind::PerfEvent, types).into_iter().collect();
    }
    if let (true, Ok(point)) = (kind.uses_functions(), AttachPoint::resolve(hook, kind, types)) {
        return vec![point];
    }
    let kinds: &[AttachKind] = match (kind.is_typed(), probe.need) {
        (false, _) => &[AttachKind::RawTp],
        (true, Need::Required) => &[AttachKind::TpBtf],
        (true, Need::Optional) => &[AttachKind::TpBtf, AttachKind::RawTp],
    };
    kinds.iter().filter_map(|kind| AttachPoint::resolve(hook, *kind, types).ok()).collect()
}

/// Creates the error for a required probe that does not work.
fn probe_error(probe: &Probe, reason: String) -> TracerError {
    if kernel::is_lockdown(&reason) {
        return TracerError::Lockdown;
    }
    TracerError::Probe { probe: probe.name, reason }
}

/// Creates the error for a kind that the user chose: another kind may work.
fn requested_kind_error(kind: AttachKind, error: TracerError) -> TracerError {
    match error {
        TracerError::Probe { probe, reason } if kind.uses_functions() => {
            TracerError::Kind { kind: kind.name(), probe, reason }
        }
        other => other,
    }
}

fn make_rings(ebpf: &mut Ebpf, config: &TracerConfig) -> Result<Vec<MapData>, TracerError> {
    let fail = |error: &dyn std::error::Error| TracerError::Map { map: "RINGS", reason: error_chain(error) };
    // Borrowed, not taken: the programs refer to its descriptor until they are loaded.
    let map = ebpf.map_mut("RINGS").ok_or_else(|| missing_map("RINGS"))?;
    let mut outer: ArrayOfMaps<&mut MapData, MapData> =
        ArrayOfMaps::try_from(map).map_err(|error| fail(&error))?;
    let cpus = aya::util::online_cpus()
        .map_err(|(path, error)| TracerError::System { path: path.to_owned(), reason: error.to_string() })?;
    let bytes = config.ring_bytes(cpus.len())?;
    let mut rings = Vec::with_capacity(cpus.len());
    for cpu in cpus.into_iter().filter(|cpu| *cpu < CPUS_MAX) {
        let definition = aya_obj::Map::new_from_params(BPF_MAP_TYPE_RINGBUF as u32, 0, 0, bytes as u32, 0);
        let ring = MapData::create(definition, "blkkin_ring", None).map_err(|error| fail(&error))?;
        outer.set(cpu, &ring, 0).map_err(|error| fail(&error))?;
        rings.push(ring);
    }
    Ok(rings)
}

fn take_counters(ebpf: &mut Ebpf) -> Result<(KernelCounters, OwnedFd), TracerError> {
    let fail = |reason| TracerError::Map { map: "PER_CPU_STATE", reason };
    let map = ebpf.take_map("PER_CPU_STATE").ok_or_else(|| missing_map("PER_CPU_STATE"))?;
    let Map::PerCpuArray(data) = &map else { return Err(fail("unexpected map type".to_owned())) };
    let descriptor = data.fd().as_fd().try_clone_to_owned().map_err(|error| fail(error.to_string()))?;
    let map = PerCpuArray::try_from(map).map_err(|error| fail(error_chain(&error)))?;
    Ok((KernelCounters::new(map), descriptor))
}

/// Paths that exist where a file server in the kernel has been set up: the control files of nfsd,
/// once they are mounted, and of ksmbd. Their threads rename files without a system call.
const FILE_SERVERS: [&str; 2] = ["/proc/fs/nfsd/threads", "/sys/class/ksmbd-control"];

/// Has the kernel side compare each path at each use if this machine is a file server.
fn distrust_moves(ebpf: &mut Ebpf) -> Result<(), TracerError> {
    const MOVES: &str = "MOVES";
    if !FILE_SERVERS.iter().any(|folder| Path::new(folder).exists()) {
        return Ok(());
    }
    let fail = |error: &dyn std::error::Error| TracerError::Map { map: MOVES, reason: error_chain(error) };
    let map = ebpf.map_mut(MOVES).ok_or_else(|| missing_map(MOVES))?;
    let mut moves: Array<&mut MapData, [u64; 3]> = Array::try_from(map).map_err(|error| fail(&error))?;
    moves.set(0, [0, 0, 1], 0).map_err(|error| fail(&error))
}

fn task_marks(ebpf: &Ebpf) -> Result<TaskMarks, TracerError> {
    let fail = |reason: String| TracerError::Map { map: "TASKS", reason };
    let Some(Map::Unsupported(data)) = ebpf.map("TASKS") else { return Err(missing_map("TASKS")) };
    let bytes = data.info().map_err(|error| fail(error_chain(&error)))?.value_size();
    TaskMarks::new(data.fd().as_fd(), bytes as usize).map_err(|error| fail(error.to_string()))
}

/// Adds the settings that the kernel determines.
fn kernel_settings(settings: ProbeSettings, types: &KernelTypes, sleeps: bool) -> ProbeSettings {
    let paths = types.paths.iter().map(|path| path.end_io);
    let wanted: Vec<KernelSymbol> =
        paths.chain([SPLIT_END_IO]).chain(SCHEDULER).chain(page_completions::wanted()).collect();
    let symbols = Symbols::read(&wanted);
    let address = |function: KernelSymbol| symbols.only(function).unwrap_or(0);
    let scheduler = SCHEDULER.map(|function| if sleeps { address(function) } else { 0 });
    let mut steps = [PointerStep::default(); POINTER_STEPS_MAX];
    for (step, path) in steps.iter_mut().zip(&types.paths) {
        *step = PointerStep { end_io: address(path.end_io), ..path.step };
    }
    ProbeSettings {
        legacy_request_start: types.uses_legacy_request_start().into(),
        bio_chain_endio: address(SPLIT_END_IO),
        stacked: steps.iter().any(|step| step.to == STEP_TO_BIO && step.end_io != 0).into(),
        pointer_steps: steps,
        page_completions: page_completions::resolve(&symbols),
        btrfs_direct_end_io: address(BTRFS_DIRECT),
        scheduler_begin: scheduler[0],
        scheduler_end: scheduler[1],
        tick_ns: clock::tick_ns(),
        ..settings
    }
}
