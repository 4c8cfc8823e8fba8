//! Reports with guests, by `blkkin trace --guests`, by `run` around QEMU, and by `report` of an agent's recording: the
//! report names the layer in which a guest's operations spend their time.
//!
//! *Input*: a stock kernel in QEMU that writes a block and syncs it, again and again. A delay is planted in turn in QEMU
//! (its throttling), in the host's file system (frozen again and again), and in the network to an NBD server. *Expected*:
//! the first sentence of the report names that layer first, and the second one too. Without a delay each of the guest's
//! requests has QEMU's operation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use blkkin_guest_boot::UnpackedKernel;
use serde_json::Value;

use crate::broker::child::KillOnDrop;
use crate::common;
use crate::support::disk::Disk;
use crate::support::live::eventually;
use crate::support::nbd::{serve, server};
use crate::support::network_link::{ADDRESSES, NetworkLink};
use crate::support::tools::{capture, static_binary, tool};
use crate::support::vm::{self, Guest, GuestOptions};
use crate::support::{needs, or_skip};

/// Writes with a sync each.
const WRITES: usize = 20;
const DISK: u64 = 16 << 20;
const SCRIPT: &str = r#"
start_agent
echo "guest: ready"
read -r _ <&3
# The tracer looks at the disks after the first of these, and pings with each record.
for n in 1 2 3 4 5; do dd if=/dev/vda of=/dev/null bs=512 count=1 skip=999$n iflag=direct 2> /dev/null; sleep 0.5; done
# Two at once, which QEMU may submit by one call.
for n in $(seq 10); do
    dd if=/dev/zero of=/dev/vda bs=4096 count=4 seek=$((1000 + n * 4)) oflag=direct conv=notrunc 2> /dev/null & one=$!
    dd if=/dev/zero of=/dev/vda bs=4096 count=4 seek=$((2000 + n * 4)) oflag=direct conv=notrunc 2> /dev/null
    wait $one
done
echo "guest: probed"
read -r _ <&3
for n in $(seq WRITES); do dd if=/dev/zero of=/dev/vda bs=4096 count=1 seek=$n conv=notrunc,fsync 2> /dev/null; done
echo "guest: done"
read -r _ <&3
end_agent
poweroff -f
"#;

/// A guest with one disk, and what `blkkin trace` reports of it.
struct Scenario<'a> {
    kernel: &'a UnpackedKernel,
    binary: &'a Path,
    /// Value of QEMU's `-drive`, without `if` and `id`.
    drive: &'a str,
    /// Returns QEMU's command.
    command: &'a dyn Fn(&str) -> Command,
    /// Further options of `blkkin trace`.
    options: &'a [&'a str],
    tracer: Tracer,
}

/// Command that traces the guest.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Tracer {
    Trace,
    /// `blkkin trace`, after another one has received the guest's first records.
    SecondTrace,
    /// `blkkin run` around QEMU.
    Run,
    /// `blkkin agent --record`, then `blkkin report`.
    Recording,
}

/// Report as JSON and as text.
struct Outcome {
    json: Value,
    text: String,
}

impl<'a> Scenario<'a> {
    /// Returns one in this network namespace, with the summary as report.
    fn new(kernel: &'a UnpackedKernel, binary: &'a Path, drive: &'a str) -> Self {
        Scenario { kernel, binary, drive, command: &tool, options: &[], tracer: Tracer::Trace }
    }

    /// Runs it. `during` lets the guest make its synced writes (`go`).
    fn run(&self, during: impl FnOnce(&mut Guest)) -> Outcome {
        let home = tempfile::tempdir().unwrap();
        let (folder, guests) = (home.path(), home.path().join("guests"));
        fs::create_dir(&guests).unwrap();
        let disks = [
            "-drive",
            &format!("{},if=none,id=d", self.drive),
            "-device",
            "virtio-blk-pci,serial=root,drive=d",
        ];
        let options = GuestOptions {
            name: "web",
            uuid: "11111111-2222-3333-4444-555555555555",
            machine_id: 0xc,
            script: SCRIPT.replace("WRITES", &WRITES.to_string()),
            disks: disks.map(str::to_owned).to_vec(),
            gets_socket: false,
            command: &|program| match self.tracer {
                Tracer::Run => run_around(program, folder, &guests),
                _ => (self.command)(program),
            },
        };
        let mut guest = Guest::start(folder, self.kernel, self.binary, &guests.join("web.sock"), &options);
        let start = || RunningTrace::start(folder, &guests, self.options, self.tracer);
        if self.tracer == Tracer::SecondTrace {
            // The guest's agent names its disk, its program and its files to this one.
            let trace = start();
            guest.wait_for("ready");
            std::thread::sleep(Duration::from_secs(1));
            trace.finish();
        }
        let trace = (self.tracer != Tracer::Run).then(start);
        guest.wait_for("ready");
        guest.go();
        guest.wait_for("probed");
        during(&mut guest);
        guest.wait_for("done");
        guest.go();
        assert_eq!(guest.wait_for("the agent ended with"), "0", "{}", guest.console());
        match trace {
            Some(trace) => trace.finish(),
            None => {
                let status = guest.wait();
                assert!(status.success(), "{status}");
                Outcome::read(folder)
            }
        }
    }
}

