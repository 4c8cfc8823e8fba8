//! What a task is called, by itself and by the machine.
//!
//! *In*: what the kernel's side says of tasks: both names of each. *Out*: the name that is asked for. *Invariant*: numbers are compared
//! with their name space of processes alone; who has a number now is not taken for who had it before.

use std::collections::HashMap;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{TaskChange, TaskEvent};
use blkkin_wire::ids::{Pid, Tid};

use super::TASKS_MAX;
use crate::operations::{Process, Thread};

/// What a task is called: LTTng's streams say it as the task sees itself, probes as the machine does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Called {
    initial: Thread,
    inner: Option<Thread>,
}

impl Called {
    pub(super) fn of(task: &TaskEvent) -> Called {
        let inner = task.ns_ids.map(|inner| Thread {
            pid_ns: inner.pid_ns.into(),
            pid: inner.pid.0,
            tid: inner.tid.0,
        });
        Called { initial: Thread::initial(task.pid.0, task.tid.0), inner }
    }

    /// As it calls itself.
    pub(super) fn own(self) -> Thread {
        self.inner.unwrap_or(self.initial)
    }

    pub(super) fn names(self) -> impl Iterator<Item = Thread> {
        self.inner.into_iter().chain([self.initial])
    }
}

/// Of threads of other name spaces than the initial one what they are called in that; of late, and before that. Also of those that
/// have ended: what they had said comes later.
#[derive(Debug, Default)]
pub(super) struct Outer([HashMap<Thread, (Pid, Tid, MonotonicNs)>; 2]);

impl Outer {
    /// Hears of a task, which was forked then, if that was seen.
    pub(super) fn learn(&mut self, task: &TaskEvent, born: Option<MonotonicNs>) {
        let Called { inner: Some(inner), .. } = Called::of(task) else { return };
        if task.change == TaskChange::Exited {
            return;
        }
        let [late, before] = &mut self.0;
        if late.len() >= TASKS_MAX {
            *before = std::mem::take(late);
        }
        late.insert(inner, (task.pid, task.tid, born.unwrap_or(task.time)));
    }

    /// Gives the operation its process and thread by the numbers of the initial name space, 0 where they are not known; whether the
    /// process is.
    pub(super) fn name(&self, operation: &mut DaemonSpanEvent, process: Process) -> bool {
        if process.pid_ns == 0 {
            return true;
        }
        let thread = Thread { pid_ns: process.pid_ns, pid: operation.pid.0, tid: operation.tid.0 };
        // Who was forked since has its number, and is another.
        let known = |thread: Thread| {
            let found = self.0.iter().find_map(|of| of.get(&thread));
            found.filter(|(.., born)| *born <= operation.begin)
        };
        let main = Thread { tid: thread.pid, ..thread };
        let (pid, tid) = match (known(thread), known(main)) {
            (Some((pid, tid, _)), _) => (*pid, *tid),
            (None, Some((pid, ..))) => (*pid, Tid(0)),
            (None, None) => (Pid(0), Tid(0)),
        };
        (operation.pid, operation.tid) = (pid, tid);
        pid.0 != 0
    }
}
