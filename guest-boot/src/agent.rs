//! A guest that runs blkkin's agent: busybox, the static binary, drivers of disks, and no network.
//!
//! *In*: names, a script for its first process, and a folder. *Out*: the initramfs in that folder, and QEMU's
//! arguments. The console is a file, a second serial port takes lines from the host, and a virtio-serial port leads
//! to the host's agent. A line of the script's that begins with `guest: ` is for the host ([`console_line`]).

use std::ffi::OsString;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::archive::Archive;
use crate::kernel::UnpackedKernel;
use crate::programs;
use crate::qemu::{Boot, prefixed};

/// First lines of the first process.
const PREPARE: &str = include_str!("agent.sh");
const FOLDERS: [&str; 8] = ["bin", "dev", "etc", "modules", "proc", "run", "sys", "tmp"];
/// Drivers of disks that these kernels have as modules.
const MODULES: [&str; 3] = ["sd_mod", "virtio_blk", "virtio_scsi"];
const POLL_INTERVAL: Duration = Duration::from_millis(50);

/// Configuration of a guest.
#[derive(Clone, Copy, Debug)]
pub struct AgentGuest<'a> {
    /// Name of the virtual machine.
    pub name: &'a str,
    /// UUID of the virtual machine.
    pub uuid: &'a str,
    /// Content of the guest's `/etc/machine-id`.
    pub machine_id: u128,
    /// Script of the first process, after the folders are mounted and the drivers loaded.
    pub script: &'a str,
    /// Programs of this machine in addition to busybox; they come before busybox's own.
    pub programs: &'a [&'a str],
    /// Number of virtual CPUs.
    pub cpus: u32,
    /// Memory in MiB.
    pub memory_mib: u32,
}

impl AgentGuest<'_> {
    /// Writes the initramfs into `folder`. `blkkin` is the static binary.
    pub fn pack(&self, folder: &Path, kernel: &UnpackedKernel, blkkin: &Path) -> Result<()> {
        let mut archive = Archive::create(&initramfs(folder))?;
        FOLDERS.iter().try_for_each(|name| archive.folder(name))?;
        archive.file("init", format!("{PREPARE}{}", self.script).as_bytes())?;
        archive.file("etc/machine-id", format!("{:032x}\n", self.machine_id).as_bytes())?;
        for (module, bytes) in kernel.modules(&MODULES)? {
            archive.file(&format!("modules/{module}"), &bytes)?;
        }
        archive.file("bin/blkkin", &programs::stripped(blkkin, &folder.join("blkkin"))?)?;
        programs::add(&mut archive, &["busybox"])?;
        programs::add(&mut archive, self.programs)?;
        programs::add_busybox_links(&mut archive)?;
        archive.finish()
    }

    /// Returns QEMU's arguments, without those of disks. `socket` is the port's: `path=…`, or `fd=…` for one that
    /// QEMU gets from its parent.
    pub fn arguments(&self, folder: &Path, kernel: &UnpackedKernel, socket: &str) -> Vec<OsString> {
        let (initramfs, console) = (initramfs(folder), console(folder));
        let boot = Boot {
            kernel,
            initramfs: &initramfs,
            console: &console,
            cpus: self.cpus,
            memory_mib: self.memory_mib,
            parameters: "loglevel=4",
        };
        let mut arguments = boot.arguments();
        arguments.extend(["-name", self.name, "-uuid", self.uuid].map(OsString::from));
        let mut serial = prefixed("unix:", &control(folder));
        serial.push(",server=on,wait=off");
        arguments.extend(["-serial".into(), serial]);
        let chardev = format!("socket,id=port,{socket},server=on,wait=off");
        let device = "virtserialport,chardev=port,name=org.blkkin.0";
        arguments.extend(
            ["-device", "virtio-serial-pci", "-device", device, "-chardev", &chardev].map(OsString::from),
        );
        arguments
    }
}

fn initramfs(folder: &Path) -> PathBuf {
    folder.join("initramfs")
}

fn control(folder: &Path) -> PathBuf {
    folder.join("control")
}

/// Returns the file with the console's output.
pub fn console(folder: &Path) -> PathBuf {
    folder.join("console")
}

/// Connects to the serial port from which the script reads lines. QEMU makes its socket within `limit`.
pub fn connect_control(folder: &Path, limit: Duration) -> Result<UnixStream> {
    let (path, start) = (control(folder), Instant::now());
    loop {
        match UnixStream::connect(&path) {
            Ok(stream) => return Ok(stream),
            Err(error) if start.elapsed() > limit => {
                return Err(error).with_context(|| format!("cannot connect to {}", path.display()));
            }
            Err(_) => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// Returns the rest of the guest's first line that begins with this text. The console grows by a few bytes at a
/// time, so a line without its end is not there yet.
pub fn console_line<'a>(console: &'a str, text: &str) -> Option<&'a str> {
    let complete = console.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    complete.filter_map(|line| line.strip_prefix("guest: ")?.strip_prefix(text)).map(str::trim).next()
}

#[cfg(test)]
mod tests {
    use super::console_line;

    #[test]
    fn a_line_of_the_guest_is_read_when_it_is_complete() {
        assert_eq!(console_line("boots\r\nguest: after 60", "after"), None);
        assert_eq!(console_line("boots\r\nguest: after 600 4800\r\n", "after"), Some("600 4800"));
    }
}
