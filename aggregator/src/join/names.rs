//! Names of the tasks, programs, files, devices and processes that events refer to by id.
//!
//! *In*: name events. *Out*: [`Names`] for a trace, shared, not copied.
//!
//! *Invariant*: a name that a trace gets was reported no later than the trace's event. Events
//! arrive in the order of [`super::window`], names first at each time. So the latest name so far is
//! the latest name at or before the event, and no look-up searches by time. If a name was lost it
//! stays unknown: another version of the task, or another path, might be wrong.
//!
//! *Processes* are known by their pid. The pid belongs to another program as soon as the process
//! executes one, or after a fork reuses a free pid. Both are task events too, and drop the process
//! context and the virtual machine at that time.
//!
//! *Limits*: a task leaves the table some time after its end or its next version. A file leaves
//! when it has not been used for long.
//!
//! *Rejected*: names with a validity interval and a search by time. The canonical order makes it
//! unnecessary.

use std::collections::VecDeque;
use std::sync::Arc;

use blkkin_wire::clock::{DurationNs, MonotonicNs};
use blkkin_wire::event::{
    DeviceEvent, FaultEvent, FileEvent, OpenFile, SyscallEvent, TaskChange, TaskEvent, TaskRef,
};
use blkkin_wire::ids::{FileId, NameId, Pid, TaskId};
use blkkin_wire::page_origin::PageOriginEvent;
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::virtual_machine::VirtualMachineEvent;
use serde::{Deserialize, Serialize};

use super::config::JoinConfig;
use super::generational_cache::GenerationalCache;
use super::snapshot::by_key;
use crate::trace::id_map::{Folded, IdMap};
use crate::trace::interned_file::InternedFile;
use crate::trace::page_origins::{OriginNames, WriterName};
use crate::trace::{DeviceNames, Names, ProcessNames};

/// Maximum number of processes with a process context, of up to 15 KiB each, or a virtual machine, of up to
/// 2 KiB and some 150 B for each NBD connection (64): as many as a tracer reads at a time
/// (`tracer/src/enrich/contexts/process_contexts.rs`).
const PROCESSES_MAX: usize = 8_192;

/// Maximum number of devices of a node, of some 94 B each.
const DEVICES_MAX: usize = 65_536;

/// Names that events may still refer to.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct NameTable {
    #[serde(with = "by_key")]
    tasks: IdMap<TaskRef, TaskEntry>,
    /// Current version of each living task.
    #[serde(with = "by_key")]
    current: IdMap<TaskId, u16>,
    expiring: VecDeque<ExpiringTask>,
    files: GenerationalCache<FileId, Arc<InternedFile>, std::hash::BuildHasherDefault<Folded>>,
    processes: GenerationalCache<Pid, Arc<ProcessNames>, std::hash::BuildHasherDefault<Folded>>,
    devices: Arc<DeviceNames>,
    /// Virtual machine that the node is.
    node_machine: Option<Arc<VirtualMachineEvent>>,
    #[serde(skip)]
    retention: DurationNs,
    #[serde(skip)]
    tasks_max: usize,
}

#[derive(Debug, Serialize, Deserialize)]
struct TaskEntry {
    event: Arc<TaskEvent>,
    /// Path by which the task's program was executed, as of the first look-up.
    exe: Option<Arc<InternedFile>>,
}

/// An ended or superseded version of a task. Events that are under way may still refer to it.
#[derive(Debug, Serialize, Deserialize)]
struct ExpiringTask {
    at: MonotonicNs,
    task: TaskRef,
    /// Time of the task event. Version numbers wrap, so only the entry of this time is removed.
    event_time: MonotonicNs,
}

/// Result of adding a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NameUpdate {
    Stored,
    Dropped,
}

impl NameTable {
    pub(super) fn new(files_max: usize, tasks_max: usize, retention: DurationNs) -> Self {
        NameTable {
            tasks: IdMap::default(),
            current: IdMap::default(),
            expiring: VecDeque::new(),
            files: GenerationalCache::new(files_max),
            processes: GenerationalCache::new(PROCESSES_MAX),
            devices: Arc::default(),
            node_machine: None,
            retention,
            tasks_max,
        }
    }

