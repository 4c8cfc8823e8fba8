//! Attach point of one program: its resolution, loading and attachment.
//!
//! *In*: a hook and an attach kind. *Out*: [`Attached`], whose descriptors keep the program
//! attached and count skipped runs.

use aya::programs::Program;
use aya::programs::links::FdLink;
use aya::{Btf, Ebpf};
use std::os::fd::{AsFd, OwnedFd};

use crate::attach::layout::KernelTypes;
use crate::attach::perf_link::{self, PerfLink};
use crate::attach::probes::{AttachKind, Hook};
use crate::aya_error::error_chain;
use crate::stats::recursion_misses;

/// A hook under one attach kind.
#[derive(Clone, Copy)]
pub(crate) struct AttachPoint {
    pub(crate) hook: Hook,
    pub(crate) kind: AttachKind,
    /// Name of the tracepoint or function.
    pub(crate) name: &'static str,
}

/// An attached program; dropping it detaches the program.
pub(crate) struct Attached {
    program: OwnedFd,
    kprobe: Option<KprobeLink>,
    /// Perf events that run the program, on each CPU; empty for other kinds.
    perf_events: Vec<PerfLink>,
}

/// Link of a kprobe, with its own miss counter. Other kinds keep their link in the program.
struct KprobeLink {
    /// Keeps the kprobe attached.
    _link: FdLink,
    miss_counter: OwnedFd,
}

impl AttachPoint {
    /// Resolves the attach point of a hook, or explains why the kind has none here.
    pub(crate) fn resolve(hook: Hook, kind: AttachKind, types: &KernelTypes) -> Result<AttachPoint, String> {
        let name = if kind.uses_functions() { types.function(hook, kind)? } else { hook.tracepoint };
        Ok(AttachPoint { hook, kind, name })
    }

    /// Returns the name of the program in the object file.
    pub(crate) fn program_name(&self) -> String {
        let suffix = match self.kind {
            AttachKind::TpBtf => "btf",
            AttachKind::RawTp => "raw",
            AttachKind::Fentry => "fentry",
            AttachKind::Kprobe => "kprobe",
            AttachKind::PerfEvent => "perf",
        };
        format!("{}_{suffix}", self.hook.stem)
    }

    fn program<'a>(&self, ebpf: &'a mut Ebpf) -> Result<&'a mut Program, String> {
        let name = self.program_name();
        ebpf.program_mut(&name).ok_or_else(|| format!("there is no program {name}"))
    }

    /// Has the kernel verify and load the program, once.
    pub(crate) fn load(&self, program: &mut Program, btf: &Btf) -> Result<(), String> {
        if program.fd().is_ok() {
            return Ok(());
        }
        let loaded = match program {
            Program::BtfTracePoint(program) => program.load(self.name, btf),
            Program::RawTracePoint(program) => program.load(),
            Program::FEntry(program) => program.load(self.name, btf),
            Program::KProbe(program) => program.load(),
            Program::PerfEvent(program) => program.load(),
            _ => return Err(self.wrong_kind()),
        };
        loaded.map_err(|error| error_chain(&error))
    }

    pub(crate) fn attach(&self, ebpf: &mut Ebpf, btf: &Btf) -> Result<Attached, String> {
        let program = self.program(ebpf)?;
        self.load(program, btf)?;
        let attached = match program {
            Program::BtfTracePoint(program) => program.attach().map(|_| None),
            Program::RawTracePoint(program) => program.attach(self.name).map(|_| None),
            Program::FEntry(program) => program.attach().map(|_| None),
            Program::KProbe(program) => {
                program.attach(self.name, 0).and_then(|link| program.take_link(link)).map(Some)
            }
            Program::PerfEvent(_) => Ok(None),
            _ => return Err(self.wrong_kind()),
        };
        let link = attached.map_err(|error| error_chain(&error))?;
        let link = link.map(FdLink::try_from).transpose().map_err(|error| error_chain(&error))?;
        let kprobe = link.map(|link| {
            let miss_counter = recursion_misses::link_descriptor(&link)?;
            Ok::<_, String>(KprobeLink { miss_counter, _link: link })
        });
        let kprobe = kprobe.transpose()?;
        let fd = program.fd().map_err(|error| error_chain(&error))?;
        let program = fd.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        let perf_events = if self.kind == AttachKind::PerfEvent {
            let cpus = aya::util::online_cpus().map_err(|(path, error)| format!("{path}: {error}"))?;
            perf_link::attach_to_major_faults(program.as_fd(), &cpus).map_err(|error| error.to_string())?
        } else {
            Vec::new()
        };
        let attached = Attached { program, kprobe, perf_events };
        // Where losses cannot be counted, nothing is traced.
        attached.recursion_misses()?;
        Ok(attached)
    }

    fn wrong_kind(&self) -> String {
        format!("the program for {} has another type", self.name)
    }
}

impl Attached {
    /// Detaches a program of perf events; other kinds are detached by aya.
    pub(crate) fn close_perf_events(&mut self) {
        self.perf_events.clear();
    }

    /// Returns the number of events that the program missed, as far as the kernel counts them.
    pub(crate) fn recursion_misses(&self) -> Result<u64, String> {
        let of_kprobe = self.kprobe.as_ref().map(|kprobe| recursion_misses::of_kprobe(&kprobe.miss_counter));
        Ok(recursion_misses::of_program(&self.program)? + of_kprobe.transpose()?.unwrap_or(0))
    }
}
