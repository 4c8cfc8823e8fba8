//! Errors of the tracer, each with a suggested action.

use thiserror::Error;

/// Reason why tracing cannot start, or ends early.
#[derive(Debug, Error)]
pub enum TracerError {
    /// The process may not load eBPF programs.
    #[error("this process may not load eBPF programs: it lacks {missing}")]
    Privilege {
        /// Missing capabilities.
        missing: String,
    },
    /// The kernel has no BTF.
    #[error("this kernel has no type information: /sys/kernel/btf/vmlinux: {reason}")]
    NoBtf {
        /// Reason of the failed read.
        reason: String,
    },
    /// The kernel is older than the oldest tested release.
    #[error("this kernel is too old: Linux {release}, and the oldest that blkkin is tested with is {}.{}{lacks}",
        .oldest.0, .oldest.1)]
    TooOld {
        /// Release, as in uname.
        release: String,
        /// Oldest tested release.
        oldest: (u32, u32),
        /// Clause that names missing types, or empty.
        lacks: String,
    },
    /// A kernel that is new enough lacks types that every trace needs.
    #[error("this kernel, Linux {release}, has no {what}, which every trace needs")]
    MissingKernelTypes {
        /// Release, as in uname.
        release: String,
        /// Missing types.
        what: String,
    },
    /// Lockdown forbids reading the kernel's memory.
    #[error(
        "the kernel is locked down (confidentiality): programs may not read its memory, not even for root"
    )]
    Lockdown,
    /// The object could not be loaded.
    #[error("the eBPF programs could not be loaded: {reason}")]
    Load {
        /// Error text of aya.
        reason: String,
    },
    /// The kernel rejects a required probe.
    #[error("the kernel rejects the probe {probe}: {reason}")]
    Probe {
        /// Name of the probe.
        probe: &'static str,
        /// Error text of the kernel or the verifier.
        reason: String,
    },
    /// The kernel rejects a required probe under the attach kind that the user chose.
    #[error("this kernel does not support {kind} for the probe {probe}: {reason}")]
    Kind {
        /// Attach kind, as on the command line.
        kind: &'static str,
        /// Name of the probe.
        probe: &'static str,
        /// Error text of the kernel or the verifier.
        reason: String,
    },
    /// The number of runs that the kernel skipped cannot be read at the end.
    #[error("it is unknown how many runs of programs the kernel skipped: {reason}")]
    SkippedRuns {
        /// Error text of the read.
        reason: String,
    },
    /// NBD tracing was requested with an attach kind that does not support it.
    #[error("NBD requests are traced only at tracepoints (tp_btf, raw_tp): there is no program for {kind}")]
    NbdKind {
        /// Attach kind, as on the command line.
        kind: &'static str,
    },
    /// Sleeps were to be recorded with an attach kind that does not support it.
    #[error(
        "sleeps are recorded only by programs with typed arguments (tp_btf, fentry): there is none for {kind}"
    )]
    SleepsKind {
        /// Attach kind, as on the command line.
        kind: &'static str,
    },
    /// Sleeps were to be recorded where the kernel hides the addresses of its functions.
    #[error(
        "the places where system calls sleep have no names: /proc/kallsyms hides the addresses of functions"
    )]
    HiddenFunctions,
    /// A USDT probe could not be attached.
    #[error("the USDT probe {name} cannot be attached to {file}: {reason}")]
    UsdtAttach {
        /// `provider:name`
        name: String,
        /// Program file.
        file: String,
        /// Error text of the kernel.
        reason: String,
    },
    /// The ring size is invalid.
    #[error("invalid ring size: {bytes} bytes")]
    RingSize {
        /// Requested size.
        bytes: usize,
    },
    /// More filters than the programs support.
    #[error("{given} {what} filters; the maximum is {}", blkkin_probe_abi::settings::FILTERS_MAX)]
    TooManyFilters {
        /// Kind of filter.
        what: &'static str,
        /// Number of filters given.
        given: usize,
    },
    /// A task could not be marked.
    #[error("process {pid} cannot be traced: {reason}")]
    Mark {
        /// The process.
        pid: u32,
        /// Reason of the failure.
        reason: String,
    },
    /// A BPF map could not be used.
    #[error("the BPF map {map} cannot be used: {reason}")]
    Map {
        /// Name of the map.
        map: &'static str,
        /// Reason of the failure.
        reason: String,
    },
    /// A system file could not be read.
    #[error("{path} cannot be read: {reason}")]
    System {
        /// Path of the file.
        path: String,
        /// Reason of the failure.
        reason: String,
    },
}

impl TracerError {
    /// Returns the suggested action.
    pub fn remedy(&self) -> &'static str {
        match self {
            TracerError::Privilege { .. } => {
                "run as root (sudo), or grant the binary its capabilities: \
                 setcap cap_bpf,cap_perfmon,cap_syslog+ep $(command -v blkkin)"
            }
            TracerError::NoBtf { .. } => {
                "boot a kernel built with CONFIG_DEBUG_INFO_BTF=y (Debian's since 11, Ubuntu's since 20.10, Fedora's \
                 since 31 are); in a chroot, mount /sys"
            }
            TracerError::TooOld { .. } => {
                "boot Linux 6.1 or later (Debian 12, Ubuntu 24.04 or Fedora 38 and later, or the HWE kernel of Ubuntu 22.04)"
            }
            TracerError::MissingKernelTypes { .. } => {
                "run `blkkin doctor` and report its output: this kernel is configured differently, or newer than blkkin supports"
            }
            TracerError::Lockdown => {
                "boot without lockdown=confidentiality (lockdown=integrity, which Secure Boot uses, is supported)"
            }
            TracerError::Load { .. } | TracerError::Probe { .. } => {
                "run `blkkin doctor`: it tests each probe separately and reports why it fails"
            }
            TracerError::Kind { .. } => {
                "omit --attach to use the best kind that works; `blkkin doctor` lists them"
            }
            TracerError::UsdtAttach { .. } => {
                "check that the kernel has uprobes (/sys/bus/event_source/devices/uprobe) and this process has CAP_PERFMON, or \
                 omit --probes"
            }
            TracerError::NbdKind { .. } => "omit --attach, or --nbd",
            TracerError::SleepsKind { .. } => "omit --attach, or --sleeps",
            TracerError::HiddenFunctions => {
                "set kernel.kptr_restrict to 1 (sysctl), grant CAP_SYSLOG, or omit --sleeps"
            }
            TracerError::SkippedRuns { .. } => {
                "raise the limit of open files (ulimit -n); losses of this trace may be more than it reports"
            }
            TracerError::RingSize { .. } => "give a power of two from 4096 to 1073741824 bytes",
            TracerError::TooManyFilters { .. } => "give fewer, or filter by a parent: --tree or --cgroup",
            TracerError::Mark { .. } => "check that the process is still there: ps -p PID",
            TracerError::Map { .. } | TracerError::System { .. } => {
                "run `blkkin doctor` and look at its notes"
            }
        }
    }
}
