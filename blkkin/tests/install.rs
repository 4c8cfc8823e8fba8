//! `configs/deploy/install.sh` on three hosts: an agent on each, an aggregator and an exporter on
//! one, and a real broker with a password.
//!
//! *Input*: network and mount namespaces as hosts, and a number of direct reads on each host's
//! disk. The reads are counted in the spans that the exporter wrote, by `host.id` and device.
//!
//! All hosts share one kernel, so each agent traces only its own host's disk and has its own
//! machine id.

mod units;

use std::collections::BTreeMap;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::broker::Broker;
use crate::support::disk::Disk;
use crate::support::hosts::{Hosts, machine_id};
use crate::support::live::eventually;
use crate::support::tools::static_binary;
use crate::support::{needs, or_skip};

const INSTALL: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../configs/deploy/install.sh");
const NAMES: [&str; 3] = ["ada", "bob", "cleo"];
const PASSWORD: &str = "correct-horse-battery";
const READS: usize = 16;

/// Starts a broker with a password at this address, which the hosts can reach.
fn guarded_broker(hosts: &Hosts) -> Result<(Broker, String), String> {
    let address = hosts.address(0);
    let free = TcpListener::bind((address, 0)).and_then(|listener| listener.local_addr());
    let port = free.map_err(|error| format!("no free port: {error}"))?.port();
    let broker = Broker::start_with(&format!(
        "listeners=PLAINTEXT://127.0.0.1:{{port}},CONTROLLER://127.0.0.1:{{controller}},SASL_PLAINTEXT://{address}:{port}\n\
         advertised.listeners=PLAINTEXT://127.0.0.1:{{port}},SASL_PLAINTEXT://{address}:{port}\n\
         listener.security.protocol.map=CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT\n\
         sasl.enabled.mechanisms=PLAIN\nlistener.name.sasl_plaintext.plain.sasl.jaas.config=\
         org.apache.kafka.common.security.plain.PlainLoginModule required user_blkkin=\"{PASSWORD}\";\n"
    ));
    let broker = broker.inspect_err(|why| assert!(!why.contains("Exception"), "{why}"))?;
    Ok((broker, format!("{address}:{port}")))
}

/// Writes the option files that install.sh copies to the hosts.
fn options(folder: &Path, brokers: &str, disks: &[Disk]) {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let brokers = format!("brokers = \"{brokers}\"\npartitions = 3\n");
    write("agent.toml", "# each host has its own\n");
    write("aggregator.toml", &brokers);
    write(
        "exporter.toml",
        &brokers.replace("partitions = 3", "to = [\"zipkin=/var/lib/blkkin/spans.json\"]"),
    );
    let secret = "[set]\n\"security.protocol\" = \"SASL_PLAINTEXT\"\n\"sasl.mechanism\" = \"PLAIN\"\n\
        \"sasl.username\" = \"blkkin\"\n";
    write("credentials.toml", &format!("{secret}\"sasl.password\" = \"{PASSWORD}\"\n"));
    for (name, disk) in NAMES.iter().zip(disks) {
        fs::create_dir(folder.join(name)).unwrap();
        write(&format!("{name}/agent.toml"), &format!("{brokers}device = [\"{}\"]\n", disk.name()));
    }
}

fn install(hosts: &Hosts, args: &[&str]) -> Output {
    let mut install = Command::new(INSTALL);
    install.args(["--agent", &NAMES.join(" "), "--aggregator", NAMES[0], "--exporter", NAMES[0]]);
    install.args(["--no-systemd"]).args(args).env("RUN", hosts.runner()).output().unwrap()
}

/// Parses the table that install.sh prints: columns by host and service.
fn table(output: &Output) -> BTreeMap<(String, String), Vec<String>> {
    let text = String::from_utf8(output.stdout.clone()).unwrap();
    let row = |line: &str| {
        let mut columns =
            line.split("  ").map(str::trim).filter(|column| !column.is_empty()).map(str::to_owned);
        ((columns.next().unwrap(), columns.next().unwrap()), columns.collect())
    };
    text.lines().skip(1).map(row).collect()
}

/// Returns the number of read requests by `host.id` of the root and by device.
fn reads(spans: &Path) -> BTreeMap<(String, String), usize> {
    let text = fs::read_to_string(spans).unwrap_or_default();
    // The list may be open, because the exporter is still writing.
    let whole = [text.clone() + "]", text]
        .into_iter()
        .find_map(|text| serde_json::from_str::<Vec<Value>>(&text).ok());
    let whole = whole.unwrap_or_default();
    let host: BTreeMap<&str, &str> = whole
        .iter()
        .filter_map(|span| Some((span["traceId"].as_str()?, span["tags"]["host.id"].as_str()?)))
        .collect();
    let mut found = BTreeMap::new();
    for span in whole.iter().filter(|span| span["name"] == "request read") {
        let device = span["localEndpoint"]["serviceName"].as_str().unwrap_or_default().to_owned();
        let host = host.get(span["traceId"].as_str().unwrap()).copied().unwrap_or_default().to_owned();
        *found.entry((host, device)).or_default() += 1;
    }
    found
}