    /// Sets the limits. They are not part of a snapshot.
    pub(super) fn set_limits(&mut self, config: &JoinConfig) {
        (self.retention, self.tasks_max) = (config.name_retention(), config.tasks_max);
        self.files.set_max(config.files_max);
        self.processes.set_max(PROCESSES_MAX);
    }

    pub(super) fn task(&mut self, event: TaskEvent) -> NameUpdate {
        let (task, change, now) = (event.task, event.change, event.time);
        let new_process = change == TaskChange::Forked && event.tid.0 == event.pid.0;
        if change == TaskChange::Execed || new_process {
            self.processes.remove(&event.pid);
        }
        self.make_room(now);
        // A name that is sent again changes nothing; the version before the current one is known for a time too.
        let is_known = self.tasks.get(&task).is_some_and(|known| known.event.time == now);
        if !is_known && self.current.get(&task.id) != Some(&task.version) {
            if self.tasks.len() >= self.tasks_max {
                return NameUpdate::Dropped;
            }
            if let Some(version) = self.current.insert(task.id, task.version) {
                self.expire(TaskRef { id: task.id, version }, now);
            }
            self.tasks.insert(task, TaskEntry { event: Arc::new(event), exe: None });
        }
        if change == TaskChange::Exited {
            self.current.remove(&task.id);
            self.expire(task, now);
        }
        NameUpdate::Stored
    }

    pub(super) fn file(&mut self, event: FileEvent) {
        let (file, named) = (event.file, Arc::new(InternedFile::from(event)));
        // Pages know their file and not its path: they have the path by which it was used last.
        self.files.insert(file.unnamed(), Arc::clone(&named));
        if file.name != NameId::NONE {
            self.files.insert(file, named);
        }
    }

    pub(super) fn device(&mut self, event: DeviceEvent) -> NameUpdate {
        let known = &self.devices.names;
        if known.len() >= DEVICES_MAX && !known.contains_key(&event.device) {
            return NameUpdate::Dropped;
        }
        // Copied only if an open trace has the names.
        let names = Arc::make_mut(&mut self.devices);
        names.names.insert(event.device, event.name.into());
        match event.disk {
            Some(disk) => names.disks.insert(event.device, disk.into()),
            None => names.disks.remove(&event.device),
        };
        NameUpdate::Stored
    }

    pub(super) fn process(&mut self, event: ProcessContextEvent) {
        self.update_process(event.pid, |names| names.context = (!event.is_withdrawal()).then_some(event));
    }

    pub(super) fn virtual_machine(&mut self, event: VirtualMachineEvent) {
        if !event.is_of_node() {
            return self.update_process(event.pid, |names| names.virtual_machine = Some(event));
        }
        // Each record repeats it, with another time.
        let is_known = |known: &VirtualMachineEvent| {
            (&known.name, &known.uuid, &known.host) == (&event.name, &event.uuid, &event.host)
        };
        if !self.node_machine.as_deref().is_some_and(is_known) {
            self.node_machine = Some(event.into());
        }
    }

