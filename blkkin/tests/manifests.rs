//! Deployment files in `configs/deploy`: they match the schemas of Kubernetes and Compose, and
//! blkkin accepts every argument and option in them.
//!
//! *Input*: the real files, checked by `support/manifests.py` against the published schemas, and by
//! the real binary up to the missing cluster. podman runs the agent of the compose file.

mod podman;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use crate::broker::child::KillOnDrop;
use crate::common;
use crate::support::live::eventually;
use crate::support::{or_skip, skip};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/deploy");
const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/manifests.py");
const IMAGE: &str = concat!("blkkin:", env!("CARGO_PKG_VERSION"));
/// Mounts of an agent: the node's id, its spool, and the file system for its counters.
const AGENT_MOUNTS: [&str; 3] = ["/etc/machine-id", "/var/lib/blkkin-agent", "/run/bpf"];
/// Capabilities of an agent, exactly.
const CAPABILITIES: [&str; 5] = ["BPF", "PERFMON", "SYSLOG", "SYS_NICE", "SYS_PTRACE"];

/// Finds the schemas and the Python packages that check them, or returns the reason to skip.
pub(crate) fn schemas() -> Result<PathBuf, String> {
    let output = std::env::var_os("BLKKIN_SCHEMAS").map(PathBuf::from);
    let fetched = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain/schemas-1.37.0");
    let found = output.into_iter().chain([fetched]).find(|folder| folder.is_dir());
    found.ok_or_else(|| "no schemas: cargo xtask setup --tests fetches them".to_owned())
}

