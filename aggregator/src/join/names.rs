//! Who and what the ids in events stand for.
//!
//! *In*: name events. *Out*: [`Names`] for a trace, shared, not copied.
//! *Invariant*: a name given for a moment had been said no later than that moment. Events come here in the
//! order of [`super::window`], names first at each time, so "the latest so far" is "the latest at or before" the
//! event that asks; nobody has to search by time. A name that was lost stays unknown: another version
//! of the task, or another path, might be wrong.
//!
//! *Processes* are known by their number, which is another's as soon as a process executes another program or is forked under
//! a number that was free again: either is a name event too, so what was said before holds no longer from exactly then on.
//!
//! *Bounds*: tasks leave some time after their end or their next version, files when they were not used for long.

use std::collections::VecDeque;
use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{DeviceEvent, FileEvent, OpenFile, SyscallEvent, TaskChange, TaskEvent, TaskRef};
use blkkin_wire::ids::{FileId, Pid, TaskId};
use blkkin_wire::process_context::ProcessContextEvent;
use serde::{Deserialize, Serialize};

use super::config::JoinConfig;
use super::hash::{Folded, IdMap};
use super::recent::Recent;
use super::saved::by_key;
use crate::named::NamedFile;
use crate::trace::{DeviceNames, Names};

/// Processes whose word is kept, at 15 KiB each at the most: as many as a tracer reads at once (`tracer/src/enrich/contexts/process_contexts.rs`).
const PROCESSES_MAX: usize = 8_192;

/// Names said so far and still wanted.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NameTable {
    #[serde(with = "by_key")]
    tasks: IdMap<TaskRef, KnownTask>,
    /// The version of each living task that is not superseded.
    #[serde(with = "by_key")]
    current: IdMap<TaskId, u16>,
    leaving: VecDeque<Leaving>,
    files: Recent<FileId, Arc<NamedFile>, std::hash::BuildHasherDefault<Folded>>,
    processes: Recent<Pid, Arc<ProcessContextEvent>, std::hash::BuildHasherDefault<Folded>>,
    devices: Arc<DeviceNames>,
    #[serde(skip)]
    keep: DurationNs,
    #[serde(skip)]
    tasks_max: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct KnownTask {
    event: Arc<TaskEvent>,
    /// Its program's name as first asked for: the path by which it was executed.
    exe: Option<Arc<NamedFile>>,
}

/// A task's version that nothing new refers to; events under way still may.
#[derive(Debug, Serialize, Deserialize)]
struct Leaving {
    at: MonotonicNs,
    task: TaskRef,
    /// Versions wrap: only the one said then leaves.
    said: MonotonicNs,
}

/// Whether a name was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    Kept,
    Dropped,
}

impl NameTable {
    pub(super) fn new(files_max: usize, tasks_max: usize, keep: DurationNs) -> Self {
        NameTable {
            tasks: IdMap::default(),
            current: IdMap::default(),
            leaving: VecDeque::new(),
            files: Recent::new(files_max),
            processes: Recent::new(PROCESSES_MAX),
            devices: Arc::default(),
            keep,
            tasks_max,
        }
    }

    /// Has these bounds from now on.
    pub(super) fn set_bounds(&mut self, config: &JoinConfig) {
        (self.keep, self.tasks_max) = (config.quiet_after, config.tasks_max);
        self.files.set_max(config.files_max);
        self.processes.set_max(PROCESSES_MAX);
    }

    pub(super) fn task(&mut self, event: TaskEvent) -> Taken {
        let (task, change, now) = (event.task, event.change, event.time);
        let born = change == TaskChange::Forked && event.tid.0 == event.pid.0;
        if change == TaskChange::Execed || born {
            self.processes.remove(&event.pid);
        }
        self.make_room(now);
        if self.current.get(&task.id) != Some(&task.version) {
            if self.tasks.len() >= self.tasks_max {
                return Taken::Dropped;
            }
            if let Some(version) = self.current.insert(task.id, task.version) {
                self.leave(TaskRef { id: task.id, version }, now);
            }
            self.tasks.insert(task, KnownTask { event: Arc::new(event), exe: None });
        }
        if change == TaskChange::Exited {
            self.current.remove(&task.id);
            self.leave(task, now);
        }
        Taken::Kept
    }