    fn update_process(&mut self, pid: Pid, change: impl FnOnce(&mut ProcessNames)) {
        let mut names = self.processes.get(&pid).map(|names| ProcessNames::clone(names)).unwrap_or_default();
        change(&mut names);
        if names == ProcessNames::default() {
            self.processes.remove(&pid);
        } else {
            self.processes.insert(pid, Arc::new(names));
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

    pub(super) fn of_fault(&mut self, fault: &FaultEvent) -> Names {
        let file = fault.file.and_then(|file| self.file_named(file));
        Names { file, ..self.of_task(fault.task) }
    }

    /// Returns the names that a trace without a task has.
    pub(super) fn of_node(&self) -> Names {
        let (devices, node_machine) = (Arc::clone(&self.devices), self.node_machine.clone());
        Names { devices, node_machine, ..Names::default() }
    }

    /// Returns the names that a daemon span has: the virtual machine that its process runs. It has no task, and names its
    /// service on its own.
    pub(super) fn of_process(&mut self, pid: Pid) -> Names {
        let process = if self.processes.is_empty() { None } else { self.processes.get(&pid).cloned() };
        let process = process.filter(|names| names.virtual_machine.is_some());
        Names { process, ..self.of_node() }
    }

    pub(super) fn of_task(&mut self, task: TaskRef) -> Names {
        let Some(known) = self.tasks.get_mut(&task) else {
            return self.of_node();
        };
        if known.exe.is_none() {
            known.exe = known.event.exe.and_then(|exe| self.files.get(&exe).cloned());
        }
        // Few processes have further names, so this is nearly always false.
        let has_names = !self.processes.is_empty() && !known.event.kernel_thread;
        let process = if has_names { self.processes.get(&known.event.pid).cloned() } else { None };
        Names {
            task: Some(known.event.clone()),
            exe: known.exe.clone(),
            process,
            node_machine: self.node_machine.clone(),
            file: None,
            second_file: None,
            devices: self.devices.clone(),
        }
    }

    /// Adds the names of an origin's file and writers.
    pub(super) fn of_page_origin(&mut self, origin: &PageOriginEvent, names: &mut OriginNames) {
        if let Some(file) = origin.file
            && let Some(named) = self.files.get(&file)
        {
            names.files.insert(file, Arc::clone(named));
        }
        for writer in &origin.writers {
            if names.writers.contains_key(&writer.task) {
                continue;
            }
            let Names { task, exe, process, .. } = self.of_task(writer.task);
            names.writers.extend(task.map(|task| (writer.task, WriterName { task, exe, process })));
        }
    }

    /// Returns the name of a file.
    pub(super) fn file_named(&mut self, file: FileId) -> Option<Arc<InternedFile>> {
        self.files.get(&file).cloned()
    }

    fn of_file(&mut self, file: Option<&OpenFile>) -> Option<Arc<InternedFile>> {
        self.file_named(file?.file)
    }

    fn expire(&mut self, task: TaskRef, now: MonotonicNs) {
        if let Some(known) = self.tasks.get(&task) {
            let at = MonotonicNs(now.0.saturating_add(self.retention.0));
            self.expiring.push_back(ExpiringTask { at, task, event_time: known.event.time });
        }
    }

    /// Removes expired tasks, and further expiring ones while the table is full.
    fn make_room(&mut self, now: MonotonicNs) {
        while let Some(next) = self.expiring.front() {
            if next.at > now && self.tasks.len() < self.tasks_max {
                return;
            }
            if self.tasks.get(&next.task).is_some_and(|known| known.event.time == next.event_time) {
                self.tasks.remove(&next.task);
            }
            self.expiring.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures;
    use blkkin_wire::ids::{DeviceId, Tid};
    use blkkin_wire::process_context::{Attribute, AttributeValue};

    fn table(tasks_max: usize) -> NameTable {
        NameTable::new(16, tasks_max, DurationNs(100))
    }

    fn comm(table: &mut NameTable, id: u64, version: u16) -> Option<String> {
        let task = TaskRef { id: TaskId(id), version };
        table.of_task(task).task.map(|task| task.comm.to_string())
    }

    #[test]
    fn a_superseded_version_is_retained_for_a_time() {
        let mut table = table(16);
        table.task(fixtures::task(1, 0, 10, "sh"));
        table.task(fixtures::task(1, 1, 20, "dd"));
        assert_eq!(comm(&mut table, 1, 0).as_deref(), Some("sh"));
        table.task(fixtures::task(2, 0, 120, "other"));
        assert_eq!(comm(&mut table, 1, 0), None);
        assert_eq!(comm(&mut table, 1, 1).as_deref(), Some("dd"));
    }

    #[test]
    fn pages_have_the_path_by_which_their_file_was_used_last() {
        let mut table = table(16);
        let [old, new, lost] = [1, 2, 3].map(|name| FileId { name: NameId(name), ..fixtures::file_id(5) });
        table.file(fixtures::file(old, 10, "/srv/old"));
        table.file(fixtures::file(new, 20, "/srv/new"));
        let mut path = |file| table.file_named(file).map(|named| named.path.to_string());
        assert_eq!(path(old).as_deref(), Some("/srv/old"));
        assert_eq!(path(new).as_deref(), Some("/srv/new"));
        assert_eq!(path(new.unnamed()).as_deref(), Some("/srv/new"));
        assert_eq!(path(lost), None);
    }

    #[test]
    fn a_lost_version_stays_unknown() {
        let mut table = table(16);
        table.task(fixtures::task(1, 0, 10, "sh"));
        assert_eq!(comm(&mut table, 1, 1), None);
    }

    #[test]
    fn ended_tasks_make_room_and_living_tasks_do_not() {
        let mut table = table(2);
        table.task(fixtures::task(1, 0, 1, "lives"));
        table.task(fixtures::task(2, 0, 2, "ends"));
        table.task(TaskEvent { change: TaskChange::Exited, ..fixtures::task(2, 0, 3, "ends") });
        assert_eq!(table.task(fixtures::task(3, 0, 4, "new")), NameUpdate::Stored);
        assert_eq!(table.task(fixtures::task(4, 0, 5, "too many")), NameUpdate::Dropped);
        assert_eq!(comm(&mut table, 1, 0).as_deref(), Some("lives"));
        assert_eq!(comm(&mut table, 2, 0), None);
    }

    #[test]
    fn names_that_are_sent_again_do_not_end_a_living_task() {
        let mut table = NameTable::new(10, 10, DurationNs(100));
        let versions = [fixtures::task(1, 0, 1, "before"), fixtures::task(1, 1, 2, "after")];
        for _ in 0..2 {
            for event in &versions {
                table.task(event.clone());
            }
        }
        table.task(fixtures::task(2, 0, 500, "later"));
        table.task(fixtures::task(3, 0, 900, "later"));
        assert_eq!(comm(&mut table, 1, 1).as_deref(), Some("after"));
    }

    /// Process context of the process of task 1.
    fn context(time: u64, name: &str) -> ProcessContextEvent {
        let value = AttributeValue::Text(name.into());
        let attributes = vec![Attribute { key: "service.name".into(), value }];
        let pid = fixtures::task(1, 0, 0, "x").pid;
        ProcessContextEvent {
            time: MonotonicNs(time),
            pid,
            attributes,
            dropped_attributes_count: 0,
            thread_keys: Vec::new(),
        }
    }

    fn service_name(table: &mut NameTable, version: u16) -> Option<String> {
        let names = table.of_task(TaskRef { id: TaskId(1), version });
        let attributes = &names.process_context()?.attributes;
        let [Attribute { value: AttributeValue::Text(name), .. }] = &attributes[..] else { panic!() };
        Some(name.to_string())
    }

    #[test]
    fn a_process_context_holds_until_an_exec_or_another_context() {
        let mut table = table(16);
        table.task(fixtures::task(1, 0, 1, "sh"));
        assert_eq!(service_name(&mut table, 0), None);
        table.process(context(2, "shop"));
        table.process(context(3, "store"));
        assert_eq!(service_name(&mut table, 0).as_deref(), Some("store"));
        // A new comm does not make it another program.
        table.task(TaskEvent { change: TaskChange::Changed, ..fixtures::task(1, 1, 4, "worker") });
        assert_eq!(service_name(&mut table, 1).as_deref(), Some("store"));
        table.task(TaskEvent { change: TaskChange::Execed, ..fixtures::task(1, 2, 5, "ls") });
        assert_eq!(service_name(&mut table, 2), None);
        table.process(context(6, "again"));
        assert_eq!(service_name(&mut table, 2).as_deref(), Some("again"));
        table.process(ProcessContextEvent { attributes: Vec::new(), ..context(7, "") });
        assert_eq!(service_name(&mut table, 2), None);
    }

    #[test]
    fn a_process_runs_its_virtual_machine_until_it_executes_another_program() {
        let mut table = table(16);
        let machine = |table: &mut NameTable, version| {
            let names = table.of_task(TaskRef { id: TaskId(1), version });
            (
                names.comm().unwrap().to_string(),
                names.virtual_machine().map(|machine| machine.name.to_string()),
            )
        };
        table.task(fixtures::task(1, 0, 1, "worker"));
        assert_eq!(machine(&mut table, 0), ("worker".to_owned(), None));
        table.virtual_machine(fixtures::virtual_machine(2, "web1"));
        assert_eq!(machine(&mut table, 0), ("worker (VM web1)".to_owned(), Some("web1".to_owned())));
        // A process context of the same process is independent of it.
        table.process(context(2, "shop"));
        assert_eq!(service_name(&mut table, 0).as_deref(), Some("shop"));
        table.process(ProcessContextEvent { attributes: Vec::new(), ..context(2, "") });
        table.task(TaskEvent { change: TaskChange::Changed, ..fixtures::task(1, 1, 3, "CPU 0/KVM") });
        assert_eq!(machine(&mut table, 1), ("CPU 0/KVM (VM web1)".to_owned(), Some("web1".to_owned())));
        table.task(TaskEvent { change: TaskChange::Execed, ..fixtures::task(1, 2, 4, "sh") });
        assert_eq!(machine(&mut table, 2), ("sh".to_owned(), None));
    }

    #[test]
    fn a_guests_tasks_run_in_its_virtual_machine() {
        let mut table = table(16);
        let unknown = TaskRef { id: TaskId(1), version: 0 };
        let shown = |table: &mut NameTable| {
            let names = table.of_task(unknown);
            (names.comm().map(|comm| comm.to_string()), names.virtual_machine().map(|m| m.name.to_string()))
        };
        let in_machine = |comm: Option<&str>, name: &str| (comm.map(str::to_owned), Some(name.to_owned()));
        let of_node = |time| VirtualMachineEvent {
            pid: VirtualMachineEvent::NODE,
            ..fixtures::virtual_machine(time, "web1")
        };
        assert_eq!(shown(&mut table), (None, None));
        table.virtual_machine(of_node(1));
        assert_eq!(shown(&mut table), in_machine(None, "web1"));
        table.task(fixtures::task(1, 0, 1, "dd"));
        assert_eq!(shown(&mut table), in_machine(Some("dd (VM web1)"), "web1"));
        // A virtual machine in the virtual machine.
        table.virtual_machine(fixtures::virtual_machine(2, "nested"));
        table.virtual_machine(of_node(3));
        assert_eq!(shown(&mut table), in_machine(Some("dd (VM nested)"), "nested"));
    }

    #[test]
    fn a_reused_pid_is_another_process() {
        let mut table = table(16);
        let leader = fixtures::task(1, 0, 1, "sh");
        table.task(leader.clone());
        table.process(context(2, "shop"));
        // A new thread does not make it another process.
        let thread = TaskEvent {
            change: TaskChange::Forked,
            tid: Tid(leader.pid.0 + 1),
            ..fixtures::task(2, 0, 3, "t")
        };
        table.task(TaskEvent { pid: leader.pid, ..thread });
        assert_eq!(service_name(&mut table, 0).as_deref(), Some("shop"));
        let child = TaskEvent {
            change: TaskChange::Forked,
            tid: Tid(leader.pid.0),
            ..fixtures::task(3, 0, 4, "new")
        };
        table.task(TaskEvent { pid: leader.pid, ..child });
        assert_eq!(service_name(&mut table, 0), None);
    }

    #[test]
    fn devices_beyond_the_maximum_have_no_name_and_known_ones_change() {
        let mut table = NameTable::new(8, 8, DurationNs(1));
        let named = |minor: u32, name: &str| DeviceEvent {
            time: MonotonicNs(1),
            device: DeviceId { major: 259, minor },
            name: name.into(),
            partition_of: None,
            disk: None,
        };
        let stored = (0..2 * DEVICES_MAX as u32)
            .filter(|minor| table.device(named(*minor, "disk")) == NameUpdate::Stored)
            .count();
        assert_eq!((stored, table.devices().names.len()), (DEVICES_MAX, DEVICES_MAX));
        assert_eq!(table.device(named(7, "other")), NameUpdate::Stored);
        assert_eq!(&*table.devices().names[&DeviceId { major: 259, minor: 7 }], "other");
    }

    #[test]
    fn a_program_retains_the_path_of_its_exec() {
        let mut table = table(16);
        let exe = fixtures::file_id(5);
        table.task(TaskEvent { exe: Some(exe), ..fixtures::task(1, 0, 1, "db") });
        table.file(fixtures::file(exe, 2, "/usr/bin/db"));
        let task = TaskRef { id: TaskId(1), version: 0 };
        assert_eq!(&*table.of_task(task).exe.unwrap().path, "/usr/bin/db");
        table.file(fixtures::file(exe, 3, "/usr/bin/db.old"));
        assert_eq!(&*table.of_task(task).exe.unwrap().path, "/usr/bin/db");
    }
}
