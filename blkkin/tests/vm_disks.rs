//! A guest's requests and QEMU's operations in one trace, by the agents of guest and host, a broker and an
//! aggregator.
//!
//! *Input*: a stock kernel in QEMU with four disks: two on virtio with and without a serial number, one on
//! virtio-scsi, and one on virtio with ext4, in a raw image. The other images are raw or qcow2. `dd` writes, reads
//! and flushes them, several at once, and writes the same ranges again and again, some of them one after another and
//! some scattered. With `BLKKIN_VM_GUESTS=2` a second guest does the same, and both read one image that neither may
//! write. *Independent count*: the order. In the guest the requests for one range follow each other, and so do QEMU's
//! operations on it: the n-th belongs to the n-th. Clocks take no part in that. QEMU's own log has the number of
//! requests, and when it took up each one: by the host's clock, between issue and completion by the guest's. So the
//! log bounds the difference of the clocks too. Where the guest's bytes are in a qcow2 image comes from `qemu-img
//! map`. Two of the qcow2 images have a backing file, a raw and a qcow2 one: what QEMU reads of it and the guest does not,
//! fills up a cluster for the guest's first write there. A journal's commit block is written between two flushes, so QEMU's operations directly before and after that
//! write belong to the same request.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkkin_bus::kafka::Settings;
use blkkin_wire::async_io::{AsyncDirection, AsyncIoEvent};
use blkkin_wire::batch::EventBatch;
use blkkin_wire::clock::{ClockOffset, MonotonicNs};
use blkkin_wire::event::{
    BioEvent, LayerEvent, RequestEvent, Submitter, SyscallEvent, SyscallOutcome, TaskRef,
};
use blkkin_wire::ids::{DeviceId, FileId, NodeId, Pid, SpanId, TaskId, TraceId};
use blkkin_wire::span::Span;

use serde_json::Value;

use crate::broker::Broker;
use crate::spooling::topic::consume;
use crate::support::service::Service;
use crate::support::tools::{capture, static_binary, tool};
use crate::support::traces::{self, TraceReader};
use crate::support::vm::{self, Guest, GuestOptions};
use crate::support::{needs, or_skip};

/// Names of the virtual machines.
const GUESTS: [&str; 2] = ["web", "db"];
const MACHINE_ID: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
const PARTITIONS: u32 = 4;
const SOON: Duration = Duration::from_secs(60);
const LIMIT: Duration = Duration::from_secs(120);

const DISKS: [&str; 5] = ["vda", "vdb", "sda", JOURNAL, SHARED];
/// Disk with ext4, in a raw image.
const JOURNAL: &str = "vdc";
/// Files that the guest makes there and syncs, one after another.
const FILES: usize = 20;
/// Disk of both guests, with one file as its image.
const SHARED: &str = "vdd";
/// Ending of the backing file's name of an image that has one, and its format.
const BASE: &str = ".base";
const BASES: [(&str, &str); 2] = [("vda", "qcow2"), ("vdb", "raw")];
/// Sector that the guest reads first.
const PROBED: u64 = 9_999;
/// Script of the guest.
const SCRIPT: &str = r#"
start_agent
# QEMU's first operations make the host's agent look at its disks.
PROBE
echo "guest: ready"
read -r _ <&3
part() {
    for round in 1 2 3 4 5; do
        dd if=/dev/zero of=$1 bs=4096 count=40 seek=$2 oflag=direct conv=notrunc 2> /dev/null
        dd if=$1 of=/dev/null bs=4096 count=40 skip=$2 iflag=direct 2> /dev/null
    done
}
# Clusters of a new image in another order than the guest's.
scattered() {
    for round in 1 2 3; do
        for n in $(seq 0 47); do
            block=$(($1 + n * 37 % 48 * 16 + n % 16))
            dd if=/dev/zero of=/dev/vda bs=4096 count=1 seek=$block oflag=direct conv=notrunc 2> /dev/null
            dd if=/dev/vda of=/dev/null bs=4096 count=1 skip=$block iflag=direct 2> /dev/null
        done
    done
}
# What was never written.
untouched() {
    for round in 1 2 3; do
        dd if=$1 of=/dev/null bs=4096 count=40 skip=300 iflag=direct 2> /dev/null
        dd if=$1 of=/dev/null bs=256k count=4 skip=1 iflag=direct 2> /dev/null
    done
}
scattered 2048 & five=$!
scattered 3072 & six=$!
part /dev/vda 10 & one=$!
part /dev/vda 1000 & two=$!
part /dev/vdb 10 & three=$!
part /dev/sda 10 & four=$!
for round in 1 2 3 4 5 6 7 8 9 10; do
    if [ -b /dev/vdd ]; then dd if=/dev/vdd of=/dev/null bs=4096 count=40 skip=10 iflag=direct 2> /dev/null; fi
