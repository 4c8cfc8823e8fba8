//! Which followed processes are still there: what the end of CMD leaves behind untraced.

use std::collections::{HashMap, HashSet};

use blkkin_wire::event::{LayerEvent, TaskChange};
use blkkin_wire::ids::{Pid, TaskId};

/// Tasks remembered. More than live on a machine with the kernel's usual limit of 32,768 at once.
const TASKS_MAX: usize = 65_536;

/// Followed tasks that have not ended.
#[derive(Debug, Default)]
pub(crate) struct Alive {
    tasks: HashMap<TaskId, Pid>,
    overflowed: bool,
}

impl Alive {
    /// Learns from a batch's events.
    pub(crate) fn note(&mut self, events: &[LayerEvent]) {
        for event in events {
            let LayerEvent::Task(task) = event else { continue };
            if task.change == TaskChange::Exited || task.kernel_thread {
                self.tasks.remove(&task.task.id);
            } else if self.tasks.len() < TASKS_MAX {
                self.tasks.insert(task.task.id, task.pid);
            } else {
                self.overflowed = true;
            }
        }
    }

    /// How many processes are left; none when that cannot be known.
    pub(crate) fn processes(&self) -> Option<usize> {
        (!self.overflowed).then(|| self.tasks.values().collect::<HashSet<_>>().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::{TaskEvent, TaskRef};
    use blkkin_wire::ids::{CgroupId, Tid, Uid};

    fn event(id: u64, pid: u32, change: TaskChange) -> LayerEvent {
        LayerEvent::Task(TaskEvent {
            time: MonotonicNs(0),
            task: TaskRef { id: TaskId(id), version: 1 },
            parent: None,
            change,
            tid: Tid(id as u32),
            pid: Pid(pid),
            ppid: Pid(1),
            uid: Uid(0),
            cgroup: CgroupId(1),
            comm: "x".into(),
            exe: None,
            kernel_thread: false,
            inner: None,
        })
    }

    #[test]
    fn counts_processes_not_threads_and_only_those_left() {
        let mut alive = Alive::default();
        alive.note(&[
            event(1, 10, TaskChange::Execed),
            event(2, 10, TaskChange::Forked),
            event(3, 11, TaskChange::Forked),
        ]);
        assert_eq!(alive.processes(), Some(2));
        alive.note(&[event(1, 10, TaskChange::Exited)]);
        assert_eq!(alive.processes(), Some(2));
        alive.note(&[event(2, 10, TaskChange::Exited), event(3, 11, TaskChange::Exited)]);
        assert_eq!(alive.processes(), Some(0));
    }
}
