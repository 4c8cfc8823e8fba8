//! Program names of tasks; a client span's service is its program.
//!
//! *In*: the tracer's own events of tasks and files. *Out*: the file name of a task's program or,
//! if unknown, the task's comm. *Invariant*: bounded; a task without room is `unknown program`.

use std::collections::HashMap;

use blkkin_wire::event::{FileEvent, LayerEvent, TaskChange};
use blkkin_wire::ids::{FileId, TaskId};

/// Maximum number of tasks and files: more than most machines have at once.
const TASKS_MAX: usize = 65_536;
const FILES_MAX: usize = 16_384;

/// Mode bits of an executable regular file (include/uapi/linux/stat.h).
const S_IFMT: u32 = 0o170_000;
const S_IFREG: u32 = 0o100_000;
const MAY_EXECUTE: u32 = 0o111;

#[derive(Default)]
pub(super) struct ProgramNames {
    tasks: HashMap<TaskId, (Box<str>, Option<FileId>)>,
    files: HashMap<FileId, Box<str>>,
}

impl ProgramNames {
    pub(super) fn observe(&mut self, event: &LayerEvent) {
        match event {
            LayerEvent::Task(task) if task.change == TaskChange::Exited => {
                self.tasks.remove(&task.task.id);
            }
            LayerEvent::Task(task) if has_room(&self.tasks, &task.task.id, TASKS_MAX) => {
                self.tasks.insert(task.task.id, ((&*task.comm).into(), task.exe));
            }
            LayerEvent::File(file) if is_program(file) && has_room(&self.files, &file.file, FILES_MAX) => {
                let name = file.path.rsplit('/').next().unwrap_or_default();
                self.files.insert(file.file, name.into());
            }
            _ => {}
        }
    }

    pub(super) fn name(&self, task: u64) -> Box<str> {
        let known = self.tasks.get(&TaskId(task));
        let file = known.and_then(|(_, exe)| self.files.get(exe.as_ref()?));
        let name = file.or(known.map(|(comm, _)| comm)).filter(|name| !name.is_empty());
        name.cloned().unwrap_or_else(|| "unknown program".into())
    }
}

fn is_program(file: &FileEvent) -> bool {
    file.mode & S_IFMT == S_IFREG && file.mode & MAY_EXECUTE != 0
}

fn has_room<K: std::hash::Hash + Eq, V>(all: &HashMap<K, V>, key: &K, max: usize) -> bool {
    all.len() < max || all.contains_key(key)
}
