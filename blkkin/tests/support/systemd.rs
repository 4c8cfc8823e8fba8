//! A systemd of our own: process 1 of namespaces of processes, mounts, names and cgroups, on this machine's kernel and network. Its
//! root is in memory but for /usr, which is this machine's and cannot be written there; it knows no unit but those that it is given.
//! So what it does to a service (users, capabilities, filters of calls, watchdogs, descriptors that it keeps) is done in earnest, and
//! nothing of this machine's own systemd is seen or touched.
//!
//! It, and all that it has started, ends when this is dropped, also with the test that is killed.

use std::fs::{self, File};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio, id};

use tempfile::TempDir;

use crate::support::live::eventually;
use crate::support::tools::{capture, tool};

pub(crate) const PROGRAM: &str = "/usr/lib/systemd/systemd";

/// Into a cgroup of its own, which a name space can begin with: this machine's root is nobody's to arrange.
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

/// What the kernel can be told cannot be written while systemd starts: it would raise limits of the whole machine.
const BOOT: &str = r#"
set -e
mount -t tmpfs root "$1/root"
cd "$1/root"
mkdir -p dev etc old opt proc root run sys tmp usr var/cache var/lib var/log var/tmp
mount --bind /usr usr
mount -o remount,bind,ro usr
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
export container=blkkin SYSTEMD_UNIT_PATH=/etc/systemd/system PATH=/usr/sbin:/usr/bin
exec /usr/lib/systemd/systemd --system --unit=blkkin-test.target --log-target=null --show-status=false
"#;

/// It runs.
pub(crate) struct Systemd {
    folder: TempDir,
    outer: Child,
    /// systemd's number outside.
    first: String,
    cgroup: String,
}

impl Systemd {
    /// With these files below /etc, by their names there, and this binary as /opt/blkkin; or why there is none.
    pub(crate) fn boot(files: &[(String, String)], binary: &Path) -> Result<Systemd, String> {
        if !Path::new(PROGRAM).is_file() {
            return Err(format!("no {PROGRAM}: systemd is not installed"));
        }
        let folder = tempfile::tempdir().map_err(|error| error.to_string())?;
        for at in ["root", "opt", "etc"] {
            fs::create_dir(folder.path().join(at)).unwrap();
        }
        let binary_there = folder.path().join("opt/blkkin");
        fs::hard_link(binary, &binary_there).or_else(|_| fs::copy(binary, &binary_there).map(drop)).unwrap();
        let own = [
            ("passwd", "root:x:0:0:root:/root:/bin/sh\n"),
            ("group", "root:x:0:\n"),
            ("nsswitch.conf", "passwd: files\ngroup: files\nhosts: files\n"),
            ("hosts", "127.0.0.1 localhost\n"),
            ("machine-id", "00112233445566778899aabbccddee01\n"),
        ];
        let own = own.map(|(name, text)| (name.to_owned(), text.to_owned()));
        let target =
            |name| (format!("systemd/system/{name}.target"), "[Unit]\nDefaultDependencies=no\n".to_owned());
        let targets = ["sysinit", "basic", "shutdown", "network-online", "blkkin-test"].map(target);
        for (name, text) in own.iter().chain(&targets).chain(files) {
            let file = folder.path().join("etc").join(name);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(file, text).unwrap();
        }
        let cgroup = format!("blkkin-test-{}", id());
        let said = File::create(folder.path().join("said")).unwrap();
        let mut enter = room(folder.path(), &cgroup, BOOT);
        // SAFETY: prctl is async-signal-safe and touches no memory of ours.
        unsafe {
            enter.pre_exec(|| match libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            });
        }
        let outer = enter.stdout(said.try_clone().unwrap()).stderr(said).spawn();
        let outer = outer.map_err(|error| format!("unshare: {error}"))?;
        let mut systemd = Systemd { folder, outer, first: String::new(), cgroup };
        let children = format!("/proc/{0}/task/{0}/children", systemd.outer.id());
        let answers = eventually(|| {
            let child = fs::read_to_string(&children).unwrap_or_default();
            systemd.first = child.trim().to_owned();
            let ended = systemd.outer.try_wait().is_ok_and(|status| status.is_some());
            ended || !systemd.first.is_empty() && systemd.ctl(&["is-system-running"]).is_ok()
        });
        let ended = systemd.outer.try_wait().is_ok_and(|status| status.is_some());
        if answers && !ended {
            // With something mounted in /proc the kernel lets no service have a /proc of its own (`mount_too_revealing`, fs/namespace.c).
            return systemd.on(&["umount", "/proc/sys"]).map(|_| systemd);
        }
        let said = fs::read_to_string(systemd.folder.path().join("said")).unwrap_or_default();
        Err(format!("systemd does not boot in a room of its own: {}", said.trim()))
    }

    /// What a command there says; its words are the error when it fails.
    pub(crate) fn on(&self, words: &[&str]) -> Result<String, String> {
        let mut command = tool("nsenter");
        command.args(["--target", &self.first, "--mount", "--pid", "--uts", "--cgroup", "--"]).args(words);
        capture(&mut command)
    }

    /// `systemctl …`.
    pub(crate) fn ctl(&self, words: &[&str]) -> Result<String, String> {
        self.on(&[&["systemctl", "--no-pager"], words].concat())
    }

    /// What systemd says of a unit.
    pub(crate) fn property(&self, unit: &str, name: &str) -> String {
        self.ctl(&["show", unit, "--value", "--property", name]).unwrap()
    }

    /// A file there.
    pub(crate) fn read(&self, path: &str) -> String {
        let root = PathBuf::from(format!("/proc/{}/root", self.first));
        fs::read_to_string(root.join(path.trim_start_matches('/'))).unwrap_or_default()
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        let _ = self.outer.kill();
        let _ = self.outer.wait();
        // Its processes are gone with their name space, some a moment later.
        let left = eventually(|| {
            let mut leave = room(self.folder.path(), &self.cgroup, "leave");
            leave.stdout(Stdio::null()).stderr(Stdio::null()).status().is_ok_and(|status| status.success())
        });
        println!("systemd is down{}", if left { "" } else { "; its cgroup is still there" });
    }
}

fn room(folder: &Path, cgroup: &str, then: &str) -> Command {
    let mut unshare = tool("unshare");
    unshare.args(["--mount", "--propagation", "private", "sh", "-c", ENTER, "enter"]);
    unshare.arg(folder).args([cgroup, then]).stdin(Stdio::null());
    unshare
}
