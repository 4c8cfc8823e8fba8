//! Privileges that a process gives up once it does not need them any more.
//!
//! *In*: what is still to do after the eBPF programs are attached. *Out*: threads with the
//! capabilities for exactly that, `no_new_privs`, a filter of system calls ([`system_calls`]), and
//! for services that do not trace also a confinement of file writes ([`file_writes`]).
//!
//! *Order*: a thread inherits the capabilities of its creator, and nothing can take them from a
//! thread but itself. So the threads that keep some are created first ([`ReservedThread`]) and drop
//! the others themselves. Then the main thread drops its own, and every later thread has no more.
//! `no_new_privs` and the filter are set for all threads at once, after CMD was started: it
//! keeps the rights of the user that started blkkin.
//!
//! *Invariant*: afterwards no thread has a capability that this module does not name.
//!
//! *Rejected*: dropping by a signal that every thread handles, as libpsx does: librdkafka's threads
//! block all signals. Landlock for a tracer: the kernel refuses a confined process all access to the
//! memory of others (`hook_ptrace_access_check`, security/landlock/task.c), which contexts need.

mod capabilities;
mod file_writes;
mod reserved_thread;
mod system_calls;

use std::fmt;
use std::path::PathBuf;
use std::thread;

use blkkin_tracer::{TraceSummary, TracerError};
use rustix::thread::CapabilitySet;

pub(crate) use capabilities::drop_all;
pub(crate) use reserved_thread::ReservedThread;

use crate::error::CliError;

/// Of scanning processes for contexts: their memory, and the files that they execute.
const CONTEXTS: CapabilitySet = CapabilitySet::SYS_PTRACE.union(CapabilitySet::DAC_READ_SEARCH);
/// Of a session daemon, which serves the programs of all users. It is started again if it ends.
/// CAP_SYS_ADMIN and CAP_NET_ADMIN are for the relay's network, which each connection enters.
pub(crate) const LTTNG: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SYS_ADMIN);
/// Of threads that compute and connect.
pub(crate) const NONE: CapabilitySet = CapabilitySet::empty();
/// Of writing reports and spans where the user wants them: under sudo, in the user's folders.
pub(crate) const FILES: CapabilitySet = CapabilitySet::DAC_OVERRIDE;
/// Of forwarding signals to CMD, which may run as another user.
pub(crate) const SIGNALS: CapabilitySet = CapabilitySet::KILL;

/// Needs of a tracing process after its programs are attached.
pub(crate) struct TracingNeeds {
    /// True if it scans processes for contexts.
    pub(crate) contexts: bool,
    /// Capabilities of the thread that owns an LTTng session, if there is one.
    pub(crate) lttng: Option<CapabilitySet>,
    /// Capabilities of all other threads.
    pub(crate) others: CapabilitySet,
}

/// The thread that reads the rings, and finds contexts in threads of its own.
pub(crate) type DrainThread = ReservedThread<Result<TraceSummary, TracerError>>;

/// Remaining rights, for the log.
pub(crate) struct Confinement {
    kept: CapabilitySet,
    filter: Result<usize, String>,
    /// Folders where files may be written; none where writes are not confined.
    writes: Option<Result<Vec<PathBuf>, String>>,
}

/// Drops what tracing does not need after the programs are attached.
pub(crate) fn confine_tracing(needs: &TracingNeeds) -> Result<(DrainThread, Confinement), CliError> {
    let contexts = if needs.contexts { CONTEXTS } else { NONE };
    let drain = ReservedThread::new("drain", contexts, blkkin_tracer::raise_priority)?;
    let others = capabilities::retain(needs.others).map_err(not_dropped)?;
    let kept = others | drain.kept() | needs.lttng.unwrap_or(NONE);
    let programs = if needs.lttng.is_some() { &[] } else { system_calls::WITHOUT_LTTNG };
    let filter = system_calls::deny(&[system_calls::NEVER, programs]);
    Ok((drain, Confinement { kept, filter, writes: None }))
}

/// Drops everything that a service without tracing does not need, before its first thread.
/// `folders` are those where it writes files.
pub(crate) fn confine_service(folders: Vec<PathBuf>) -> Result<Confinement, CliError> {
    let kept = capabilities::retain(NONE).map_err(not_dropped)?;
    let writes = file_writes::confine(&folders).map(|()| folders);
    let filter =
        system_calls::deny(&[system_calls::NEVER, system_calls::WITHOUT_LTTNG, system_calls::TRACING]);
    Ok(Confinement { kept, filter, writes: Some(writes) })
}

/// Runs `create` in a thread that has these capabilities only, so that the threads that it creates
/// have no others.
pub(crate) fn with_only<T: Send>(
    kept: CapabilitySet,
    create: impl FnOnce() -> Result<T, CliError> + Send,
) -> Result<T, CliError> {
    let confined = || {
        capabilities::retain(kept).map_err(not_dropped)?;
        create()
    };
    thread::scope(|scope| scope.spawn(confined).join())
        .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

fn not_dropped(error: std::io::Error) -> CliError {
    CliError::cannot_trace("cannot drop capabilities", error, "a user without capabilities, or report this")
}

impl fmt::Display for Confinement {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "capabilities: {}", capabilities::names(self.kept))?;
        match &self.filter {
            Ok(denied) => write!(f, "; {denied} system calls are denied")?,
            Err(why) => write!(f, "; no system call is denied: {why}")?,
        }
        match &self.writes {
            None => Ok(()),
            Some(Err(why)) => write!(f, "; file writes are not confined: {why}"),
            Some(Ok(folders)) if folders.is_empty() => write!(f, "; no file can be written"),
            Some(Ok(folders)) => {
                let names: Vec<_> = folders.iter().map(|folder| folder.display().to_string()).collect();
                write!(f, "; files can be written in {} only", names.join(", "))
            }
        }
    }
}
