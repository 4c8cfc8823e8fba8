//! Virtual machines that `blkkin doctor` lists, and that `--vm` traces.
//!
//! *Input*: QEMU with images of each aio and cache mode, a backing file, a disk that is attached later,
//! and an image that is exported for a time; writes to two virtual machines at once. *Independent
//! count*: QEMU's own word, by `query-block` and `query-named-block-nodes` of its QMP socket; for the
//! aio modes, which QEMU does not report, the options that it was started with.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};

use blkkin_wire::event::LayerEvent;
use blkkin_wire::ids::Pid;
use blkkin_wire::syscalls::SyscallId;
use serde_json::{Value, json};

use crate::broker::child::KillOnDrop;
use crate::common;
use crate::support::agent_recording;
use crate::support::disk::Disk;
use crate::support::live::LiveTrace;
use crate::support::service::Service;
use crate::support::tools::{capture, tool};
use crate::support::{needs, or_skip};

const QEMU: &str = "qemu-system-x86_64";
const UUID: &str = "7b3c1c2e-6b0a-4ef4-9a55-0c1b8e9d2f10";

/// A QEMU process with a guest that does not start, and its QMP connection.
struct Qemu {
    folder: PathBuf,
    process: KillOnDrop,
    qmp: BufReader<UnixStream>,
}

