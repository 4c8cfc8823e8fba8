//! Columns of name events: tasks, files, devices.

use super::Malformed;
use super::columns::columns;
use super::decode_tables::DecodeTables;
use super::encode_tables::EncodeTables;
use super::ids::IdWriter;
use super::message::{DeviceEvents, FileEvents, TaskEvents};
use crate::clock::MonotonicNs;
use crate::event::{Captured, DeviceEvent, FileEvent, PidNsIds, TaskChange, TaskEvent};
use crate::ids::{CgroupId, Pid, TaskId, Tid, Uid};

const PARENT: u32 = 1 << 0;
const EXE: u32 = 1 << 1;
const KERNEL_THREAD: u32 = 1 << 2;
const NS_IDS: u32 = 1 << 3;
/// For files and devices: the second device is present.
const DEVICE: u32 = 1 << 0;
/// For devices: the name of a virtual machine's disk is present.
const DISK: u32 = 1 << 1;
/// For files: the name was removed.
const REMOVED: u32 = 1 << 1;

/// Task changes by their numbers.
const CHANGES: [TaskChange; 5] =
    [TaskChange::Discovered, TaskChange::Forked, TaskChange::Execed, TaskChange::Changed, TaskChange::Exited];
/// Capture states by their numbers.
const CAPTURED: [Captured; 3] = [Captured::Full, Captured::Truncated, Captured::Faulted];

fn number<T: PartialEq>(of: &[T], value: &T) -> u32 {
    of.iter().position(|other| other == value).unwrap_or_default() as u32
}

/// Writer of name event columns.
#[derive(Default)]
pub(super) struct NameWriter {
    tasks: TaskEvents,
    parent: IdWriter,
    files: FileEvents,
    devices: DeviceEvents,
}

impl NameWriter {
    pub(super) fn put_task(&mut self, task: &TaskEvent, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.tasks;
        let mut flags = if task.kernel_thread { KERNEL_THREAD } else { 0 };
        columns.task.push(tables.tasks.intern(task.task));
        columns.change.push(number(&CHANGES, &task.change));
        if let Some(parent) = task.parent {
            flags |= PARENT;
            tables.origins.put(&mut self.parent, parent.0);
        }
        columns.tid.push(task.tid.0);
        columns.pid.push(task.pid.0);
        columns.ppid.push(task.ppid.0);
        columns.uid.push(task.uid.0);
        columns.cgroup.push(task.cgroup.0);
        columns.comm.push(task.comm.as_ref().to_owned());
        if let Some(exe) = task.exe {
            flags |= EXE;
            columns.exe.push(tables.files.intern(exe));
        }
        if let Some(inner) = task.ns_ids {
            flags |= NS_IDS;
            columns.pid_ns.push(inner.pid_ns);
            columns.ns_pid.push(inner.pid.0);
            columns.ns_tid.push(inner.tid.0);
        }
        columns.flags.push(flags);
    }

    pub(super) fn put_file(&mut self, file: &FileEvent, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.files;
        columns.file.push(tables.files.intern(file.file));
        columns.captured.push(number(&CAPTURED, &file.captured));
        columns.path.push(file.path.as_ref().to_owned());
        columns.filesystem.push(file.filesystem.as_ref().to_owned());
        let device = if file.device_file.is_some() { DEVICE } else { 0 };
        columns.flags.push(device | if file.removed { REMOVED } else { 0 });
        columns.device_file.extend(file.device_file.map(|device| tables.devices.intern(device.to_kernel())));
        columns.mode.push(file.mode);
    }

    pub(super) fn put_device(&mut self, device: &DeviceEvent, tables: &mut EncodeTables<'_>) {
        let columns = &mut self.devices;
        columns.device.push(tables.devices.intern(device.device.to_kernel()));
        columns.name.push(device.name.as_ref().to_owned());
        let flag = |is_set, flag| if is_set { flag } else { 0 };
        columns.flags.push(flag(device.partition_of.is_some(), DEVICE) | flag(device.disk.is_some(), DISK));
        columns.disk.extend(device.disk.as_deref().map(str::to_owned));
        columns.partition_of.extend(device.partition_of.map(|disk| tables.devices.intern(disk.to_kernel())));
    }

    pub(super) fn end(self) -> (TaskEvents, FileEvents, DeviceEvents) {
        (TaskEvents { parent: self.parent.end(), ..self.tasks }, self.files, self.devices)
    }
}

