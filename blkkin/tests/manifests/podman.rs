//! The agent of compose.yaml in a container of podman and runc: it traces, and after a kill the next
//! one has its spool and knows its losses.
//!
//! *Input*: the service's user, capabilities, options and volumes from compose.yaml, direct reads on
//! a loop device, and no cluster. The volume is a folder, /sys/fs/bpf a BPF file system of the test,
//! and the network that of this machine. Its system calls are not filtered: the profile of podman 4.3
//! refuses `bpf` to a container that has CAP_BPF without CAP_SYS_ADMIN (docs/deployment.md).

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use super::{CAPABILITIES, DEPLOY, IMAGE, checked, schemas, texts};
use crate::spooling::bpffs::Bpffs;
use crate::support::disk::Disk;
use crate::support::live::eventually;
use crate::support::metrics::{get_as, value};
use crate::support::tools::{capture, static_binary, tool};
use crate::support::{needs, or_skip};

/// Limits of processes and files that a user without CAP_SYS_RESOURCE may set.
const LIMITS: [&str; 4] = ["--ulimit", "nofile=1024:1024", "--ulimit", "nproc=1024:1024"];

/// Images and containers in a folder of their own.
struct Podman(TempDir);

impl Podman {
    /// Builds the image of this binary, or returns why no container can be started.
    fn with_image(binary: &Path) -> Result<Podman, String> {
        let podman = Podman(TempDir::new().unwrap());
        let context = podman.0.path().join("context");
        fs::create_dir(&context).unwrap();
        fs::copy(binary, context.join("blkkin")).unwrap();
        let file = format!("{DEPLOY}/Containerfile");
        let mut build = podman.command("build");
        capture(
            build.args(["--quiet", "--isolation", "chroot", "--tag", IMAGE, "--file", &file]).arg(context),
        )?;
        let mut version = podman.command("run");
        let probe = version.args(["--rm", "--network", "host"]).args(LIMITS).args([IMAGE, "--version"]);
        capture(probe).map_err(|error| format!("podman cannot run a container: {error}"))?;
        Ok(podman)
    }

    fn command(&self, verb: &str) -> Command {
        let mut podman = tool("podman");
        podman.arg("--root").arg(self.0.path().join("root"));
        podman.arg("--runroot").arg(self.0.path().join("run"));
        podman.args(["--storage-driver", "vfs", "--cgroup-manager", "cgroupfs", "--runtime", "runc", verb]);
        podman
    }

    fn start(&self, name: &str, options: &[String], args: &[String]) {
        let mut run = self.command("run");
        run.args(["--detach", "--network", "host", "--log-driver", "k8s-file", "--name", name]).args(LIMITS);
        capture(run.args(options).arg(IMAGE).args(args)).unwrap();
        let tracing = || self.log(name).contains("tracing; events go");
        assert!(eventually(tracing), "{}", self.log(name));
    }

    /// Returns the output of a container, on both streams.
    fn log(&self, name: &str) -> String {
        let output = self.command("logs").arg(name).output().unwrap();
        [output.stdout, output.stderr].map(|text| String::from_utf8_lossy(&text).into_owned()).concat()
    }

    fn status(&self, name: &str) -> String {
        let pid = capture(self.command("inspect").args(["--format", "{{.State.Pid}}", name])).unwrap();
        fs::read_to_string(format!("/proc/{pid}/status")).unwrap()
    }
}

impl Drop for Podman {
    fn drop(&mut self) {
        let _ = capture(self.command("rm").args(["--all", "--force", "--time", "0"]));
        // vfs mounts its own folder.
        let _ = tool("umount").arg(self.0.path().join("root")).stderr(Stdio::null()).status();
    }
}