impl Qemu {
    fn start(folder: &Path, arguments: &[String]) -> Qemu {
        let socket = folder.join("qmp");
        let mut command = tool(QEMU);
        command.args(["-S", "-nodefaults", "-display", "none", "-machine", "pc,accel=tcg", "-m", "64"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display())).args(arguments);
        let process = KillOnDrop(command.current_dir(folder).stdin(Stdio::null()).spawn().unwrap());
        let started = Instant::now();
        let stream = loop {
            match UnixStream::connect(&socket) {
                Ok(stream) => break stream,
                Err(error) => assert!(started.elapsed() < Duration::from_secs(60), "{error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        let mut qemu = Qemu { folder: folder.to_owned(), process, qmp: BufReader::new(stream) };
        // Greeting.
        qemu.reply();
        qemu.execute("qmp_capabilities", json!({}));
        qemu
    }

    fn execute(&mut self, command: &str, arguments: Value) -> Value {
        let request = json!({ "execute": command, "arguments": arguments });
        self.qmp.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        loop {
            let reply = self.reply();
            if reply.get("event").is_none() {
                assert!(reply.get("return").is_some(), "{command}: {reply}");
                return reply["return"].clone();
            }
        }
    }

    fn reply(&mut self) -> Value {
        let mut line = String::new();
        self.qmp.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap()
    }

    /// Returns the format and cache mode of each image of a device.
    fn devices(&mut self) -> BTreeMap<PathBuf, [Value; 2]> {
        let files = self.files();
        let devices = self.execute("query-block", json!({}));
        let devices = devices.as_array().unwrap().iter().map(|device| &device["inserted"]);
        devices
            .map(|image| {
                let name = image["file"].as_str().unwrap();
                // Of an image with a backing file, QEMU describes both.
                let described: Option<Value> =
                    name.strip_prefix("json:").map(|text| serde_json::from_str(text).unwrap());
                let inner = described.as_ref().and_then(|image| image["file"]["filename"].as_str());
                let path = self.folder.join(inner.unwrap_or(name));
                // QEMU reports the flags of the outermost node; the file's own decides on O_DIRECT.
                let mode = mode(files[&path].0, &image["cache"]);
                (path, [image["drv"].clone(), json!(mode)])
            })
            .collect()
    }

    /// Returns the files that QEMU has open: whether each bypasses the page cache, and is only read.
    fn files(&mut self) -> BTreeMap<PathBuf, (bool, bool)> {
        let nodes = self.execute("query-named-block-nodes", json!({}));
        let nodes = nodes
            .as_array()
            .unwrap()
            .iter()
            .filter(|node| matches!(node["drv"].as_str(), Some("file" | "host_device")));
        nodes
            .map(|node| {
                // A relative name is as it was given.
                let path = self.folder.join(node["file"].as_str().unwrap());
                (path, (node["cache"]["direct"].as_bool().unwrap(), node["ro"].as_bool().unwrap()))
            })
            .collect()
    }
}

/// Name of a cache mode in QEMU's manual.
fn mode(direct: bool, cache: &Value) -> &'static str {
    let [no_flush, writeback] = ["no-flush", "writeback"].map(|part| cache[part].as_bool().unwrap());
    match (direct, no_flush, writeback) {
        (true, false, true) => "none",
        (false, false, true) => "writeback",
        (false, false, false) => "writethrough",
        (true, false, false) => "directsync",
        (false, true, true) => "unsafe",
        other => panic!("{other:?}"),
    }
}

/// Returns what `blkkin doctor` reports of the process, and its images by path.
fn listed(pid: u32) -> (Value, BTreeMap<PathBuf, Value>) {
    let output = common::blkkin(&["doctor", "--json"]).output().unwrap();
    let doctor: Value = serde_json::from_slice(&output.stdout).unwrap();
    let machines = doctor["virtual_machines"].as_array().unwrap();
    let machine =
        machines.iter().find(|machine| machine["pid"] == pid).unwrap_or_else(|| panic!("{machines:?}"));
    let images = machine["images"].as_array().unwrap_or_else(|| panic!("{machine}")).iter();
    let images = images.map(|image| (PathBuf::from(image["path"].as_str().unwrap()), image.clone()));
    (machine.clone(), images.collect())
}

/// Asserts that the images are those that QEMU has open, and returns what `blkkin doctor` reports.
fn assert_same_files(qemu: &mut Qemu) -> (Value, BTreeMap<PathBuf, Value>) {
    let (machine, images) = listed(qemu.process.0.id());
    let found = images.iter().map(|(path, image)| {
        let is = |key: &str| image[key].as_bool().unwrap();
        (path.clone(), (is("direct"), !is("writable")))
    });
    assert_eq!(found.collect::<BTreeMap<_, _>>(), qemu.files());
    (machine, images)
}

#[test]
fn each_image_is_listed_with_the_modes_that_qemu_reports() {
    needs!("qemu-system-x86_64", "qemu-img");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let image = |name: &str, format: &str| {
        capture(tool("qemu-img").args(["create", "-q", "-f", format]).arg(folder.join(name)).arg("16M"))
            .unwrap();
    };
    let mut arguments =
        ["-name", "guest=web,, 1,debug-threads=on", "-uuid", UUID].map(str::to_owned).to_vec();
    arguments.extend(["-object", "iothread,id=io1"].map(str::to_owned));
    // As a person writes it: a drive for each pair of modes, by a relative path.
    let mut expected = Vec::new();
    for aio in ["threads", "native", "io_uring"] {
        for cache in ["none", "writeback", "writethrough", "directsync", "unsafe"] {
            // QEMU refuses Linux' asynchronous I/O through the page cache.
            if aio == "native" && !matches!(cache, "none" | "directsync") {
                continue;
            }
            let name = format!("{aio},{cache}.img");
            image(&name, "raw");
            let id = format!("{aio}-{cache}");
            let file = name.replace(',', ",,");
            arguments.push("-drive".to_owned());
            arguments.push(format!("file={file},format=raw,if=none,id={id},aio={aio},cache={cache}"));
            arguments.push("-device".to_owned());
            arguments.push(format!("virtio-blk-pci,drive={id},iothread=io1"));
            expected.push((name, id, "raw", aio, cache, json!("virtio-blk-pci"), json!(["io1"])));
        }
    }
    image("readonly.img", "raw");
    arguments.extend(["-drive", "file=readonly.img,format=raw,if=none,id=ro,readonly=on"].map(str::to_owned));
    arguments.extend(["-device", "virtio-blk-pci,drive=ro"].map(str::to_owned));
    let device = json!("virtio-blk-pci");
    expected.push(("readonly.img".into(), "ro".into(), "raw", "threads", "writeback", device, json!([])));
    // As libvirt writes it: a node for the file, one for the format, and a device, as JSON.
    image("base.img", "raw");
    let create = ["create", "-q", "-f", "qcow2", "-F", "raw", "-b", "base.img", "libvirt.qcow2"];
    capture(tool("qemu-img").args(create).current_dir(&folder)).unwrap();
    let base = json!({ "driver": "file", "filename": folder.join("base.img"), "node-name": "base", "read-only": true });
    let storage = json!({ "driver": "file", "filename": folder.join("libvirt.qcow2"), "node-name": "storage",
        "aio": "io_uring", "cache": { "direct": true, "no-flush": false } });
    let format = json!({ "driver": "qcow2", "file": "storage", "node-name": "format",
        "backing": "base" });
    let device = json!({ "driver": "scsi-hd", "drive": "format", "bus": "scsi0.0", "write-cache": "off" });
    arguments.extend(["-device", "virtio-scsi-pci,id=scsi0"].map(str::to_owned));
    for (option, value) in
        [("-blockdev", base), ("-blockdev", storage), ("-blockdev", format), ("-device", device)]
    {
        arguments.extend([option.to_owned(), value.to_string()]);
    }
    expected.push((
        "libvirt.qcow2".into(),
        "format".into(),
        "qcow2",
        "io_uring",
        "directsync",
        json!("scsi-hd"),
        json!([]),
    ));
    expected.push(("base.img".into(), "base".into(), "raw", "threads", "writeback", Value::Null, json!([])));

    let mut qemu = Qemu::start(&folder, &arguments);
    let (machine, images) = assert_same_files(&mut qemu);
    assert_eq!((&machine["name"], &machine["uuid"]), (&json!("web, 1"), &json!(UUID)));
    assert_eq!(images.len(), expected.len());
    let devices = qemu.devices();
    assert_eq!(devices.len(), expected.len() - 1, "each image but the backing file: {devices:?}");
    for (path, modes) in &devices {
        assert!(images.contains_key(path), "{} in {:?}", path.display(), images.keys());
        assert_eq!(&["format", "cache"].map(|key| images[path][key].clone()), modes, "{}", path.display());
    }
    for (name, node, format, aio, cache, device, iothreads) in expected {
        let image = &images[&folder.join(&name)];
        let found = ["node", "format", "aio", "cache"].map(|key| image[key].as_str().unwrap());
        assert_eq!(found, [node.as_str(), format, aio, cache], "{name}");
        assert_eq!((&image["device"], &image["iothreads"]), (&device, &iothreads), "{name}");
        assert_eq!(image["backing"], name == "base.img", "{name}");
    }

    // A disk that is attached later; an image that is exported, and one that no longer is.
    image("later.img", "raw");
    let node = json!({ "driver": "file", "filename": folder.join("later.img"), "node-name": "later",
        "cache": { "direct": true } });
    qemu.execute("blockdev-add", node);
    qemu.execute("device_add", json!({ "driver": "virtio-blk-pci", "drive": "later" }));
    image("exported.img", "raw");
    export(&mut qemu, &folder.join("exported.img"), true);
    let (_, images) = assert_same_files(&mut qemu);
    for name in ["later.img", "exported.img"] {
        let image = &images[&folder.join(name)];
        assert_eq!(
            (&image["direct"], &image["node"], &image["aio"]),
            (&json!(true), &Value::Null, &Value::Null)
        );
    }
    qemu.execute("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qemu.execute("blockdev-del", json!({ "node-name": "n" }));
    assert!(!assert_same_files(&mut qemu).1.contains_key(&folder.join("exported.img")));
    // A snapshot: the image of before is the backing file of a new one, which the command line does not name.
    let snapshot = folder.join("snapshot.qcow2");
    let of_image = json!({ "node-name": "format", "snapshot-file": snapshot, "format": "qcow2", "snapshot-node-name": "new" });
    qemu.execute("blockdev-snapshot-sync", of_image);
    let (_, images) = assert_same_files(&mut qemu);
    let is_backing =
        ["snapshot.qcow2", "libvirt.qcow2", "base.img"].map(|name| &images[&folder.join(name)]["backing"]);
    assert_eq!(is_backing, [&json!(false), &json!(true), &json!(true)]);

    let table = common::run(&["doctor"]);
    let section =
        table.stdout.split_once("Virtual machines of QEMU").map(|(_, rest)| rest).unwrap_or_default();
    assert!(section.contains(&format!("web, 1, process {}, UUID {UUID}", qemu.process.0.id())), "{section}");
    // Without root the names are there and the images are not.
    let other = common::run_unprivileged(&["doctor"]).stdout;
    assert!(other.contains("web, 1, process") && other.contains("cannot be read without root"), "{other}");
}

/// Adds an image to a virtual machine and exports it, so that QEMU does I/O while its guest is
/// stopped. Returns the address of the export.
fn export(qemu: &mut Qemu, image: &Path, direct: bool) -> String {
    let socket = qemu.folder.join("nbd");
    let node =
        json!({ "driver": "file", "filename": image, "node-name": "n", "cache": { "direct": direct } });
    qemu.execute("blockdev-add", node);
    let address = json!({ "type": "unix", "data": { "path": socket } });
    qemu.execute("nbd-server-start", json!({ "addr": address }));
    let export = json!({ "type": "nbd", "id": "e", "node-name": "n", "writable": true });
    qemu.execute("block-export-add", export);
    format!("nbd+unix:///n?socket={}", socket.display())
}

#[test]
fn one_of_two_virtual_machines_is_traced_by_its_name() {
    const WRITES: u64 = 20;
    needs!("qemu-system-x86_64", "qemu-img", "qemu-io");
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().canonicalize().unwrap();
    let mut machines = ["web", "db"].map(|name| {
        let own = folder.join(name);
        std::fs::create_dir(&own).unwrap();
        let image = own.join("disk.img");
        capture(tool("qemu-img").args(["create", "-q", "-f", "raw"]).arg(&image).arg("16M")).unwrap();
        let mut qemu = Qemu::start(&own, &["-name", name].map(str::to_owned));
        let address = export(&mut qemu, &image, true);
        (qemu, image, address)
    });
    let writes = (0..WRITES).map(|n| format!(" -c 'write {}k 64k'", 64 * n)).collect::<String>();
    let script = machines.each_ref().map(|(_, _, address)| format!("qemu-io -f raw{writes} '{address}'"));
    let report = folder.join("report.json");
    let (json, path) = (format!("--json={}", report.display()), format!("{}/**/disk.img", folder.display()));
    common::run(&["run", "--vm", "web", "--path", &path, &json, "--", "sh", "-c", &script.join(" && ")])
        .expect_code(0);
    let report: Value = serde_json::from_slice(&std::fs::read(&report).unwrap()).unwrap();
    let files = report["files"]["slowest"].as_array().unwrap().iter();
    let files = files.map(|file| {
        let number = |key: &str| file[key].as_u64().unwrap();
        (file["path"].as_str().unwrap().to_owned(), number("bytes_written"))
    });
    let [(_, web, _), _] = &mut machines;
    let expected = [(web.to_str().unwrap().to_owned(), WRITES * (64 << 10))];
    assert_eq!(files.collect::<Vec<_>>(), expected, "{}", report["losses"]);
}

/// Direct and buffered writes: a call has the name of its virtual machine, a bio with its data too.
#[test]
fn spans_have_the_name_of_their_virtual_machine() {
    const WRITES: u64 = 20;
    needs!("qemu-system-x86_64", "qemu-img", "qemu-io", "losetup", "mkfs.ext4");
    let disk = or_skip!(Disk::ext4(96 << 20));
    let folder = tempfile::tempdir().unwrap();
    let mut machines = [("web", true), ("db", false)].map(|(name, direct)| {
        let own = folder.path().join(name);
        std::fs::create_dir(&own).unwrap();
        let image = disk.mount_point().join(name);
        capture(tool("qemu-img").args(["create", "-q", "-f", "raw"]).arg(&image).arg("16M")).unwrap();
        let mut qemu = Qemu::start(&own, &["-name", name, "-uuid", UUID].map(str::to_owned));
        let address = export(&mut qemu, &image, direct);
        (name, qemu, image, address)
    });
    let spans = folder.path().join("spans.json");
    let (to, path) = (format!("zipkin={}", spans.display()), format!("{}/*", disk.mount_point().display()));
    let live = LiveTrace::trace(&["--path", &path, "--to", &to], folder.path().join("report.json"));
    // The first call makes the process known; its name is read some ms later.
    let write = |(_, _, _, address): &(_, Qemu, PathBuf, String), count| {
        let writes =
            (0..count).map(|n| format!("write {}k 64k", 64 * n)).flat_map(|write| ["-c".to_owned(), write]);
        capture(tool("qemu-io").args(["-f", "raw"]).args(writes).args(["-c", "flush"]).arg(address)).unwrap();
    };
    machines.iter().for_each(|machine| write(machine, 1));
    std::thread::sleep(Duration::from_secs(1));
    machines.iter().for_each(|machine| write(machine, WRITES));
    let report = live.finish();
    assert_eq!(report["losses"]["total"], 0, "{}", report["losses"]);
    let spans: Vec<Value> = serde_json::from_slice(&std::fs::read(&spans).unwrap()).unwrap();
    for (name, qemu, image, _) in &mut machines {
        let pid = qemu.process.0.id().to_string();
        let of_image = spans.iter().filter(|span| span["tags"]["file.path"] == *image.to_str().unwrap());
        let mut writes: Vec<&Value> = of_image
            .filter(|span| span["tags"]["process.pid"] == *pid)
            .filter(|span| span["name"].as_str().unwrap().starts_with("pwrite"))
            .collect();
        writes.sort_by_key(|span| span["timestamp"].as_u64());
        assert_eq!(writes.len() as u64, WRITES + 1, "{writes:#?}");
        for (n, span) in writes.iter().enumerate() {
            let tags = ["blkkin.vm.name", "blkkin.vm.uuid"].map(|key| span["tags"][key].as_str());
            let named = [Some(*name), Some(UUID)];
            assert!(tags == named || (n == 0 && tags == [None, None]), "write {n}: {span:#}");
        }
    }
    // Nothing else runs a virtual machine.
    let pids = machines.each_ref().map(|(_, qemu, ..)| json!(qemu.process.0.id().to_string()));
    let named = spans.iter().filter(|span| span["tags"]["blkkin.vm.name"].is_string());
    assert!(named.clone().all(|span| pids.contains(&span["tags"]["process.pid"])));
    let (_, db, ..) = &machines[1];
    let writer = format!("qemu-system-x86_64 (VM db, pid {})", db.process.0.id());
    let carries = |span: &&Value| span["tags"]["blkkin.writer.programs"] == *writer;
    assert!(spans.iter().any(|span| carries(&span)), "{writer}");
}

/// An agent starts before the virtual machine, and stays while it is started again.
#[test]
fn an_agent_traces_each_process_of_a_virtual_machine() {
    const WRITES: usize = 20;
    const TIME_LIMIT: Duration = Duration::from_secs(60);
    needs!("qemu-system-x86_64", "qemu-img", "qemu-io");
    let folder = tempfile::tempdir().unwrap();
    let recording = folder.path().join("recording");
    let args = ["agent", "--vm", "web", "--record", recording.to_str().unwrap()];
    let agent = Service::start(folder.path(), "agent", &args);
    agent.wait_for_output("virtual machine `web` does not run", TIME_LIMIT);
    agent.wait_for_output("tracing; events go", TIME_LIMIT);
    let (mut pids, mut other) = (Vec::new(), None);
    for (n, name) in ["db", "web", "web"].into_iter().enumerate() {
        let own = folder.path().join(n.to_string());
        std::fs::create_dir(&own).unwrap();
        let image = own.join("disk.img");
        capture(tool("qemu-img").args(["create", "-q", "-f", "raw"]).arg(&image).arg("16M")).unwrap();
        let mut qemu = Qemu::start(&own, &["-name", name].map(str::to_owned));
        let address = export(&mut qemu, &image, true);
        if name == "web" {
            agent.wait_for_output(&format!("`web`, process {}", qemu.process.0.id()), TIME_LIMIT);
            pids.push(Pid(qemu.process.0.id()));
        }
        // The first call makes the process known; its name is read some ms later.
        for (count, pause) in [(1, Duration::from_millis(500)), (WRITES - 1, Duration::ZERO)] {
            let writes = (0..count).flat_map(|n| ["-c".to_owned(), format!("write {}k 64k", 64 * n)]);
            capture(tool("qemu-io").args(["-f", "raw"]).args(writes).arg(&address)).unwrap();
            std::thread::sleep(pause);
        }
        // The other one runs on: its later writes would be seen too.
        other = other.or(Some(qemu));
    }
    drop(other);
    let output = agent.finish_without_error();

    let events: Vec<LayerEvent> =
        agent_recording::batches(&recording).into_iter().flat_map(|batch| batch.events).collect();
    let mut processes = BTreeMap::new();
    for event in &events {
        if let LayerEvent::Task(task) = event {
            processes.insert(task.task.id.0, task.pid);
        }
    }
    let write = SyscallId::by_name("pwrite64").unwrap();
    let mut writes = BTreeMap::<Pid, usize>::new();
    for event in &events {
        if let LayerEvent::Syscall(call) = event
            && call.call == write
            && call.args[2] == 64 << 10
        {
            *writes.entry(processes[&call.task.id.0]).or_default() += 1;
        }
    }
    assert_eq!(writes, pids.iter().map(|pid| (*pid, WRITES)).collect(), "{output}");
    let named = events.iter().filter_map(|event| match event {
        LayerEvent::VirtualMachine(machine) => Some((machine.pid, &*machine.name)),
        _ => None,
    });
    // The tracer may report tasks of others too, without their calls.
    let named = named.filter(|(pid, _)| pids.contains(pid));
    assert_eq!(named.collect::<Vec<_>>(), pids.iter().map(|pid| (*pid, "web")).collect::<Vec<_>>());
}

#[test]
fn an_unknown_virtual_machine_is_refused() {
    let refused = common::run(&["trace", "--vm", "no such machine"]);
    refused.assert_refused(2, "no virtual machine `no such machine` for --vm", "a name or UUID");
}