/// Returns the documents of this folder and the schema errors in them.
fn checked(schemas: &Path, deploy: &Path) -> (Vec<Value>, Vec<String>) {
    let mut python = Command::new("python3");
    let output = python.arg(CHECK).args([schemas, deploy]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let output: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = output["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap().to_owned());
    (output["documents"].as_array().unwrap().clone(), errors.collect())
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// A container of blkkin, from Compose or Kubernetes.
#[derive(Debug)]
struct Container {
    image: String,
    args: Vec<String>,
    capabilities: Vec<String>,
    sees_processes: bool,
    mounts: Vec<String>,
    root: bool,
    ports: Vec<Value>,
    /// Ports of the readiness and liveness probes.
    probes: Vec<Value>,
}

fn from_compose(service: &Value) -> Container {
    assert_eq!(texts(&service["cap_drop"]), ["ALL"]);
    assert_eq!(service["read_only"], true);
    Container {
        image: service["image"].as_str().unwrap().to_owned(),
        args: texts(&service["command"]),
        capabilities: texts(&service["cap_add"]),
        sees_processes: service["pid"] == "host",
        mounts: texts(&service["volumes"])
            .iter()
            .map(|mount| mount.split(':').nth(1).unwrap().to_owned())
            .collect(),
        root: service["user"] == "0:0",
        ports: Vec::new(),
        probes: Vec::new(),
    }
}

fn from_pod(pod: &Value) -> Container {
    let container = &pod["containers"][0];
    let security = &container["securityContext"];
    assert_eq!(texts(&security["capabilities"]["drop"]), ["ALL"]);
    assert_eq!(
        [&security["allowPrivilegeEscalation"], &security["readOnlyRootFilesystem"], &security["privileged"]],
        [false, true, false]
    );
    let mounts = container["volumeMounts"].as_array().unwrap().iter();
    let ports = container["ports"].as_array().unwrap();
    let named =
        |name: &Value| ports.iter().find(|port| port["name"] == *name).unwrap()["containerPort"].clone();
    let probes = ["readinessProbe", "livenessProbe"];
    Container {
        image: container["image"].as_str().unwrap().to_owned(),
        args: texts(&container["args"]),
        capabilities: texts(&security["capabilities"]["add"]),
        sees_processes: pod["hostPID"] == true,
        mounts: mounts.map(|mount| mount["mountPath"].as_str().unwrap().to_owned()).collect(),
        root: security["runAsUser"] == 0,
        ports: ports.iter().map(|port| port["containerPort"].clone()).collect(),
        probes: probes.map(|probe| named(&container[probe]["httpGet"]["port"])).to_vec(),
    }
}

fn containers(documents: &[Value]) -> Vec<Container> {
    let documents = documents.iter().map(|one| &one["document"]);
    let mut found = Vec::new();
    for document in documents {
        if let Some(services) = document["services"].as_object() {
            let blkkin_services =
                services.values().filter(|service| service["image"].as_str().unwrap().starts_with("blkkin"));
            found.extend(blkkin_services.map(from_compose));
        } else if document["spec"]["template"].is_object() {
            found.push(from_pod(&document["spec"]["template"]["spec"]));
        }
    }
    found
}

/// Returns the files that containers mount, by their paths in the container.
fn files(documents: &[Value], from_compose: bool) -> BTreeMap<String, String> {
    if from_compose {
        let read = |name: &str| {
            let text = fs::read_to_string(format!("{DEPLOY}/compose/{name}.toml")).unwrap();
            (format!("/etc/blkkin/{name}.toml"), text)
        };
        return ["agent", "aggregator", "exporter"].map(read).into();
    }
    let data = |kind: &str, key: &str| {
        let found = documents.iter().map(|one| &one["document"]).find(|document| document["kind"] == kind);
        found.unwrap()[key].as_object().unwrap().clone()
    };
    let text = |text: Value| text.as_str().unwrap().to_owned();
    let options = data("ConfigMap", "data")
        .into_iter()
        .map(|(name, value)| (format!("/etc/blkkin/{name}"), text(value)));
    let secrets = data("Secret", "stringData").into_iter();
    options
        .chain(secrets.map(|(name, value)| (format!("/etc/blkkin/credentials/{name}"), text(value))))
        .collect()
}

/// Returns a container's arguments with its files in a folder of this machine instead.
fn local_args(args: &[String], files: &BTreeMap<String, String>, folder: &Path) -> Vec<String> {
    let local_path = |path: &str| folder.join(path.trim_start_matches("/etc/blkkin/")).display().to_string();
    fs::create_dir_all(folder.join("credentials")).unwrap();
    for (path, text) in files {
        // The certificate authority is a placeholder that does not exist here.
        let lines = text.lines().filter(|line| !line.contains("ssl.ca.location"));
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        let token = text.replace(
            "FILL IN: token that clients of /metrics send as `Authorization: Bearer`",
            "0123456789abcdef",
        );
        fs::write(local_path(path), token.replace("/etc/blkkin/", &format!("{}/", folder.display())))
            .unwrap();
    }
    let word = |word: &String| match files.contains_key(word) {
        true => local_path(word),
        false => word.replace("$(POD_NAME)", "blkkin-0"),
    };
    args.iter().map(word).collect()
}

/// Asserts that every argument and option is accepted: only the cluster is missing.
fn assert_accepted(args: &[String], folder: &Path) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let help = common::run(&[&args[..], &["--help"]].concat());
    assert_eq!(help.code, Some(0), "{args:?}: {help:?}");
    if args[0] == "agent" {
        // The last argument is refused, after all others were read.
        let run = common::run(&[&args[..], &["--domain", "x"]].concat());
        assert!(run.stderr.contains("bad machine id `x`"), "{run:?}");
        return;
    }
    let output = folder.join("log");
    let unreachable = ["--brokers=127.0.0.1:1", "--metrics=off"];
    let child = common::blkkin(&[&args[..], &unreachable].concat())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&output).unwrap())
        .spawn()
        .unwrap();
    let mut started = KillOnDrop(child);
    let is_waiting = || fs::read_to_string(&output).unwrap().contains("retrying until the cluster is usable");
    let ended = |started: &mut KillOnDrop| started.0.try_wait().unwrap().is_some();
    assert!(
        eventually(|| is_waiting() || ended(&mut started)) && is_waiting(),
        "{args:?}: {}",
        fs::read_to_string(&output).unwrap()
    );
}