    pub(super) fn file(&mut self, event: FileEvent) {
        self.files.insert(event.file, Arc::new(event.into()));
    }

    pub(super) fn device(&mut self, event: DeviceEvent) {
        let mut names = DeviceNames::clone(&self.devices);
        names.0.insert(event.device, event.name.into());
        self.devices = Arc::new(names);
    }

    pub(super) fn process(&mut self, event: ProcessContextEvent) {
        if event.is_withdrawal() {
            self.processes.remove(&event.pid);
        } else {
            self.processes.insert(event.pid, Arc::new(event));
        }
    }

    pub(super) fn devices(&self) -> &Arc<DeviceNames> {
        &self.devices
    }

    pub(super) fn of_call(&mut self, call: &SyscallEvent) -> Names {
        let mut names = self.of_task(call.task);
        names.file = self.of_file(call.file.as_ref());
        names.second_file = self.of_file(call.second_file.as_deref());
        names
    }

    pub(super) fn of_task(&mut self, task: TaskRef) -> Names {
        let Some(known) = self.tasks.get_mut(&task) else {
            return Names { devices: self.devices.clone(), ..Names::default() };
        };
        if known.exe.is_none() {
            known.exe = known.event.exe.and_then(|exe| self.files.get(&exe).cloned());
        }
        // Nearly nowhere anybody says anything.
        let said = !self.processes.is_empty() && !known.event.kernel_thread;
        let process = if said { self.processes.get(&known.event.pid).cloned() } else { None };
        Names {
            task: Some(known.event.clone()),
            exe: known.exe.clone(),
            process,
            file: None,
            second_file: None,
            devices: self.devices.clone(),
        }
    }

    fn of_file(&mut self, file: Option<&OpenFile>) -> Option<Arc<NamedFile>> {
        self.files.get(&file?.file).cloned()
    }

    fn leave(&mut self, task: TaskRef, now: MonotonicNs) {
        if let Some(known) = self.tasks.get(&task) {
            let at = MonotonicNs(now.0.saturating_add(self.keep.0));
            self.leaving.push_back(Leaving { at, task, said: known.event.time });
        }
    }

