//! Names and disks of the virtual machines that traced QEMU processes run.
//!
//! *In*: the tracer's own events: files, which have the paths of programs, tasks, and NBD requests, which have the connections of
//! a process; and the command line and the open files of each process whose program is QEMU. *Out*: a [`VirtualMachineEvent`] for each such process, some
//! ms after its first event, so its first calls may have none; another one when they have changed. They are read
//! again at the first NBD request on a connection, after 1 s, then after pauses that double up to [`REREAD_MAX`].
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

use blkkin_qemu::{images_of, is_qemu_program, machine_of_qemu, nbd_drives_of};
use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::event::{LayerEvent, TaskChange, TaskEvent};
use blkkin_wire::ids::{FileId, Pid};
use blkkin_wire::remote_link::{RpcEndpointEvent, RpcSide};
use blkkin_wire::virtual_machine::{MachineDisk, NbdDisk, VirtualMachineEvent};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, remove_capability_from_bounding_set, set_capabilities,
};

use super::{machine_disks, nbd_disks};
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

/// Least pause between two reads of one process that its NBD requests cause.
const REQUESTED_REREAD: Duration = Duration::from_millis(100);
/// Maximum number of NBD connections of a process that are known. Beyond it all are forgotten, and those in use are read again.
const CONNECTIONS_MAX: usize = 64;

/// Request to read the command line of a process.
struct Request {
    pid: Pid,
    /// Number of the first request for the process, while it runs the same program.
    number: u64,
    /// NBD connection on which the process sent its first request.
    connection: Option<Box<str>>,
}

/// A virtual machine that was read for a request.
struct Found {
    request: u64,
    event: VirtualMachineEvent,
}

/// A process that was requested.
struct Requested {
    /// Number of the first request for it.
    number: u64,
    /// NBD connections that were requested.
    connections: Vec<Box<str>>,
}

/// Watches for QEMU's processes.
pub(crate) struct MachineWatcher {
    queue: SyncSender<Request>,
    found: Arc<Mutex<Vec<Found>>>,
    programs: HashSet<FileId>,
    /// Processes that were requested, while they run the same program.
    requested: HashMap<Pid, Requested>,
    requests: u64,
    reads_disks: bool,
}

impl MachineWatcher {
    /// Starts the thread, which ends with the watcher. It has dropped its capabilities when this returns. `reads_disks`: the
    /// events have the disks of the virtual machines.
    pub(crate) fn start(looks_into_processes: bool, reads_disks: bool) -> io::Result<MachineWatcher> {
        let kept = if looks_into_processes { CapabilitySet::SYS_PTRACE } else { CapabilitySet::empty() };
        let (queue, requests) = sync_channel(QUEUE_MAX);
        let (dropped, is_confined) = sync_channel(1);
        let found = Arc::<Mutex<Vec<Found>>>::default();
        let output = Arc::clone(&found);
        let read = move || {
            drop_capabilities_but(kept);
            // The creator waits for it.
            let _ = dropped.send(());
            read_each(&requests, &output, reads_disks);
        };
        thread::Builder::new().name("machines".to_owned()).spawn(read)?;
        is_confined.recv().map_err(io::Error::other)?;
        let (programs, requested) = (HashSet::new(), HashMap::new());
        Ok(MachineWatcher { queue, found, programs, requested, requests: 0, reads_disks })
    }

    /// Observes a batch of events.
    pub(crate) fn observe(&mut self, events: &[LayerEvent]) {
        let mut last = None;
        for event in events {
            match event {
                LayerEvent::File(file) if is_qemu_program(Path::new(&*file.path)) => {
                    if self.programs.len() >= PROGRAMS_MAX {
                        self.programs.clear();
                    }
                    self.programs.insert(file.file);
                }
                LayerEvent::Task(task) if !self.programs.is_empty() => self.on_task(task),
                // The event before a client's span has its connection.
                LayerEvent::RpcEndpoint(endpoint) => last = Some(endpoint),
                LayerEvent::DaemonSpan(span) if self.reads_disks => {
                    if let Some(endpoint) = last.take().filter(|endpoint| endpoint.span == span.span) {
                        self.on_request(span.pid, endpoint);
                    }
                }
                _ => {}
            }
        }
    }

