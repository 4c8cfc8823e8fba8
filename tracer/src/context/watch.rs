//! What the tracer's own events say of processes, to whoever looks at these.
//!
//! *In*: events, on their way. *Out*: [`Sight`]s, to the thread of the [`Finder`]. *Invariant*: whoever drains rings does not wait:
//! where the queue is full, it is said that anything may have happened, as soon as there is room.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use blkkin_wire::attributes::ThreadAttributes;
use blkkin_wire::calls::CallId;
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{CallEvent, FileEvent, LayerEvent, TaskChange, TaskEvent};
use blkkin_wire::ids::{FileId, TaskId};
use blkkin_wire::process::ProcessEvent;

use super::believed::Believed;
use super::finder::{Finder, Sight};
use super::maps::MappedFile;
use super::places::Places;
use super::resources::{Resources, Telling};
use super::tally::Tally;

/// Sights that may wait.
const SIGHTS_MAX: usize = 4_096;
/// Tasks whose process is known: more than there are threads on most machines. Of one more the libraries are not seen.
const TASKS_MAX: usize = 1 << 20;
/// Files in memory of processes that say who they are. When there are more it begins anew.
const SAID_MAX: usize = 8_192;
/// Their name, as the kernel has it.
const SAID_NAME: &str = "memfd:OTEL_CTX";
/// What is mapped may be executed (include/uapi/asm-generic/mman-common.h).
const PROT_EXEC: u64 = 4;

/// Whose contexts are asked for.
#[derive(Clone, Debug)]
pub(crate) struct Asked {
    /// Also of those that are there already.
    pub(crate) everybody: bool,
    /// Of these.
    pub(crate) believed: Believed,
    /// Now and then of those that are known, as a filter keeps what they load out of the events.
    pub(crate) again: bool,
}

/// Watches events.
pub(crate) struct Watch {
    sights: SyncSender<Sight>,
    processes: HashMap<TaskId, u32>,
    said: HashSet<FileId>,
    /// How many names the threads of processes have for what they say.
    names: HashMap<u32, usize>,
    /// Processes whose threads have said something that has no name yet, among the events that are looked through.
    nameless: HashSet<u32>,
    /// What processes say of themselves.
    telling: Telling,
    overflowed: bool,
    /// Whether it has to be known what a task changes of itself.
    changes: bool,
    mmap: Option<CallId>,
    /// What became of looks.
    pub(crate) tally: Arc<Tally>,
}

impl Watch {
    /// Begins, and has all processes looked at that are there already, if so many may be followed.
    pub(crate) fn begin(places: Places, asked: Asked) -> io::Result<Watch> {
        let (sights, queue) = sync_channel(SIGHTS_MAX);
        let (everybody, changes) = (asked.everybody, asked.believed.depends());
        let tally = Arc::new(Tally::default());
        let told = Arc::clone(&tally);
        let telling = Telling::default();
        let resources = Resources::new(telling.clone(), Arc::clone(&tally));
        let look = move |queue: Receiver<Sight>| {
            // Whoever drains has made itself more urgent than others, and this thread with it.
            // SAFETY: no memory is passed; 0 is the calling thread.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
            Finder::new(places, resources, asked, told).run(&queue);
        };
        thread::Builder::new().name("contexts".to_owned()).spawn(move || look(queue))?;
        let mmap = CallId::by_name("mmap");
        Ok(Watch {
            sights,
            processes: HashMap::new(),
            said: HashSet::new(),
            names: HashMap::new(),
            nameless: HashSet::new(),
            telling,
            overflowed: everybody,
            changes,
            mmap,
            tally,
        })
    }

    /// Looks through events that go by.
    pub(crate) fn look(&mut self, events: &[LayerEvent]) {
        if self.overflowed && self.sights.try_send(Sight::Everything).is_ok() {
            self.overflowed = false;
        }
        for event in events {
            if let LayerEvent::Call(CallEvent { attributes: Some(said), task, .. }) = event {
                self.attributes(said, task.id);
            }
            match event {
                LayerEvent::Call(call) if Some(call.call) == self.mmap => self.call(call),
                LayerEvent::Task(task) => self.task(task),
                LayerEvent::File(file) => self.file(file),
                _ => {}
            }
        }
        // One for which there is no room is met again.
        for pid in self.nameless.drain() {
            let _ = self.sights.try_send(Sight::Nameless { pid });
        }
    }

    /// What processes say of themselves, as it is told.
    pub(crate) fn told(&mut self, from: MonotonicNs, until: MonotonicNs) -> Vec<ProcessEvent> {
        let told = self.telling.take(from, until);
        for process in &told {
            match process.thread_keys.len() {
                0 => self.names.remove(&process.pid.0),
                names => self.names.insert(process.pid.0, names),
            };
        }
        told
    }

    /// A number that has no name yet may have been given one just now (OTEP 4947: who meets one looks anew): not in a second, as else.
    fn attributes(&mut self, said: &ThreadAttributes, task: TaskId) {
        let Some(pid) = self.processes.get(&task) else { return };
        let names = self.names.get(pid).copied().unwrap_or_default();
        if said.entries.last().is_some_and(|last| usize::from(last.key) >= names) {
            self.nameless.insert(*pid);
        }
    }

    fn task(&mut self, task: &TaskEvent) {
        let pid = task.pid.0;
        if task.kernel_thread {
            return;
        }
        if task.change == TaskChange::Exited {
            self.processes.remove(&task.task.id);
            if task.tid.0 == pid {
                self.say(Sight::Ended { pid });
            }
            return;
        }
        if self.processes.len() < TASKS_MAX {
            self.processes.insert(task.task.id, pid);
        }
        match task.change {
            TaskChange::Execed => self.say(Sight::Execed { pid, program: task.exe.as_ref().map(mapped) }),
            TaskChange::Seen | TaskChange::Forked => {
                self.say(Sight::Seen { pid, parent: task.ppid.0, leads: task.tid.0 == pid });
            }
            TaskChange::Changed if self.changes => self.say(Sight::Changed { pid }),
            TaskChange::Changed | TaskChange::Exited => {}
        }
    }

    fn call(&mut self, call: &CallEvent) {
        let process = self.processes.get(&call.task.id).copied();
        let Some((open, pid)) = call.file.zip(process) else { return };
        if call.args[2] & PROT_EXEC != 0 {
            self.say(Sight::Mapped { pid, file: mapped(&open.file) });
        } else if self.said.contains(&open.file) {
            self.say(Sight::Said { pid });
        }
    }

    fn file(&mut self, file: &FileEvent) {
        if file.path.contains(SAID_NAME) {
            if self.said.len() >= SAID_MAX {
                self.said.clear();
            }
            self.said.insert(file.file);
        }
    }

    fn say(&mut self, sight: Sight) {
        self.overflowed |= self.sights.try_send(sight).is_err();
    }
}

fn mapped(file: &FileId) -> MappedFile {
    MappedFile { device: file.device, ino: file.ino }
}
