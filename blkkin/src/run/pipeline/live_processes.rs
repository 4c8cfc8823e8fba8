//! Traced processes that are still running: CMD's exit leaves them untraced.

use std::collections::{HashMap, HashSet};

use blkkin_wire::event::{LayerEvent, TaskChange};
use blkkin_wire::ids::{Pid, TaskId};

/// Maximum number of tracked tasks: more than the kernel's usual limit of 32,768 live at once.
const TASKS_MAX: usize = 65_536;

/// Traced tasks that have not exited.
#[derive(Debug, Default)]
pub(crate) struct LiveProcesses {
    tasks: HashMap<TaskId, Pid>,
    overflowed: bool,
}

impl LiveProcesses {
    /// Updates the state from a batch's events.
    pub(crate) fn apply(&mut self, events: &[LayerEvent]) {
        for event in events {
            let LayerEvent::Task(task) = event else { continue };
            // A task that was merely discovered is not the command's: it wrote pages back.
            let started = matches!(task.change, TaskChange::Forked | TaskChange::Execed);
            if task.change == TaskChange::Exited || task.kernel_thread {
                self.tasks.remove(&task.task.id);
            } else if started && self.tasks.len() < TASKS_MAX {
                self.tasks.insert(task.task.id, task.pid);
            } else {
                self.overflowed |= started;
            }
        }
    }

    /// Returns the number of live processes; `None` after an overflow.
    pub(crate) fn count(&self) -> Option<usize> {
        (!self.overflowed).then(|| self.tasks.values().collect::<HashSet<_>>().len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::clock::MonotonicNs;
    use blkkin_wire::event::{TaskEvent, TaskRef};
    use blkkin_wire::ids::Tid;

    fn event(id: u64, pid: u32, change: TaskChange) -> LayerEvent {
        let task = TaskRef { id: TaskId(id), version: 1 };
        let (tid, pid) = (Tid(id as u32), Pid(pid));
        LayerEvent::Task(TaskEvent { change, tid, pid, ..TaskEvent::bare(task, MonotonicNs(0), "x") })
    }

    #[test]
    fn counts_live_processes_not_threads() {
        let mut live = LiveProcesses::default();
        live.apply(&[
            event(1, 10, TaskChange::Execed),
            event(2, 10, TaskChange::Forked),
            event(3, 11, TaskChange::Forked),
            event(4, 12, TaskChange::Discovered),
        ]);
        assert_eq!(live.count(), Some(2));
        live.apply(&[event(1, 10, TaskChange::Exited)]);
        assert_eq!(live.count(), Some(2));
        live.apply(&[event(2, 10, TaskChange::Exited), event(3, 11, TaskChange::Exited)]);
        assert_eq!(live.count(), Some(0));
    }
}
