//! Names of tasks, files, devices and processes whose batches a flight recorder no longer holds.
//!
//! *In*: names in the order in which their batches leave. *Out*: the names that later events may refer to: the latest
//! of each thing, without tasks that have ended.
//!
//! *Invariant*: at most [`NAMES_MAX`] names. The one that was added first makes room, and is counted. Events that
//! refer to it show a number.

use std::collections::{HashMap, VecDeque};

use blkkin_wire::event::{LayerEvent, TaskChange};
use blkkin_wire::ids::{DeviceId, FileId, Pid, TaskId};

/// Most names: some 32 MiB.
const NAMES_MAX: usize = 131_072;

/// Thing that has a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum NameKey {
    Task(TaskId),
    File(FileId),
    Device(DeviceId),
    ProcessContext(Pid),
    VirtualMachine(Pid),
}

impl NameKey {
    /// Returns an event with its key if it is a name.
    pub(super) fn with_event(event: &LayerEvent) -> Option<(NameKey, LayerEvent)> {
        let key = match event {
            LayerEvent::Task(task) => NameKey::Task(task.task.id),
            LayerEvent::File(file) => NameKey::File(file.file),
            LayerEvent::Device(device) => NameKey::Device(device.device),
            LayerEvent::ProcessContext(context) => NameKey::ProcessContext(context.pid),
            LayerEvent::VirtualMachine(machine) => NameKey::VirtualMachine(machine.pid),
            LayerEvent::Syscall(_)
            | LayerEvent::Bio(_)
            | LayerEvent::Request(_)
            | LayerEvent::Pair(_)
            | LayerEvent::AsyncIo(_)
            | LayerEvent::Commit(_)
            | LayerEvent::RpcEndpoint(_)
            | LayerEvent::DaemonSpan(_)
            | LayerEvent::PageOrigin(_)
            | LayerEvent::Fault(_)
            | LayerEvent::Dirty(_) => return None,
        };
        Some((key, event.clone()))
    }
}

/// The latest names.
#[derive(Debug, Default)]
pub(super) struct NameStore {
    names: HashMap<NameKey, (u64, LayerEvent)>,
    /// Keys in the order in which they were added, each with its number. A key that was added again is here twice,
    /// and only the later number is in `names`.
    order: VecDeque<(NameKey, u64)>,
    next: u64,
    forgotten: u64,
}

impl NameStore {
    pub(super) fn add(&mut self, key: NameKey, event: LayerEvent) {
        if matches!(&event, LayerEvent::Task(task) if task.change == TaskChange::Exited) {
            self.names.remove(&key);
            return;
        }
        self.names.insert(key, (self.next, event));
        self.order.push_back((key, self.next));
        self.next += 1;
        while self.names.len() > NAMES_MAX {
            self.forget_oldest();
        }
        if self.order.len() > 2 * NAMES_MAX {
            let names = &self.names;
            self.order.retain(|(key, number)| names.get(key).is_some_and(|(last, _)| last == number));
        }
    }

    /// Returns all names in the order of their times.
    pub(super) fn all(&self) -> Vec<LayerEvent> {
        let mut all: Vec<_> = self.names.values().collect();
        all.sort_by_key(|(number, event)| (event.time(), *number));
        all.into_iter().map(|(_, event)| event.clone()).collect()
    }

    /// Returns the number of names that found no room.
    pub(super) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn forget_oldest(&mut self) {
        while let Some((key, number)) = self.order.pop_front() {
            if self.names.get(&key).is_some_and(|(last, _)| *last == number) {
                self.names.remove(&key);
                self.forgotten += 1;
                return;
            }
        }
    }
}
