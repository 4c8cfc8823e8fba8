//! Hosts on one kernel, connected to this machine by a bridge. Each has a network namespace, a
//! machine-id and a root file system with busybox and nothing else.
//!
//! A host is a process that sleeps in its namespaces. It and all processes that were started on it
//! end when it is dropped.

use std::fs;
use std::net::Ipv4Addr;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};

use tempfile::TempDir;

use crate::broker::child::end_with_test;
use crate::support::live::eventually;
use crate::support::tools::{capture, tool};

/// Script that makes a root of a folder and then sleeps.
const BOOT: &str = "mount --bind \"$1\" \"$1\" && mkdir -p \"$1/proc\" \"$1/sys\" \"$1/dev\" && mount -t proc proc \"$1/proc\" && \
    mount -t sysfs sysfs \"$1/sys\" && mount --bind /dev \"$1/dev\" && exec chroot \"$1\" /bin/sleep 100000";
/// Stand-in for ssh: runs a command on a host, given by name.
const RUN: &str = "#!/bin/sh\nread -r pid <\"$(dirname \"$0\")/$1.pid\" || exit 255\n\
    exec nsenter --target \"$pid\" --net --mount --root --wd=/ /bin/sh -c \"$2\"\n";

/// The hosts and their bridge.
pub(crate) struct Hosts {
    folder: TempDir,
    hosts: Vec<Host>,
    bridge: String,
}

struct Host {
    name: &'static str,
    sleeper: Child,
}

impl Hosts {
    /// Starts the hosts, or returns why it cannot.
    pub(crate) fn start(names: &[&'static str]) -> Result<Hosts, String> {
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        let run = folder.path().join("run");
        fs::write(&run, RUN).unwrap();
        fs::set_permissions(&run, fs::Permissions::from_mode(0o755)).unwrap();
        let mut hosts = Hosts { folder, hosts: Vec::new(), bridge: format!("blk{}", id()) };
        ip(&["link", "add", &hosts.bridge, "type", "bridge"])?;
        ip(&["addr", "add", &format!("{}/24", hosts.address(0)), "dev", &hosts.bridge])?;
        ip(&["link", "set", &hosts.bridge, "up"])?;
        for (number, name) in names.iter().enumerate() {
            hosts.add(number as u8 + 1, name)?;
        }
        Ok(hosts)
    }

    fn add(&mut self, number: u8, name: &'static str) -> Result<(), String> {
        let root = self.root(name);
        make_root(&root, name)?;
        let mut boot = Command::new("unshare");
        boot.args(["--net", "--mount", "--propagation", "private", "sh", "-c", BOOT, "boot"]).arg(&root);
        boot.env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        boot.stdin(Stdio::null());
        let sleeper = end_with_test(&mut boot).spawn().map_err(|error| format!("unshare: {error}"))?;
        let pid = sleeper.id();
        self.hosts.push(Host { name, sleeper });
        let comm = || fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if !eventually(|| comm().trim() == "sleep" || comm().is_empty()) || comm().is_empty() {
            return Err(format!("host {name} does not start"));
        }
        fs::write(self.folder.path().join(format!("{name}.pid")), format!("{pid}\n")).unwrap();
        let (outer, pid) = (format!("{}{number}", self.bridge), pid.to_string());
        ip(&["link", "add", &outer, "type", "veth", "peer", "name", "eth0", "netns", &pid])?;
        ip(&["link", "set", &outer, "master", &self.bridge, "up"])?;
        let address = format!("{}/24", self.address(number));
        for args in [
            &["link", "set", "lo", "up"][..],
            &["addr", "add", &address, "dev", "eth0"],
            &["link", "set", "eth0", "up"],
        ] {
            capture(tool("nsenter").args(["--target", &pid, "--net", "ip"]).args(args))?;
        }
        Ok(())
    }

    /// Returns a host's address; 0 is this machine.
    pub(crate) fn address(&self, number: u8) -> Ipv4Addr {
        let last = if number == 0 { 254 } else { number };
        Ipv4Addr::new(10, 213, (id() % 250) as u8, last)
    }

    /// Returns a host's root folder.
    pub(crate) fn root(&self, name: &str) -> PathBuf {
        self.folder.path().join("roots").join(name)
    }

    /// Returns the command template by which install.sh reaches hosts.
    pub(crate) fn runner(&self) -> String {
        format!("{} {{host}}", self.folder.path().join("run").display())
    }

    /// Runs a command on a host and returns its stdout.
    pub(crate) fn run(&self, name: &str, command: &str) -> Result<String, String> {
        capture(Command::new(self.folder.path().join("run")).args([name, command]))
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for host in &mut self.hosts {
            // Every process in its network namespace runs on it.
            let network_namespace = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/net")).ok();
            let namespace = network_namespace(&host.sleeper.id().to_string());
            for entry in fs::read_dir("/proc").into_iter().flatten().flatten() {
                let pid = entry.file_name().to_string_lossy().into_owned();
                let Ok(number) = pid.parse::<libc::pid_t>() else { continue };
                if namespace.is_some()
                    && network_namespace(&pid) == namespace
                    && network_namespace("self") != namespace
                {
                    // SAFETY: passes numbers only; the process is in a namespace that was made
                    // here.
                    unsafe { libc::kill(number, libc::SIGKILL) };
                }
            }
            let _ = host.sleeper.kill();
            let _ = host.sleeper.wait();
            println!("host {} is down", host.name);
        }
        let _ = ip(&["link", "del", &self.bridge]);
    }
}

fn make_root(root: &Path, name: &str) -> Result<(), String> {
    for folder in ["bin", "etc", "tmp", "run", "var/lib", "usr/local/bin"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let path = std::env::var("PATH").unwrap_or_default();
    let busybox = path.split(':').map(|folder| Path::new(folder).join("busybox")).find(|file| file.is_file());
    let busybox = busybox.ok_or("busybox is not installed")?;
    fs::copy(busybox, root.join("bin/busybox")).unwrap();
    let applets = capture(Command::new(root.join("bin/busybox")).arg("--list"))?;
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        symlink("busybox", root.join("bin").join(applet)).unwrap();
    }
    fs::write(root.join("etc/machine-id"), format!("{:032x}\n", machine_id(name))).unwrap();
    Ok(())
}

/// Returns the machine-id of a host.
pub(crate) fn machine_id(name: &str) -> u128 {
    name.bytes().fold(1, |id, byte| id << 8 | u128::from(byte))
}

fn ip(args: &[&str]) -> Result<String, String> {
    capture(tool("ip").args(args))
}
