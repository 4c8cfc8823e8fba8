//! Brings the programs into the kernel and attaches them.
//!
//! *In*: a [`TracerConfig`]. *Out*: a [`Tracer`] that is attached and whose rings fill; nothing is read yet.
//!
//! Order: everything is checked by the kernel before anything is attached (`check_all`); then what ends things is attached
//! before what begins them, sys_enter last (see `probes`). Everything is held
//! by descriptors of this process: when it ends, however it ends, the kernel takes all of it down.

use aya::maps::of_maps::ArrayOfMaps;
use aya::maps::{Map, MapData, PerCpuArray, RingBuf};
use aya::programs::Program;
use aya::{Btf, Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;
use blkkin_probe_abi::CPUS_MAX;
use blkkin_probe_abi::settings::{HOP_TO_BIO, HOPS_MAX, Hop, Settings};
use blkkin_wire::ids::{Pid, Source};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use crate::accounts::KernelCounters;
use crate::config::TracerConfig;
use crate::decode::bytes_of;
use crate::error::TracerError;
use crate::in_flight::Tables;
use crate::kernel;
use crate::layout::{self, Types};
use crate::operations::Operations;
use crate::origin;
use crate::privilege;
use crate::probes::{AttachKind, Hook, Need, PROBES, Probe, ProbeVerdict, Verdict};
use crate::rings::RingReader;
use crate::symbols::{self, Function};
use crate::tasks::{SpawnerMark, TaskMarks};

pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/blkkin-probes"));

/// Where the front of a split bio ends.
const SPLIT_FRONT: Function = Function { name: "bio_chain_endio", module: None };

/// A tracer that is attached.
pub struct Tracer {
    /// Who we are.
    pub(crate) source: Source,
    pub(crate) ebpf: Ebpf,
    /// Made, not yet mapped: see [`Tracer::map_rings`].
    rings: Vec<MapData>,
    pub(crate) counters: KernelCounters,
    pub(crate) tables: Tables,
    /// How this kernel numbers operations.
    pub(crate) operations: Operations,
    /// Descriptors of the attached programs, whose fdinfo says how often the kernel skipped them.
    pub(crate) attached: Vec<OwnedFd>,
    marks: TaskMarks,
    verdicts: Vec<ProbeVerdict>,
}

impl Tracer {
    /// Loads and attaches: by tp_btf, or, where the kernel refuses a required probe that way, all by raw_tp.
    pub fn load(config: &TracerConfig) -> Result<Tracer, TracerError> {
        privilege::check()?;
        if config.attach.is_some() {
            return Tracer::load_as(config);
        }
        let typed = Tracer::load_as(&TracerConfig { attach: Some(AttachKind::TpBtf), ..config.clone() });
        match typed {
            Err(TracerError::Probe { probe, reason }) => {
                let raw = TracerConfig { attach: Some(AttachKind::RawTp), ..config.clone() };
                // If that is refused too, the first refusal is the one to read.
                Tracer::load_as(&raw).map_err(|_| TracerError::Probe { probe, reason })
            }
            other => other,
        }
    }

    fn load_as(config: &TracerConfig) -> Result<Tracer, TracerError> {
        let types = layout::resolve()?;
        kernel::check(&types)?;
        let btf = kernel_types()?;
        let mut tracer = Tracer::bring_in(config, &types)?;
        tracer.check_all(config, &btf, &types);
        for probe in PROBES {
            let verdict = tracer.attach(probe, kinds_for(probe, config.attach), &btf, &types);
            if verdict.verdict != Verdict::Works && probe.need == Need::Required {
                return Err(refused(probe, verdict.reason));
            }
            tracer.verdicts.push(verdict);
        }
        Ok(tracer)
    }

    /// Tries each probe by each kind, whatever becomes of the others; nothing is left of it.
    pub(crate) fn try_each() -> Result<Vec<ProbeVerdict>, TracerError> {
        let types = layout::resolve()?;
        let btf = kernel_types()?;
        let mut tracer = Tracer::bring_in(&TracerConfig::default(), &types)?;
        let kinds = [AttachKind::TpBtf, AttachKind::RawTp];
        Ok(PROBES.iter().map(|probe| tracer.attach(probe, &kinds, &btf, &types)).collect())
    }

    /// Maps and programs, nothing attached.
    fn bring_in(config: &TracerConfig, types: &Types) -> Result<Tracer, TracerError> {
        let source = origin::source();
        let settings = for_this_kernel(config.settings(source.epoch)?, types);
        let shapes: Vec<u8> = config.shapes().iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut ebpf = EbpfLoader::new()
            .override_global("LAYOUT", bytes_of(&types.layout), true)
            .override_global("SETTINGS", bytes_of(&settings), true)
            .override_global("CALLS", shapes.as_slice(), true)
            .allow_unsupported_maps()
            .load(OBJECT)
            .map_err(|error| TracerError::Load { reason: chain(&error) })?;
        let rings = make_rings(&mut ebpf, config)?;
        let counters = take_counters(&mut ebpf)?;
        let tables = Tables::take(&mut ebpf)?;
        let marks = task_marks(&ebpf)?;
        let (attached, verdicts) = (Vec::new(), Vec::new());
        let operations = types.operations.clone();
        Ok(Tracer { source, ebpf, rings, counters, tables, operations, attached, marks, verdicts })
    }

    /// Maps the rings into this process. Not before: a mapped ring counts twice its size as the process's memory, because it
    /// is mapped twice, one behind the other, and loading needs 33 MiB which it then gives back.
    pub(crate) fn map_rings(&mut self) -> Result<RingReader, TracerError> {
        let rings = std::mem::take(&mut self.rings).into_iter();
        let mapped = rings.map(|ring| {
            RingBuf::try_from(Map::RingBuf(ring))
                .map_err(|error| TracerError::Map { map: "RINGS", reason: chain(&error) })
        });
        Ok(RingReader::new(mapped.collect::<Result<_, _>>()?, self.operations.clone()))
    }

    /// What became of each probe.
    pub fn probes(&self) -> &[ProbeVerdict] {
        &self.verdicts
    }

    /// Who we are, as batches say it.
    pub fn source(&self) -> Source {
        self.source
    }

    /// Whatever the process's main thread forks while the mark lives is followed from its exec on.
    pub fn follow_children_of_this_thread(&self) -> Result<SpawnerMark<'_>, TracerError> {
        self.marks.spawner()
    }

    /// Follows a living process, its living descendants, and whatever they fork. Says how many threads that are
    /// now.
    pub fn follow_tree(&self, pid: Pid) -> Result<usize, TracerError> {
        self.marks.tree(pid)
    }

    /// Has the kernel check every program before anything is attached. That takes nearly all of a start (200 ms): were it
    /// done program by program, whatever happened between the first hook and the last would be seen in parts, and the
    /// requests of each call of that time would look like the kernel's own. What is refused here is refused again, and
    /// reported, when it is to be attached.
    fn check_all(&mut self, config: &TracerConfig, btf: &Btf, types: &Types) {
        for probe in PROBES.iter().filter(|probe| types.missing(probe).is_empty()) {
            let hook = types.hook(probe).unwrap_or(probe.hook);
            let mut kinds = kinds_for(probe, config.attach).iter();
            kinds.any(|&kind| self.check(hook, kind, btf).is_ok());
        }
    }

    /// Has the kernel check a program, once.
    fn check(&mut self, hook: Hook, kind: AttachKind, btf: &Btf) -> Result<(), String> {
        let name = program_name(hook, kind);
        let program = self.ebpf.program_mut(&name).ok_or_else(|| format!("there is no program {name}"))?;
        if program.fd().is_ok() {
            return Ok(());
        }
        let loaded = match program {
            Program::BtfTracePoint(program) => program.load(hook.tracepoint, btf),
            Program::RawTracePoint(program) => program.load(),
            _ => return Err(format!("{name} is of another kind")),
        };
        loaded.map_err(|error| chain(&error))
    }

    fn attach(
        &mut self,
        probe: &'static Probe,
        kinds: &[AttachKind],
        btf: &Btf,
        types: &Types,
    ) -> ProbeVerdict {
        let missing = types.missing(probe);
        if !missing.is_empty() {
            return ProbeVerdict::missing(probe, &missing);
        }
        let hook = types.hook(probe).unwrap_or(probe.hook);
        let mut refused = Vec::new();
        for &kind in kinds {
            match self.attach_as(hook, kind, btf) {
                Ok(program) => {
                    self.attached.push(program);
                    return works(probe, hook, kind);
                }
                Err(reason) => refused.push(format!("{kind}: {reason}")),
            }
        }
        ProbeVerdict {
            probe,
            hook,
            kind: None,
            verdict: Verdict::Refused,
            reason: refused.join("; "),
            remedy: "another kernel, or another policy of this one: the reason is in its own words"
                .to_owned(),
        }
    }

    fn attach_as(&mut self, hook: Hook, kind: AttachKind, btf: &Btf) -> Result<OwnedFd, String> {
        self.check(hook, kind, btf)?;
        let name = program_name(hook, kind);
        let program = self.ebpf.program_mut(&name).ok_or_else(|| format!("there is no program {name}"))?;
        let attached = match program {
            Program::BtfTracePoint(program) => program.attach().map(drop),
            Program::RawTracePoint(program) => program.attach(hook.tracepoint).map(drop),
            _ => return Err(format!("{name} is of another kind")),
        };
        attached.map_err(|error| chain(&error))?;
        let fd = program.fd().map_err(|error| chain(&error))?;
        fd.as_fd().try_clone_to_owned().map_err(|error| error.to_string())
    }

    /// Runs that the kernel skipped because the program was running already on that CPU.
    pub(crate) fn recursion_misses(&self) -> u64 {
        let misses = self.attached.iter().filter_map(|program| {
            let info = std::fs::read_to_string(format!("/proc/self/fdinfo/{}", program.as_raw_fd())).ok()?;
            info.lines().find_map(|line| line.strip_prefix("recursion_misses:")?.trim().parse::<u64>().ok())
        });
        misses.sum()
    }
}

