//! Names and disks of the virtual machines that traced QEMU processes run.
//!
//! *In*: the tracer's own events: files, which have the paths of programs, and tasks; and the command line and
//! the open files of each process whose program is QEMU. *Out*: a [`VirtualMachineEvent`] for each such process, some
//! ms after its first event, so its first calls may have none; another one when its disks have changed. They are read
//! again after 1 s, then after pauses that double up to [`REREAD_MAX`].
//!
//! *Invariant*: an event is emitted only if no event since the request reports that the process executes
//! another program, has ended, or is a new one with its pid. So what was read is never the name of a later
//! program, and an exec that follows in a later batch ends it there.
//!
//! *Rights*: the thread drops all capabilities but CAP_SYS_PTRACE, without which it cannot see the open files of
//! another user's process; such a machine has a name and no disks. Where contexts are off, it drops that too: then the
//! tracer looks into no process. A command line is readable for all users, unless
//! /proc is mounted with `hidepid`; that the program is QEMU is the kernel's word, by the path of its file.
//!
//! *A thread of its own* reads them. A command line is memory of the process, which may map a page of a
//! file system that does not respond there, and an image may be on one. The reader of the rings never waits for that: if the queue is
//! full, the next event of one of the process's tasks asks again.
//!
//! *Rejected*: a look at each new process's `/proc/PID/exe`, 2 us for each fork on a machine without a
//! virtual machine; the list of machines as of the start, which lacks those that start later.

use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use blkkin_qemu::{images_of, is_qemu_program, machine_of_qemu};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, TaskChange, TaskEvent};
use blkkin_wire::ids::{FileId, Pid};
use blkkin_wire::virtual_machine::VirtualMachineEvent;
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::machine_disks;
use crate::clock;

/// Capacity of the queue to the thread, and maximum number of events that wait to be published.
const QUEUE_MAX: usize = 1_024;
/// Maximum number of known files of QEMU's program; beyond it the set is cleared.
const PROGRAMS_MAX: usize = 1_024;
/// Maximum number of processes whose command line was requested; beyond it the set is cleared, and
/// living ones are read again.
const REQUESTED_MAX: usize = 65_536;
/// Maximum number of bytes of a name or UUID; of a longer one the rest is dropped. libvirt allows less
/// than 256.
const TEXT_MAX: usize = 1_024;
/// Pauses between two reads of one process: 1 ms of CPU each with 100 open files.
const REREAD: Duration = Duration::from_secs(1);
const REREAD_MAX: Duration = Duration::from_secs(64);

/// Request to read the command line of a process.
#[derive(Clone, Copy)]
struct Request {
    pid: Pid,
    /// Number of the request.
    number: u64,
}

/// A virtual machine that was read for a request.
struct Found {
    request: u64,
    event: VirtualMachineEvent,
}

/// Watches for QEMU's processes.
pub(crate) struct MachineWatcher {
    queue: SyncSender<Request>,
    found: Arc<Mutex<Vec<Found>>>,
    programs: HashSet<FileId>,
    /// Number of the latest request for each process, while it runs the same program.
    requested: HashMap<Pid, u64>,
    requests: u64,
}

impl MachineWatcher {
    /// Starts the thread, which ends with the watcher. It has dropped its capabilities when this returns.
    pub(crate) fn start(looks_into_processes: bool) -> io::Result<MachineWatcher> {
        let kept = if looks_into_processes { CapabilitySet::SYS_PTRACE } else { CapabilitySet::empty() };
        let (queue, requests) = sync_channel(QUEUE_MAX);
        let (dropped, is_confined) = sync_channel(1);
        let found = Arc::<Mutex<Vec<Found>>>::default();
        let output = Arc::clone(&found);
        let read = move || {
            drop_capabilities_but(kept);
            // The creator waits for it.
            let _ = dropped.send(());
            read_each(&requests, &output);
        };
        thread::Builder::new().name("machines".to_owned()).spawn(read)?;
        is_confined.recv().map_err(io::Error::other)?;
        let (programs, requested) = (HashSet::new(), HashMap::new());
        Ok(MachineWatcher { queue, found, programs, requested, requests: 0 })
    }

    /// Observes a batch of events.
    pub(crate) fn observe(&mut self, events: &[LayerEvent]) {
        for event in events {
            match event {
                LayerEvent::File(file) if is_qemu_program(Path::new(&*file.path)) => {
                    if self.programs.len() >= PROGRAMS_MAX {
                        self.programs.clear();
                    }
                    self.programs.insert(file.file);
                }
                LayerEvent::Task(task) if !self.programs.is_empty() => self.on_task(task),
                _ => {}
            }
        }
    }

