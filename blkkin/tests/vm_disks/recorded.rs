//! Requests of guests and operations of QEMU that agents recorded, from the topic of events, by disk and range.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;

use blkkin_wire::async_io::{AsyncDirection, AsyncIoEvent};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockOffset, MonotonicNs};
use blkkin_wire::event::{
    BioEvent, LayerEvent, RequestEvent, Submitter, SyscallEvent, SyscallOutcome, TaskRef,
};
use blkkin_wire::ids::{DeviceId, FileId, Pid, SpanId, TaskId};
use serde_json::Value;

use super::{BASE, DISKS, GUESTS, JOURNAL, Operation, node};
use crate::support::tools::{capture, tool};

/// Places of ranges of a guest's disk in its image: first byte of both, and length.
pub(super) type Places = Vec<(u64, u64, u64)>;

/// Asks QEMU's tool where the guest's bytes are in an image.
pub(super) fn places(image: &Path) -> Places {
    let map = capture(tool("qemu-img").args(["map", "--output=json"]).arg(image)).unwrap();
    let map: Vec<Value> = serde_json::from_str(&map).unwrap();
    // Below are those of the backing file.
    let own = map.iter().filter(|place| place["depth"] == 0);
    let places = own.filter_map(|place| {
        Some((place["start"].as_u64()?, place["offset"].as_u64()?, place["length"].as_u64()?))
    });
    places.collect()
}

/// Returns the operation on the guest's disk of one on its image. One of QEMU's own, on its tables, has another name.
pub(super) fn on_disk(places: Option<&Places>, (operation, start, bytes): Operation) -> Operation {
    let Some(places) = places else { return (operation, start, bytes) };
    let holds = |(_, image, length): &&(u64, u64, u64)| *image <= start && start + bytes <= image + length;
    match places.iter().find(holds) {
        Some((guest, image, _)) => (operation, start - image + guest, bytes),
        None => (operation.to_ascii_uppercase(), start, bytes),
    }
}

/// Returns the disk of an image, and its operation on the disk; `b` for a read of a backing file.
pub(super) fn of_image(
    places: &HashMap<String, Places>,
    image: &str,
    operation: Operation,
) -> (String, Operation) {
    let (name, start, bytes) = on_disk(places.get(image), operation);
    match image.strip_suffix(BASE) {
        Some(disk) => (disk.to_owned(), (if name == 'r' { 'b' } else { name }, start, bytes)),
        None => (image.to_owned(), (name, start, bytes)),
    }
}

/// Requests and operations that guests and host recorded, from the topic of events.
#[derive(Default)]
pub(super) struct Recorded {
    /// Requests of the guests by disk (`web/vda`) and operation, in order.
    pub(super) guest: BTreeMap<(String, Operation), Vec<SpanId>>,
    /// Operations of the guests' QEMU processes by disk and operation, in order.
    pub(super) qemu: BTreeMap<(String, Operation), Vec<SpanId>>,
    /// Flushes of each side.
    pub(super) flushes: [usize; 2],
    /// Operations on images of [`JOURNAL`] by disk and begin: a write, or a flush.
    pub(super) journals: BTreeMap<(String, MonotonicNs), (bool, SpanId)>,
    /// Writes of the guests that need a flush before and after them.
    pub(super) between_flushes: HashSet<SpanId>,
    /// Issue and completion of each of the guest's requests.
    pub(super) times: HashMap<SpanId, [u64; 2]>,
    /// Bounds of the difference of a guest's clock that the host's agent added, each once.
    pub(super) offsets: [BTreeSet<ClockOffset>; GUESTS.len()],
    /// Host's wall clock minus its monotonic clock, ns.
    pub(super) wall: i64,
    /// Records that guests and host lost. The kernel side can miss the end of a call, a few in 100,000 (docs/limits.md).
    pub(super) lost: [u64; 2],
}

