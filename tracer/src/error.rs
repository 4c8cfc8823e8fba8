//! Why tracing could not start or go on, and what to do about it.

use thiserror::Error;

/// An error of the tracer.
#[derive(Debug, Error)]
pub enum TracerError {
    /// The process may not load programs.
    #[error("this process may not load eBPF programs: it lacks {missing}")]
    Privilege {
        /// Capabilities that are missing.
        missing: String,
    },
    /// The kernel has no type information.
    #[error("this kernel has no type information: /sys/kernel/btf/vmlinux: {reason}")]
    NoBtf {
        /// Why it could not be read.
        reason: String,
    },
    /// The kernel is from before the oldest that blkkin is tested with.
    #[error("this kernel is too old: Linux {release}, and the oldest that blkkin is tested with is {}.{}{lacks}",
        crate::kernel::RELEASE_MIN.0, crate::kernel::RELEASE_MIN.1)]
    TooOld {
        /// As uname says it.
        release: String,
        /// What is known to be missing, with the words before it; or nothing.
        lacks: String,
    },
    /// A kernel that should have what everything needs has it not.
    #[error("this kernel, Linux {release}, has no {what}, which every trace needs")]
    Lacks {
        /// As uname says it.
        release: String,
        /// What is missing.
        what: String,
    },
    /// Nobody may read the kernel's memory.
    #[error("the kernel is locked down (confidentiality): programs may not read its memory, root's neither")]
    Lockdown,
    /// The object could not be loaded.
    #[error("the eBPF programs could not be loaded: {reason}")]
    Load {
        /// aya's words.
        reason: String,
    },
    /// A probe without which nothing can be seen is refused.
    #[error("the probe {probe} is refused: {reason}")]
    Probe {
        /// Its name.
        probe: &'static str,
        /// The kernel's or the verifier's words.
        reason: String,
    },
    /// The same by a kind that was asked for.
    #[error("this kernel lets no program be attached by {kind}, where the probe {probe} goes: {reason}")]
    Kind {
        /// As on the command line.
        kind: &'static str,
        /// The probe's name.
        probe: &'static str,
        /// The kernel's or the verifier's words.
        reason: String,
    },
    /// What NBD clients ask was to be seen by a kind that cannot.
    #[error(
        "what NBD clients ask is seen at tracepoints (by tp_btf and raw_tp): there is no program for {kind}"
    )]
    NbdKind {
        /// As on the command line.
        kind: &'static str,
    },
    /// A probe of a program could not be put in.
    #[error("the probe {name} cannot be put into {file}: {reason}")]
    Hit {
        /// `provider:name`
        name: String,
        /// The program.
        file: String,
        /// The kernel's words.
        reason: String,
    },
    /// Ring size.
    #[error("a ring of {bytes} bytes cannot be made")]
    RingSize {
        /// As asked for.
        bytes: usize,
    },
    /// More filters than the programs hold.
    #[error(
        "{given} {what} filters were given; the programs hold {}",
        blkkin_probe_abi::settings::FILTERS_MAX
    )]
    TooManyFilters {
        /// Of which kind.
        what: &'static str,
        /// How many.
        given: usize,
    },
    /// A task could not be marked.
    #[error("process {pid} cannot be followed: {reason}")]
    Mark {
        /// Which.
        pid: u32,
        /// Why.
        reason: String,
    },
    /// A kernel map could not be used.
    #[error("the kernel's map {map} cannot be used: {reason}")]
    Map {
        /// Which.
        map: &'static str,
        /// Why.
        reason: String,
    },
    /// A file of the system could not be read.
    #[error("{path} cannot be read: {reason}")]
    System {
        /// Which.
        path: String,
        /// Why.
        reason: String,
    },
}

impl TracerError {
    /// What to do.
    pub fn remedy(&self) -> &'static str {
        match self {
            TracerError::Privilege { .. } => {
                "run as root (sudo), or give the binary what it needs: \
                 setcap cap_bpf,cap_perfmon,cap_syslog+ep $(command -v blkkin)"
            }
            TracerError::NoBtf { .. } => {
                "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian's since 11, Ubuntu's since 20.10, Fedora's \
                 since 31 are); in a root of one's own, mount /sys there"
            }
            TracerError::TooOld { .. } => {
                "boot Linux 6.1 or later (that of Debian 12, Ubuntu 24.04 or Fedora 38 on, or the HWE kernel of Ubuntu 22.04)"
            }
            TracerError::Lacks { .. } => {
                "run `blkkin doctor` and report what it says: this kernel is built otherwise or newer than blkkin knows"
            }
            TracerError::Lockdown => {
                "boot without lockdown=confidentiality (lockdown=integrity, which Secure Boot asks for, is fine)"
            }
            TracerError::Load { .. } | TracerError::Probe { .. } => {
                "run `blkkin doctor`: it tries each probe by itself and says why it fails"
            }
            TracerError::Kind { .. } => {
                "leave out --attach, and the best kind that works is taken; `blkkin doctor` shows which do"
            }
            TracerError::Hit { .. } => {
                "see that the kernel has uprobes (/sys/bus/event_source/devices/uprobe) and this process CAP_PERFMON, or \
                 leave --probes out"
            }
            TracerError::NbdKind { .. } => "leave out --attach, or --nbd",
            TracerError::RingSize { .. } => "give a power of two from 4096 to 1073741824 bytes",
            TracerError::TooManyFilters { .. } => "give fewer, or filter by a parent: --tree or --cgroup",
            TracerError::Mark { .. } => "check that the process is still there: ps -p PID",
            TracerError::Map { .. } | TracerError::System { .. } => {
                "run `blkkin doctor` and look at its notes"
            }
        }
    }
}
