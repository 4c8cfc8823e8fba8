//! `blkkin trace --guests`: the report names the layer in which a guest's operations spend their time.
//!
//! *Input*: a stock kernel in QEMU that writes a block and syncs it, again and again. A delay is planted in turn in QEMU
//! (its throttling), in the host's file system (frozen again and again), and in the network to an NBD server. *Expected*:
//! the first sentence of the report names that layer first, and the second one too. Without a delay each of the guest's
//! requests has QEMU's operation.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

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
# The tracer looks at the disks after these, and pings with each record.
for n in 1 2 3 4 5; do dd if=/dev/vda of=/dev/null bs=512 count=1 skip=999$n iflag=direct 2> /dev/null; sleep 0.5; done
echo "guest: ready"
read -r _ <&3
for n in $(seq WRITES); do dd if=/dev/zero of=/dev/vda bs=4096 count=1 seek=$n conv=notrunc,fsync 2> /dev/null; done
echo "guest: done"
read -r _ <&3
end_agent
poweroff -f
"#;

/// A guest with one disk, and what `blkkin trace` reports of it.
struct Scenario<'a> {
    kernel: &'a Path,
    binary: &'a Path,
    /// Value of QEMU's `-drive`, without `if` and `id`.
    drive: &'a str,
    /// Returns QEMU's command.
    command: &'a dyn Fn(&str) -> Command,
    /// Further options of `blkkin trace`.
    options: &'a [&'a str],
}

/// Report as JSON and as text.
struct Outcome {
    json: Value,
    text: String,
}

impl Scenario<'_> {
    /// Runs it. `during` runs while the guest writes.
    fn run(&self, during: impl FnOnce()) -> Outcome {
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
            command: self.command,
        };
        let mut guest = Guest::start(folder, self.kernel, self.binary, &guests.join("web.sock"), &options);
        let [text, messages, json] = ["text", "messages", "json"].map(|name| folder.join(name));
        let file = |path: &PathBuf| Stdio::from(fs::File::create(path).unwrap());
        let mut trace = common::blkkin(&["trace", "--vm", "web", "--guests"]);
        trace.arg(&guests).arg(format!("--json={}", json.display())).args(self.options);
        let mut trace = KillOnDrop(trace.stdout(file(&text)).stderr(file(&messages)).spawn().unwrap());
        let read = |path: &PathBuf| fs::read_to_string(path).unwrap();
        assert!(
            eventually(|| read(&messages).contains("is connected: virtual machine `web`")),
            "{}",
            read(&messages)
        );
        guest.wait_for("ready");
        guest.go();
        during();
        guest.wait_for("done");
        guest.go();
        assert_eq!(guest.wait_for("the agent ended with"), "0", "{}", guest.console());
        // SAFETY: passes numbers only; the process has not been waited for.
        unsafe { libc::kill(trace.0.id() as libc::pid_t, libc::SIGTERM) };
        assert!(trace.0.wait().unwrap().success(), "{}", read(&messages));
        let outcome = Outcome { json: serde_json::from_str(&read(&json)).unwrap(), text: read(&text) };
        println!("{}\n{}", outcome.text, read(&messages));
        outcome
    }
}

impl Outcome {
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
    let drive = format!("file={},format=raw,cache=none", image(folder.path()).display());
    let scenario = Scenario {
        kernel: &kernel,
        binary: &binary,
        drive: &drive,
        command: &tool,
        options: &["--show", "guests"],
    };
    let outcome = scenario.run(|| {});
    let guests = &outcome.json["guests"];
    println!("{guests:#}");
    let [requests, linked] = ["requests", "requests_linked"].map(|name| guests[name].as_u64().unwrap());
    // A write and a flush each.
    assert!(requests >= 2 * WRITES as u64, "{guests:#}");
    assert!(linked + 5 >= requests, "{guests:#}");
}

/// QEMU lets 20 requests a second pass.
#[test]
fn throttling_in_qemu_is_named() {
    needs!("qemu-system-x86_64", "busybox", "strip");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let folder = tempfile::tempdir().unwrap();
    let drive =
        format!("file={},format=raw,cache=none,throttling.iops-total=20", image(folder.path()).display());
    let scenario = Scenario { kernel: &kernel, binary: &binary, drive: &drive, command: &tool, options: &[] };
    scenario.run(|| {}).assert_named("in QEMU and virtio");
}

/// The file system of the image is frozen for 200 of each 250 ms.
#[test]
fn a_frozen_file_system_of_the_host_is_named() {
    needs!("qemu-system-x86_64", "busybox", "strip", "losetup", "mkfs.ext4", "fsfreeze");
    let (kernel, binary) = (or_skip!(vm::kernel()), or_skip!(static_binary()));
    let disk = or_skip!(Disk::ext4(64 << 20));
    let drive = format!("file={},format=raw,cache=writeback", image(&disk.mount_point()).display());
    let scenario = Scenario { kernel: &kernel, binary: &binary, drive: &drive, command: &tool, options: &[] };
    let freeze = || {
        for _ in 0..10 {
            for (option, ms) in [("--freeze", 200), ("--unfreeze", 50)] {
                capture(tool("fsfreeze").arg(option).arg(disk.mount_point())).unwrap();
                std::thread::sleep(Duration::from_millis(ms));
            }
        }
    };
    scenario.run(freeze).assert_named("in the host's kernel");
}

/// The link to the NBD server delays each packet by 20 ms. The server runs in the network of the other node, so one
/// tracer has both ends.
#[test]
fn a_slow_network_to_the_nbd_server_is_named() {
    needs!("qemu-system-x86_64", "busybox", "strip", "lttng", "lttng-relayd", "ip", "nsenter");
    let (kernel, binary, server) = (or_skip!(vm::kernel()), or_skip!(static_binary()), or_skip!(server()));
    let link = or_skip!(NetworkLink::new());
    let folder = tempfile::tempdir().unwrap();
    let disk = image(folder.path());
    let listen = ["--tcp", &format!("{}:0", ADDRESSES[1])];
    let (process, uri) = serve(link.nodes[1].network_command(server.to_str().unwrap()), &disk, &listen);
    let drive = format!("file={uri},format=raw");
    let command = |program: &str| link.nodes[0].network_command(program);
    let options = ["--nbd", "--ust", "--tree", &process.0.id().to_string()];
    let scenario =
        Scenario { kernel: &kernel, binary: &binary, drive: &drive, command: &command, options: &options };
    let outcome = scenario.run(|| link.delay(Duration::from_millis(20)));
    outcome.assert_named("in transit to and from the NBD server");
    let layers = &outcome.json["guests"]["slowest"][0]["layers_ns"];
    assert!(
        layers["daemon"].as_u64().unwrap() > 0 && layers["host_kernel"].as_u64().unwrap() > 0,
        "{layers:#}"
    );
}
