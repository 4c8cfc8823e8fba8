//! A private systemd: process 1 of new pid, mount, UTS and cgroup namespaces, on this machine's
//! kernel and network.
//!
//! Its root is in memory, also /usr/local/bin, which is empty; the rest of /usr is this machine's,
//! mounted read-only. It has only the units that a test gives it. So everything that it does to a
//! service is real: users, capabilities, system-call filters, watchdogs, stored descriptors. This
//! machine's own systemd is neither visible nor touched.
//!
//! It and everything that it has started end when it is dropped, and also when the test is killed.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};

use tempfile::TempDir;

use crate::broker::child::end_with_test;
use crate::support::live::eventually;
use crate::support::tools::{capture, tool};

pub(crate) const PROGRAM: &str = "/usr/lib/systemd/systemd";

/// Script that enters a new cgroup, which a cgroup namespace can have as its root. This machine's
/// root cgroup stays as it is.
const ENTER: &str = r#"
set -e
mkdir -p "$1/cgroup"
mount -t cgroup2 cgroup "$1/cgroup"
own="$1/cgroup$(sed -n 's/^0:://p' /proc/self/cgroup)/$2"
case "$3" in
leave) for at in $(find "$own" -depth -type d); do rmdir "$at"; done ;;
*)
    mkdir "$own"
    echo 0 > "$own/cgroup.procs"
    umount "$1/cgroup"
    exec unshare --mount --propagation private --pid --uts --cgroup --fork --kill-child sh -c "$3" boot "$1"
    ;;
esac
"#;

/// Script that makes the root and executes systemd. /proc/sys is read-only while systemd starts,
/// because systemd would raise limits of the whole machine. Mounts propagate within it, as on every
/// machine: by that a service gets its credentials.
const BOOT: &str = r#"
set -e
mount -t tmpfs root "$1/root"
cd "$1/root"
mkdir -p dev etc old opt proc root run sys tmp usr var/cache var/lib var/log var/tmp
mount --bind /usr usr
mount -o remount,bind,ro usr
mount -t tmpfs -o mode=755 bin usr/local/bin
for at in bin sbin lib lib64; do ln -s "usr/$at" "$at"; done
cp -r "$1/etc/." etc/
cp /etc/ld.so.cache etc/
mount -t proc proc proc
mount --bind proc/sys proc/sys
mount -o remount,bind,ro proc/sys
mount -t sysfs -o ro sys sys
mount -t cgroup2 cgroup sys/fs/cgroup
for at in run tmp dev; do mount -t tmpfs -o mode=755 "$at" "$at"; done
chmod 1777 tmp var/tmp
for at in null zero full random urandom tty; do
    touch "dev/$at"
    mount --bind "/dev/$at" "dev/$at"
done
mkdir -m 1777 dev/shm
mkdir dev/pts
mount -t devpts -o newinstance,ptmxmode=0666 pts dev/pts
ln -s pts/ptmx dev/ptmx
mount --bind "$1/opt" opt
pivot_root . old
cd /
umount -l old
mount --make-rshared /
export container=blkkin SYSTEMD_UNIT_PATH=/etc/systemd/system PATH=/usr/sbin:/usr/bin
exec /usr/lib/systemd/systemd --system --unit=blkkin-test.target --log-target=null --show-status=false
"#;

/// A running systemd.
pub(crate) struct Systemd {
    folder: TempDir,
    outer: Child,
    /// Process id of systemd outside of its namespace.
    pid: String,
    cgroup: String,
}