columns! {
    TaskColumns of TaskEvents {
        task: u32, change: u32, flags: u32, tid: u32, pid: u32, ppid: u32, uid: u32, cgroup: u64, comm: String, exe: u32,
        pid_ns: u32, ns_pid: u32, ns_tid: u32,
    } ids { parent }
}

columns! {
    FileColumns of FileEvents {
        file: u32, captured: u32, path: String, filesystem: String, flags: u32, device_file: u32, mode: u32,
    } ids {}
}

columns! {
    DeviceColumns of DeviceEvents { device: u32, name: String, flags: u32, partition_of: u32, disk: String } ids {}
}

/// Reader of name event columns.
pub(super) struct NameReader<'a> {
    tasks: TaskColumns<'a>,
    files: FileColumns<'a>,
    devices: DeviceColumns<'a>,
}

impl<'a> NameReader<'a> {
    pub(super) fn new(tasks: &'a TaskEvents, files: &'a FileEvents, devices: &'a DeviceEvents) -> Self {
        NameReader {
            tasks: TaskColumns::new(tasks),
            files: FileColumns::new(files),
            devices: DeviceColumns::new(devices),
        }
    }

    pub(super) fn end(&self) -> Result<(), Malformed> {
        self.tasks.end()?;
        self.files.end()?;
        self.devices.end()
    }

    /// Reads the next task event.
    pub(super) fn task(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<TaskEvent, Malformed> {
        let columns = &mut self.tasks;
        let flags = *columns.flags.next()?;
        let change = *columns.change.next()?;
        let exe = columns.exe.next_if(flags & EXE != 0)?;
        let inner = match columns.pid_ns.next_if(flags & NS_IDS != 0)? {
            Some(&pid_ns) => {
                let (pid, tid) = (Pid(*columns.ns_pid.next()?), Tid(*columns.ns_tid.next()?));
                Some(PidNsIds { pid_ns, pid, tid })
            }
            None => None,
        };
        Ok(TaskEvent {
            time,
            task: tables.task(columns.task.next()?, "TaskEvents.task")?,
            parent: columns.parent.next_if(flags & PARENT != 0, &tables.ids)?.map(TaskId),
            change: *CHANGES.get(change as usize).ok_or_else(|| columns.change.refuse(change.into()))?,
            tid: Tid(*columns.tid.next()?),
            pid: Pid(*columns.pid.next()?),
            ppid: Pid(*columns.ppid.next()?),
            uid: Uid(*columns.uid.next()?),
            cgroup: CgroupId(*columns.cgroup.next()?),
            comm: columns.comm.next()?.as_str().into(),
            exe: exe.map(|index| tables.file(index, "TaskEvents.exe")).transpose()?,
            kernel_thread: flags & KERNEL_THREAD != 0,
            ns_ids: inner,
        })
    }

    /// Reads the next file event.
    pub(super) fn file(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<FileEvent, Malformed> {
        let columns = &mut self.files;
        let kept = *columns.captured.next()?;
        let flags = *columns.flags.next()?;
        let device = columns.device_file.next_if(flags & DEVICE != 0)?;
        Ok(FileEvent {
            time,
            file: tables.file(columns.file.next()?, "FileEvents.file")?,
            path: columns.path.next()?.as_str().into(),
            captured: *CAPTURED.get(kept as usize).ok_or_else(|| columns.captured.refuse(kept.into()))?,
            filesystem: columns.filesystem.next()?.as_str().into(),
            device_file: device.map(|index| tables.device(index, "FileEvents.device_file")).transpose()?,
            mode: *columns.mode.next()?,
            removed: flags & REMOVED != 0,
        })
    }

    /// Reads the next device event.
    pub(super) fn device(
        &mut self,
        time: MonotonicNs,
        tables: &DecodeTables<'_>,
    ) -> Result<DeviceEvent, Malformed> {
        let columns = &mut self.devices;
        let flags = *columns.flags.next()?;
        let partition_of = columns.partition_of.next_if(flags & DEVICE != 0)?;
        Ok(DeviceEvent {
            time,
            device: tables.device(columns.device.next()?, "DeviceEvents.device")?,
            name: columns.name.next()?.as_str().into(),
            partition_of: partition_of
                .map(|index| tables.device(index, "DeviceEvents.partition_of"))
                .transpose()?,
            disk: columns.disk.next_if(flags & DISK != 0)?.map(|disk| disk.as_str().into()),
        })
    }
}
