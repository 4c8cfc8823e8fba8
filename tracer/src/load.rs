//! Brings the programs into the kernel and attaches them.
//!
//! *In*: a [`TracerConfig`]. *Out*: a [`Tracer`] that is attached and whose rings fill; nothing is read yet.
//!
//! Order: everything is checked by the kernel before anything is attached (`check_all`); then what ends things is attached
//! before what begins them, sys_enter last (see `probes`). Everything is held
//! by descriptors of this process: when it ends, however it ends, the kernel takes all of it down; but for counters, if somebody
//! asks for it (`estate`).

use aya::maps::of_maps::ArrayOfMaps;
use aya::maps::{Map, MapData, PerCpuArray};
use aya::{Btf, Ebpf, EbpfLoader};
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_RINGBUF;
use blkkin_probe_abi::CPUS_MAX;
use blkkin_probe_abi::settings::{HOP_TO_BIO, HOPS_MAX, Hop, Settings};
use blkkin_wire::ids::{Pid, Source};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use crate::accounts::KernelCounters;
use crate::config::{Follow, TracerConfig};
use crate::context::believed::Believed;
use crate::context::places::Places;
use crate::context::watch::Asked;
use crate::decode::bytes_of;
use crate::devices::DeviceNamer;
use crate::error::TracerError;
use crate::in_flight::Tables;
use crate::kernel;
use crate::layout::{self, Types};
use crate::ledger::Ledger;
use crate::nbd::{Asking, Requests};
use crate::operations::Operations;
use crate::origin;
use crate::privilege;
use crate::probes::{AttachKind, NBD_PROBES, Need, PROBES, Probe, ProbeVerdict, Verdict};
use crate::programs::{Attached, Place};
use crate::ring::Ring;
use crate::rings::RingReader;
use crate::symbols::{self, Function};
use crate::tasks::{SpawnerMark, TaskMarks};
use crate::tries::{Tried, Tries, Try};
use crate::usdt;
use crate::usdt::attach::Placed;
use crate::usdt::hits::Collector;

pub(crate) static OBJECT: &[u8] = aya::include_bytes_aligned!(concat!(env!("OUT_DIR"), "/blkkin-probes"));

/// Connections to NBD servers that are known at once; 1 where nobody asks for them, for a map of none there is not.
const NBD_CONNECTIONS: u32 = 1_024;

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
    /// The map of the counters, for who wants them to outlive us, and where it is told what was read.
    pub(crate) counters_pages: OwnedFd,
    pub(crate) ledger: Option<Arc<Ledger>>,
    pub(crate) tables: Tables,
    /// Where programs publish their contexts, and whose are asked for; none where nobody's are.
    pub(crate) contexts: Option<(Places, Asked)>,
    /// How this kernel numbers operations.
    pub(crate) operations: Operations,
    pub(crate) attached: Vec<Attached>,
    /// Places of probes in programs, as long as the program of the kernel's is at them.
    pub(crate) placed: Vec<Placed>,
    /// Probes of programs that are to be put in, and what a hit takes here, in ns.
    pub(crate) hits_asked: Option<(Vec<usdt::Probe>, f64)>,
    pub(crate) collector: Option<Collector>,
    /// What programs ask NBD servers is seen, and who watches sees the books of it.
    pub(crate) nbd: Option<Asking>,
    /// Devices as they were before anything was traced.
    pub(crate) devices: DeviceNamer,
    marks: TaskMarks,
    verdicts: Vec<ProbeVerdict>,
}

impl Tracer {
    /// Loads and attaches: by the kind that is asked for, or by the best by which this kernel lets every required probe be
    /// attached.
    pub fn load(config: &TracerConfig) -> Result<Tracer, TracerError> {
        privilege::check()?;
        if let Some(kind) = config.attach {
            return Tracer::load_as(config, kind).map_err(|error| asked_for(kind, error));
        }
        let mut first = None;
        for kind in AttachKind::ALL.into_iter().filter(|kind| !config.nbd || !kind.is_at_functions()) {
            let config = TracerConfig { attach: Some(kind), ..config.clone() };
            match Tracer::load_as(&config, kind) {
                // If all are refused, the first refusal is the one to read.
                Err(error @ (TracerError::Probe { .. } | TracerError::Lacks { .. })) => {
                    first.get_or_insert(error);
                }
                other => return other,
            }
        }
        Err(first.expect("there is a kind, and each was refused"))
    }