fn program_name(hook: Hook, kind: AttachKind) -> String {
    let suffix = match kind {
        AttachKind::TpBtf => "btf",
        AttachKind::RawTp => "raw",
    };
    format!("{}_{suffix}", hook.stem)
}

/// Required probes all use one kind: the fork hook and the others must agree on how children are adopted. An optional
/// one may fall back by itself: its tracepoint may be a module's, whose types tp_btf does not see.
fn kinds_for(probe: &Probe, kind: Option<AttachKind>) -> &'static [AttachKind] {
    match (kind, probe.need) {
        (Some(AttachKind::RawTp), _) => &[AttachKind::RawTp],
        (_, Need::Required) => &[AttachKind::TpBtf],
        (_, Need::Optional) => &[AttachKind::TpBtf, AttachKind::RawTp],
    }
}

fn works(probe: &'static Probe, hook: Hook, kind: AttachKind) -> ProbeVerdict {
    ProbeVerdict {
        probe,
        hook,
        kind: Some(kind),
        verdict: Verdict::Works,
        reason: String::new(),
        remedy: String::new(),
    }
}

/// Why a probe without which nothing can be seen does not work.
fn refused(probe: &Probe, reason: String) -> TracerError {
    if kernel::is_lockdown(&reason) {
        return TracerError::Lockdown;
    }
    TracerError::Probe { probe: probe.name, reason }
}