done
untouched /dev/vda & seven=$!
untouched /dev/vdb & eight=$!
wait $one $two $three $four $five $six $seven $eight
mkdir /mnt
mount -t ext4 -o init_itable=0 /dev/vdc /mnt || echo "guest: cannot mount"
# This thread of the kernel zeroes inode tables, from up to 5 s after the mount on, and flushes.
while ps | grep -q '[e]xt4lazyinit'; do sleep 0.5; done
for n in $(seq FILES); do dd if=/dev/zero of=/mnt/$n bs=4096 count=1 conv=fsync 2> /dev/null; done
TRIM
umount /mnt
for round in 1 2 3; do
    dd if=/dev/zero of=/dev/vdb bs=64k count=100 seek=50 conv=notrunc,fsync 2> /dev/null
done
echo "guest: done"
read -r _ <&3
end_agent
poweroff -f
"#;

/// Operation on a range of a disk: `w` or `r`, first byte and length; a flush has no range.
type Operation = (char, u64, u64);

fn node(guest: usize) -> NodeId {
    NodeId(MACHINE_ID + guest as u128)
}

/// Format of the images in this mode, which may have others than raw ones.
fn format(mode: &str) -> &str {
    mode.strip_prefix("format=").and_then(|mode| mode.split(',').next()).unwrap_or("raw")
}

/// Returns whether the images of this mode have clusters.
fn in_clusters(mode: &str) -> bool {
    format(mode) == "qcow2"
}

/// Cache and aio mode.
fn cache_mode(mode: &str) -> &str {
    match mode.strip_prefix("format=") {
        Some(mode) => mode.split_once(',').unwrap().1,
        None => mode,
    }
}

/// Starts a guest with three disks of this mode, and the shared one if there is an image for it.
fn start(folder: &Path, binary: &Path, kernel: &Path, guest: usize, mode: &str) -> Guest {
    let name = GUESTS[guest];
    let port = folder.join(format!("guests/{name}.sock"));
    let shared = folder.join(SHARED);
    let folder = &folder.join(name);
    fs::create_dir(folder).unwrap();
    let mut disks = Vec::new();
    disks.extend(["-device", "virtio-scsi-pci"].map(str::to_owned));
    let images = [
        ("vda", 16 << 20, "virtio-blk-pci,serial=root"),
        ("vdb", 32 << 20, "virtio-blk-pci"),
        ("sda", 16 << 20, "scsi-hd,serial=data"),
        (JOURNAL, 16 << 20, "virtio-blk-pci,serial=journal"),
    ];
    for (name, bytes, device) in images {
        let image = folder.join(name);
        let (size, format) = (bytes.to_string(), if name == JOURNAL { "raw" } else { format(mode) });
        let mut create = tool("qemu-img");
        create.args(["create", "-q", "-f", format]);
        if let Some((base, format)) = base(folder, name, bytes, mode) {
            create.arg("-b").arg(base).args(["-F", format]);
        }
        capture(create.arg(&image).arg(size)).unwrap();
        if name == JOURNAL {
            // Eight groups, of which the guest's kernel zeroes the inode tables: they are not known to be zero.
            let options = ["-q", "-F", "-b", "4096", "-g", "512", "-E", "lazy_itable_init=1,nodiscard"];
            capture(tool("mkfs.ext4").args(options).arg(&image)).unwrap();
        }
        let (image, cache) = (image.display(), cache_mode(mode));
        disks.push("-drive".to_owned());
        // With it QEMU makes a hole where the guest writes zeroes, else it writes them.
        let unmap = if name == JOURNAL && !in_clusters(mode) { ",discard=unmap" } else { "" };
        disks.push(format!("file={image},if=none,id={name},format={format},{cache}{unmap}"));
        disks.push("-device".to_owned());
        disks.push(format!("{device},drive={name}"));
    }
    if shared.exists() {
        let image = shared.display();
        disks.push("-drive".to_owned());
        let cache = cache_mode(mode);
        disks.push(format!("file={image},if=none,id={SHARED},format=raw,readonly=on,{cache}"));
        disks.push("-device".to_owned());
        disks.push(format!("virtio-blk-pci,serial=shared,drive={SHARED}"));
    }
    let log = folder.join("qemu.log");
    disks.extend(["-D".to_owned(), log.display().to_string()]);
    disks.extend(["-msg".to_owned(), "timestamp=on".to_owned()]);
    for event in ["virtio_blk_handle_write", "virtio_blk_handle_read"] {
        disks.extend(["-trace".to_owned(), event.to_owned()]);
    }
    // QEMU does not read a cluster without a place.
    let probe = match format(mode) {
        "raw" => {
            format!("dd if=/dev/vda of=/dev/null bs=512 count=1 skip={PROBED} iflag=direct 2> /dev/null")
        }
        _ => format!("dd if=/dev/zero of=/dev/vda bs=512 count=1 seek={PROBED} oflag=direct 2> /dev/null"),
    };
    let (script, machine_id) = (SCRIPT.replace("PROBE", &probe), node(guest).0);
    let trim = if in_clusters(mode) { "" } else { "fstrim /mnt" };
    let script = script.replace("FILES", &FILES.to_string()).replace("TRIM", trim);
    let uuid = format!("11111111-2222-3333-4444-55555555555{guest}");
    let gets_socket = in_clusters(mode);
    let options = GuestOptions { name, uuid: &uuid, machine_id, script, disks, gets_socket };
    Guest::start(folder, kernel, binary, &port, &options)
}

