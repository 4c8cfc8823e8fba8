//! Names of tasks, files, devices and processes in batches that have left, for a consumer that has none of them: of a
//! dump of the flight recorder (`flight_recorder.rs`), or another process of a guest's host (`port.rs`).
//!
//! *In*: names in the order in which their batches leave. *Out*: for a dump, the names that its events may refer to, and
//! the ends of tasks that an earlier dump named.
//!
//! *Invariant*: a consumer that has the names of each dump knows as much of the tasks, files, devices and processes of
//! the dump's events as one that has every batch. So the rules are those of the join
//! (`aggregator/src/join/names.rs`): an ended task or an earlier version of one keeps its name for a time, because data
//! that it wrote may be written back later; a process that executes a program loses its context and its virtual machine.
//! And the end of a task is sent if its name was, however long ago: a consumer keeps a task until it has its end.
//!
//! *Limits*: as in the join, each kind has its own. So files displace neither a disk nor a daemon that was named
//! once, at its start. A name that finds no room is counted; events that refer to it show a number.

use std::collections::{HashMap, HashSet, VecDeque};

use blkkin_aggregator::join::JoinConfig;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{DeviceEvent, FileEvent, LayerEvent, TaskChange, TaskEvent, TaskRef};
use blkkin_wire::ids::{DeviceId, FileId, Pid, TaskId};

/// Most contexts, of up to 15 KiB each, and most virtual machines: as many processes as a tracer reads.
const PROCESSES_MAX: usize = 8_192;
/// Most devices: more than a machine has.
const DEVICES_MAX: usize = 4_096;

/// The names.
#[derive(Debug, Default)]
pub(super) struct NameStore {
    config: JoinConfig,
    tasks: HashMap<TaskRef, TaskEvent>,
    /// Current version of each living task.
    current: HashMap<TaskId, u16>,
    /// Ended tasks and earlier versions, each with the time of its event and since when it is one.
    expiring: VecDeque<(MonotonicNs, TaskRef, MonotonicNs)>,
    /// Ends of tasks: of those that still have a name, and of those that a dump named.
    exits: HashMap<TaskId, TaskEvent>,
    /// Tasks that a consumer knows, and of which it does not have the end.
    known: HashSet<TaskId>,
    /// Last event of each living process by which it lost its context and its virtual machine.
    programs: HashMap<Pid, TaskEvent>,
    contexts: HashMap<Pid, LayerEvent>,
    machines: HashMap<Pid, LayerEvent>,
    devices: HashMap<DeviceId, DeviceEvent>,
    files: HashMap<FileId, (u64, FileEvent)>,
    /// Files in the order in which they were named, each with its number. One that was named again is here twice, and
    /// only the later number is in `files`.
    file_order: VecDeque<(FileId, u64)>,
    next_file: u64,
    forgotten: u64,
}

impl NameStore {
    /// Adds a name of a batch that leaves. `was_sent`: a consumer has it.
    pub(super) fn add(&mut self, event: LayerEvent, was_sent: bool) {
        match event {
            LayerEvent::Task(task) => self.task(task, was_sent),
            LayerEvent::File(file) => self.file(file),
            LayerEvent::Device(device) => {
                self.forgotten += u64::from(!insert(&mut self.devices, DEVICES_MAX, device.device, device));
            }
            LayerEvent::ProcessContext(context) => {
                let (pid, event) = (context.pid, LayerEvent::ProcessContext(context));
                self.forgotten += u64::from(!insert(&mut self.contexts, PROCESSES_MAX, pid, event));
            }
            LayerEvent::VirtualMachine(machine) => {
                let (pid, event) = (machine.pid, LayerEvent::VirtualMachine(machine));
                self.forgotten += u64::from(!insert(&mut self.machines, PROCESSES_MAX, pid, event));
            }
            _ => {}
        }
    }