fn kernel_types() -> Result<Btf, TracerError> {
    Btf::from_sys_fs().map_err(|error| TracerError::NoBtf { reason: chain(&error) })
}

fn make_rings(ebpf: &mut Ebpf, config: &TracerConfig) -> Result<Vec<MapData>, TracerError> {
    let fail = |error: &dyn std::error::Error| TracerError::Map { map: "RINGS", reason: chain(error) };
    // Borrowed, not taken: the programs name it by its descriptor until they are loaded.
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

fn take_counters(ebpf: &mut Ebpf) -> Result<KernelCounters, TracerError> {
    let map = ebpf.take_map("LOCALS").ok_or_else(|| missing_map("LOCALS"))?;
    let map = PerCpuArray::try_from(map)
        .map_err(|error| TracerError::Map { map: "LOCALS", reason: chain(&error) })?;
    Ok(KernelCounters::new(map))
}

fn task_marks(ebpf: &Ebpf) -> Result<TaskMarks, TracerError> {
    let fail = |reason: String| TracerError::Map { map: "TASKS", reason };
    let Some(Map::Unsupported(data)) = ebpf.map("TASKS") else { return Err(missing_map("TASKS")) };
    let bytes = data.info().map_err(|error| fail(chain(&error)))?.value_size();
    TaskMarks::new(data.fd().as_fd(), bytes as usize).map_err(|error| fail(error.to_string()))
}

pub(crate) fn missing_map(map: &'static str) -> TracerError {
    TracerError::Map { map, reason: "the object has none; it was not built from this source".to_owned() }
}

/// The settings with what the kernel decides, not the user.
fn for_this_kernel(settings: Settings, types: &Types) -> Settings {
    let ends: Vec<Function> = types.ways.iter().map(|way| way.end_io).chain([SPLIT_FRONT]).collect();
    let addresses = symbols::addresses(&ends);
    let address = |function: Function| addresses.get(function.name).copied().unwrap_or(0);
    let mut hops = [Hop::default(); HOPS_MAX];
    for (hop, way) in hops.iter_mut().zip(&types.ways) {
        *hop = Hop { end_io: address(way.end_io), ..way.hop };
    }
    Settings {
        requests_begin_late: types.requests_begin_late().into(),
        bio_chain_endio: address(SPLIT_FRONT),
        stacked: hops.iter().any(|hop| hop.to == HOP_TO_BIO && hop.end_io != 0).into(),
        hops,
        ..settings
    }
}

/// An error and what caused it, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        let more = error.to_string();
        if !text.contains(&more) {
            text.push_str(": ");
            text.push_str(&more);
        }
        cause = error.source();
    }
    // The verifier's log can be megabytes; its end says what it stumbled over.
    const KEPT: usize = 1500;
    if text.len() > KEPT {
        let from = text.len() - KEPT;
        let from = (from..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len());
        text = format!("…{}", &text[from..]);
    }
    text
}