/// Makes the backing file of a disk that has one in this mode. Returns its path and format.
fn base(folder: &Path, disk: &str, bytes: usize, mode: &str) -> Option<(PathBuf, &'static str)> {
    let (_, format) = BASES.into_iter().find(|(of, _)| in_clusters(mode) && *of == disk)?;
    let [base, raw] = [BASE, ".raw"].map(|ending| folder.join(format!("{disk}{ending}")));
    fs::write(&raw, vec![b'.'; bytes]).unwrap();
    capture(tool("qemu-img").args(["convert", "-O", format]).args([&raw, &base])).unwrap();
    Some((base, format))
}

fn agent(folder: &Path, settings: &Settings, guests: &Path, names: &[&str]) -> Service {
    let args = ["agent", "--brokers", &settings.brokers, "--guests", guests.to_str().unwrap()];
    let partitions = PARTITIONS.to_string();
    let machines: Vec<&str> = names.iter().flat_map(|name| ["--vm", name]).collect();
    Service::start(folder, "agent", &[&args[..], &machines, &["--partitions", &partitions]].concat())
}

/// Places of ranges of a guest's disk in its image: first byte of both, and length.
type Places = Vec<(u64, u64, u64)>;

/// Asks QEMU's tool where the guest's bytes are in an image.
fn places(image: &Path) -> Places {
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
fn on_disk(places: Option<&Places>, (operation, start, bytes): Operation) -> Operation {
    let Some(places) = places else { return (operation, start, bytes) };
    let holds = |(_, image, length): &&(u64, u64, u64)| *image <= start && start + bytes <= image + length;
    match places.iter().find(holds) {
        Some((guest, image, _)) => (operation, start - image + guest, bytes),
        None => (operation.to_ascii_uppercase(), start, bytes),
    }
}

/// Returns the disk of an image, and its operation on the disk; `b` for a read of a backing file.
fn of_image(places: &HashMap<String, Places>, image: &str, operation: Operation) -> (String, Operation) {
    let (name, start, bytes) = on_disk(places.get(image), operation);
    match image.strip_suffix(BASE) {
        Some(disk) => (disk.to_owned(), (if name == 'r' { 'b' } else { name }, start, bytes)),
        None => (image.to_owned(), (name, start, bytes)),
    }
}

/// Requests and operations that guests and host recorded, from the topic of events.
#[derive(Default)]
struct Recorded {
    /// Requests of the guests by disk (`web/vda`) and operation, in order.
    guest: BTreeMap<(String, Operation), Vec<SpanId>>,
    /// Operations of the guests' QEMU processes by disk and operation, in order.
    qemu: BTreeMap<(String, Operation), Vec<SpanId>>,
    /// Flushes of each side.
    flushes: [usize; 2],
    /// Operations on images of [`JOURNAL`] by disk and begin: a write, or a flush.
    journals: BTreeMap<(String, MonotonicNs), (bool, SpanId)>,
    /// Writes of the guests that need a flush before and after them.
    between_flushes: HashSet<SpanId>,
    /// Issue and completion of each of the guest's requests.
    times: HashMap<SpanId, [u64; 2]>,
    /// Bounds of the difference of a guest's clock that the host's agent added, each once.
    offsets: [BTreeSet<ClockOffset>; GUESTS.len()],
    /// Host's wall clock minus its monotonic clock, ns.
    wall: i64,
    /// Records that guests and host lost. The kernel side can miss the end of a call, a few in 100,000 (docs/limits.md).
    lost: [u64; 2],
}

impl Recorded {
    /// `places`: of the disks in qcow2 images.
    fn of(batches: &[EventBatch], places: &HashMap<String, Places>) -> Recorded {
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
    fn is_rest(&self, disk: &str, (_, start, bytes): Operation, write: SpanId) -> bool {
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

fn count_bio(bios: &mut HashMap<SpanId, u32>, bio: &BioEvent) {
    if let Submitter::Span(span) = bio.submitter {
        *bios.entry(span).or_default() += bio.bytes;
    }
}

/// Reads the finished traces.
fn spans(settings: &Settings) -> Vec<Span> {
    let mut reader = TraceReader::new(settings, PARTITIONS as i32);
    reader.read_to_end(settings, LIMIT);
    reader.spans()
}

/// A request that QEMU took up, by its log:
/// `4711@1764287325.123456:virtio_blk_handle_write vdev 0x55d0 req 0x55d1 sector 80 nsectors 8`.
struct Logged {
    /// Wall clock of the host, us.
    time: i64,
    device: String,
    operation: Operation,
}

impl Logged {
    fn parse(line: &str) -> Option<Logged> {
        let (_, line) = line.split_once('@')?;
        let (time, line) = line.split_once(':')?;
        let (seconds, micros) = time.split_once('.')?;
        let words: Vec<&str> = line.split_whitespace().collect();
        let [
            "virtio_blk_handle_write" | "virtio_blk_handle_read",
            "vdev",
            device,
            "req",
            _,
            "sector",
            sector,
            "nsectors",
            count,
        ] = words[..]
        else {
            return None;
        };
        let bytes = |sectors: &str| sectors.parse::<u64>().unwrap() * 512;
        let operation = if words[0].ends_with("write") { 'w' } else { 'r' };
        Some(Logged {
            time: seconds.parse::<i64>().ok()? * 1_000_000 + micros.parse::<i64>().ok()?,
            device: device.to_owned(),
            operation: (operation, bytes(sector), bytes(count)),
        })
    }
}

/// Asserts that the difference of a guest's clock by its QEMU's log is within each bound that the host's agent reported.
fn assert_clocks(mode: &str, guest: usize, recorded: &Recorded, log: &[Logged]) {
    // The script reads this sector of the first disk alone, a mount reads ext4's superblock, and no read-only disk is
    // written.
    let device_of = |is_its: fn(&Logged) -> bool| &log.iter().find(|logged| is_its(logged)).unwrap().device;
    let first = device_of(|logged| logged.operation.1 == PROBED * 512);
    let journal = device_of(|logged| logged.operation == ('r', 1_024, 1_024));
    let is_written =
        |device: &str| log.iter().any(|other| other.device == device && other.operation.0 == 'w');
    let mut taken_up = BTreeMap::<(String, Operation), Vec<i64>>::new();
    for Logged { time, device, operation } in log {
        let disk = match device == first {
            true => "vda",
            false if device == journal => JOURNAL,
            false if is_written(device) => "vdb",
            false => SHARED,
        };
        taken_up.entry((format!("{}/{disk}", GUESTS[guest]), *operation)).or_default().push(*time);
    }
    let offsets = &recorded.offsets[guest];
    let (mut low, mut high, mut count) = (i64::MIN, i64::MAX, 0);
    for (key, requests) in &recorded.guest {
        let Some(times) = taken_up.get(key).filter(|times| times.len() == requests.len()) else { continue };
        for (span, time) in requests.iter().zip(times) {
            let [issue, complete] = recorded.times[span].map(|time| time as i64);
            // The log's time is cut to us.
            let host = time * 1_000 - recorded.wall;
            (low, high) = (low.max(host - complete), high.min(host + 1_000 - issue));
            count += 1;
        }
    }
    let widths: Vec<i64> = offsets.iter().map(|offset| (offset.high - offset.low) / 2_000).collect();
    println!(
        "{mode}: by QEMU's log of {count} requests the clocks of host and {} differ by {} +/- {} us; {} bounds by pings: +/- {} to {} us",
        GUESTS[guest],
        (low + high) / 2_000,
        (high - low) / 2_000,
        widths.len(),
        widths.iter().min().unwrap(),
        widths.iter().max().unwrap(),
    );
    assert!(count > 1_000 && low <= high, "{count} requests: {low} to {high}");
    for offset in offsets {
        assert!(offset.low <= high && low <= offset.high, "{mode}: {offset:?} is not {low} to {high}");
    }
}

/// Counts of one run.
#[derive(Debug, Default)]
struct Outcome {
    /// Requests of the guest, and those of them that have an operation of QEMU.
    requests: usize,
    linked: usize,
    /// Operations of QEMU that served several of them.
    merged: usize,
    /// Operations that fill up clusters from the raw and from the qcow2 backing file, and those of both with a request.
    fills: [usize; 2],
    filled: [usize; 2],
    /// Operations below another request than theirs.
    wrong: usize,
    /// Operations in another trace than their request.
    apart: usize,
    /// Writes of the guests between two flushes, of which both are linked to the same request, or the first to one that
    /// had ended, so that QEMU had nothing to flush; of which one is linked to no request; and of which one is linked
    /// to another request.
    between_flushes: [usize; 3],
    /// Operations below another request than theirs.
    others: Vec<String>,
    /// Requests without an operation, within one that the host recorded and whose trace is not finished: the host
    /// missed an end below it. QEMU may have merged several requests into one such operation.
    unfinished: usize,
    /// Ranges with requests of the guest, some of which no operation of QEMU is linked to.
    unlinked: Vec<String>,
    /// Requests of which an operation is a part, and the last one of those with each part.
    split: HashSet<SpanId>,
    rounds: HashMap<(String, Operation), Option<usize>>,
    /// Requests that an operation on another range served: on several of them, or on whole blocks.
    parts: BTreeMap<(String, Operation), usize>,
}

impl Outcome {
    fn of(recorded: &Recorded, spans: &[Span]) -> Outcome {
        let parents: HashMap<SpanId, SpanId> =
            spans.iter().filter_map(|span| Some((span.id, span.parent?))).collect();
        let finished: HashMap<SpanId, TraceId> = spans.iter().map(|span| (span.id, span.trace)).collect();
        // The host may see this request before it knows the disks.
        let is_probe =
            |(disk, range): &(String, Operation)| disk.ends_with("/vda") && range.1 == PROBED * 512;
        let probes: Vec<SpanId> = recorded
            .guest
            .iter()
            .filter(|(key, _)| is_probe(key))
            .flat_map(|(_, spans)| spans.clone())
            .collect();
        let all: usize = recorded.guest.values().map(Vec::len).sum();
        let mut outcome = Outcome { requests: all - probes.len(), ..Outcome::default() };
        outcome.count_between_flushes(recorded, &parents);
        let operations =
            recorded.qemu.values().flatten().chain(recorded.journals.values().map(|(_, span)| span));
        let linked = operations.filter_map(|server| Some((server, parents.get(server)?)));
        outcome.apart =
            linked.filter(|(server, parent)| finished.get(server) != finished.get(parent)).count();
        for ((disk, range), served) in &recorded.qemu {
            if range.0 == 'f' {
                // No request of the guest has this range.
                outcome.count_fills(recorded, disk, *range, served.iter().map(|server| parents.get(server)));
                continue;
            }
            let requests = recorded.guest.get(&(disk.clone(), *range));
            let mut last = None;
            for (n, server) in served.iter().enumerate() {
                let parent = parents.get(server).filter(|parent| !probes.contains(parent));
                let Some(parent) = parent else { continue };
                let Some(at) = requests.and_then(|requests| requests.iter().position(|one| one == parent))
                else {
                    outcome.merge(recorded, disk, *range, *parent);
                    continue;
                };
                // Of equal numbers the n-th belongs to the n-th; where QEMU merged some, they follow each other.
                let all = requests.is_some_and(|requests| requests.len() == served.len());
                match if all { at == n } else { last < Some(at) } {
                    true => outcome.linked += 1,
                    false => outcome.add_wrong(disk, *range, *parent),
                }
                last = Some(at);
            }
        }
        let unfinished: Vec<&(String, Operation)> = recorded
            .qemu
            .iter()
            .filter(|(_, served)| served.iter().any(|server| !finished.contains_key(server)))
            .map(|(key, _)| key)
            .collect();
        let contains = |(of, outer): &(String, Operation), (disk, range): &(String, Operation)| {
            of == disk && outer.0 == range.0 && outer.1 <= range.1 && range.1 + range.2 <= outer.1 + outer.2
        };
        for (key, requests) in recorded.guest.iter().filter(|(key, _)| !is_probe(key)) {
            let served = recorded.qemu.get(key).map_or(&[][..], |served| served);
            let own = |server: &&SpanId| parents.get(server).is_some_and(|parent| requests.contains(parent));
            let linked = served.iter().filter(own).count();
            let parts = outcome.parts.get(key).copied().unwrap_or_default();
            let without = requests.len().saturating_sub(linked + parts);
            if without == 0 {
                continue;
            }
            let is_unfinished = unfinished.iter().any(|operation| contains(operation, key));
            outcome.unfinished += if is_unfinished { without } else { 0 };
            outcome.unlinked.push(format!(
                "{key:?}: {} requests, {} operations, {} linked{}",
                requests.len(),
                served.len(),
                linked + parts,
                if is_unfinished { ", unfinished" } else { "" }
            ));
        }
        outcome.unlinked.truncate(20);
        outcome
    }

    /// Counts reads that fill up a cluster.
    fn count_fills<'a>(
        &mut self,
        recorded: &Recorded,
        disk: &str,
        range: Operation,
        parents: impl Iterator<Item = Option<&'a SpanId>>,
    ) {
        // The guest's kernel looks for partitions before its agent starts.
        if range.1 == 0 && range.2 == 4096 {
            return;
        }
        let kind = usize::from(!disk.ends_with("vdb"));
        for parent in parents {
            self.fills[kind] += 1;
            match parent {
                Some(parent) if recorded.is_rest(disk, range, *parent) => self.filled[kind] += 1,
                Some(parent) => self.add_wrong(disk, range, *parent),
                None => {}
            }
        }
    }

    /// Counts writes between two flushes. One request follows another on this disk, so its operations do too.
    fn count_between_flushes(&mut self, recorded: &Recorded, parents: &HashMap<SpanId, SpanId>) {
        let all: Vec<(&str, bool, SpanId)> = recorded
            .journals
            .iter()
            .map(|((disk, _), (write, span))| (disk.as_str(), *write, *span))
            .collect();
        for three in all.windows(3) {
            let [before, (disk, true, span), after] = three else { continue };
            let Some(request) = parents.get(span).filter(|one| recorded.between_flushes.contains(one)) else {
                continue;
            };
            // A neighbour that is no flush stands for one that the host missed.
            let flushes = [before, after]
                .map(|(of, write, flush)| if of == disk && !write { parents.get(flush) } else { None });
            let ended_before = |other: &SpanId| recorded.times[other][1] <= recorded.times[request][0];
            let is_right = [
                flushes[0].is_none_or(|before| before == request || ended_before(before)),
                flushes[1].is_none_or(|after| after == request),
            ];
            let kind = match (is_right, flushes) {
                ([true, true], [Some(_), Some(_)]) => 0,
                ([true, true], _) => 1,
                _ => 2,
            };
            if kind == 2 {
                let times = |span: &SpanId| (*span, recorded.times.get(span));
                self.others.push(format!(
                    "{three:?} of {:?} instead of {:?}",
                    flushes.map(|flush| flush.map(times)),
                    times(request)
                ));
            }
            self.between_flushes[kind] += 1;
        }
    }

    /// Counts an operation on another range than its request's: it serves several that follow each other, of which the
    /// parent is the first, or the range is rounded to blocks of 4 KiB or clusters of 64 KiB.
    fn merge(
        &mut self,
        recorded: &Recorded,
        disk: &str,
        (operation, start, bytes): Operation,
        parent: SpanId,
    ) {
        let is_parent = |((name, range), requests): (&(String, Operation), &Vec<SpanId>)| {
            (name == disk && requests.contains(&parent)).then_some(*range)
        };
        let of_parent = recorded.guest.iter().find_map(is_parent).filter(|range| range.0 == operation);
        let end = start + bytes;
        match of_parent {
            // QEMU splits a request where its clusters do not follow each other in the image.
            Some((_, at, length)) if at <= start && end <= at + length => {
                let requests = &recorded.guest[&(disk.to_owned(), (operation, at, length))];
                let round = requests.iter().position(|one| *one == parent);
                let last = self.rounds.insert((disk.to_owned(), (operation, start, bytes)), round);
                if last.is_some_and(|last| last >= round) {
                    return self.add_wrong(disk, (operation, start, bytes), parent);
                }
                if self.split.insert(parent) {
                    self.linked += 1;
                    *self.parts.entry((disk.to_owned(), (operation, at, length))).or_default() += 1;
                }
            }
            Some((_, at, length))
                if [4096, 65_536].iter().any(|block| {
                    (start, end) == (at / block * block, (at + length).next_multiple_of(*block))
                }) =>
            {
                self.linked += 1;
                *self.parts.entry((disk.to_owned(), (operation, at, length))).or_default() += 1;
            }
            Some((_, at, length)) if at == start => {
                // Requests of the guest from the parent's end on.
                let (mut next, mut parts) = (at + length, vec![(operation, at, length)]);
                while next < end {
                    let follows = |(name, range): &&(String, Operation)| {
                        name == disk && (range.0, range.1) == (operation, next) && next + range.2 <= end
                    };
                    let Some((_, range)) = recorded.guest.keys().find(follows) else { break };
                    next += range.2;
                    parts.push(*range);
                }
                if next != end {
                    return self.add_wrong(disk, (operation, start, bytes), parent);
                }
                (self.linked, self.merged) = (self.linked + parts.len(), self.merged + 1);
                for range in parts {
                    *self.parts.entry((disk.to_owned(), range)).or_default() += 1;
                }
            }
            // QEMU may write the rest of a cluster on its own.
            _ if recorded.is_rest(disk, (operation, start, bytes), parent) => {}
            _ => self.add_wrong(disk, (operation, start, bytes), parent),
        }
    }

    fn add_wrong(&mut self, disk: &str, operation: Operation, parent: SpanId) {
        self.wrong += 1;
        self.others.push(format!("{disk} {operation:?} below {parent:?}"));
    }
}

/// Modes of the images. `BLKKIN_VM_MODES` has others, separated by spaces: each boots a guest of its own.
const MODES: &str = "cache=none,aio=threads format=qcow2,cache=none,aio=threads";

#[test]
fn each_request_of_a_guest_has_qemus_operation_in_its_trace() {
    needs!("qemu-system-x86_64", "qemu-img", "busybox", "mkfs.ext4", "strip");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let modes = std::env::var("BLKKIN_VM_MODES").unwrap_or_else(|_| MODES.to_owned());
    for mode in modes.split_whitespace() {
        let (outcome, lost, refused) = or_skip!(run(&kernel, &binary, mode));
        println!("{mode}: the host lost {lost} records, {refused} endpoints refused; {outcome:?}");
        assert_eq!(
            (outcome.wrong, outcome.apart, outcome.between_flushes[2]),
            (0, 0, 0),
            "{mode}: {outcome:?}"
        );
        // Places of the qcow2 backing file are known only where the guest read before.
        let [of_raw, _] = outcome.fills;
        assert!(of_raw >= if in_clusters(mode) { 3 } else { 0 }, "{mode}: {outcome:?}");
        assert!(outcome.filled[0] as u64 + lost + refused >= of_raw as u64, "{mode}: {outcome:?}");
        // A choice between flushes is refused, and the host may miss one.
        let [linked, unlinked, _] = outcome.between_flushes;
        assert!((linked + unlinked) as u64 + lost + refused >= FILES as u64, "{mode}: {outcome:?}");
        assert!(unlinked as u64 <= lost + refused, "{mode}: {outcome:?}");
        // An operation whose end the host missed is not finished when it is looked for.
        assert!(lost > 0 || outcome.unfinished == 0, "{mode}: {outcome:?}");
        let alone = outcome.requests.saturating_sub(outcome.linked + outcome.unfinished);
        // A busy machine knows the clocks to some ms only. Then a choice between two equal requests is refused.
        assert!(
            alone as u64 <= outcome.requests as u64 / 1_000 + lost + refused,
            "{mode}: lost {lost}, refused {refused}, {outcome:?}"
        );
        assert!(refused <= outcome.requests as u64 / 100, "{mode}: refused {refused}, {outcome:?}");
    }
}

/// Returns the number of endpoints of disks that had a choice, of the aggregator's last line.
fn refused(counts: &str) -> u64 {
    let (before, _) = counts.rsplit_once(" refused").expect("the aggregator counts refused endpoints");
    before.rsplit(' ').next().and_then(|number| number.parse().ok()).expect("a number")
}

/// Runs the workload with images of this mode. Returns also the number of records that the host lost, and of
/// endpoints that the aggregator refused.
fn run(kernel: &Path, binary: &Path, mode: &str) -> Result<(Outcome, u64, u64), String> {
    let broker = Broker::start()?;
    let folder = tempfile::tempdir().unwrap();
    let guests = folder.path().join("guests");
    fs::create_dir(&guests).unwrap();
    let names = match std::env::var("BLKKIN_VM_GUESTS").as_deref() {
        Ok("2") => &GUESTS[..],
        _ => &GUESTS[..1],
    };
    if names.len() > 1 {
        fs::File::create(folder.path().join(SHARED)).unwrap().set_len(16 << 20).unwrap();
    }
    let settings = broker.settings();
    let partitions = PARTITIONS.to_string();
    let common = ["aggregator", "--brokers", &settings.brokers, "--metrics", "off", "--save-every", "1s"];
    // On a busy machine the guest's records arrive more than the default of 10 s after the host's.
    let common = [&common[..], &["--await-client", "60s"]].concat();
    let aggregator =
        Service::start(folder.path(), "aggregator", &[&common[..], &["--partitions", &partitions]].concat());
    traces::wait_for_topics(&settings, LIMIT);
    let mut running: Vec<Guest> =
        (0..names.len()).map(|guest| start(folder.path(), binary, kernel, guest, mode)).collect();
    let agent = agent(folder.path(), &settings, &guests, names);
    for name in names {
        agent.wait_for_output(&format!("is connected: virtual machine `{name}`"), SOON);
    }
    running.iter().for_each(|guest| drop(guest.wait_for("ready")));
    // The host's agent reads the disks some ms after QEMU's first operation, and pings with each record.
    std::thread::sleep(Duration::from_secs(3));
    running.iter_mut().for_each(Guest::go);
    running.iter().for_each(|guest| drop(guest.wait_for("done")));
    for guest in &mut running {
        guest.go();
        assert_eq!(guest.wait_for("the agent ended with"), "0", "{}\n{}", guest.console(), agent.output());
    }
    // Decisions wait twice two seconds for further records, and these may be late.
    std::thread::sleep(Duration::from_secs(20));
    agent.finish_without_error();
    let counts = aggregator.finish_without_error();
    println!("{mode}: {}", counts.lines().filter(|line| line.contains("link: ")).collect::<String>());

    let images = names.iter().flat_map(|name| DISKS.map(|disk| format!("{name}/{disk}")));
    let is_raw = |disk: &str| [SHARED, JOURNAL].iter().any(|raw| disk.ends_with(raw));
    let in_clusters = images.filter(|disk| in_clusters(mode) && !is_raw(disk));
    let bases = in_clusters.clone().filter(|disk| disk.ends_with(BASES[0].0)).map(|disk| disk + BASE);
    let places = in_clusters.chain(bases).map(|disk| {
        let places = places(&folder.path().join(&disk));
        (disk, places)
    });
    let recorded = Recorded::of(&consume(&settings), &places.collect());
    assert_eq!(recorded.lost[0], 0, "{}", running[0].console());
    let spans = spans(&settings);
    let outcome = Outcome::of(&recorded, &spans);
    for (guest, name) in names.iter().enumerate() {
        let log = fs::read_to_string(folder.path().join(name).join("qemu.log")).unwrap();
        let log: Vec<Logged> = log.lines().filter_map(Logged::parse).collect();
        println!("{mode}: QEMU of {name} logged {} requests", log.len());
        assert_clocks(mode, guest, &recorded, &log);
        // Some of QEMU's log precede the guest's agent. It has no line of virtio-scsi's, and none of discards.
        let of_log = |((disk, range), requests): (&(String, Operation), &Vec<SpanId>)| {
            let is_logged = disk.starts_with(name) && !disk.ends_with("/sda") && range.0 != 'd';
            if is_logged { requests.len() } else { 0 }
        };
        let expected: usize = recorded.guest.iter().map(of_log).sum();
        assert!((expected..expected + 20).contains(&log.len()), "{}, not {expected}: {outcome:?}", log.len());
    }
    println!("{mode}: flushes of guests and QEMU: {:?}", recorded.flushes);
    let discards = recorded.guest.iter().filter(|((_, range), _)| range.0 == 'd').map(|(_, all)| all.len());
    let discards: usize = discards.sum();
    println!("{mode}: {discards} requests to write zeroes or to discard");
    assert!(discards >= 7, "the kernel zeroes the inode tables of eight groups");
    let of_shared = |((disk, _), requests): (&(String, Operation), &Vec<SpanId>)| {
        disk.ends_with(SHARED).then_some(requests.len())
    };
    let shared: usize = recorded.guest.iter().filter_map(of_shared).sum();
    println!("{mode}: {shared} requests of the shared disk");
    assert!(shared >= if names.len() > 1 { 2 * 10 * 40 } else { 0 }, "{shared}");
    Ok((outcome, recorded.lost[1], refused(&counts)))
}
