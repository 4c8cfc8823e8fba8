//! Filters for complete traces. The kernel side already drops what the task or a system call alone
//! decides; latency and errors of lower layers are known only here.

use blkkin_aggregator::trace::{Root, Trace};
use blkkin_tracer::PathPattern;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{Captured, SyscallOutcome, TaskEvent};
use blkkin_wire::ids::{CgroupId, Pid, Tid};
use blkkin_wire::syscalls::errno_of;

/// A filter that a trace passes if it passes every rule.
#[derive(Clone, Debug, Default)]
pub(crate) struct PostFilter {
    /// Tasks that may have started the trace.
    pub(crate) tasks: Option<TaskFilter>,
    /// Paths, of which a file of the trace must match one.
    pub(crate) paths: Vec<PathPattern>,
    /// Minimum latency, from the begin to the end of the last part.
    pub(crate) slower_than: Option<DurationNs>,
    /// Keeps only traces with an error.
    pub(crate) errors_only: bool,
    /// Keeps a trace that its application samples, whatever the latency and error rules decide.
    pub(crate) or_sampled: bool,
}

/// A filter for tasks: an empty list matches all, and one match within a list is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskFilter {
    /// Process ids.
    pub(crate) pids: Vec<Pid>,
    /// Thread ids.
    pub(crate) tids: Vec<Tid>,
    /// Task names.
    pub(crate) comms: Vec<String>,
    /// Cgroups.
    pub(crate) cgroups: Vec<CgroupId>,
}

/// The result for a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FilterVerdict {
    /// The trace passes.
    Keep,
    /// The trace is filtered.
    Drop,
    /// The trace is filtered because a name that a rule needs is unknown.
    UnknownName,
}

impl PostFilter {
    /// Evaluates a trace.
    pub(crate) fn evaluate(&self, trace: &Trace) -> FilterVerdict {
        let slow = self.slower_than.is_none_or(|least| trace.last_end().since(trace.start()) > least);
        let wanted = slow && (!self.errors_only || has_error(trace));
        let sampled = self.or_sampled && trace.is_sampled_by_application();
        if !wanted && !sampled {
            return FilterVerdict::Drop;
        }
        match self.tasks.as_ref().map(|rule| rule.evaluate(trace)) {
            None | Some(FilterVerdict::Keep) => {}
            Some(verdict) => return verdict,
        }
        if self.paths.is_empty() || paths(trace).any(|path| self.paths.iter().any(|p| p.matches(path))) {
            return FilterVerdict::Keep;
        }
        if has_unknown_path(trace) { FilterVerdict::UnknownName } else { FilterVerdict::Drop }
    }
}

impl TaskFilter {
    /// Returns `None` for an empty filter.
    pub(crate) fn non_empty(self) -> Option<TaskFilter> {
        (self != TaskFilter::default()).then_some(self)
    }

    /// Evaluates the task that started the trace. The kernel's worker started write-back, so there
    /// one of the tasks that wrote the data must match.
    fn evaluate(&self, trace: &Trace) -> FilterVerdict {
        let writers = &trace.origin_names.writers;
        let matches = match (&trace.root, trace.names.task.as_deref()) {
            (Root::Kernel, _) if !writers.is_empty() => writers.values().any(|name| self.matches(&name.task)),
            (_, None) => return FilterVerdict::UnknownName,
            (_, Some(task)) => self.matches(task),
        };
        if matches { FilterVerdict::Keep } else { FilterVerdict::Drop }
    }

    fn matches(&self, task: &TaskEvent) -> bool {
        (self.comms.is_empty() || self.comms.iter().any(|comm| **comm == *task.comm))
            && (self.pids.is_empty() || self.pids.contains(&task.pid))
            && (self.tids.is_empty() || self.tids.contains(&task.tid))
            && (self.cgroups.is_empty() || self.cgroups.contains(&task.cgroup))
    }
}

/// Returns whether any layer has an error, also if the system call succeeded (a write whose bio
/// failed later).
fn has_error(trace: &Trace) -> bool {
    let call = trace.call().is_some_and(
        |call| matches!(call.outcome, SyscallOutcome::Returned(value) if errno_of(value).is_some()),
    );
    call || trace.async_ios.iter().any(|io| io.event.errno().is_some())
        || trace.bios.iter().any(|bio| !bio.status.is_ok())
        || trace.requests.iter().any(|request| !request.status.is_ok())
        || trace.merged_into.iter().any(|carried| !carried.request.status.is_ok())
}

/// Returns every path of the trace: of its files, of the files that its bios write back, and of its
/// arguments. A relative argument is known from some folder on, like a path whose upper part is
/// missing.
fn paths(trace: &Trace) -> impl Iterator<Item = &str> {
    let written_back = trace.origin_names.files.values();
    let files = [&trace.names.file, &trace.names.second_file].into_iter().flatten().chain(written_back);
    let files = files.map(|file| &*file.path);
    let arguments = trace.call().into_iter().flat_map(|call| call.paths.iter().flatten()).map(|path| &**path);
    let of_async_io = trace.async_ios.iter().filter_map(|io| io.file.as_ref()).map(|file| &*file.path);
    files.chain(arguments).chain(of_async_io)
}

/// Returns whether the path of one of the trace's files is missing or truncated.
fn has_unknown_path(trace: &Trace) -> bool {
    let of_call = trace.call().into_iter().flat_map(|call| {
        let (file, second) = (call.file.is_some(), call.second_file.is_some());
        [(file, trace.names.file.as_ref()), (second, trace.names.second_file.as_ref())]
    });
    let of_async_io = trace.async_ios.iter().map(|io| (io.event.file.is_some(), io.file.as_ref()));
    let mut files = of_call.chain(of_async_io);
    files.any(|(used, name)| used && name.is_none_or(|file| file.captured != Captured::Full))
}

#[cfg(test)]
pub(crate) mod tests;
