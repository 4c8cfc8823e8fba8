//! `install.sh` on a host whose first process is systemd, without a cluster: it returns in time,
//! secrets are private, and `--purge` leaves nothing.
//!
//! *Input*: an agent and an aggregator whose brokers do not exist, and a metrics token, a key and a
//! mapping file. Modes are read from the host, and access is tried as the service's user and as
//! another one.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::Path;
use std::process::{Command, Output};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use super::{INSTALL, table};
use crate::support::metrics::get_as;
use crate::support::systemd::Systemd;
use crate::support::{needs, or_skip};

const HOST: &str = "ada";
const TOKEN: &str = "0123456789abcdef0123456789abcdef";
/// Seconds that install.sh waits for an aggregator that cannot start, and for an agent, which loads
/// its programs in less than a second on an idle machine.
const WAITS: [&str; 2] = ["4", "60"];
/// After this time an installation counts as hanging: its longest wait, and what it copies.
const TIME_LIMIT: Duration = Duration::from_secs(90);

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Writes the folder of `--config`, and returns the aggregator's metrics address.
fn config(folder: &Path) -> String {
    let write = |name: &str, text: &str| fs::write(folder.join(name), text).unwrap();
    let address = format!("127.0.0.1:{}", free_port());
    let options = |metrics: &str| {
        format!(
            "brokers = \"127.0.0.1:1\"\nmetrics = \"{metrics}\"\nmetrics-token = \"/etc/blkkin/metrics-token\"\n"
        )
    };
    let agent = options(&format!("127.0.0.1:{}", free_port()));
    write("agent.toml", &format!("{agent}comm = [\"no-such-program\"]\n"));
    write("aggregator.toml", &options(&address));
    write("credentials.toml", "[set]\n\"sasl.password\" = \"correct-horse\"\n");
    write("metrics-token", TOKEN);
    write("client.key", "-----BEGIN PRIVATE KEY-----\n");
    write("mapping.toml", "# a mapping file\n");
    address
}

fn install(systemd: &Systemd, args: &[&str]) -> Output {
    let mut install = Command::new("timeout");
    install.args([&TIME_LIMIT.as_secs().to_string(), INSTALL]);
    install.args(args).env("RUN", systemd.runner()).output().unwrap()
}

fn files_of(systemd: &Systemd) -> BTreeSet<String> {
    let found = systemd.run(&["find", "/", "-xdev", "-type", "f"]).unwrap();
    found.lines().map(str::to_owned).collect()
}

/// Returns the exit status of `cat` as this user, in the mount namespace of the unit's process.
fn can_read(systemd: &Systemd, unit: &str, user: &str, path: &str) -> bool {
    let pid = systemd.property(unit, "MainPID");
    let user = format!("--reuid={user}");
    let cat = ["nsenter", "--target", &pid, "--mount", "--", "setpriv", &user, "--clear-groups", "cat", path];
    systemd.run(&cat).is_ok()
}

fn user_of(systemd: &Systemd, unit: &str) -> String {
    let pid = systemd.property(unit, "MainPID");
    systemd.run(&["stat", "-c", "%u", &format!("/proc/{pid}")]).unwrap()
}

