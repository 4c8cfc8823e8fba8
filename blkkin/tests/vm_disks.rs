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

mod clock_log;
mod outcome;
mod recorded;

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use blkkin_bus::kafka::Settings;
use blkkin_guest_boot::UnpackedKernel;
use blkkin_wire::ids::{NodeId, SpanId};
use blkkin_wire::span::Span;

use self::clock_log::{Logged, assert_clocks};
use self::outcome::Outcome;
use self::recorded::{Recorded, places};
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
write_and_read /dev/vda 10 & one=$!
write_and_read /dev/vda 1000 & two=$!
write_and_read /dev/vdb 10 & three=$!
write_and_read /dev/sda 10 & four=$!
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
fn start(folder: &Path, binary: &Path, kernel: &UnpackedKernel, guest: usize, mode: &str) -> Guest {
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
    let options = GuestOptions { name, uuid: &uuid, machine_id, script, disks, gets_socket, command: &tool };
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

/// Reads the finished traces.
fn spans(settings: &Settings) -> Vec<Span> {
    let mut reader = TraceReader::new(settings, PARTITIONS as i32);
    reader.read_to_end(settings, LIMIT);
    reader.spans()
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
fn run(kernel: &UnpackedKernel, binary: &Path, mode: &str) -> Result<(Outcome, u64, u64), String> {
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
