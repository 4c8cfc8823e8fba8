//! Watcher of the tracer's own events for process changes.
//!
//! *In*: event batches before they are published. *Out*: [`ProcessChange`]s, to the thread of the
//! [`Scanner`]. *Invariant*: the reader thread never blocks. If the queue is full, a rescan of all
//! processes is requested as soon as there is room.

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{FileEvent, LayerEvent, SyscallEvent, TaskChange, TaskEvent};
use blkkin_wire::ids::{FileId, TaskId};
use blkkin_wire::process_context::ProcessContextEvent;
use blkkin_wire::syscalls::SyscallId;
use blkkin_wire::thread_attributes::ThreadAttributes;

use super::config::ContextConfig;
use super::process_contexts::{OutgoingEvents, ProcessContextTracker};
use super::scan_stats::ScanStats;
use super::scanner::{ProcessChange, Scanner};
use super::tls_slots::TlsSlots;
use blkkin_otel_context::MappedFile;

/// Capacity of the queue to the scanner.
const QUEUE_MAX: usize = 4_096;
/// Maximum number of tasks whose process is known, more than most machines have threads. Library
/// mappings of further tasks are not observed.
const TASKS_MAX: usize = 1 << 20;
/// Maximum number of memory files with process contexts; beyond it the set is cleared.
const CONTEXT_FILES_MAX: usize = 8_192;
/// Name of these files in the kernel's paths.
const CONTEXT_FILE_NAME: &str = "memfd:OTEL_CTX";
/// Protection flag of an executable mapping (include/uapi/asm-generic/mman-common.h).
const PROT_EXEC: u64 = 4;

/// State of the watcher.
pub(crate) struct ProcessWatcher {
    queue: SyncSender<ProcessChange>,
    processes: HashMap<TaskId, u32>,
    context_files: HashSet<FileId>,
    /// Number of named attribute keys per process.
    key_counts: HashMap<u32, usize>,
    /// Processes of the current batch whose threads use unnamed keys.
    unknown_keys: HashSet<u32>,
    /// Process contexts to publish.
    outgoing: OutgoingEvents,
    overflowed: bool,
    /// True if the policy depends on credentials, so that their changes matter.
    watch_changes: bool,
    mmap: Option<SyscallId>,
    /// Counters of the scanner.
    pub(crate) stats: Arc<ScanStats>,
}

impl ProcessWatcher {
    /// Starts the scanner thread; scans existing processes first, if configured.
    pub(crate) fn begin(slots: TlsSlots, config: ContextConfig) -> io::Result<ProcessWatcher> {
        let (sender, receiver) = sync_channel(QUEUE_MAX);
        let (scan_existing, watch_changes) = (config.scan_existing, config.policy.depends_on_process());
        let stats = Arc::new(ScanStats::default());
        let scanner_stats = Arc::clone(&stats);
        let outgoing = OutgoingEvents::default();
        let resources = ProcessContextTracker::new(outgoing.clone(), Arc::clone(&stats));
        let scan = move |queue: Receiver<ProcessChange>| {
            // The reader thread has raised its priority, which this thread inherits. SAFETY: no
            // memory is passed; 0 is the calling thread.
            unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, 5) };
            Scanner::new(slots, resources, config, scanner_stats).run(&queue);
        };
        thread::Builder::new().name("contexts".to_owned()).spawn(move || scan(receiver))?;
        let mmap = SyscallId::by_name("mmap");
        Ok(ProcessWatcher {
            queue: sender,
            processes: HashMap::new(),
            context_files: HashSet::new(),
            key_counts: HashMap::new(),
            unknown_keys: HashSet::new(),
            outgoing,
            overflowed: scan_existing,
            watch_changes,
            mmap,
            stats,
        })
    }

    /// Observes a batch of events.
    pub(crate) fn observe(&mut self, events: &[LayerEvent]) {
        if self.overflowed && self.queue.try_send(ProcessChange::Rescan).is_ok() {
            self.overflowed = false;
        }
        for event in events {
            if let LayerEvent::Syscall(SyscallEvent { attributes: Some(attributes), task, .. }) = event {
                self.check_keys(attributes, task.id);
            }
            match event {
                LayerEvent::Syscall(call) if Some(call.call) == self.mmap => self.on_syscall(call),
                LayerEvent::Task(task) => self.on_task(task),
                LayerEvent::File(file) => self.on_file(file),
                _ => {}
            }
        }
        // If the queue is full, the next use of the key requests it again.
        for pid in self.unknown_keys.drain() {
            let _ = self.queue.try_send(ProcessChange::UnknownKey { pid });
        }
    }

    /// Takes the process contexts to publish with a batch.
    pub(crate) fn take_process_events(
        &mut self,
        from: MonotonicNs,
        until: MonotonicNs,
    ) -> Vec<ProcessContextEvent> {
        let events = self.outgoing.take(from, until);
        for process in &events {
            match process.thread_keys.len() {
                0 => self.key_counts.remove(&process.pid.0),
                names => self.key_counts.insert(process.pid.0, names),
            };
        }
        events
    }

    /// Requests a reread for an unnamed key, which may just have been named (OTEP 4947: a reader
    /// that meets one rereads the process context). Otherwise a change is noticed within a second.
    fn check_keys(&mut self, attributes: &ThreadAttributes, task: TaskId) {
        let Some(pid) = self.processes.get(&task) else { return };
        let names = self.key_counts.get(pid).copied().unwrap_or_default();
        if attributes.entries.last().is_some_and(|last| usize::from(last.key) >= names) {
            self.unknown_keys.insert(*pid);
        }
    }

    fn on_task(&mut self, task: &TaskEvent) {
        let pid = task.pid.0;
        if task.kernel_thread {
            return;
        }
        if task.change == TaskChange::Exited {
            self.processes.remove(&task.task.id);
            if task.tid.0 == pid {
                self.send(ProcessChange::Exited { pid });
            }
            return;
        }
        if self.processes.len() < TASKS_MAX {
            self.processes.insert(task.task.id, pid);
        }
        match task.change {
            TaskChange::Execed => {
                let program = task.exe.as_ref().map(mapped);
                self.send(ProcessChange::Execed { pid, program, time: task.time });
            }
            TaskChange::Discovered | TaskChange::Forked => {
                self.send(ProcessChange::Observed { pid, parent: task.ppid.0, leads: task.tid.0 == pid });
            }
            TaskChange::Changed if self.watch_changes => self.send(ProcessChange::CredentialsChanged { pid }),
            TaskChange::Changed | TaskChange::Exited => {}
        }
    }

    fn on_syscall(&mut self, call: &SyscallEvent) {
        let process = self.processes.get(&call.task.id).copied();
        let Some((open, pid)) = call.file.zip(process) else { return };
        if call.args[2] & PROT_EXEC != 0 {
            let (begin_ns, end_ns) = (call.enter.0, call.exit.0);
            self.send(ProcessChange::Mapped { pid, file: mapped(&open.file), begin_ns, end_ns });
        } else if self.context_files.contains(&open.file) {
            self.send(ProcessChange::ContextMapped { pid });
        }
    }

    fn on_file(&mut self, file: &FileEvent) {
        if file.path.contains(CONTEXT_FILE_NAME) {
            if self.context_files.len() >= CONTEXT_FILES_MAX {
                self.context_files.clear();
            }
            self.context_files.insert(file.file);
        }
    }

    fn send(&mut self, change: ProcessChange) {
        self.overflowed |= self.queue.try_send(change).is_err();
    }
}

fn mapped(file: &FileId) -> MappedFile {
    MappedFile { major: file.device.major, minor: file.device.minor, ino: file.ino }
}