#[test]
fn under_systemd_installation_ends_in_time_with_private_secrets_and_purge_leaves_nothing() {
    needs!("timeout", "unshare", "nsenter", "setpriv", "curl");
    // Logs are in /run, because no journal runs.
    let logged = |unit: &str| {
        let text = format!("[Service]\nStandardError=append:/run/{unit}.log\n");
        (format!("systemd/system/{unit}.service.d/test.conf"), text)
    };
    let binary = Path::new(env!("CARGO_BIN_EXE_blkkin"));
    let host = Systemd::start(&[logged("blkkin-agent"), logged("blkkin-aggregator")], binary);
    let host = or_skip!(host);
    let folder = TempDir::new().unwrap();
    let address = config(folder.path());
    let before = files_of(&host);
    let files = ["--config", folder.path().to_str().unwrap(), "--binary", binary.to_str().unwrap()];
    let log = |unit: &str| host.read(&format!("/run/{unit}.log"));

    // The aggregator is not ready without a cluster: the installation reports that and ends.
    let started = Instant::now();
    let first = install(&host, &[&files[..], &["--aggregator", HOST, "--wait", WAITS[0]]].concat());
    println!("{:?}\n{}", started.elapsed(), String::from_utf8_lossy(&first.stdout));
    let row = &table(&first)[&(HOST.to_owned(), "aggregator".to_owned())];
    assert_eq!(
        (first.status.code(), row[1].as_str()),
        (Some(1), "starts"),
        "{first:?}\n{}",
        log("blkkin-aggregator")
    );
    assert!(row[2].starts_with("healthy"), "{row:?}");
    // An agent is ready without one.
    let second = install(&host, &[&files[..], &["--agent", HOST, "--wait", WAITS[1]]].concat());
    let row = &table(&second)[&(HOST.to_owned(), "agent".to_owned())];
    assert_eq!(
        (second.status.code(), row[1].as_str()),
        (Some(0), "runs"),
        "{second:?}\n{}",
        log("blkkin-agent")
    );

    // Secrets are root's on the host; the service's user reads them, and no other user does.
    for secret in ["credentials.toml", "metrics-token", "client.key"] {
        let path = format!("/etc/blkkin/{secret}");
        assert_eq!(host.run(&["stat", "-c", "%a %u", &path]).unwrap(), "600 0", "{secret}");
        for unit in ["blkkin-agent", "blkkin-aggregator"] {
            let user = user_of(&host, unit);
            assert!(user != "0" && can_read(&host, unit, &user, &path), "{unit} as {user}: {secret}");
            assert!(!can_read(&host, unit, "65534", &path), "{unit}: {secret}");
        }
    }
    assert_eq!(host.run(&["stat", "-c", "%a", "/etc/blkkin/mapping.toml"]).unwrap(), "644");
    assert!(get_as(&address, "/metrics", "*/*").is_err(), "without the token");
    let bearer =
        ["-fsS", "-H", &format!("Authorization: Bearer {TOKEN}"), &format!("http://{address}/metrics")];
    assert!(host.run(&[&["curl"], &bearer[..]].concat()).unwrap().contains("# EOF"));

    // The spool is the agent's alone, stays, and ends with --purge.
    let spool = "/var/lib/private/blkkin-agent/spool";
    assert_eq!(host.run(&["stat", "-c", "%a", "/var/lib/private/blkkin-agent"]).unwrap(), "700");
    let gone = install(&host, &["--uninstall", "--agent", HOST, "--aggregator", HOST]);
    assert!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
    assert!(
        table(&gone)[&(HOST.to_owned(), "agent".to_owned())][2].contains("/var/lib/blkkin-agent is kept")
    );
    assert!(host.run(&["test", "-d", spool]).is_ok());
    let gone = install(&host, &["--uninstall", "--purge", "--agent", HOST, "--aggregator", HOST]);
    assert!(gone.status.success(), "{}", String::from_utf8_lossy(&gone.stderr));
    assert!(host.run(&["test", "-e", "/var/lib/private/blkkin-agent"]).is_err());
    let left: Vec<_> = files_of(&host).into_iter().filter(|file| !before.contains(file)).collect();
    // systemd locks this file when it assigns a user.
    assert!(left.iter().all(|file| file == "/etc/.pwd.lock"), "{left:?}");
}

/// A password in an option file would be readable for every user of a host.
#[test]
fn a_password_among_the_options_is_refused() {
    let folder = TempDir::new().unwrap();
    let options = "brokers = \"h:1\"\n[set]\n\"sasl.password\" = \"correct-horse\"\n";
    fs::write(folder.path().join("agent.toml"), options).unwrap();
    let mut install = Command::new(INSTALL);
    install.args(["--agent", HOST, "--binary", env!("CARGO_BIN_EXE_blkkin"), "--config"]).arg(folder.path());
    let output = install.env("RUN", "false {host}").output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(2), "{errors}");
    assert!(errors.contains("a password in") && errors.contains("credentials.toml"), "{errors}");
}
