//! The container image: the static binary in an empty file system, built as `cargo xtask dist
//! --image` builds it. The binary is the one built for tests: not optimised, and linked in the same
//! way.
//!
//! *Input*: the real Containerfile (buildah), and direct reads on a loop device. The number of
//! recorded requests is compared with the number of reads that `dd` was given.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use blkkin_wire::event::LayerEvent;
use tempfile::TempDir;

use crate::broker::child::KillOnDrop;
use crate::support::agent_recording;
use crate::support::container::{BPF, Container, PERFMON, SYS_NICE, SYS_PTRACE, SYSLOG};
use crate::support::disk::Disk;
use crate::support::live::eventually;
use crate::support::metrics::{address, get_as};
use crate::support::tools::{capture, static_binary, tool};
use crate::support::{needs, or_skip};

const CONTAINERFILE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/deploy/Containerfile");
/// Machine id that no machine has, so the agent can only have read it from the mounted file.
const NODE: u128 = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
const READS: usize = 64;

/// The unpacked image.
struct Image {
    folder: TempDir,
    root: PathBuf,
}

impl Image {
    /// Builds the image with this binary.
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

/// Returns every file in `root` and its folders.
fn files(root: &Path) -> BTreeSet<PathBuf> {
    let entries = fs::read_dir(root).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { [path].into() }).collect()
}

fn read(disk: &Disk) {
    let args = [&format!("if={}", disk.node().display()), "of=/dev/null", "bs=4k", "iflag=direct"];
    let mut dd = Command::new("dd");
    dd.args(args).arg(format!("count={READS}")).stderr(Stdio::null());
    assert!(dd.status().unwrap().success());
}

/// Returns the nodes and the number of requests of a recording.
fn recorded(folder: &Path) -> (BTreeSet<u128>, usize) {
    let (mut nodes, mut requests) = (BTreeSet::new(), 0);
    for batch in agent_recording::batches(folder) {
        nodes.insert(batch.source.node.0);
        let of = |event: &&LayerEvent| matches!(event, LayerEvent::Request(_) | LayerEvent::Pair(_));
        requests += batch.events.iter().filter(of).count();
    }
    (nodes, requests)
}

#[test]
fn the_image_has_one_file_and_an_agent_in_it_traces() {
    needs!("buildah", "losetup", "dd");
    let binary = or_skip!(static_binary());
    let disk = or_skip!(Disk::raw(16 << 20));
    let image = or_skip!(Image::build(&binary));
    assert_eq!(files(&image.root), [image.root.join("blkkin")].into(), "only the binary");
    assert_eq!(image.entrypoint(), "/blkkin");

    let version = image.container(Vec::new(), &[]).command("/blkkin").arg("--version").output().unwrap();
    assert!(version.status.success(), "{version:?}");
    let output = String::from_utf8_lossy(&version.stdout).into_owned();
    assert_eq!(output.trim(), concat!("blkkin ", env!("CARGO_PKG_VERSION")));

    // Without capabilities doctor names those that are missing.
    let run = image.container(Vec::new(), &[]).command("/blkkin").arg("doctor").output().unwrap();
    let output = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(!run.status.success() && output.contains("missing: CAP_BPF"), "{run:?}");
    // With the manifests' capabilities all checks pass.
    let capabilities = [BPF, PERFMON, SYSLOG, SYS_NICE, SYS_PTRACE];
    let run = image.container(Vec::new(), &capabilities).command("/blkkin").arg("doctor").output().unwrap();
    let output = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success() && output.contains("CAP_BPF, CAP_PERFMON"), "{run:?}");

    // The minimum: two capabilities, /proc and /sys as every container has them, and a machine id.
    let (machine_id, out) = (disk.file("machine-id"), disk.file("recording"));
    fs::write(&machine_id, format!("{NODE:032x}\n")).unwrap();
    fs::create_dir(&out).unwrap();
    let output = disk.file("log");
    let mounts = vec![(machine_id, "/etc/machine-id"), (out.clone(), "/var/lib/blkkin")];
    let mut agent = image.container(mounts, &[BPF, PERFMON]).command("/blkkin");
    agent.args(["agent", "--record", "/var/lib/blkkin", "--metrics", "127.0.0.1:0", "--device", disk.name()]);
    agent.stdout(Stdio::null()).stderr(fs::File::create(&output).unwrap());
    let mut agent = KillOnDrop(agent.spawn().unwrap());
    let log = || fs::read_to_string(&output).unwrap();
    assert!(eventually(|| log().contains("tracing; events go to")), "{}", log());
    read(&disk);
    let health = || get_as(address(&log()), "/health", "*/*");
    assert!(eventually(|| health().is_ok()), "{:?}", health());
    // SAFETY: numbers only; the process has not been waited for.
    unsafe { libc::kill(agent.0.id() as libc::pid_t, libc::SIGTERM) };
    assert!(agent.0.wait().unwrap().success(), "{}", log());
    let (nodes, requests) = recorded(&out);
    assert_eq!(nodes, [NODE].into(), "the mounted machine id");
    // A missed completion is counted; there are few.
    assert!(requests + 3 >= READS, "{requests} requests: {}", log());
}

/// An empty file system has no resolver except the one in the binary.
#[test]
fn the_static_binary_resolves_hosts_without_libraries() {
    needs!();
    let binary = or_skip!(static_binary());
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("etc")).unwrap();
    fs::copy(binary, folder.path().join("blkkin")).unwrap();
    fs::write(folder.path().join("etc/hosts"), "127.0.0.1 kafka.example\n").unwrap();
    // Entries for which glibc would load a library of the host.
    fs::write(folder.path().join("etc/nsswitch.conf"), "hosts: resolve mymachines mdns4_minimal\n").unwrap();
    let container =
        Container { root: folder.path().to_owned(), mounts: Vec::new(), capabilities: Vec::new() };
    // librdkafka resolves the brokers through the C library, like everything else.
    let broker = TcpListener::bind("127.0.0.1:0").unwrap();
    broker.set_nonblocking(true).unwrap();
    let brokers = format!("kafka.example:{}", broker.local_addr().unwrap().port());
    let mut exporter = container.command("/blkkin");
    exporter.args(["exporter", "--to", "zipkin=http://127.0.0.1:1", "--brokers", &brokers]);
    let _exporter = KillOnDrop(exporter.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap());
    assert!(eventually(|| broker.accept().is_ok()), "no connection to {brokers}");
}
