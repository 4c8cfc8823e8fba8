//! Ids of a task in its own pid namespace and on the host.
//!
//! *In*: the kernel side's task events, with both ids. *Out*: the ids in the other namespace.
//! *Invariant*: ids are compared only together with their pid namespace. The owner of a reused id
//! is not taken for its previous owner.

use std::collections::HashMap;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{TaskChange, TaskEvent};
use blkkin_wire::ids::{Pid, Tid};

use super::TASKS_MAX;
use crate::daemon_spans::{Process, Thread};

/// Ids of a task: LTTng reports those of the task's namespace, USDT probes those of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskIds {
    host: Thread,
    namespaced: Option<Thread>,
}

impl TaskIds {
    pub(super) fn of(task: &TaskEvent) -> TaskIds {
        let namespaced = task.ns_ids.map(|namespaced| Thread {
            pid_ns: namespaced.pid_ns.into(),
            pid: namespaced.pid.0,
            tid: namespaced.tid.0,
        });
        TaskIds { host: Thread::initial(task.pid.0, task.tid.0), namespaced }
    }

    /// Returns the ids in the task's own namespace.
    pub(super) fn own(self) -> Thread {
        self.namespaced.unwrap_or(self.host)
    }

    pub(super) fn all(self) -> impl Iterator<Item = Thread> {
        self.namespaced.into_iter().chain([self.host])
    }
}

/// Host ids of threads in other pid namespaces, in two generations. Exited threads stay, because
/// their spans arrive later.
#[derive(Debug, Default)]
pub(super) struct HostIds([HashMap<Thread, (Pid, Tid, MonotonicNs)>; 2]);

impl HostIds {
    /// Records a task, with the time of its fork if that was observed.
    pub(super) fn record(&mut self, task: &TaskEvent, forked_at: Option<MonotonicNs>) {
        let TaskIds { namespaced: Some(namespaced), .. } = TaskIds::of(task) else { return };
        if task.change == TaskChange::Exited {
            return;
        }
        let [young, old] = &mut self.0;
        if young.len() >= TASKS_MAX {
            *old = std::mem::take(young);
        }
        young.insert(namespaced, (task.pid, task.tid, forked_at.unwrap_or(task.time)));
    }

    /// Replaces the span's process and thread id by host ids, or by 0 if unknown. Returns whether
    /// the process is known.
    pub(super) fn translate(&self, span: &mut DaemonSpanEvent, process: Process) -> bool {
        if process.pid_ns == 0 {
            return true;
        }
        let thread = Thread { pid_ns: process.pid_ns, pid: span.pid.0, tid: span.tid.0 };
        // A task that was forked after the span's begin has reused the id.
        let known = |thread: Thread| {
            let found = self.0.iter().find_map(|generation| generation.get(&thread));
            found.filter(|(.., forked_at)| *forked_at <= span.begin)
        };
        let main = Thread { tid: thread.pid, ..thread };
        let (pid, tid) = match (known(thread), known(main)) {
            (Some((pid, tid, _)), _) => (*pid, *tid),
            (None, Some((pid, ..))) => (*pid, Tid(0)),
            (None, None) => (Pid(0), Tid(0)),
        };
        (span.pid, span.tid) = (pid, tid);
        pid.0 != 0
    }
}
