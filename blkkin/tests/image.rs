//! The container image: the static binary in an empty file system, built as `cargo xtask dist --image` builds it. What runs in
//! it is what is built for tests: not optimised, and linked the same way.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
#[path = "support/container.rs"]
mod container;
mod support;

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use blkkin_bus::recording::{Position, Recording};
use blkkin_wire::event::LayerEvent;
use blkkin_wire::v1;
use tempfile::TempDir;

use container::{BPF, Container, PERFMON, SYS_NICE, SYS_PTRACE, SYSLOG};
use support::disk::Disk;
use support::live::eventually;
use support::metrics::{address, get};
use support::tools::{capture, tool};
use support::{needs, or_skip};

const CONTAINERFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/deploy/Containerfile");
/// Of no machine: who has it can only have read it where it was put.
const NODE: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
const READS: usize = 64;

/// The image, unpacked.
struct Image {
    folder: TempDir,
    root: PathBuf,
}

impl Image {
    /// Builds it with the binary of this path.
    fn build(binary: &Path) -> Result<Image, String> {
        let folder = TempDir::new().unwrap();
        let context = folder.path().join("context");
        fs::create_dir(&context).unwrap();
        fs::copy(binary, context.join("blkkin")).unwrap();
        let mut image = Image { folder, root: PathBuf::new() };
        let mut bud = image.buildah();
        bud.args(["bud", "--quiet", "--isolation", "chroot", "--tag", "test", "--file", CONTAINERFILE]);
        capture(bud.arg(context))?;
        let container = capture(image.buildah().args(["from", "test"]))?;
        image.root = capture(image.buildah().args(["mount", &container]))?.into();
        Ok(image)
    }

    fn buildah(&self) -> Command {
        let mut command = tool("buildah");
        command.arg("--root").arg(self.folder.path().join("root"));
        command.arg("--runroot").arg(self.folder.path().join("run"));
        command.args(["--storage-driver", "vfs"]);
        command
    }

    fn entrypoint(&self) -> String {
        let form = "{{index .OCIv1.Config.Entrypoint 0}}";
        capture(self.buildah().args(["inspect", "--type", "image", "--format", form, "test"])).unwrap()
    }

    fn container(&self, mounts: Vec<(PathBuf, &'static str)>, capabilities: &[i32]) -> Container {
        Container { root: self.root.clone(), mounts, capabilities: capabilities.to_vec() }
    }
}

/// Killed with the test, however that ends.
struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The static binary; or why there is none.
fn static_binary() -> Result<PathBuf, String> {
    let said = std::env::var_os("BLKKIN_STATIC").map(PathBuf::from);
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/dist/test/blkkin");
    let found = said.into_iter().chain([made]).find(|file| file.is_file());
    found.ok_or_else(|| "no static binary: cargo xtask test builds one".to_owned())
}

/// Every file below `root`.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { [path].into() }).collect()
}

fn read(disk: &Disk) {
    let words = [&format!("if={}", disk.node().display()), "of=/dev/null", "bs=4k", "iflag=direct"];
    let mut dd = Command::new("dd");
    dd.args(words).arg(format!("count={READS}")).stderr(Stdio::null());
    assert!(dd.status().unwrap().success());
}

/// The node and the requests of a recording.
fn recorded(folder: &Path) -> (BTreeSet<u128>, usize) {
    let mut recording = Recording::open(folder, Position::default()).unwrap();
    let (mut nodes, mut requests) = (BTreeSet::new(), 0);
    while let Some((bytes, _)) = recording.read().unwrap() {
        let batch = v1::decode(&bytes).unwrap().batch;
        nodes.insert(batch.source.node.0);
        let of = |event: &&LayerEvent| matches!(event, LayerEvent::Request(_) | LayerEvent::Pair(_));
        requests += batch.events.iter().filter(of).count();
    }
    (nodes, requests)
}

