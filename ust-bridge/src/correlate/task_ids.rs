//! Ids of a task in its own pid namespace and on the host, and its user.
//!
//! *In*: the kernel side's task events, with both ids and the real user id. *Out*: the ids in the
//! other namespace, and the user. *Invariant*: ids are compared only together with their pid
//! namespace. The owner of a reused id is not taken for its previous owner.
//!
//! *Whose ids.* A program can write any ids into its user's buffers. LTTng's session daemon takes
//! the buffers' user from the credentials of the program's socket. A user's events are therefore
//! about a thread only if the kernel side reports the thread with the same user. Root's events may
//! be about any thread: a daemon that registers as root and then changes its user keeps its
//! buffers. *Rejected*: /proc/PID/status, because an exited task is not there, and its id may have
//! been reused.

use std::collections::HashMap;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::daemon_span::DaemonSpanEvent;
use blkkin_wire::event::{TaskChange, TaskEvent};
use blkkin_wire::ids::{Pid, Tid};

use super::TASKS_MAX;
use crate::daemon_spans::{Process, Thread};
use crate::span_event::TRUSTED_USER;

/// Ids of a task: LTTng reports those of the task's namespace, USDT probes those of the host.
#[derive(Clone, Copy, Debug)]
pub(super) struct TaskIds {
    host: Thread,
    namespaced: Option<Thread>,
    user: u32,
}

impl TaskIds {
    pub(super) fn of(task: &TaskEvent) -> TaskIds {
        let namespaced = task.ns_ids.map(|namespaced| Thread {
            pid_ns: namespaced.pid_ns.into(),
            pid: namespaced.pid.0,
            tid: namespaced.tid.0,
            user: TRUSTED_USER,
        });
        TaskIds { host: Thread::initial(task.pid.0, task.tid.0), namespaced, user: task.uid.0 }
    }

    /// Returns the ids in the task's own namespace.
    pub(super) fn own(self) -> Thread {
        self.namespaced.unwrap_or(self.host)
    }

    /// Returns the ids in the task's own namespace, as its user claims them.
    pub(super) fn own_claimed(self) -> Thread {
        self.own().claimed_by(self.user)
    }

    /// Returns the ids as root or the kernel, and the task's user, may claim them.
    pub(super) fn all(self) -> impl Iterator<Item = Thread> {
        let claimed = (self.user != TRUSTED_USER).then_some(self.user);
        let ids = self.namespaced.into_iter().chain([self.host]);
        ids.flat_map(move |ids| [Some(ids), claimed.map(|user| ids.claimed_by(user))]).flatten()
    }
}

/// Task with its ids on the host.
#[derive(Clone, Copy, Debug)]
struct HostTask {
    pid: Pid,
    tid: Tid,
    forked_at: MonotonicNs,
    user: u32,
}

/// Owner of claimed ids.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Owner {
    /// The kernel side reports a task with these ids, which the user may claim.
    Confirmed,
    /// The kernel side reports a task of another user.
    OtherUser,
    /// The kernel side has not reported such a task.
    Unknown,
}

/// Host ids of threads, in two generations. Exited threads stay, because their spans arrive later.
#[derive(Debug, Default)]
pub(super) struct HostIds([HashMap<Thread, HostTask>; 2]);

impl HostIds {
    /// Records a task, with the time of its fork if that was observed.
    pub(super) fn record(&mut self, task: &TaskEvent, forked_at: Option<MonotonicNs>) {
        let TaskIds { host, namespaced, user } = TaskIds::of(task);
        if task.change == TaskChange::Exited {
            return;
        }
        let [young, old] = &mut self.0;
        if young.len() >= TASKS_MAX {
            *old = std::mem::take(young);
        }
        let forked_at = forked_at.unwrap_or(task.time);
        let found = HostTask { pid: task.pid, tid: task.tid, forked_at, user };
        young.extend(namespaced.into_iter().chain([host]).map(|ids| (ids, found)));
    }

    /// Finds the task with these ids at `at`. A task that was forked later has reused the ids.
    fn find(&self, thread: Thread, at: MonotonicNs) -> Option<&HostTask> {
        let ids = thread.claimed_by(TRUSTED_USER);
        let found = self.0.iter().find_map(|generation| generation.get(&ids));
        found.filter(|task| task.forked_at <= at)
    }

    /// Finds out whether the user that claims a thread's ids may do so; a thread without a task is
    /// judged by its process.
    pub(super) fn owner(&self, thread: Thread, at: MonotonicNs) -> Owner {
        let main = Thread { tid: thread.pid, ..thread };
        match self.find(thread, at).or_else(|| self.find(main, at)) {
            Some(task) if thread.user == TRUSTED_USER || thread.user == task.user => Owner::Confirmed,
            Some(_) => Owner::OtherUser,
            None => Owner::Unknown,
        }
    }

    /// Replaces the span's process and thread id by host ids, or by 0 if they are unknown or not
    /// confirmed. Returns whether the process is known.
    pub(super) fn translate(&self, span: &mut DaemonSpanEvent, process: Process) -> bool {
        let Process { pid_ns, user, .. } = process;
        if pid_ns == 0 && user == TRUSTED_USER {
            return true;
        }
        let thread = Thread { pid_ns, pid: span.pid.0, tid: span.tid.0, user };
        let main = Thread { tid: thread.pid, ..thread };
        let (pid, tid) = match (self.find(thread, span.begin), self.find(main, span.begin)) {
            (Some(task), _) => (task.pid, task.tid),
            (None, Some(task)) => (task.pid, Tid(0)),
            (None, None) => (Pid(0), Tid(0)),
        };
        (span.pid, span.tid) = (pid, tid);
        pid.0 != 0
    }
}