    /// Requests to read a process again that sent an NBD request on a connection that is new. A request without a reply may
    /// be of a connection that is closed.
    fn on_request(&mut self, pid: Pid, endpoint: &RpcEndpointEvent) {
        let Some(requested) = self.requested.get_mut(&pid) else { return };
        let key = &endpoint.key;
        let is_nbd = endpoint.side == RpcSide::Client && key.protocol.starts_with("nbd");
        if !is_nbd || endpoint.no_reply || requested.connections.contains(&key.connection) {
            return;
        }
        let connection = key.connection.clone();
        let request = Request { pid, number: requested.number, connection: Some(connection.clone()) };
        if self.queue.try_send(request).is_ok() {
            if requested.connections.len() >= CONNECTIONS_MAX {
                requested.connections.clear();
            }
            requested.connections.push(connection);
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
        let number = self.requests;
        if self.queue.try_send(Request { pid: task.pid, number, connection: None }).is_ok() {
            if self.requested.len() >= REQUESTED_MAX {
                self.requested.clear();
            }
            self.requested.insert(task.pid, Requested { number, connections: Vec::new() });
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
        let number_of = |pid: Pid| self.requested.get(&pid).map(|requested| requested.number);
        let holds = |found: &Found| number_of(found.event.pid) == Some(found.request);
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

/// A process that is read, again and again.
struct PolledProcess {
    number: u64,
    connections: Vec<Box<str>>,
    /// Event that was passed on last.
    event: Option<VirtualMachineEvent>,
    due: Instant,
    read_at: Option<Instant>,
    pause: Duration,
}

/// Reads each requested process, and again while it runs, until the watcher is gone.
fn read_each(requests: &Receiver<Request>, found: &Mutex<Vec<Found>>, reads_disks: bool) {
    let mut polled: HashMap<Pid, PolledProcess> = HashMap::new();
    loop {
        let due = polled.values().map(|process| process.due).min();
        let wait = due.map_or(REREAD_MAX, |due| due.saturating_duration_since(Instant::now()));
        match requests.recv_timeout(wait) {
            Ok(request) => note(&mut polled, request),
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return,
        }
        requests.try_iter().for_each(|request| note(&mut polled, request));
        read_due(&mut polled, found, reads_disks);
    }
}

/// Makes a requested process due.
fn note(polled: &mut HashMap<Pid, PolledProcess>, request: Request) {
    let Request { pid, number, connection } = request;
    let now = Instant::now();
    let is_known = polled.get(&pid).is_some_and(|process| process.number == number);
    if !is_known && polled.len() >= REQUESTED_MAX {
        return;
    }
    let new = || PolledProcess {
        number,
        connections: Vec::new(),
        event: None,
        due: now,
        read_at: None,
        pause: REREAD,
    };
    let process = polled.entry(pid).or_insert_with(new);
    if process.number != number {
        *process = new();
    }
    process.due = process.read_at.map_or(now, |at| now.max(at + REQUESTED_REREAD)).min(process.due.max(now));
    process.pause = REREAD;
    if let Some(connection) = connection.filter(|connection| !process.connections.contains(connection)) {
        if process.connections.len() >= CONNECTIONS_MAX {
            process.connections.clear();
        }
        process.connections.push(connection);
    }
}

/// Reads the processes that are due, passes on what has changed, and forgets those that have ended.
fn read_due(polled: &mut HashMap<Pid, PolledProcess>, found: &Mutex<Vec<Found>>, reads_disks: bool) {
    let now = Instant::now();
    polled.retain(|pid, process| {
        if process.due > now {
            return true;
        }
        let Some(event) = read(*pid, &process.connections, reads_disks) else {
            // While a process executes a program, its command line is empty for a moment.
            process.due = now + process.pause;
            process.pause *= 2;
            return process.pause <= REREAD * 16;
        };
        let is_first = process.read_at.is_none();
        if content(&event) != process.event.as_ref().and_then(content) {
            push(found, process.number, &event);
            process.event = Some(event);
            process.pause = REREAD;
        } else if !is_first {
            process.pause = (process.pause * 2).min(REREAD_MAX);
        }
        process.read_at = Some(now);
        process.due = Instant::now() + process.pause;
        true
    });
}

/// Content of an event, none if it is empty.
type Content<'a> = Option<(&'a str, &'a str, &'a [MachineDisk], &'a [NbdDisk])>;

fn content(event: &VirtualMachineEvent) -> Content<'_> {
    let VirtualMachineEvent { name, uuid, disks, nbd_disks, .. } = event;
    let is_known = !event.shown_name().is_empty() || !disks.is_empty() || !nbd_disks.is_empty();
    is_known.then_some((&**name, &**uuid, disks.as_slice(), nbd_disks.as_slice()))
}

/// Passes an event on. One that finds no room is as one that could not be read.
fn push(found: &Mutex<Vec<Found>>, request: u64, event: &VirtualMachineEvent) {
    let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
    if found.len() < QUEUE_MAX {
        found.push(Found { request, event: event.clone() });
    }
}

/// Reads a process. None if it has ended, or has no command line now.
fn read(pid: Pid, connections: &[Box<str>], reads_disks: bool) -> Option<VirtualMachineEvent> {
    let root = Path::new("/");
    let machine = machine_of_qemu(root, pid.0)?;
    let [name, uuid] = [&machine.name, &machine.uuid].map(|text| text.as_deref().unwrap_or_default());
    let event = VirtualMachineEvent::bare(clock::now(), pid, shortened(name), shortened(uuid));
    if !reads_disks {
        return Some(event);
    }
    let images = images_of(root, pid.0).unwrap_or_default();
    let mut disks = machine_disks::of_images(root, &images);
    let mut nbd_disks = Vec::new();
    if !connections.is_empty() {
        let drives = nbd_drives_of(root, pid.0, &images).unwrap_or_default();
        nbd_disks = nbd_disks::of_connections(root, pid, connections, &drives);
    }
    // Two disks of one name have none.
    let of_files: HashSet<Box<str>> = disks.iter().map(|disk| disk.disk.clone()).collect();
    let over_nbd: HashSet<Box<str>> = nbd_disks.iter().map(|disk| disk.disk.clone()).collect();
    disks.retain(|disk| !over_nbd.contains(&disk.disk));
    nbd_disks.retain(|disk| !of_files.contains(&disk.disk));
    Some(VirtualMachineEvent { disks, nbd_disks, ..event })
}

fn shortened(text: &str) -> &str {
    &text[..text.floor_char_boundary(TEXT_MAX)]
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::os::unix::process::CommandExt;
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use blkkin_wire::daemon_span::DaemonSpanEvent;
    use blkkin_wire::event::{FileEvent, TaskRef};
    use blkkin_wire::ids::{DeviceId, NameId, SpanId, TaskId, Tid, TraceId};
    use blkkin_wire::remote_link::RpcKey;

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
        let mut watcher = MachineWatcher::start(true, true).unwrap();
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
        let mut watcher = MachineWatcher::start(true, true).unwrap();
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

    /// The disk is withdrawn although the virtual machine has no name.
    #[test]
    fn the_disk_of_a_connection_is_known_until_another_one_leads_there() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let drive = format!("file=nbd:unix:{},id=d,format=raw", socket.display());
        let qemu = Qemu::start(&["-drive", &drive, "-device", "virtio-blk-pci,drive=d,serial=far"]);
        let mut watcher = MachineWatcher::start(true, true).unwrap();
        watcher.observe(&[file("/usr/bin/qemu-kvm"), task(qemu.pid(), TaskChange::Discovered)]);
        assert_eq!(taken(&watcher, NEVER), [], "it has nothing to report");
        let connect = || [UnixStream::connect(&socket).unwrap(), listener.accept().unwrap().0];
        let inode = |stream: &UnixStream| rustix::fs::fstat(stream).unwrap().st_ino;
        let mut disks_after = |[own, remote]: &[UnixStream; 2], no_reply: bool, limit: Duration| {
            let connection = format!("unix:boot:{}>{}", inode(own), inode(remote)).into();
            let key = RpcKey { protocol: "nbd".into(), connection, cookie: 1 };
            let (id, time) = (SpanId(1), MonotonicNs(3));
            let (side, unique) = (RpcSide::Client, true);
            let endpoint =
                RpcEndpointEvent { span: id, root: id, side, key, unique, no_reply, begin: time, end: time };
            let span =
                DaemonSpanEvent { pid: qemu.pid(), ..DaemonSpanEvent::bare(id, TraceId(1), time, time) };
            watcher.observe(&[LayerEvent::RpcEndpoint(endpoint.into()), LayerEvent::DaemonSpan(span.into())]);
            taken(&watcher, limit).pop().map(|event| event.nbd_disks.len())
        };
        let [first, second] = [connect(), connect()];
        assert_eq!(disks_after(&first, false, SOON), Some(1));
        assert_eq!(disks_after(&first, false, NEVER), None);
        assert_eq!(disks_after(&second, true, NEVER), None, "it ended without a reply");
        assert_eq!(disks_after(&second, false, SOON), Some(0), "either may be the disk");
        assert_eq!(disks_after(&first, false, NEVER), None);
        // QEMU has connected again.
        drop(first);
        let third = connect();
        drop(second);
        assert_eq!(disks_after(&third, false, SOON), Some(1));
    }

    #[test]
    fn names_alone_are_read_without_disks() {
        let qemu = Qemu::start(&["-name", "web1"]);
        let mut watcher = MachineWatcher::start(true, false).unwrap();
        watcher.observe(&[file("/usr/bin/qemu-kvm"), task(qemu.pid(), TaskChange::Discovered)]);
        assert_eq!(taken(&watcher, SOON).len(), 1);
    }

    #[test]
    fn an_event_is_between_the_watermarks_of_its_batch() {
        let qemu = Qemu::start(&["-uuid", &"é".repeat(TEXT_MAX)]);
        let mut watcher = MachineWatcher::start(true, true).unwrap();
        watcher.observe(&[file("/usr/bin/kvm"), task(qemu.pid(), TaskChange::Forked)]);
        wait_for_read(&watcher);
        assert_eq!(watcher.take(MonotonicNs(0), MonotonicNs(1)), [], "it was read later");
        let from = MonotonicNs(u64::MAX - 1);
        let events = watcher.take(from, MonotonicNs(u64::MAX));
        let [event] = &events[..] else { panic!("{events:?}") };
        assert_eq!((event.time, event.uuid.len(), &*event.name), (from, TEXT_MAX, ""));
    }
}