/// Returns podman's options for this service, with these sources of its volumes.
fn options(service: &Value, volume: impl Fn(&str) -> PathBuf) -> Vec<String> {
    let text = |key: &str| service[key].as_str().unwrap().to_owned();
    let mut options = vec![format!("--user={}", text("user")), format!("--pid={}", text("pid"))];
    options.push("--security-opt=seccomp=unconfined".to_owned());
    options.extend((service["read_only"] == true).then(|| "--read-only".to_owned()));
    for (key, option) in [("cap_drop", "cap-drop"), ("cap_add", "cap-add"), ("security_opt", "security-opt")]
    {
        options.extend(texts(&service[key]).iter().map(|value| format!("--{option}={value}")));
    }
    for mount in texts(&service["volumes"]) {
        let (source, target) = mount.split_once(':').unwrap();
        options.push(format!("--volume={}:{target}", volume(source).display()));
    }
    options
}

#[test]
fn a_killed_agent_of_the_compose_file_leaves_its_spool_and_its_counters() {
    needs!("podman", "runc", "python3", "losetup", "dd", "mount");
    let binary = or_skip!(static_binary());
    let schemas = or_skip!(schemas());
    let disk = or_skip!(Disk::raw(16 << 20));
    let bpffs = or_skip!(Bpffs::mount());
    let podman = or_skip!(Podman::with_image(&binary));
    let (documents, _) = checked(&schemas, Path::new(DEPLOY));
    let compose = documents.iter().find(|one| one["file"] == "compose.yaml").unwrap();
    let service = &compose["document"]["services"]["agent"];

    let folder = TempDir::new().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let toml = fs::read_to_string(format!("{DEPLOY}/compose/agent.toml")).unwrap();
    let toml =
        toml.replace("kafka:9092", "127.0.0.1:1").replace("127.0.0.1:9899", &format!("127.0.0.1:{port}"));
    let toml_file = folder.path().join("agent.toml");
    fs::write(&toml_file, format!("{toml}device = [\"{}\"]\n", disk.name())).unwrap();
    let state = folder.path().join("state");
    fs::create_dir(&state).unwrap();
    let machine_id = folder.path().join("machine-id");
    fs::write(&machine_id, "0123456789abcdef0123456789abcdef\n").unwrap();
    let options = options(service, |source| match source {
        "agent" => state.clone(),
        "/sys/fs/bpf" => bpffs.path().to_owned(),
        "/etc/machine-id" => machine_id.clone(),
        "./compose/agent.toml" => toml_file.clone(),
        other => panic!("a volume that the test does not know: {other}"),
    });
    let args = texts(&service["command"]);

    podman.start("first", &options, &args);
    let status = podman.status("first");
    let count = |set: &str| {
        let line = status.lines().find_map(|line| line.strip_prefix(set)).unwrap();
        u64::from_str_radix(line.trim(), 16).unwrap().count_ones() as usize
    };
    // The container has the five, and the main thread has dropped them.
    assert_eq!(["CapEff:", "CapBnd:"].map(count), [0, CAPABILITIES.len()], "{status}");
    assert!(status.contains("NoNewPrivs:\t1"), "{status}");
    let from = format!("if={}", disk.node().display());
    let dd = ["of=/dev/null", "bs=4k", "count=64", "iflag=direct"];
    assert!(Command::new("dd").arg(from).args(dd).stderr(Stdio::null()).status().unwrap().success());
    let metrics = || get_as(&format!("127.0.0.1:{port}"), "/metrics", "*/*").unwrap_or_default();
    let written = || {
        metrics().contains("blkkin_spool_batches_written_total")
            && value(&metrics(), "blkkin_spool_batches_written_total") > 0.0
    };
    assert!(eventually(written), "{}", podman.log("first"));
    capture(podman.command("kill").args(["--signal", "KILL", "first"])).unwrap();
    capture(podman.command("wait").arg("first")).unwrap();

    podman.start("second", &options, &args);
    let log = podman.log("second");
    assert!(log.contains("batches of earlier starts in the spool /var/lib/blkkin-agent/spool"), "{log}");
    let known = "blkkin_crashed_runs_total{losses=\"known\"}";
    assert!(eventually(|| metrics().contains(known)), "{log}");
    assert_eq!(value(&metrics(), known), 1.0, "{log}");
}