    fn load_as(config: &TracerConfig, kind: AttachKind) -> Result<Tracer, TracerError> {
        let types = layout::resolve()?;
        kernel::check(&types, kind)?;
        let btf = kernel_types()?;
        let mut tracer = Tracer::bring_in(config, &types)?;
        let more = tracer.more_probes(kind)?;
        tracer.check_all(more, kind, &btf, &types);
        for probe in more.iter().chain(PROBES) {
            let verdict = tracer.attach(probe, kind, &btf, &types);
            if verdict.verdict != Verdict::Works && probe.need == Need::Required {
                return Err(refused(probe, verdict.reason));
            }
            tracer.verdicts.push(verdict);
        }
        tracer.prepare_probes(&config.probes)?;
        Ok(tracer)
    }

    /// Tries each probe by each kind, and what `--nbd` adds by the best, whatever becomes of the others, and ends with it.
    pub(crate) fn try_each(mut self) -> Result<(Vec<Tries>, Vec<ProbeVerdict>), TracerError> {
        let (types, btf) = (layout::resolve()?, kernel_types()?);
        let tries = PROBES.iter().map(|probe| {
            let tries = AttachKind::ALL.map(|kind| self.try_one(probe, kind, &btf, &types));
            Tries { probe, tries: tries.to_vec() }
        });
        let tries = tries.collect();
        let nbd = NBD_PROBES.iter().map(|probe| {
            let kinds = AttachKind::ALL.into_iter().filter(|kind| !kind.is_at_functions());
            let mut verdicts = kinds.map(|kind| self.attach(probe, kind, &btf, &types));
            let first = verdicts.next().expect("invariant: there are kinds");
            let works = |verdict: &ProbeVerdict| verdict.verdict == Verdict::Works;
            if works(&first) { first } else { verdicts.find(works).unwrap_or(first) }
        });
        let nbd = nbd.collect();
        Ok((tries, nbd))
    }

    /// One that is not attached.
    pub(crate) fn idle() -> Result<Tracer, TracerError> {
        Tracer::bring_in(&TracerConfig::default(), &layout::resolve()?)
    }

    fn try_one(&mut self, probe: &Probe, kind: AttachKind, btf: &Btf, types: &Types) -> Try {
        let known =
            self.verdicts.iter().find(|known| known.probe.name == probe.name && known.kind == Some(kind));
        if let Some(known) = known {
            return Try { kind, tried: Tried::Works, said: known.at.to_owned() };
        }
        let (tried, said) = match types.missing(probe, kind) {
            missing if !missing.is_empty() => {
                (Tried::Missing, format!("this kernel has no {}", missing.join(", ")))
            }
            _ => match Place::of(types.hook(probe, kind).unwrap_or(probe.hook), kind, types) {
                Err(reason) => (Tried::Kept, reason),
                Ok(place) => match place.attach(&mut self.ebpf, btf) {
                    Ok(_) => (Tried::Works, place.name.to_owned()),
                    Err(reason) => (Tried::Refused, reason),
                },
            },
        };
        Try { kind, tried, said }
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
            .map_max_entries("NBD", if config.nbd { NBD_CONNECTIONS } else { 1 })
            .allow_unsupported_maps()
            .load(OBJECT)
            .map_err(|error| TracerError::Load { reason: chain(&error) })?;
        let rings = make_rings(&mut ebpf, config)?;
        let (counters, counters_pages) = take_counters(&mut ebpf)?;
        let tables = Tables::take(&mut ebpf)?;
        // Where nobody is asked the maps stay where they are: the programs name them by their descriptors until they are loaded.
        let contexts = match &config.contexts {
            Believed::Nobody => None,
            believed => {
                let (everybody, again) = (config.follow == Follow::All, !config.sees_mappings());
                let asked = Asked { everybody, believed: believed.clone(), again };
                Some((Places::take(&mut ebpf)?, asked))
            }
        };
        let marks = task_marks(&ebpf)?;
        let (attached, verdicts) = (Vec::new(), Vec::new());
        let operations = types.operations.clone();
        let ledger = None;
        Ok(Tracer {
            source,
            ebpf,
            rings,
            counters,
            counters_pages,
            ledger,
            tables,
            contexts,
            operations,
            attached,
            placed: Vec::new(),
            hits_asked: None,
            collector: None,
            nbd: config.nbd.then(Asking::default),
            devices: DeviceNamer::of_now(),
            marks,
            verdicts,
        })
    }

    /// Maps the rings into this process. Not before: mapped rings count as the process's memory, and loading needs 33 MiB which
    /// it then gives back.
    pub(crate) fn map_rings(&mut self) -> Result<RingReader, TracerError> {
        let failed = |error: io::Error| TracerError::Map { map: "RINGS", reason: error.to_string() };
        let rings = std::mem::take(&mut self.rings).into_iter().map(Ring::map);
        let mut reader =
            RingReader::new(rings.collect::<io::Result<_>>().map_err(failed)?, self.operations.clone());
        reader.hits = self.collector.take();
        reader.nbd = self.nbd.is_some().then(|| Requests::new(self.source));
        Ok(reader)
    }

