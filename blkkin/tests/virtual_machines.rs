//! Virtual machines that `blkkin doctor` lists.
//!
//! *Input*: QEMU with images of each aio and cache mode, a disk that is attached later, and an image
//! that is exported for a time. *Independent count*: QEMU's own word, by `query-block` and
//! `query-named-block-nodes` of its QMP socket.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and prints why it is skipped"
)]

mod common;
mod support;

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use support::needs;
use support::tools::{capture, tool};

const QEMU: &str = "qemu-system-x86_64";
const UUID: &str = "7b3c1c2e-6b0a-4ef4-9a55-0c1b8e9d2f10";

/// A QEMU process whose guest does not start, and its QMP connection.
struct Qemu {
    folder: PathBuf,
    process: Child,
    qmp: BufReader<UnixStream>,
}

impl Qemu {
    fn start(folder: &Path, arguments: &[String]) -> Qemu {
        let socket = folder.join("qmp");
        let mut command = tool(QEMU);
        command.args(["-S", "-nodefaults", "-display", "none", "-machine", "pc,accel=tcg", "-m", "64"]);
        command.arg("-qmp").arg(format!("unix:{},server=on,wait=off", socket.display())).args(arguments);
        let process = command.current_dir(folder).stdin(Stdio::null()).spawn().unwrap();
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

impl Drop for Qemu {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
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
    let (machine, images) = listed(qemu.process.id());
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
            expected.push((name, id, "raw", aio, cache, json!("virtio-blk-pci"), json!("io1")));
        }
    }
    // As libvirt writes it: a node for the file, one for the format, and a device, as JSON.
    image("libvirt.qcow2", "qcow2");
    let storage = json!({ "driver": "file", "filename": folder.join("libvirt.qcow2"), "node-name": "storage",
        "aio": "io_uring", "cache": { "direct": true, "no-flush": false } });
    let format = json!({ "driver": "qcow2", "file": "storage", "node-name": "format" });
    let device = json!({ "driver": "scsi-hd", "drive": "format", "bus": "scsi0.0", "write-cache": "off" });
    arguments.extend(["-device", "virtio-scsi-pci,id=scsi0"].map(str::to_owned));
    for (option, value) in [("-blockdev", storage), ("-blockdev", format), ("-device", device)] {
        arguments.extend([option.to_owned(), value.to_string()]);
    }
    expected.push((
        "libvirt.qcow2".into(),
        "format".into(),
        "qcow2",
        "io_uring",
        "directsync",
        json!("scsi-hd"),
        Value::Null,
    ));

    let mut qemu = Qemu::start(&folder, &arguments);
    let (machine, images) = assert_same_files(&mut qemu);
    assert_eq!((&machine["name"], &machine["uuid"]), (&json!("web, 1"), &json!(UUID)));
    assert_eq!(images.len(), expected.len());
    for (name, node, format, aio, cache, device, iothread) in expected {
        let image = &images[&folder.join(&name)];
        let found = ["node", "format", "aio", "cache"].map(|key| image[key].as_str().unwrap());
        assert_eq!(found, [node.as_str(), format, aio, cache], "{name}");
        assert_eq!((&image["device"], &image["iothread"]), (&device, &iothread), "{name}");
    }

    // A disk that is attached later; an image that is exported, and one that no longer is.
    let add = |qemu: &mut Qemu, name: &str| {
        image(&format!("{name}.img"), "raw");
        let filename = folder.join(format!("{name}.img"));
        let node =
            json!({ "driver": "file", "filename": filename, "node-name": name, "cache": { "direct": true } });
        qemu.execute("blockdev-add", node);
    };
    add(&mut qemu, "later");
    qemu.execute("device_add", json!({ "driver": "virtio-blk-pci", "drive": "later" }));
    add(&mut qemu, "exported");
    let address = json!({ "type": "unix", "data": { "path": folder.join("nbd") } });
    qemu.execute("nbd-server-start", json!({ "addr": address }));
    let export = json!({ "type": "nbd", "id": "e", "node-name": "exported", "writable": true });
    qemu.execute("block-export-add", export);
    let (_, images) = assert_same_files(&mut qemu);
    for name in ["later.img", "exported.img"] {
        let image = &images[&folder.join(name)];
        assert_eq!(
            (&image["direct"], &image["node"], &image["aio"]),
            (&json!(true), &Value::Null, &Value::Null)
        );
    }
    qemu.execute("block-export-del", json!({ "id": "e", "mode": "hard" }));
    qemu.execute("blockdev-del", json!({ "node-name": "exported" }));
    assert!(!assert_same_files(&mut qemu).1.contains_key(&folder.join("exported.img")));

    let table = common::run(&["doctor"]);
    let section =
        table.stdout.split_once("Virtual machines of QEMU").map(|(_, rest)| rest).unwrap_or_default();
    assert!(section.contains(&format!("web, 1, process {}, UUID {UUID}", qemu.process.id())), "{section}");
    // Without root the names are there and the images are not.
    let other = common::run_unprivileged(&["doctor"]).stdout;
    assert!(other.contains("web, 1, process") && other.contains("cannot be read without root"), "{other}");
}
