//! Rules that a whole trace is measured by, once it is complete. The kernel side has left out already what can
//! be told from a call alone; what was slow or failed further down is only known here.

use blkkin_aggregator::trace::Trace;
use blkkin_wire::calls::errno_of;
use blkkin_wire::clock::DurationNs;
use blkkin_wire::event::{Ending, Kept, TaskEvent};
use blkkin_wire::ids::{CgroupId, Pid, Tid};

use crate::what::paths::PathPattern;

/// Which traces are kept: those that pass every rule given.
#[derive(Clone, Debug, Default)]
pub(crate) struct Tail {
    /// The task that began it is one of these; where the kernel side follows marked tasks, it does not look at
    /// their names and numbers.
    pub(crate) tasks: Option<TaskRule>,
    /// A file of it is at or below one of these.
    pub(crate) paths: Vec<PathPattern>,
    /// It took longer than this, from its begin to the end of its last part.
    pub(crate) slower_than: Option<DurationNs>,
    /// A part of it failed.
    pub(crate) errors_only: bool,
    /// Neither of these two leaves out what the application samples in whose trace it is.
    pub(crate) or_sampled: bool,
}

/// Which tasks: a list that is empty lets all pass, within a list one match is enough.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TaskRule {
    /// Processes.
    pub(crate) pids: Vec<Pid>,
    /// Threads.
    pub(crate) tids: Vec<Tid>,
    /// Names.
    pub(crate) comms: Vec<String>,
    /// Cgroups.
    pub(crate) cgroups: Vec<CgroupId>,
}

/// What the rules say of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Shown.
    Kept,
    /// Left out, as asked for.
    LeftOut,
    /// Left out because a name that a rule asks for is not known.
    NameUnknown,
}

impl Tail {
    /// Measures a trace.
    pub(crate) fn judge(&self, trace: &Trace) -> Verdict {
        let slow = self.slower_than.is_none_or(|least| trace.last_end().since(trace.start()) > least);
        let wanted = slow && (!self.errors_only || failed(trace));
        let sampled = self.or_sampled && trace.is_sampled_by_program();
        if !wanted && !sampled {
            return Verdict::LeftOut;
        }
        match self.tasks.as_ref().map(|rule| (rule, trace.names.task.as_deref())) {
            Some((_, None)) => return Verdict::NameUnknown,
            Some((rule, Some(task))) if !rule.admits(task) => return Verdict::LeftOut,
            _ => {}
        }
        if self.paths.is_empty() || paths(trace).any(|path| self.paths.iter().any(|p| p.matches(path))) {
            return Verdict::Kept;
        }
        if path_missing(trace) { Verdict::NameUnknown } else { Verdict::LeftOut }
    }
}

impl TaskRule {
    /// A rule that says nothing is none.
    pub(crate) fn some(self) -> Option<TaskRule> {
        (self != TaskRule::default()).then_some(self)
    }

    fn admits(&self, task: &TaskEvent) -> bool {
        (self.comms.is_empty() || self.comms.iter().any(|comm| **comm == *task.comm))
            && (self.pids.is_empty() || self.pids.contains(&task.pid))
            && (self.tids.is_empty() || self.tids.contains(&task.tid))
            && (self.cgroups.is_empty() || self.cgroups.contains(&task.cgroup))
    }
}

/// An error in any layer, also where the call itself returned well (a write whose bio failed later).
fn failed(trace: &Trace) -> bool {
    let call = trace
        .call()
        .is_some_and(|call| matches!(call.ending, Ending::Returned(value) if errno_of(value).is_some()));
    call || trace.bios.iter().any(|bio| !bio.status.is_ok())
        || trace.requests.iter().any(|request| !request.status.is_ok())
        || trace.carried.iter().any(|carried| !carried.request.status.is_ok())
}

/// Every path that the trace knows: of its files, and its arguments. An argument is what the program wrote: a
/// relative one is known from some folder downwards only, like a path whose upper part is missing.
fn paths(trace: &Trace) -> impl Iterator<Item = &str> {
    let files = [&trace.names.file, &trace.names.second_file].into_iter().flatten().map(|file| &*file.path);
    let arguments = trace.call().into_iter().flat_map(|call| call.paths.iter().flatten()).map(|path| &**path);
    files.chain(arguments)
}

/// It has to do with a file whose path is not known, wholly or in part.
fn path_missing(trace: &Trace) -> bool {
    let Some(call) = trace.call() else { return false };
    let files =
        [(call.file.is_some(), &trace.names.file), (call.second_file.is_some(), &trace.names.second_file)];
    files.into_iter().any(|(used, name)| used && name.as_ref().is_none_or(|file| file.kept != Kept::Whole))
}

#[cfg(test)]
#[path = "tail_tests.rs"]
pub(crate) mod tests;
