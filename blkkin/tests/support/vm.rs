//! A guest with a stock kernel, busybox, the static binary and no network, that QEMU emulates.
//!
//! Its console is a file, a second serial port takes lines from the test, and a virtio-serial port leads to the
//! host's agent.

use std::fs::{self, Permissions};
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use crate::broker::child::KillOnDrop;

use super::tools::{capture, tool};

/// An emulated guest boots in 6 s and loads the programs in 10 s.
const TIME_LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(60);

/// Drivers of the disks. The guest loads them in the order of their names, in which each follows those that it needs.
const MODULES: [&str; 5] = ["scsi_common", "scsi_mod", "sd_mod", "virtio_blk", "virtio_scsi"];
/// First lines of each guest's first process: folders, drivers, random numbers, how its agent starts and ends, and
/// requests that several guests make.
const PREPARE: &str = r#"#!/bin/sh
export PATH=/bin
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
exec < /dev/null > /dev/ttyS0 2>&1
exec 3< /dev/ttyS1
for module in /modules/*; do insmod "$module"; done
# The static binary waits until the kernel has random numbers; a read makes it gather some.
head -c 1 /dev/random > /dev/null
start_agent() {
    blkkin agent --port "$@" > /agent.log 2>&1 &
    agent=$!
    until grep -q 'tracing; events go' /agent.log; do kill -0 $agent || { cat /agent.log; poweroff -f; }; sleep 0.2; done
}
# Writes 40 blocks of a disk from a block on, and reads them, five times.
write_and_read() {
    for round in 1 2 3 4 5; do
        dd if=/dev/zero of=$1 bs=4096 count=40 seek=$2 oflag=direct conv=notrunc 2> /dev/null
        dd if=$1 of=/dev/null bs=4096 count=40 skip=$2 iflag=direct 2> /dev/null
    done
}
end_agent() {
    kill -TERM $agent
    wait $agent
    echo "guest: the agent ended with $?"
    cat /agent.log
}
"#;

/// Configuration of a guest.
pub(crate) struct GuestOptions<'a> {
    /// Name of the virtual machine.
    pub(crate) name: &'a str,
    pub(crate) uuid: &'a str,
    pub(crate) machine_id: u128,
    /// Script of its first process, after [`PREPARE`].
    pub(crate) script: String,
    /// Arguments of QEMU for its disks.
    pub(crate) disks: Vec<String>,
    /// True if QEMU gets the port's socket from this process, as from libvirt.
    pub(crate) gets_socket: bool,
    /// Returns the command for a program, in other namespaces for example.
    pub(crate) command: &'a dyn Fn(&str) -> Command,
}

/// Finds the unpacked kernel, or returns the reason to skip.
pub(crate) fn kernel() -> Result<PathBuf, String> {
    let given = std::env::var_os("BLKKIN_GUEST_KERNEL").map(PathBuf::from);
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/vm/linux-6.12");
    let found = given.into_iter().chain([unpacked]).find(|folder| folder.join("vmlinuz").is_file());
    found.ok_or_else(|| "no kernel for a guest: cargo xtask setup --guests fetches one".to_owned())
}

/// A running guest; killed when dropped.
pub(crate) struct Guest {
    console: PathBuf,
    control: UnixStream,
    _process: KillOnDrop,
}

impl Guest {
    pub(crate) fn start(
        folder: &Path,
        kernel: &Path,
        binary: &Path,
        port: &Path,
        options: &GuestOptions<'_>,
    ) -> Guest {
        let archive = archive(folder, kernel, binary, options);
        let [console, control] = ["console", "control"].map(|name| folder.join(name));
        let mut qemu = (options.command)("qemu-system-x86_64");
        qemu.args([
            "-nodefaults",
            "-no-reboot",
            "-display",
            "none",
            "-name",
            options.name,
            "-uuid",
            options.uuid,
        ]);
        qemu.args(["-accel", "tcg,thread=single", "-cpu", "qemu64", "-smp", "2", "-m", "1024"]);
        qemu.arg("-serial").arg(format!("file:{}", console.display()));
        qemu.arg("-serial").arg(format!("unix:{},server=on,wait=off", control.display()));
        qemu.args(&options.disks);
        qemu.args(["-device", "virtio-serial-pci", "-device", "virtserialport,chardev=p,name=org.blkkin.0"]);
        let handed_over = options.gets_socket.then(|| UnixListener::bind(port).unwrap());
        let socket = match &handed_over {
            Some(listener) => format!("fd={}", listener.as_raw_fd()),
            None => format!("path={}", port.display()),
        };
        qemu.arg("-chardev").arg(format!("socket,id=p,{socket},server=on,wait=off"));
        qemu.arg("-kernel").arg(kernel.join("vmlinuz")).arg("-initrd").arg(archive);
        qemu.args(["-append", "console=ttyS0 loglevel=4 panic=-1"]);
        if let Some(listener) = &handed_over {
            inherit(&mut qemu, listener.as_raw_fd());
        }
        let process = KillOnDrop(qemu.stdin(Stdio::null()).spawn().unwrap());
        drop(handed_over);
        let start = Instant::now();
        let control = loop {
            match UnixStream::connect(&control) {
                Ok(stream) => break stream,
                Err(error) => assert!(start.elapsed() < SOON, "{error}"),
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        Guest { console, control, _process: process }
    }

    pub(crate) fn go(&mut self) {
        self.control.write_all(b"go\n").unwrap();
    }

    /// Waits for a line of the guest that begins with this text, and returns the rest of it.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let console = self.console();
            if let Some(rest) = rest_of_line(&console, text) {
                return rest.to_owned();
            }
            assert!(start.elapsed() < TIME_LIMIT, "no `{text}` in:\n{console}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns whether the guest has written a line that begins with this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        rest_of_line(&self.console(), text).is_some()
    }

    pub(crate) fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.console).unwrap_or_default()).into_owned()
    }
}

/// Has a command's process inherit a descriptor.
fn inherit(command: &mut Command, descriptor: RawFd) {
    // SAFETY: the closure only calls fcntl, which is safe in a signal handler, on a descriptor that is open.
    unsafe {
        command.pre_exec(move || match libc::fcntl(descriptor, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
}

/// The rest of the guest's first line that begins with this text. The console grows by a few bytes at a time, so
/// a line without its end is not there yet.
fn rest_of_line<'a>(console: &'a str, text: &str) -> Option<&'a str> {
    let complete = console.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete.filter_map(|line| line.strip_prefix("guest: ")?.strip_prefix(text)).map(str::trim).next()
}

#[test]
fn a_line_of_the_guest_is_read_when_it_is_complete() {
    assert_eq!(rest_of_line("boots\r\nguest: after 60", "after"), None);
    assert_eq!(rest_of_line("boots\r\nguest: after 600 4800\r\n", "after"), Some("600 4800"));
}

/// Makes the initramfs: busybox, the binary, the drivers of the disks.
fn archive(folder: &Path, kernel: &Path, binary: &Path, options: &GuestOptions<'_>) -> PathBuf {
    let root = folder.join("root");
    for name in ["bin", "dev", "etc", "modules", "proc", "run", "sys", "tmp"] {
        fs::create_dir_all(root.join(name)).unwrap();
    }
    fs::copy("/bin/busybox", root.join("bin/busybox")).unwrap();
    for name in capture(tool("busybox").arg("--list")).unwrap().lines().filter(|name| *name != "busybox") {
        std::os::unix::fs::symlink("busybox", root.join("bin").join(name)).unwrap();
    }
    capture(tool("strip").arg("-o").arg(root.join("bin/blkkin")).arg(binary)).unwrap();
    for name in MODULES {
        let module = kernel.join(format!("modules/{name}.ko.xz"));
        let unpacked = tool("busybox").args(["unxz", "-c"]).arg(module).output().unwrap();
        assert!(unpacked.status.success(), "{unpacked:?}");
        fs::write(root.join(format!("modules/{name}.ko")), unpacked.stdout).unwrap();
    }
    fs::write(root.join("etc/machine-id"), format!("{:032x}\n", options.machine_id)).unwrap();
    fs::write(root.join("init"), format!("{PREPARE}{}", options.script)).unwrap();
    fs::set_permissions(root.join("init"), Permissions::from_mode(0o755)).unwrap();
    let archive = folder.join("initramfs");
    let pack = format!("find . | busybox cpio -o -H newc > {} 2> /dev/null", archive.display());
    capture(tool("sh").arg("-c").arg(pack).current_dir(root)).unwrap();
    archive
}
