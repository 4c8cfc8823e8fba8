//! One program in the kernel: which it is, where it is put, having it checked, attaching it.
//!
//! *In*: a [`Place`]. *Out*: descriptors that hold what is attached, and tell how often the kernel skipped it.

use aya::programs::Program;
use aya::programs::links::FdLink;
use aya::{Btf, Ebpf};
use std::os::fd::{AsFd, OwnedFd};

use crate::layout::Types;
use crate::load::chain;
use crate::missed;
use crate::probes::{AttachKind, Hook};

/// A hook by one kind.
#[derive(Clone, Copy)]
pub(crate) struct Place {
    pub(crate) hook: Hook,
    pub(crate) kind: AttachKind,
    /// The tracepoint or the function.
    pub(crate) name: &'static str,
}

/// A program that is attached, and is so no longer than this lives.
pub(crate) struct Attached {
    program: OwnedFd,
    kprobe: Option<Kprobe>,
}

/// A kprobe's link, which counts what the program did not see; that of another kind is the program's own.
struct Kprobe {
    /// Holds it attached.
    _link: FdLink,
    counts: Option<OwnedFd>,
}

impl Place {
    /// Where a program of this kind goes; or why there is none here.
    pub(crate) fn of(hook: Hook, kind: AttachKind, types: &Types) -> Result<Place, String> {
        let name = if kind.is_at_functions() { types.function(hook, kind)? } else { hook.tracepoint };
        Ok(Place { hook, kind, name })
    }

    fn program<'a>(&self, ebpf: &'a mut Ebpf) -> Result<&'a mut Program, String> {
        let suffix = match self.kind {
            AttachKind::TpBtf => "btf",
            AttachKind::RawTp => "raw",
            AttachKind::Fentry => "fentry",
            AttachKind::Kprobe => "kprobe",
        };
        let name = format!("{}_{suffix}", self.hook.stem);
        ebpf.program_mut(&name).ok_or_else(|| format!("there is no program {name}"))
    }

    /// Has the kernel check its program, once.
    pub(crate) fn check(&self, ebpf: &mut Ebpf, btf: &Btf) -> Result<(), String> {
        let program = self.program(ebpf)?;
        if program.fd().is_ok() {
            return Ok(());
        }
        let loaded = match program {
            Program::BtfTracePoint(program) => program.load(self.name, btf),
            Program::RawTracePoint(program) => program.load(),
            Program::FEntry(program) => program.load(self.name, btf),
            Program::KProbe(program) => program.load(),
            _ => return Err(self.of_another_kind()),
        };
        loaded.map_err(|error| chain(&error))
    }

    pub(crate) fn attach(&self, ebpf: &mut Ebpf, btf: &Btf) -> Result<Attached, String> {
        self.check(ebpf, btf)?;
        let program = self.program(ebpf)?;
        let attached = match program {
            Program::BtfTracePoint(program) => program.attach().map(|_| None),
            Program::RawTracePoint(program) => program.attach(self.name).map(|_| None),
            Program::FEntry(program) => program.attach().map(|_| None),
            Program::KProbe(program) => {
                program.attach(self.name, 0).and_then(|link| program.take_link(link)).map(Some)
            }
            _ => return Err(self.of_another_kind()),
        };
        let link = attached.map_err(|error| chain(&error))?;
        let link = link.map(FdLink::try_from).transpose().map_err(|error| chain(&error))?;
        let kprobe = link.map(|link| Kprobe { counts: missed::descriptor(&link), _link: link });
        let fd = program.fd().map_err(|error| chain(&error))?;
        let program = fd.as_fd().try_clone_to_owned().map_err(|error| error.to_string())?;
        Ok(Attached { program, kprobe })
    }

    fn of_another_kind(&self) -> String {
        format!("the program for {} is of another kind", self.name)
    }
}

impl Attached {
    /// Events that it did not see, as far as the kernel counts them.
    pub(crate) fn missed(&self) -> u64 {
        let counts = self.kprobe.as_ref().and_then(|kprobe| kprobe.counts.as_ref());
        missed::by_program(&self.program) + counts.map_or(0, missed::by_kprobe)
    }
}