    /// Returns all names in the order of their times. The consumer has them then.
    pub(super) fn take_for_dump(&mut self) -> Vec<LayerEvent> {
        let programs = self.programs.values().filter(|event| self.tasks.get(&event.task) != Some(*event));
        let tasks = self.tasks.values().chain(self.exits.values()).chain(programs).cloned();
        let devices = self.devices.values().cloned().map(LayerEvent::Device);
        let files = self.files.values().map(|(_, file)| LayerEvent::File(file.clone()));
        let processes = self.contexts.values().chain(self.machines.values()).cloned();
        let mut all: Vec<_> =
            tasks.map(LayerEvent::Task).chain(devices).chain(files).chain(processes).collect();
        all.sort_by_key(LayerEvent::time);
        self.known = self.current.keys().copied().collect();
        let tasks: HashSet<TaskId> = self.tasks.keys().map(|task| task.id).collect();
        self.exits.retain(|task, _| tasks.contains(task));
        all
    }

    /// Returns the number of names that found no room.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn task(&mut self, event: TaskEvent, was_sent: bool) {
        let (task, now, pid, change) = (event.task, event.time, event.pid, event.change);
        let is_leader = event.tid.0 == pid.0;
        self.expire(now);
        if change == TaskChange::Execed || change == TaskChange::Forked && is_leader {
            self.contexts.remove(&pid);
            self.machines.remove(&pid);
            insert(&mut self.programs, self.config.tasks_max, pid, event.clone());
        }
        if was_sent {
            self.known.insert(task.id);
        }
        if self.current.get(&task.id) != Some(&task.version) {
            self.make_room();
            if insert(&mut self.tasks, self.config.tasks_max, task, event.clone()) {
                if let Some(version) = self.current.insert(task.id, task.version) {
                    self.expire_later(TaskRef { id: task.id, version }, now);
                }
            } else {
                self.forgotten += 1;
            }
        }
        if change == TaskChange::Exited {
            self.current.remove(&task.id);
            self.expire_later(task, now);
            if self.tasks.contains_key(&task) || self.known.contains(&task.id) {
                self.exits.insert(task.id, event);
            }
            if was_sent {
                self.known.remove(&task.id);
            }
            if is_leader {
                self.contexts.remove(&pid);
                self.machines.remove(&pid);
                self.programs.remove(&pid);
            }
        }
    }

    fn expire_later(&mut self, task: TaskRef, now: MonotonicNs) {
        if let Some(event) = self.tasks.get(&task) {
            self.expiring.push_back((now, task, event.time));
        }
    }

    /// Removes the names of tasks that ended, or of versions that were superseded, long before `now`.
    fn expire(&mut self, now: MonotonicNs) {
        let retention = self.config.name_retention();
        while self.expiring.front().is_some_and(|(at, ..)| now.since(*at) > retention) {
            self.remove_oldest();
        }
    }

    /// Removes names that expire until there is room for one.
    fn make_room(&mut self) {
        while self.tasks.len() >= self.config.tasks_max && self.remove_oldest() {}
    }

    /// Removes the name that is to expire first. Returns whether there was one.
    fn remove_oldest(&mut self) -> bool {
        let Some((_, task, time)) = self.expiring.pop_front() else { return false };
        if self.tasks.get(&task).is_some_and(|event| event.time == time) {
            self.tasks.remove(&task);
        }
        // A consumer that knows the task gets its end with the next dump.
        if !self.current.contains_key(&task.id) && !self.known.contains(&task.id) {
            self.exits.remove(&task.id);
        }
        true
    }

    fn file(&mut self, event: FileEvent) {
        let file = event.file;
        self.files.insert(file, (self.next_file, event));
        self.file_order.push_back((file, self.next_file));
        self.next_file += 1;
        let max = self.config.files_max;
        while self.files.len() > max {
            let Some((file, number)) = self.file_order.pop_front() else { return };
            if self.files.get(&file).is_some_and(|(last, _)| *last == number) {
                self.files.remove(&file);
                self.forgotten += 1;
            }
        }
        if self.file_order.len() > 2 * max {
            let files = &self.files;
            self.file_order.retain(|(file, number)| files.get(file).is_some_and(|(last, _)| last == number));
        }
    }
}

/// Inserts a value if its key is known or there is room for one more.
fn insert<K: Eq + std::hash::Hash, V>(map: &mut HashMap<K, V>, max: usize, key: K, value: V) -> bool {
    let has_room = map.len() < max || map.contains_key(&key);
    if has_room {
        map.insert(key, value);
    }
    has_room
}