    /// What became of each probe.
    pub fn probes(&self) -> &[ProbeVerdict] {
        &self.verdicts
    }

    /// What becomes of requests to NBD servers, where that was asked for.
    pub fn asking(&self) -> Option<Asking> {
        self.nbd.clone()
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

    /// Probes beside those of every trace.
    fn more_probes(&self, kind: AttachKind) -> Result<&'static [Probe], TracerError> {
        match (self.nbd.is_some(), kind.is_at_functions()) {
            (false, _) => Ok(&[]),
            (true, false) => Ok(NBD_PROBES),
            (true, true) => Err(TracerError::NbdKind { kind: kind.name() }),
        }
    }

    /// Has the kernel check every program before anything is attached. That takes nearly all of a start (200 ms): were it
    /// done program by program, whatever happened between the first hook and the last would be seen in parts, and the
    /// requests of each call of that time would look like the kernel's own. What is refused here is refused again, and
    /// reported, when it is to be attached.
    fn check_all(&mut self, more: &'static [Probe], kind: AttachKind, btf: &Btf, types: &Types) {
        for probe in more.iter().chain(PROBES).filter(|probe| types.missing(probe, kind).is_empty()) {
            let mut places = places(probe, kind, types).into_iter();
            places.any(|place| place.check(&mut self.ebpf, btf).is_ok());
        }
    }

    fn attach(&mut self, probe: &'static Probe, kind: AttachKind, btf: &Btf, types: &Types) -> ProbeVerdict {
        let missing = types.missing(probe, kind);
        if !missing.is_empty() {
            return ProbeVerdict::missing(probe, &missing);
        }
        let mut refused = Vec::new();
        for place in places(probe, kind, types) {
            match place.attach(&mut self.ebpf, btf) {
                Ok(attached) => {
                    self.attached.push(attached);
                    return ProbeVerdict::works(probe, place.hook, place.name, place.kind);
                }
                Err(reason) => refused.push(format!("{}: {reason}", place.kind)),
            }
        }
        let (hook, reason) = (types.hook(probe, kind).unwrap_or(probe.hook), refused.join("; "));
        ProbeVerdict::refused(probe, hook, reason)
    }

    /// Events that the kernel handed to no program, as far as it counts them (`missed.rs`).
    pub(crate) fn recursion_misses(&self) -> u64 {
        self.attached.iter().map(Attached::missed).sum()
    }
}

/// Where a probe is put when this kind is asked for, the best first. What has no function keeps its tracepoint, typed as the
/// kind is: the fork hook and the others must agree on how children are adopted. An optional probe may do without
/// types: its tracepoint may be a module's, whose types tp_btf does not see.
fn places(probe: &Probe, kind: AttachKind, types: &Types) -> Vec<Place> {
    let hook = types.hook(probe, kind).unwrap_or(probe.hook);
    if let (true, Ok(place)) = (kind.is_at_functions(), Place::of(hook, kind, types)) {
        return vec![place];
    }
    let kinds: &[AttachKind] = match (kind.is_typed(), probe.need) {
        (false, _) => &[AttachKind::RawTp],
        (true, Need::Required) => &[AttachKind::TpBtf],
        (true, Need::Optional) => &[AttachKind::TpBtf, AttachKind::RawTp],
    };
    kinds.iter().filter_map(|kind| Place::of(hook, *kind, types).ok()).collect()
}

/// Why a probe without which nothing can be seen does not work.
fn refused(probe: &Probe, reason: String) -> TracerError {
    if kernel::is_lockdown(&reason) {
        return TracerError::Lockdown;
    }
    TracerError::Probe { probe: probe.name, reason }
}

/// The same where somebody asked for this kind: another may do.
fn asked_for(kind: AttachKind, error: TracerError) -> TracerError {
    match error {
        TracerError::Probe { probe, reason } if kind.is_at_functions() => {
            TracerError::Kind { kind: kind.name(), probe, reason }
        }
        other => other,
    }
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

fn take_counters(ebpf: &mut Ebpf) -> Result<(KernelCounters, OwnedFd), TracerError> {
    let fail = |reason| TracerError::Map { map: "LOCALS", reason };
    let map = ebpf.take_map("LOCALS").ok_or_else(|| missing_map("LOCALS"))?;
    let Map::PerCpuArray(data) = &map else { return Err(fail("it is of another type".to_owned())) };
    let pages = data.fd().as_fd().try_clone_to_owned().map_err(|error| fail(error.to_string()))?;
    let map = PerCpuArray::try_from(map).map_err(|error| fail(chain(&error)))?;
    Ok((KernelCounters::new(map), pages))
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