    fn on_task(&mut self, task: &TaskEvent) {
        let is_leader = task.tid.0 == task.pid.0;
        let is_new_program = match task.change {
            TaskChange::Execed => true,
            TaskChange::Forked | TaskChange::Exited => is_leader,
            TaskChange::Discovered | TaskChange::Changed => false,
        };
        if is_new_program {
            self.requested.remove(&task.pid);
        }
        let runs_qemu = task.exe.is_some_and(|exe| self.programs.contains(&exe));
        if !runs_qemu || task.change == TaskChange::Exited || self.requested.contains_key(&task.pid) {
            return;
        }
        let request = Request { pid: task.pid, number: self.requests };
        if self.queue.try_send(request).is_ok() {
            if self.requested.len() >= REQUESTED_MAX {
                self.requested.clear();
            }
            self.requested.insert(request.pid, request.number);
            self.requests += 1;
        }
    }

    /// Takes the virtual machines that were read by `until`, for a batch after one whose watermark was
    /// `from`.
    pub(crate) fn take(&self, from: MonotonicNs, until: MonotonicNs) -> Vec<VirtualMachineEvent> {
        let mut waiting = self.found.lock().unwrap_or_else(PoisonError::into_inner);
        let ready = waiting.partition_point(|found| found.event.time <= until);
        let ready: Vec<Found> = waiting.drain(..ready).collect();
        drop(waiting);
        let holds = |found: &Found| self.requested.get(&found.event.pid) == Some(&found.request);
        let moved = |found: Found| VirtualMachineEvent { time: found.event.time.max(from), ..found.event };
        ready.into_iter().filter(holds).map(moved).collect()
    }
}

/// Drops all capabilities of the calling thread but these. One that cannot is no worse than before.
fn drop_capabilities_but(kept: CapabilitySet) {
    for capability in CapabilitySet::all().difference(kept).iter() {
        let _ = remove_capability_from_bounding_set(capability);
    }
    let own = capabilities(None).map_or(CapabilitySet::empty(), |own| own.permitted);
    let kept = own.intersection(kept);
    let sets = CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() };
    let _ = set_capabilities(None, sets);
}

/// A process that was read, and is read again.
struct PolledProcess {
    request: Request,
    event: VirtualMachineEvent,
    due: Instant,
    pause: Duration,
}