/// Returns the command that traces QEMU and its guest.
fn run_around(program: &str, folder: &Path, guests: &Path) -> Command {
    let mut command = common::blkkin(&["run", "--guests"]);
    command.arg(guests).arg(format!("--json={}", folder.join("json").display()));
    command.args(["--", program]).stdout(fs::File::create(folder.join("text")).unwrap());
    command
}

/// A `blkkin trace` of the guest, or an agent that records.
struct RunningTrace {
    process: KillOnDrop,
    /// Folder of the agent's recording.
    recording: Option<PathBuf>,
    folder: PathBuf,
    messages: PathBuf,
}

impl RunningTrace {
    /// Starts it, and waits until the guest is connected.
    fn start(folder: &Path, guests: &Path, options: &[&str], tracer: Tracer) -> RunningTrace {
        let [text, messages, json] = ["text", "messages", "json"].map(|name| folder.join(name));
        let file = |path: &PathBuf| Stdio::from(fs::File::create(path).unwrap());
        let recording = (tracer == Tracer::Recording).then(|| folder.join("recording"));
        let mut command = match &recording {
            Some(recording) => {
                let mut agent = common::blkkin(&["agent", "--vm", "web", "--metrics", "off", "--record"]);
                agent.arg(recording);
                agent
            }
            None => {
                let mut trace = common::blkkin(&["trace", "--vm", "web"]);
                trace.arg(format!("--json={}", json.display())).args(options);
                trace
            }
        };
        command.arg("--guests").arg(guests);
        let process = KillOnDrop(command.stdout(file(&text)).stderr(file(&messages)).spawn().unwrap());
        let trace = RunningTrace { process, recording, folder: folder.to_owned(), messages };
        let is_connected = || trace.messages().contains("is connected: virtual machine `web`");
        assert!(eventually(is_connected), "{}", trace.messages());
        trace
    }

    fn messages(&self) -> String {
        fs::read_to_string(&self.messages).unwrap()
    }

    /// Ends it, and returns its report.
    fn finish(mut self) -> Outcome {
        // SAFETY: passes numbers only; the process has not been waited for.
        unsafe { libc::kill(self.process.0.id() as libc::pid_t, libc::SIGTERM) };
        assert!(self.process.0.wait().unwrap().success(), "{}", self.messages());
        println!("{}", self.messages());
        if let Some(recording) = &self.recording {
            let mut report = common::blkkin(&["report"]);
            report.arg(recording).arg(format!("--json={}", self.folder.join("json").display()));
            let text = capture(report.args(["--show", "guests"])).unwrap();
            fs::write(self.folder.join("text"), text).unwrap();
        }
        Outcome::read(&self.folder)
    }
}

impl Outcome {
    /// Reads what the report wrote into a folder.
    fn read(folder: &Path) -> Outcome {
        let read = |name| fs::read_to_string(folder.join(name)).unwrap();
        let outcome = Outcome { json: serde_json::from_str(&read("json")).unwrap(), text: read("text") };
        println!("{}", outcome.text);
        outcome
    }

    /// Asserts that the first sentences about the virtual machine name this place first.
    fn assert_named(&self, place: &str) {
        for begin in ["virtual machine web: ", "slowest in web: "] {
            // A sentence may have several lines.
            let text = self.text.replace('\n', " ");
            let sentence = text.split(begin).nth(1).unwrap_or_else(|| panic!("no `{begin}` in {text}"));
            let (_, shares) = sentence.split_once(" % ").unwrap();
            assert!(shares.starts_with(place), "not `{place}`: {begin}{sentence}");
        }
    }
}

/// Folder for an image in memory: a busy disk of this host is not what a guest's call waits for.
fn memory() -> tempfile::TempDir {
    tempfile::tempdir_in("/dev/shm").unwrap()
}

fn image(folder: &Path) -> PathBuf {
    let image = folder.join("disk.img");
    fs::File::create(&image).unwrap().set_len(DISK).unwrap();
    image
}

