//! What configs/deploy says to other programs fits their schemas, and what it says to blkkin is what blkkin understands.

#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test fails by panicking, and says what it saw"
)]

mod common;
mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use serde_json::Value;
use tempfile::TempDir;

use support::live::eventually;
use support::{or_skip, skip};

const DEPLOY: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/deploy");
const CHECK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/manifests.py");
const IMAGE: &str = concat!("blkkin:", env!("CARGO_PKG_VERSION"));
/// What an agent may do, and no more.
const CAPABILITIES: [&str; 5] = ["BPF", "PERFMON", "SYSLOG", "SYS_NICE", "SYS_PTRACE"];

/// The schemas; or why there are none.
fn schemas() -> Result<PathBuf, String> {
    let said = std::env::var_os("BLKKIN_SCHEMAS").map(PathBuf::from);
    let made = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/toolchain/schemas-1.37.0");
    let found = said.into_iter().chain([made]).find(|folder| folder.is_dir());
    found.ok_or_else(|| "no schemas: cargo xtask setup --tests fetches them".to_owned())
}

/// What stands in this folder, and what of it does not fit.
fn checked(schemas: &Path, deploy: &Path) -> (Vec<Value>, Vec<String>) {
    let mut python = Command::new("python3");
    let output = python.arg(CHECK).args([schemas, deploy]).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let said: Value = serde_json::from_slice(&output.stdout).unwrap();
    let errors = said["errors"].as_array().unwrap().iter().map(|error| error.as_str().unwrap().to_owned());
    (said["documents"].as_array().unwrap().clone(), errors.collect())
}

fn texts(list: &Value) -> Vec<String> {
    list.as_array().into_iter().flatten().map(|text| text.as_str().unwrap().to_owned()).collect()
}

/// A container of ours, wherever it is described.
#[derive(Debug)]
struct Container {
    image: String,
    words: Vec<String>,
    capabilities: Vec<String>,
    sees_processes: bool,
    mounts: Vec<String>,
    root: bool,
    ports: Vec<Value>,
    /// The ports that are asked whether it is well.
    probes: Vec<Value>,
}

fn of_compose(service: &Value) -> Container {
    assert_eq!(texts(&service["cap_drop"]), ["ALL"]);
    assert_eq!(service["read_only"], true);
    Container {
        image: service["image"].as_str().unwrap().to_owned(),
        words: texts(&service["command"]),
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

fn of_pod(pod: &Value) -> Container {
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
        words: texts(&container["args"]),
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
            let ours =
                services.values().filter(|service| service["image"].as_str().unwrap().starts_with("blkkin"));
            found.extend(ours.map(of_compose));
        } else if document["spec"]["template"].is_object() {
            found.push(of_pod(&document["spec"]["template"]["spec"]));
        }
    }
    found
}

/// The files that containers find, by the paths that they have there.
fn files(documents: &[Value], of_compose: bool) -> BTreeMap<String, String> {
    if of_compose {
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

/// A container's words, with its files in a folder of this machine in place of the container's own.
fn words_here(words: &[String], files: &BTreeMap<String, String>, folder: &Path) -> Vec<String> {
    let here = |path: &str| folder.join(path.trim_start_matches("/etc/blkkin/")).display().to_string();
    fs::create_dir_all(folder.join("credentials")).unwrap();
    for (path, text) in files {
        // A certificate that is filled in is that of nobody here.
        let lines = text.lines().filter(|line| !line.contains("ssl.ca.location"));
        let text = lines.map(|line| format!("{line}\n")).collect::<String>();
        let token = text.replace(
            "FILL IN: whoever asks for /metrics says `Authorization: Bearer` and this",
            "0123456789abcdef",
        );
        fs::write(here(path), token.replace("/etc/blkkin/", &format!("{}/", folder.display()))).unwrap();
    }
    let word = |word: &String| match files.contains_key(word) {
        true => here(word),
        false => word.replace("$(POD_NAME)", "blkkin-0"),
    };
    words.iter().map(word).collect()
}

struct Started(Child);

impl Drop for Started {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// That every word is understood, and what it means too: only the cluster is missing.
fn assert_understood(words: &[String], folder: &Path) {
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let help = common::run(&[&words[..], &["--help"]].concat());
    assert_eq!(help.code, Some(0), "{words:?}: {help:?}");
    if words[0] == "agent" {
        // What it says last is refused, after all else was read.
        let run = common::run(&[&words[..], &["--path", "/srv"]].concat());
        assert!(run.stderr.contains("--path does not work with blkkin agent"), "{run:?}");
        return;
    }
    let said = folder.join("said");
    let away = ["--brokers=127.0.0.1:1", "--metrics=off"];
    let child = common::blkkin(&[&words[..], &away].concat())
        .stdout(Stdio::null())
        .stderr(fs::File::create(&said).unwrap())
        .spawn()
        .unwrap();
    let mut started = Started(child);
    let waits = || fs::read_to_string(&said).unwrap().contains("retrying until the cluster is usable");
    let ended = |started: &mut Started| started.0.try_wait().unwrap().is_some();
    assert!(
        eventually(|| waits() || ended(&mut started)) && waits(),
        "{words:?}: {}",
        fs::read_to_string(&said).unwrap()
    );
}

/// What a container's words and files say, and what it is given for that.
fn assert_meant(container: &Container, documents: &[Value]) {
    assert_eq!(container.image, IMAGE);
    let of_compose = container.words.iter().all(|word| !word.contains("credentials"));
    let files = files(documents, of_compose);
    let folder = TempDir::new().unwrap();
    let words = words_here(&container.words, &files, folder.path());
    assert_understood(&words, folder.path());
    // A key that is wrong would have been noticed.
    let options = folder.path().join(format!("{}.toml", words[0]));
    fs::write(&options, fs::read_to_string(&options).unwrap().replace("brokers", "borkers")).unwrap();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    assert!(common::run(&words).stderr.contains("unknown key `borkers`"));

    let is_agent = words[0] == "agent";
    assert_eq!((container.sees_processes, container.root), (is_agent, is_agent), "{container:?}");
    assert_eq!(container.capabilities, if is_agent { &CAPABILITIES[..] } else { &[] });
    assert_eq!(container.mounts.iter().any(|mount| mount == "/etc/machine-id"), is_agent);
    // Probes ask where the service was told to answer.
    let options = &files[&format!("/etc/blkkin/{}.toml", words[0])];
    assert_eq!(container.ports.len(), if of_compose { 0 } else { 1 }, "{container:?}");
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
fn what_does_not_fit_is_found() {
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
fn blkkin_understands_what_manifests_say_to_it() {
    let schemas = or_skip!(schemas());
    if !common::is_root() {
        skip!("an agent refuses its words only after it may trace");
    }
    let (documents, _) = checked(&schemas, Path::new(DEPLOY));
    let found = containers(&documents);
    assert_eq!(found.len(), 6, "an agent, an aggregator and an exporter of each: {found:?}");
    // Beside each other: some wait for a cluster that is not there.
    std::thread::scope(|scope| {
        for container in &found {
            scope.spawn(|| assert_meant(container, &documents));
        }
    });
    // And the unit, where there is no container.
    let unit = fs::read_to_string(format!("{DEPLOY}/../blkkin-agent.service")).unwrap();
    let bounds = CAPABILITIES.map(|name| format!("CAP_{name}")).join(" ");
    assert!(unit.contains(&format!("CapabilityBoundingSet={bounds}\n")), "{unit}");
}