#[test]
fn three_hosts_are_installed_traced_and_uninstalled_without_a_trace() {
    needs!("ip", "losetup", "busybox", "nsenter", "unshare");
    let binary = or_skip!(static_binary());
    let disks: Vec<Disk> = or_skip!(NAMES.iter().map(|_| Disk::raw(1 << 20)).collect());
    let hosts = or_skip!(Hosts::start(&NAMES));
    let (broker, brokers) = or_skip!(guarded_broker(&hosts));
    let folder = TempDir::new().unwrap();
    options(folder.path(), &brokers, &disks);
    let before = hosts.run(NAMES[0], "find / -xdev -type f | sort").unwrap();
    let files = ["--binary", binary.to_str().unwrap(), "--config", folder.path().to_str().unwrap()];

    let first = install(&hosts, &files);
    println!("{}", String::from_utf8_lossy(&first.stdout));
    let log = broker.log();
    assert!(first.status.success(), "{}\n{log}", String::from_utf8_lossy(&first.stderr));
    let rows = table(&first);
    assert_eq!(rows.len(), 5, "{rows:?}");
    for columns in rows.values() {
        assert_eq!(columns[..2], [concat!("blkkin ", env!("CARGO_PKG_VERSION")), "runs"], "{rows:?}");
        assert!(columns[2].starts_with("healthy") && columns[3].contains("blkkin"), "{rows:?}");
    }
    // Only root may read the password.
    assert_eq!(hosts.run(NAMES[1], "stat -c '%a %u' /etc/blkkin/credentials.toml").unwrap(), "600 0");
    let running =
        hosts.run(NAMES[0], "cat /proc/$(cat /run/blkkin/agent.pid)/cmdline | tr '\\0' ' '").unwrap();
    assert!(running.ends_with("-c /etc/blkkin/agent.toml -c /etc/blkkin/credentials.toml"), "{running}");

    for (name, disk) in NAMES.iter().zip(&disks) {
        let dd = format!("dd if={} of=/dev/null bs=4096 count={READS} iflag=direct", disk.node().display());
        hosts.run(name, &dd).unwrap();
    }
    let folder_of_spans = hosts.root(NAMES[0]).join("var/lib/blkkin");
    let spans = || ["spans.json.partial", "spans.json"].map(|name| reads(&folder_of_spans.join(name)));
    let found = || spans().into_iter().flatten().collect::<BTreeMap<_, _>>();
    // A missed completion is counted by the agent.
    let whole = |found: &BTreeMap<_, usize>| {
        found.values().filter(|count| **count + 3 >= READS).count() == NAMES.len()
    };
    let log_of = |name| hosts.run(name, "cat /var/log/blkkin/*").unwrap_or_default();
    assert!(eventually(|| whole(&found())), "{:?}\n{}", found(), NAMES.map(log_of).join("\n"));
    // Each host's requests have its own host.id and its own disk.
    let expected: Vec<_> = NAMES.iter().map(|name| format!("{:032x}", machine_id(name))).collect();
    assert_eq!(found().keys().map(|(host, _)| host.clone()).collect::<Vec<_>>(), expected);

    // A second run without changes restarts nothing.
    let pids = |name: &str| hosts.run(name, "cat /run/blkkin/*.pid").unwrap();
    let started = NAMES.map(pids);
    let again = install(&hosts, &files);
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
    assert!(table(&again).values().all(|columns| columns[3] == "nothing"), "{:?}", table(&again));
    assert_eq!(NAMES.map(pids), started);

    // Changed options of one service restart only that service.
    let options = folder.path().join("exporter.toml");
    fs::write(&options, fs::read_to_string(&options).unwrap() + "group = \"other\"\n").unwrap();
    let third = install(&hosts, &files);
    assert!(third.status.success(), "{}", String::from_utf8_lossy(&third.stderr));
    let changed: Vec<_> = table(&third).into_iter().filter(|(_, columns)| columns[3] != "nothing").collect();
    assert_eq!(changed.len(), 1, "{changed:?}");
    assert_eq!((changed[0].0.1.as_str(), changed[0].1[3].as_str()), ("exporter", "exporter.toml"));

    // A service that cannot start is reported with its own error, and the others keep running.
    fs::write(&options, "brokers = \"127.0.0.1:1\"\nborkers = 1\n").unwrap();
    let broken = install(&hosts, &[&files[..], &["--wait", "2"]].concat());
    assert_eq!(broken.status.code(), Some(1));
    assert!(String::from_utf8_lossy(&broken.stderr).contains("unknown key `borkers`"), "{broken:?}");
    assert_eq!(
        table(&broken).values().filter(|columns| columns[1] == "runs").count(),
        4,
        "{:?}",
        table(&broken)
    );

    let gone = install(&hosts, &["--uninstall", "--purge"]);
    assert!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
    assert_eq!(hosts.run(NAMES[0], "find / -xdev -type f | sort").unwrap(), before);
    for pid in started.iter().flat_map(|pids| pids.lines()) {
        let command_line = fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        assert!(!command_line.contains("/etc/blkkin"), "{pid} runs: {command_line}");
    }
}