#[test]
fn the_image_holds_one_file_and_an_agent_in_it_traces() {
    needs!("buildah", "losetup", "dd");
    let binary = or_skip!(static_binary());
    let disk = or_skip!(Disk::raw(16 << 20));
    let image = or_skip!(Image::build(&binary));
    assert_eq!(files(&image.root), [image.root.join("blkkin")].into(), "nothing but the binary");
    assert_eq!(image.entrypoint(), "/blkkin");

    let version = image.container(Vec::new(), &[]).command("/blkkin").arg("--version").output().unwrap();
    assert!(version.status.success(), "{version:?}");
    let said = String::from_utf8_lossy(&version.stdout).into_owned();
    assert_eq!(said.trim(), concat!("blkkin ", env!("CARGO_PKG_VERSION")));

    // Without a capability it says which.
    let run = image.container(Vec::new(), &[]).command("/blkkin").arg("doctor").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(!run.status.success() && said.contains("missing: CAP_BPF"), "{run:?}");
    // And with those of the manifests all is well.
    let capabilities = [BPF, PERFMON, SYSLOG, SYS_NICE, SYS_PTRACE];
    let run = image.container(Vec::new(), &capabilities).command("/blkkin").arg("doctor").output().unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success() && said.contains("CAP_BPF, CAP_PERFMON"), "{run:?}");

    // The least that works: two capabilities, /proc and /sys as every container has them, and who this machine is.
    let (machine_id, out) = (disk.file("machine-id"), disk.file("recording"));
    fs::write(&machine_id, format!("{NODE:032x}\n")).unwrap();
    fs::create_dir(&out).unwrap();
    let said = disk.file("said");
    let mounts = vec![(machine_id, "/etc/machine-id"), (out.clone(), "/var/lib/blkkin")];
    let mut agent = image.container(mounts, &[BPF, PERFMON]).command("/blkkin");
    agent.args(["agent", "--record", "/var/lib/blkkin", "--metrics", "127.0.0.1:0", "--device", disk.name()]);
    agent.stdout(Stdio::null()).stderr(fs::File::create(&said).unwrap());
    let mut agent = Started(agent.spawn().unwrap());
    let words = || fs::read_to_string(&said).unwrap();
    assert!(eventually(|| words().contains("tracing; events go to")), "{}", words());
    read(&disk);
    let health = || get(address(&words()), "/health");
    assert!(eventually(|| health().contains(" 200 OK")), "{}", health());
    // SAFETY: numbers only; the process has not been waited for.
    unsafe { libc::kill(agent.0.id() as libc::pid_t, libc::SIGTERM) };
    assert!(agent.0.wait().unwrap().success(), "{}", words());
    let (nodes, requests) = recorded(&out);
    assert_eq!(nodes, [NODE].into(), "it is the machine that was mounted");
    // An end that no program could see is in the books, and there are few.
    assert!(requests + 3 >= READS, "{requests} requests: {}", words());
}

/// In an empty file system there is no resolver but what is in the binary.
#[test]
fn the_static_binary_finds_hosts_by_itself() {
    needs!();
    let binary = or_skip!(static_binary());
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("etc")).unwrap();
    fs::copy(binary, folder.path().join("blkkin")).unwrap();
    fs::write(folder.path().join("etc/hosts"), "127.0.0.1 kafka.example\n").unwrap();
    // Words that a library of the machine's own would be loaded for.
    fs::write(folder.path().join("etc/nsswitch.conf"), "hosts: resolve mymachines mdns4_minimal\n").unwrap();
    let container =
        Container { root: folder.path().to_owned(), mounts: Vec::new(), capabilities: Vec::new() };
    // Brokers are looked up by librdkafka, which asks the C library as everything else does.
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    broker.set_nonblocking(true).unwrap();
    let brokers = format!("kafka.example:{}", broker.local_addr().unwrap().port());
    let mut exporter = container.command("/blkkin");
    exporter.args(["exporter", "--to", "zipkin=http://127.0.0.1:1", "--brokers", &brokers]);
    let _exporter = Started(exporter.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    assert!(eventually(|| broker.accept().is_ok()), "nobody came to {brokers}");
}
