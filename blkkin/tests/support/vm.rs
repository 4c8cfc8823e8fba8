//! A guest with a stock kernel, busybox, the static binary and no network, that QEMU emulates.
//!
//! Its console is a file, a second serial port takes lines from the test, and a virtio-serial port leads to the
//! host's agent.

use std::fs;
use std::io::Write;
use std::os::fd::{AsRawFd, RawFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use blkkin_guest_boot::UnpackedKernel;
use blkkin_guest_boot::agent::{self, AgentGuest};

use crate::broker::child::KillOnDrop;

/// An emulated guest boots in 6 s and loads the programs in 10 s.
const TIME_LIMIT: Duration = Duration::from_secs(240);
const SOON: Duration = Duration::from_secs(60);

/// Requests that several guests make.
const WRITE_AND_READ: &str = r#"
# Writes 40 blocks of a disk from a block on, and reads them, five times.
write_and_read() {
    for round in 1 2 3 4 5; do
        dd if=/dev/zero of=$1 bs=4096 count=40 seek=$2 oflag=direct conv=notrunc 2> /dev/null
        dd if=$1 of=/dev/null bs=4096 count=40 skip=$2 iflag=direct 2> /dev/null
    done
}
"#;

/// Configuration of a guest.
pub(crate) struct GuestOptions<'a> {
    /// Name of the virtual machine.
    pub(crate) name: &'a str,
    pub(crate) uuid: &'a str,
    pub(crate) machine_id: u128,
    /// Script of its first process, after [`WRITE_AND_READ`].
    pub(crate) script: String,
    /// Arguments of QEMU for its disks.
    pub(crate) disks: Vec<String>,
    /// True if QEMU gets the port's socket from this process, as from libvirt.
    pub(crate) gets_socket: bool,
    /// Returns the command for a program, in other namespaces for example.
    pub(crate) command: &'a dyn Fn(&str) -> Command,
}

/// Finds the unpacked kernel, or returns the reason to skip.
pub(crate) fn kernel() -> Result<UnpackedKernel, String> {
    let given = std::env::var_os("BLKKIN_GUEST_KERNEL").map(PathBuf::from);
    let unpacked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../target/vm/linux-6.12");
    let found = given.into_iter().chain([unpacked]).find_map(UnpackedKernel::find);
    found.ok_or_else(|| "no kernel for a guest: cargo xtask setup --guests fetches one".to_owned())
}

/// A running guest; killed when dropped.
pub(crate) struct Guest {
    folder: PathBuf,
    control: UnixStream,
    process: KillOnDrop,
}

impl Guest {
    pub(crate) fn start(
        folder: &Path,
        kernel: &UnpackedKernel,
        binary: &Path,
        port: &Path,
        options: &GuestOptions<'_>,
    ) -> Guest {
        let guest = AgentGuest {
            name: options.name,
            uuid: options.uuid,
            machine_id: options.machine_id,
            script: &format!("{WRITE_AND_READ}{}", options.script),
            programs: &[],
            cpus: 2,
            memory_mib: 1024,
        };
        guest.pack(folder, kernel, binary).unwrap();
        let handed_over = options.gets_socket.then(|| UnixListener::bind(port).unwrap());
        let socket = match &handed_over {
            Some(listener) => format!("fd={}", listener.as_raw_fd()),
            None => format!("path={}", port.display()),
        };
        let mut qemu = (options.command)("qemu-system-x86_64");
        qemu.args(guest.arguments(folder, kernel, &socket)).args(&options.disks);
        if let Some(listener) = &handed_over {
            inherit(&mut qemu, listener.as_raw_fd());
        }
        let process = KillOnDrop(qemu.stdin(Stdio::null()).spawn().unwrap());
        drop(handed_over);
        let control = agent::connect_control(folder, SOON).unwrap();
        Guest { folder: folder.to_owned(), control, process }
    }

    pub(crate) fn go(&mut self) {
        self.control.write_all(b"go\n").unwrap();
    }

    /// Waits for a line of the guest that begins with this text, and returns the rest of it.
    pub(crate) fn wait_for(&self, text: &str) -> String {
        let start = Instant::now();
        loop {
            let console = self.console();
            if let Some(rest) = agent::console_line(&console, text) {
                return rest.to_owned();
            }
            assert!(start.elapsed() < TIME_LIMIT, "no `{text}` in:\n{console}");
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Returns whether the guest has written a line that begins with this text.
    pub(crate) fn has(&self, text: &str) -> bool {
        agent::console_line(&self.console(), text).is_some()
    }

    /// Waits until QEMU, or the command around it, has ended.
    pub(crate) fn wait(mut self) -> ExitStatus {
        self.process.0.wait().unwrap()
    }

    pub(crate) fn console(&self) -> String {
        String::from_utf8_lossy(&fs::read(agent::console(&self.folder)).unwrap_or_default()).into_owned()
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