impl Recorded {
    /// `places`: of the disks in qcow2 images.
    pub(super) fn of(batches: &[EventBatch], places: &HashMap<String, Places>) -> Recorded {
        let mut recorded = Recorded::default();
        let (mut disks, mut files) =
            (HashMap::<(usize, DeviceId), String>::new(), HashMap::<FileId, String>::new());
        let mut bios = HashMap::<SpanId, u32>::new();
        // Processes of the host's tasks, and the virtual machines of processes.
        let (mut processes, mut machines) = (HashMap::<TaskId, Pid>::new(), HashMap::<Pid, String>::new());
        let (mut requests, mut calls, mut submissions) = (Vec::new(), Vec::new(), Vec::new());
        for batch in batches {
            let guest = (0..GUESTS.len()).find(|guest| batch.source.node == node(*guest));
            let is_guest = guest.is_some();
            let at = guest.unwrap_or_default();
            for event in &batch.events {
                match event {
                    LayerEvent::Device(device) if is_guest => {
                        drop(disks.insert((at, device.device), format!("{}/{}", GUESTS[at], device.name)));
                    }
                    LayerEvent::Task(task) if !is_guest => drop(processes.insert(task.task.id, task.pid)),
                    LayerEvent::VirtualMachine(machine) if !is_guest => {
                        drop(machines.insert(machine.pid, machine.name.to_string()));
                    }
                    LayerEvent::File(file) if !is_guest => {
                        let name = file.path.rsplit('/').next().unwrap_or_default();
                        files.insert(file.file, name.to_owned());
                    }
                    LayerEvent::Request(request) if is_guest => requests.push((at, *request)),
                    LayerEvent::Pair(pair) if is_guest => requests.push((at, pair.request)),
                    LayerEvent::Syscall(call) if !is_guest => calls.push(call.clone()),
                    LayerEvent::VirtualMachine(machine) if is_guest => {
                        recorded.offsets[at].extend(machine.host.as_ref().and_then(|host| host.clock));
                    }
                    LayerEvent::Bio(bio) if !is_guest => count_bio(&mut bios, bio),
                    LayerEvent::Pair(pair) if !is_guest => count_bio(&mut bios, &pair.bio),
                    LayerEvent::AsyncIo(io) if !is_guest => submissions.push(*io),
                    _ => {}
                }
            }
            if !is_guest {
                recorded.wall = batch.anchor.wallclock.0 as i64 - batch.anchor.monotonic.0 as i64;
            }
            let lost = &mut recorded.lost[usize::from(!is_guest)];
            *lost = (*lost).max(batch.stats.lost());
        }
        // Disk of an operation of the host on this image.
        let disk_of = |task: TaskRef, file: Option<FileId>| {
            let is_image = |name: &&String| DISKS.contains(&name.strip_suffix(BASE).unwrap_or(name));
            let image = files.get(&file?).filter(is_image)?;
            Some(format!("{}/{image}", machines.get(processes.get(&task.id)?)?))
        };
        requests.sort_by_key(|(_, request): &(usize, RequestEvent)| request.issue);
        calls.sort_by_key(|call: &SyscallEvent| call.enter);
        for (at, request) in requests {
            let issue = request.issue.unwrap_or(request.start);
            recorded.times.insert(request.span, [issue.0, request.complete.0]);
            let operation = match request.op.name_for(request.bytes) {
                "read" => 'r',
                "write" => 'w',
                "discard" | "write-zeroes" => 'd',
                "flush" => {
                    recorded.flushes[0] += 1;
                    continue;
                }
                other => panic!("{other}: {request:?}"),
            };
            if request.op.is_preflush() && request.op.is_fua() {
                recorded.between_flushes.insert(request.span);
            }
            let key = (operation, request.sector.0 * 512, u64::from(request.bytes));
            let disk = disks.get(&(at, request.device)).cloned().unwrap_or_default();
            recorded.guest.entry((disk, key)).or_default().push(request.span);
        }
        for call in calls {
            let Some(disk) = disk_of(call.task, call.file.map(|open| open.file)) else { continue };
            let operation = match call.call.spec().name {
                "pread64" | "preadv" => 'r',
                "pwrite64" | "pwritev" => 'w',
                "fallocate" => 'd',
                "fdatasync" => {
                    recorded.flush(disk, call.enter, call.span);
                    continue;
                }
                _ => continue,
            };
            let SyscallOutcome::Returned(bytes) = call.outcome else { panic!("{call:?}") };
            let (start, bytes) =
                if operation == 'd' { (call.args[2], call.args[3]) } else { (call.args[3], bytes as u64) };
            recorded.write(&disk, operation, call.enter, call.span);
            let key = of_image(places, &disk, (operation, start, bytes));
            recorded.qemu.entry(key).or_default().push(call.span);
        }
        submissions.sort_by_key(|io: &AsyncIoEvent| io.start);
        let is_of_image = |io: &&AsyncIoEvent| disk_of(io.task, io.file).is_some();
        let mut siblings = HashMap::<SpanId, u32>::new();
        submissions.iter().filter(is_of_image).for_each(|io| *siblings.entry(io.root()).or_default() += 1);
        for io in submissions {
            let Some(disk) = disk_of(io.task, io.file) else { continue };
            let operation = match io.operation().direction {
                Some(AsyncDirection::Read) => 'r',
                Some(AsyncDirection::Write) => 'w',
                None => {
                    let span = if siblings[&io.root()] > 1 { io.span } else { io.root() };
                    recorded.flush(disk, io.start, span);
                    continue;
                }
            };
            let bytes = io.bytes().unwrap_or_else(|| bios.get(&io.span).copied().unwrap_or_default());
            let span = if siblings[&io.root()] > 1 { io.span } else { io.root() };
            recorded.write(&disk, operation, io.start, span);
            let key = of_image(places, &disk, (operation, io.offset.unwrap() as u64, bytes.into()));
            recorded.qemu.entry(key).or_default().push(span);
        }
        recorded.name_fills();
        recorded
    }