#[test]
fn each_request_of_a_guest_is_in_the_report_with_its_layers() {
    needs!("qemu-system-x86_64", "busybox", "strip");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let folder = tempfile::tempdir().unwrap();
    let scenarios = [
        ("aio=threads", Tracer::SecondTrace),
        ("aio=native", Tracer::Trace),
        ("aio=threads", Tracer::Run),
        ("aio=threads", Tracer::Recording),
    ];
    for (mode, tracer) in scenarios {
        let drive = format!("file={},format=raw,cache=none,{mode}", image(folder.path()).display());
        let options = ["--show", "guests"];
        let scenario = Scenario { options: &options, tracer, ..Scenario::new(&kernel, &binary, &drive) };
        let guests = &scenario.run(Guest::go).json["guests"];
        println!("{tracer:?}, {mode}: {guests:#}");
        let [requests, linked] = ["requests", "requests_linked"].map(|name| guests[name].as_u64().unwrap());
        // A write and a flush each, and the direct writes.
        assert!(requests >= (2 * WRITES + 80) as u64, "{guests:#}");
        // The first ones make the disk known, and libaio reports no length of a read of a hole.
        assert!(linked + 10 >= requests, "{guests:#}");
        let programs: Vec<&str> =
            guests["programs"].as_array().unwrap().iter().filter_map(|row| row["program"].as_str()).collect();
        assert_eq!(programs, ["dd"], "{guests:#}");
        let slowest = guests["slowest"].as_array().unwrap();
        let layers = slowest.iter().map(|one| one["layers_ns"].as_object().unwrap());
        for (one, layers) in slowest.iter().zip(layers) {
            let sum: u64 = layers.values().map(|time| time.as_u64().unwrap()).sum();
            assert_eq!(sum, one["duration_ns"].as_u64().unwrap());
            assert!(
                ["guest_kernel", "qemu"].iter().all(|layer| layers[*layer].as_u64() > Some(0)),
                "{one:#}"
            );
        }
        let row = &guests["programs"][0]["layers_ns"];
        assert!(["host_kernel", "device"].iter().all(|layer| row[*layer].as_u64() > Some(0)), "{guests:#}");
    }
}

/// QEMU lets 20 requests a second pass.
#[test]
fn throttling_in_qemu_is_named() {
    needs!("qemu-system-x86_64", "busybox", "strip");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let folder = memory();
    let drive = format!("file={},format=raw,throttling.iops-total=20", image(folder.path()).display());
    Scenario::new(&kernel, &binary, &drive).run(Guest::go).assert_named("in QEMU and virtio");
}

/// The file system of the image is frozen for 200 of each 250 ms.
#[test]
fn a_frozen_file_system_of_the_host_is_named() {
    needs!("qemu-system-x86_64", "busybox", "strip", "losetup", "mkfs.ext4", "fsfreeze");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let disk = or_skip!(Disk::ext4(64 << 20));
    let drive = format!("file={},format=raw,cache=writeback", image(&disk.mount_point()).display());
    let freeze = |guest: &mut Guest| {
        guest.go();
        let frozen = Frozen(disk.mount_point());
        while !guest.has("done") {
            for (option, ms) in [("--freeze", 200), ("--unfreeze", 50)] {
                frozen.run(option).unwrap();
                std::thread::sleep(Duration::from_millis(ms));
            }
        }
    };
    Scenario::new(&kernel, &binary, &drive).run(freeze).assert_named("in the host's kernel");
}

/// A file system that is not frozen when this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn run(&self, option: &str) -> Result<String, String> {
        capture(tool("fsfreeze").arg(option).arg(&self.0))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // An error: it is not frozen.
        let _ = self.run("--unfreeze");
    }
}

/// The link to the NBD server delays each packet by 20 ms. The server runs in the network of the other node, so one
/// tracer has both ends.
#[test]
fn a_slow_network_to_the_nbd_server_is_named() {
    needs!("qemu-system-x86_64", "busybox", "strip", "lttng", "lttng-relayd", "ip", "nsenter");
    let (kernel, binary, server) = (or_skip!(vm::kernel()), or_skip!(static_binary()), or_skip!(server()));
    let link = or_skip!(NetworkLink::new());
    let folder = memory();
    let disk = image(folder.path());
    let listen = ["--tcp", &format!("{}:0", ADDRESSES[1])];
    let (process, uri) = serve(link.nodes[1].network_command(server.to_str().unwrap()), &disk, &listen);
    let drive = format!("file={uri},format=raw");
    let command = |program: &str| link.nodes[0].network_command(program);
    let options = ["--nbd", "--ust", "--tree", &process.0.id().to_string()];
    let scenario =
        Scenario { command: &command, options: &options, ..Scenario::new(&kernel, &binary, &drive) };
    let outcome = scenario.run(|guest| {
        link.delay(Duration::from_millis(20));
        guest.go();
    });
    outcome.assert_named("in transit to and from the NBD server");
    let layers = &outcome.json["guests"]["slowest"][0]["layers_ns"];
    assert!(
        layers["daemon"].as_u64().unwrap() > 0 && layers["host_kernel"].as_u64().unwrap() > 0,
        "{layers:#}"
    );
}