    /// Lets those go whose time has come, and the next ones while there is no room.
    fn make_room(&mut self, now: MonotonicNs) {
        while let Some(next) = self.leaving.front() {
            if next.at > now && self.tasks.len() < self.tasks_max {
                return;
            }
            if self.tasks.get(&next.task).is_some_and(|known| known.event.time == next.said) {
                self.tasks.remove(&next.task);
            }
            self.leaving.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::join::tests::make;
    use blkkin_wire::ids::Tid;
    use blkkin_wire::process_context::{Attribute, AttributeValue};

    fn table(tasks_max: usize) -> NameTable {
        NameTable::new(16, tasks_max, DurationNs(100))
    }

    fn comm(table: &mut NameTable, id: u64, version: u16) -> Option<String> {
        let task = TaskRef { id: TaskId(id), version };
        table.of_task(task).task.map(|task| task.comm.to_string())
    }

    #[test]
    fn a_superseded_version_is_kept_for_what_is_under_way_and_then_goes() {
        let mut table = table(16);
        table.task(make::task(1, 0, 10, "sh"));
        table.task(make::task(1, 1, 20, "dd"));
        assert_eq!(comm(&mut table, 1, 0).as_deref(), Some("sh"));
        table.task(make::task(2, 0, 120, "other"));
        assert_eq!(comm(&mut table, 1, 0), None);
        assert_eq!(comm(&mut table, 1, 1).as_deref(), Some("dd"));
    }

    #[test]
    fn a_version_that_was_lost_is_unknown_not_guessed() {
        let mut table = table(16);
        table.task(make::task(1, 0, 10, "sh"));
        assert_eq!(comm(&mut table, 1, 1), None);
    }

    #[test]
    fn ended_tasks_make_room_and_living_ones_do_not() {
        let mut table = table(2);
        table.task(make::task(1, 0, 1, "lives"));
        table.task(make::task(2, 0, 2, "ends"));
        table.task(TaskEvent { change: TaskChange::Exited, ..make::task(2, 0, 3, "ends") });
        assert_eq!(table.task(make::task(3, 0, 4, "new")), Taken::Kept);
        assert_eq!(table.task(make::task(4, 0, 5, "too many")), Taken::Dropped);
        assert_eq!(comm(&mut table, 1, 0).as_deref(), Some("lives"));
        assert_eq!(comm(&mut table, 2, 0), None);
    }

    /// Whose task is number 1.
    fn says(time: u64, name: &str) -> ProcessContextEvent {
        let value = AttributeValue::Text(name.into());
        let attributes = vec![Attribute { key: "service.name".into(), value }];
        let pid = make::task(1, 0, 0, "x").pid;
        ProcessContextEvent {
            time: MonotonicNs(time),
            pid,
            attributes,
            dropped_attributes_count: 0,
            thread_keys: Vec::new(),
        }
    }

    fn said(table: &mut NameTable, version: u16) -> Option<String> {
        let names = table.of_task(TaskRef { id: TaskId(1), version });
        let attributes = &names.process?.attributes;
        let [Attribute { value: AttributeValue::Text(name), .. }] = &attributes[..] else { panic!() };
        Some(name.to_string())
    }

    #[test]
    fn what_a_process_says_holds_until_it_is_another_program_or_says_something_else() {
        let mut table = table(16);
        table.task(make::task(1, 0, 1, "sh"));
        assert_eq!(said(&mut table, 0), None);
        table.process(says(2, "shop"));
        table.process(says(3, "store"));
        assert_eq!(said(&mut table, 0).as_deref(), Some("store"));
        // A name is no other program.
        table.task(TaskEvent { change: TaskChange::Changed, ..make::task(1, 1, 4, "worker") });
        assert_eq!(said(&mut table, 1).as_deref(), Some("store"));
        table.task(TaskEvent { change: TaskChange::Execed, ..make::task(1, 2, 5, "ls") });
        assert_eq!(said(&mut table, 2), None);
        table.process(says(6, "again"));
        assert_eq!(said(&mut table, 2).as_deref(), Some("again"));
        table.process(ProcessContextEvent { attributes: Vec::new(), ..says(7, "") });
        assert_eq!(said(&mut table, 2), None);
    }

    #[test]
    fn a_number_that_is_given_again_is_another_process() {
        let mut table = table(16);
        let leader = make::task(1, 0, 1, "sh");
        table.task(leader.clone());
        table.process(says(2, "shop"));
        // A thread of it is none.
        let thread =
            TaskEvent { change: TaskChange::Forked, tid: Tid(leader.pid.0 + 1), ..make::task(2, 0, 3, "t") };
        table.task(TaskEvent { pid: leader.pid, ..thread });
        assert_eq!(said(&mut table, 0).as_deref(), Some("shop"));
        let child =
            TaskEvent { change: TaskChange::Forked, tid: Tid(leader.pid.0), ..make::task(3, 0, 4, "new") };
        table.task(TaskEvent { pid: leader.pid, ..child });
        assert_eq!(said(&mut table, 0), None);
    }

    #[test]
    fn a_program_keeps_the_path_by_which_it_was_executed() {
        let mut table = table(16);
        let exe = make::file_id(5);
        table.task(TaskEvent { exe: Some(exe), ..make::task(1, 0, 1, "db") });
        table.file(make::file(exe, 2, "/usr/bin/db"));
        let task = TaskRef { id: TaskId(1), version: 0 };
        assert_eq!(&*table.of_task(task).exe.unwrap().path, "/usr/bin/db");
        table.file(make::file(exe, 3, "/usr/bin/db.old"));
        assert_eq!(&*table.of_task(task).exe.unwrap().path, "/usr/bin/db");
    }
}