/// Reads each requested process, and again while it runs, until the watcher is gone.
fn read_each(requests: &Receiver<Request>, found: &Mutex<Vec<Found>>) {
    let mut polled: HashMap<Pid, PolledProcess> = HashMap::new();
    loop {
        let due = polled.values().map(|process| process.due).min();
        let wait = due.map_or(REREAD_MAX, |due| due.saturating_duration_since(Instant::now()));
        match requests.recv_timeout(wait) {
            Ok(request) => {
                let Some(event) = read(request.pid) else { continue };
                push(found, request, &event);
                if polled.len() < REQUESTED_MAX {
                    let due = Instant::now() + REREAD;
                    polled.insert(request.pid, PolledProcess { request, event, due, pause: REREAD });
                }
            }
            Err(RecvTimeoutError::Timeout) => reread(&mut polled, found),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Reads the processes again that are due, and forgets those that have ended.
fn reread(polled: &mut HashMap<Pid, PolledProcess>, found: &Mutex<Vec<Found>>) {
    let now = Instant::now();
    polled.retain(|pid, process| {
        if process.due > now {
            return true;
        }
        let Some(event) = read(*pid) else { return false };
        if event.disks != process.event.disks {
            push(found, process.request, &event);
            process.event = event;
            process.pause = REREAD;
        } else {
            process.pause = (process.pause * 2).min(REREAD_MAX);
        }
        process.due = Instant::now() + process.pause;
        true
    });
}

/// Passes an event on. One that finds no room is as one that could not be read.
fn push(found: &Mutex<Vec<Found>>, request: Request, event: &VirtualMachineEvent) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    if found.len() < QUEUE_MAX {
        found.push(Found { request: request.number, event: event.clone() });
    }
}

fn read(pid: Pid) -> Option<VirtualMachineEvent> {
    let root = Path::new("/");
    let machine = machine_of_qemu(root, pid.0)?;
    let images = images_of(root, pid.0).unwrap_or_default();
    let [name, uuid] = [&machine.name, &machine.uuid].map(|text| text.as_deref().unwrap_or_default());
    let event = VirtualMachineEvent {
        disks: machine_disks::of_images(root, &images),
        ..VirtualMachineEvent::bare(clock::now(), pid, shortened(name), shortened(uuid))
    };
    let is_known = !event.shown_name().is_empty() || !event.disks.is_empty();
    is_known.then_some(event)
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use blkkin_wire::event::{FileEvent, TaskRef};
    use blkkin_wire::ids::{DeviceId, NameId, TaskId, Tid};

    use super::*;

    const PROGRAM: FileId =
        FileId { device: DeviceId { major: 8, minor: 1 }, ino: 7, generation: 0, name: NameId::NONE };

    /// A process whose program's file has QEMU's name; killed when dropped.
    struct Qemu(Child);

    impl Qemu {
        fn start(arguments: &[&str]) -> Qemu {
            let folder = tempfile::tempdir().unwrap();
            let program = folder.path().join("qemu-system-test");
            // By a process of its own: a child that another test forks meanwhile would inherit the open
            // descriptor, and a file that is open for writing cannot be executed (ETXTBSY).
            assert!(Command::new("cp").arg("/bin/sh").arg(&program).status().unwrap().success());
            let mut command = Command::new(&program);
            command.arg0("qemu").args(["-c", "read -r line", "sh"]).args(arguments);
            // Its file is removed with the folder, as by an update.
            Qemu(command.stdin(Stdio::piped()).spawn().unwrap())
        }

        fn pid(&self) -> Pid {
            Pid(self.0.id())
        }
    }

    impl Drop for Qemu {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    fn file(path: &str) -> LayerEvent {
        LayerEvent::File(FileEvent::bare(PROGRAM, MonotonicNs(1), path))
    }

    fn task(pid: Pid, change: TaskChange) -> LayerEvent {
        let task = TaskEvent::bare(TaskRef { id: TaskId(1), version: 0 }, MonotonicNs(2), "qemu");
        LayerEvent::Task(TaskEvent { pid, tid: Tid(pid.0), exe: Some(PROGRAM), change, ..task })
    }

    /// Waits for the events of a process, or for `limit`.
    fn taken(watcher: &MachineWatcher, limit: Duration) -> Vec<VirtualMachineEvent> {
        let start = Instant::now();
        loop {
            let events = watcher.take(MonotonicNs(0), MonotonicNs(u64::MAX));
            if !events.is_empty() || start.elapsed() > limit {
                return events;
            }
            thread::sleep(Duration::from_millis(1));
        }
    }

    fn wait_for_read(watcher: &MachineWatcher) {
        let start = Instant::now();
        while watcher.found.lock().unwrap().is_empty() {
            assert!(start.elapsed() < SOON);
            thread::sleep(Duration::from_millis(1));
        }
    }

    const SOON: Duration = Duration::from_secs(20);
    const NEVER: Duration = Duration::from_millis(100);

    #[test]
    fn a_process_of_qemu_is_named_once_until_it_executes_another_program() {
        let qemu = Qemu::start(&["-name", "guest=web1,debug-threads=on", "-uuid", "1-2"]);
        let mut watcher = MachineWatcher::start(true).unwrap();
        watcher.observe(&[file("/usr/bin/qemu-system-x86_64"), task(qemu.pid(), TaskChange::Discovered)]);
        let events = taken(&watcher, SOON);
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.pid, &*event.name, &*event.uuid), (qemu.pid(), "web1", "1-2"));
        watcher.observe(&[task(qemu.pid(), TaskChange::Changed)]);
        assert_eq!(taken(&watcher, NEVER), []);
        watcher.observe(&[task(qemu.pid(), TaskChange::Execed)]);
        assert_eq!(taken(&watcher, SOON).len(), 1);
    }

    #[test]
    fn what_was_read_before_another_program_is_no_name_of_it() {
        let qemu = Qemu::start(&["-name", "web1"]);
        let pid = qemu.pid();
        let mut watcher = MachineWatcher::start(true).unwrap();
        watcher.observe(&[file("/usr/bin/qemu-img"), task(pid, TaskChange::Discovered)]);
        assert_eq!(taken(&watcher, NEVER), []);
        watcher.observe(&[file("/usr/bin/qemu-kvm")]);
        for change in [TaskChange::Execed, TaskChange::Forked, TaskChange::Exited] {
            watcher.observe(&[task(pid, TaskChange::Discovered)]);
            wait_for_read(&watcher);
            let LayerEvent::Task(other) = task(pid, change) else { panic!() };
            watcher.observe(&[LayerEvent::Task(TaskEvent { exe: None, ..other })]);
            assert_eq!(watcher.take(MonotonicNs(0), MonotonicNs(u64::MAX)), [], "{change:?}");
        }
        watcher.observe(&[task(pid, TaskChange::Discovered)]);
        assert_eq!(taken(&watcher, SOON).len(), 1);
    }

    #[test]
    fn an_event_is_between_the_watermarks_of_its_batch() {
        let qemu = Qemu::start(&["-uuid", &"é".repeat(TEXT_MAX)]);
        let mut watcher = MachineWatcher::start(true).unwrap();
        watcher.observe(&[file("/usr/bin/kvm"), task(qemu.pid(), TaskChange::Forked)]);
        wait_for_read(&watcher);
        assert_eq!(watcher.take(MonotonicNs(0), MonotonicNs(1)), [], "it was read later");
        let from = MonotonicNs(u64::MAX - 1);
        let events = watcher.take(from, MonotonicNs(u64::MAX));
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.time, event.uuid.len(), &*event.name), (from, TEXT_MAX, ""));
    }
}