    /// Names the reads of backing files: those of a range that the guest reads are reads, and the others are `f`.
    fn name_fills(&mut self) {
        let all = std::mem::take(&mut self.qemu);
        for ((disk, (operation, start, bytes)), spans) in all {
            let is_read = self.guest.contains_key(&(disk.clone(), ('r', start, bytes)));
            let operation = match operation {
                'b' if is_read => 'r',
                'b' => 'f',
                other => other,
            };
            self.qemu.entry((disk, (operation, start, bytes))).or_default().extend(spans);
        }
    }

    /// Returns whether a range is the rest of a cluster, or the whole one, for a write of its other part: the first write of
    /// that range.
    pub(super) fn is_rest(&self, disk: &str, (_, start, bytes): Operation, write: SpanId) -> bool {
        let of_first = |((name, range), requests): (&(String, Operation), &Vec<SpanId>)| {
            (name == disk && requests.first() == Some(&write)).then_some(*range)
        };
        let Some(('w', at, length)) = self.guest.iter().find_map(of_first) else { return false };
        let end = start + bytes;
        match [start, end].map(|at| at.is_multiple_of(65_536)) {
            [true, true] => start <= at && at + length <= end,
            [true, false] => end == at,
            [false, true] => start == at + length,
            [false, false] => false,
        }
    }

    fn flush(&mut self, disk: String, begin: MonotonicNs, span: SpanId) {
        self.flushes[1] += 1;
        if disk.ends_with(JOURNAL) {
            self.journals.insert((disk, begin), (false, span));
        }
    }

    fn write(&mut self, disk: &str, operation: char, begin: MonotonicNs, span: SpanId) {
        if disk.ends_with(JOURNAL) && operation == 'w' {
            self.journals.insert((disk.to_owned(), begin), (true, span));
        }
    }
}

pub(super) fn count_bio(bios: &mut HashMap<SpanId, u32>, bio: &BioEvent) {
    if let Submitter::Span(span) = bio.submitter {
        *bios.entry(span).or_default() += bio.bytes;
    }
}