/// Asserts that a container's arguments and files are valid, and that it has what they need.
fn assert_container(container: &Container, documents: &[Value]) {
    assert_eq!(container.image, IMAGE);
    let from_compose = container.args.iter().all(|word| !word.contains("credentials"));
    let files = files(documents, from_compose);
    let folder = TempDir::new().unwrap();
    let args = local_args(&container.args, &files, folder.path());
    assert_accepted(&args, folder.path());
    // A wrong key is refused.
    let options = folder.path().join(format!("{}.toml", args[0]));
    fs::write(&options, fs::read_to_string(&options).unwrap().replace("brokers", "borkers")).unwrap();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    assert!(common::run(&args).stderr.contains("unknown key `borkers`"));

    let is_agent = args[0] == "agent";
    assert_eq!((container.sees_processes, container.root), (is_agent, is_agent), "{container:?}");
    assert_eq!(container.capabilities, if is_agent { &CAPABILITIES[..] } else { &[] });
    for mount in AGENT_MOUNTS {
        assert_eq!(container.mounts.iter().any(|found| found == mount), is_agent, "{mount}: {container:?}");
    }
    if is_agent {
        // Both are mounted, and `bpffs` is not below /sys.
        let options = &files["/etc/blkkin/agent.toml"];
        assert!(options.contains("spool = \"/var/lib/blkkin-agent/spool\""), "{options}");
        assert!(options.contains("bpffs = \"/run/bpf\""), "{options}");
    }
    // Probes use the port at which the service listens.
    let options = &files[&format!("/etc/blkkin/{}.toml", args[0])];
    assert_eq!(container.ports.len(), if from_compose { 0 } else { 1 }, "{container:?}");
    for port in &container.ports {
        assert!(
            options.contains(&format!("metrics = \"0.0.0.0:{port}\"")) && options.contains("metrics-token")
        );
        assert_eq!(container.probes, [port.clone(), port.clone()]);
    }
}

#[test]
fn manifests_fit_their_schemas() {
    let schemas = or_skip!(schemas());
    let (documents, errors) = checked(&schemas, Path::new(DEPLOY));
    assert_eq!(errors, [""; 0]);
    let kinds: Vec<&str> = documents.iter().filter_map(|one| one["document"]["kind"].as_str()).collect();
    for kind in ["DaemonSet", "StatefulSet", "ConfigMap", "Secret", "Service", "NetworkPolicy"] {
        assert!(kinds.contains(&kind), "{kinds:?}");
    }
}

#[test]
fn schema_errors_are_found() {
    let schemas = or_skip!(schemas());
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("kubernetes")).unwrap();
    let copy = |name: &str, (right, wrong): (&str, &str)| {
        let text = fs::read_to_string(format!("{DEPLOY}/{name}")).unwrap();
        assert!(text.contains(right));
        fs::write(folder.path().join(name), text.replace(right, wrong)).unwrap();
    };
    copy("compose.yaml", ("cap_drop:", "cap_droop:"));
    copy("kubernetes/agent.yaml", ("hostPID:", "hostPid:"));
    let (_, errors) = checked(&schemas, folder.path());
    assert!(errors.iter().any(|error| error.contains("cap_droop")), "{errors:?}");
    assert!(errors.iter().any(|error| error.contains("hostPid")), "{errors:?}");
}

#[test]
fn blkkin_accepts_the_arguments_of_the_manifests() {
    let schemas = or_skip!(schemas());
    if !common::is_root() {
        skip!("an agent refuses its words only after it may trace");
    }
    let (documents, _) = checked(&schemas, Path::new(DEPLOY));
    let found = containers(&documents);
    assert_eq!(found.len(), 6, "an agent, an aggregator and an exporter of each: {found:?}");
    // In parallel, because some wait for a cluster that does not exist.
    std::thread::scope(|scope| {
        for container in &found {
            scope.spawn(|| assert_container(container, &documents));
        }
    });
    // The systemd unit has the same capabilities.
    let unit = fs::read_to_string(format!("{DEPLOY}/../blkkin-agent.service")).unwrap();
    let bounds = CAPABILITIES.map(|name| format!("CAP_{name}")).join(" ");
    assert!(unit.contains(&format!("CapabilityBoundingSet={bounds}\n")), "{unit}");
}