impl Systemd {
    /// Starts systemd with these files below /etc and this binary as /opt/blkkin, or returns why it
    /// cannot.
    pub(crate) fn start(files: &[(String, String)], binary: &Path) -> Result<Systemd, String> {
        if !Path::new(PROGRAM).is_file() {
            return Err(format!("no {PROGRAM}: systemd is not installed"));
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        for at in ["root", "opt", "etc"] {
            fs::create_dir(folder.path().join(at)).unwrap();
        }
        let binary_there = folder.path().join("opt/blkkin");
        fs::hard_link(binary, &binary_there).or_else(|_| fs::copy(binary, &binary_there).map(drop)).unwrap();
        let base = [
            ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
            ("group", "root:x:0:\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
            ("hosts", "127.0.0.1 localhost\n"),
            ("machine-id", "00112233445566778899aabbccddee01\n"),
        ];
        let base = base.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let target =
            |name| (format!("systemd/system/{name}.target"), "[Unit]\nDefaultDependencies=no\n".to_owned());
        let targets = ["sysinit", "basic", "shutdown", "network-online", "blkkin-test"].map(target);
        for (name, text) in base.iter().chain(&targets).chain(files) {
            let file = folder.path().join("etc").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let cgroup = format!("blkkin-test-{}", id());
        let log = File::create(folder.path().join("log")).unwrap();
        let mut enter = unshare_command(folder.path(), &cgroup, BOOT);
        let outer = end_with_test(&mut enter).stdout(log.try_clone().unwrap()).stderr(log).spawn();
        let outer = outer.map_err(|error| format!("unshare: {error}"))?;
        let mut systemd = Systemd { folder, outer, pid: String::new(), cgroup };
        let children = format!("/proc/{0}/task/{0}/children", systemd.outer.id());
        let is_running = eventually(|| {
            let child = fs::read_to_string(&children).unwrap_or_default();
            systemd.pid = child.trim().to_owned();
            let ended = systemd.outer.try_wait().is_ok_and(|status| status.is_some());
            ended || !systemd.pid.is_empty() && systemd.systemctl(&["is-system-running"]).is_ok()
        });
        let ended = systemd.outer.try_wait().is_ok_and(|status| status.is_some());
        if is_running && !ended {
            // With something mounted in /proc the kernel lets no service have a private /proc
            // (`mount_too_revealing`, fs/namespace.c).
            return systemd.run(&["umount", "/proc/sys"]).map(|_| systemd);
        }
        let log = fs::read_to_string(systemd.folder.path().join("log")).unwrap_or_default();
        Err(format!("systemd does not start in its own namespaces: {}", log.trim()))
    }

    /// Runs a command in its namespaces and returns its stdout.
    pub(crate) fn run(&self, args: &[&str]) -> Result<String, String> {
        let mut command = tool("nsenter");
        command.args(["--target", &self.pid, "--mount", "--pid", "--uts", "--cgroup", "--"]).args(args);
        capture(&mut command)
    }

    /// Returns the command line by which install.sh runs a command in its namespaces.
    pub(crate) fn runner(&self) -> String {
        format!("nsenter --target {} --mount --pid --uts --cgroup -- sh -c", self.pid)
    }

    /// Runs `systemctl`.
    pub(crate) fn systemctl(&self, args: &[&str]) -> Result<String, String> {
        self.run(&[&["systemctl", "--no-pager"], args].concat())
    }

    /// Returns a property of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.systemctl(&["show", unit, "--value", "--property", name]).unwrap()
    }

    /// Reads a file of its root.
    pub(crate) fn read(&self, path: &str) -> String {
        let root = PathBuf::from(format!("/proc/{}/root", self.pid));
        fs::read_to_string(root.join(path.trim_start_matches('/'))).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
        // The namespace's processes end with systemd, some of them a moment later.
        let removed = eventually(|| {
            let mut leave = unshare_command(self.folder.path(), &self.cgroup, "leave");
            leave.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        });
        println!("systemd is down{}", if removed { "" } else { "; its cgroup is still there" });
    }
}

fn unshare_command(folder: &Path, cgroup: &str, step: &str) -> Command {
    let mut unshare = tool("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "enter"]);
    unshare.arg(folder).args([cgroup, step]).stdin(Stdio::null());
    unshare
}
