//! Guest of the demo: a stock kernel, an agent and one program, in QEMU without KVM.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use blkkin_guest_boot::UnpackedKernel;
use blkkin_guest_boot::agent::{self, AgentGuest};

use crate::interrupt;
use crate::servers::Process;
use crate::shell;

/// Script of the guest after its agent can start; WORKLOAD is replaced.
const SCRIPT: &str = r#"
mkdir /data
mount -t ext4 /dev/vda /data
start_agent --device vda
echo "guest: ready"
read -r _ <&3
WORKLOAD
umount /data
end_agent
poweroff -f
"#;
const IMAGE_BYTES: u64 = 48 << 20;
/// Files of the web server, and their size: each is read once.
const PAGES: usize = 40;
const PAGE_BYTES: usize = 256 << 10;
/// Time limit of a workload: ten times what it takes on two slow CPUs.
const WORKLOAD_TIMEOUT: Duration = Duration::from_secs(240);
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Virtual machine, and the program that it runs.
pub(super) struct Kind {
    /// Name of the virtual machine.
    pub(super) name: &'static str,
    pub(super) program: &'static str,
    description: &'static str,
    machine_id: u128,
    workload: &'static str,
}

pub(super) const KINDS: [Kind; 2] = [
    Kind {
        name: "db",
        program: "sqlite3",
        description: "sqlite3 inserts, durably",
        machine_id: 0xdb01,
        workload: r#"{
            echo "PRAGMA synchronous = FULL; CREATE TABLE orders (item, note);"
            for n in $(seq 60); do echo "INSERT INTO orders VALUES ($n, zeroblob(2000));"; done
        } | sqlite3 /data/orders.db"#,
    },
    Kind {
        name: "web",
        program: "cat",
        description: "cat reads pages from its disk",
        machine_id: 0x3eb1,
        // Without its folder, busybox would be the program.
        workload: r#"for page in /data/*.html; do /bin/cat "$page" > /dev/null; done"#,
    },
];

/// Running virtual machine.
pub(super) struct Guest {
    pub(super) kind: &'static Kind,
    process: Process,
    /// Files of the guest.
    folder: PathBuf,
}

impl Guest {
    /// Boots the guest, with a raw image on `disk` and the port of its agent in `ports`.
    pub(super) fn start(
        kind: &'static Kind,
        blkkin: &Path,
        kernel: &UnpackedKernel,
        (folder, disk, ports): (&Path, &Path, &Path),
    ) -> Result<Self> {
        let own = folder.join(kind.name);
        fs::create_dir_all(&own).with_context(|| format!("cannot make {}", own.display()))?;
        let image = disk.join(format!("{}.img", kind.name));
        make_image(&image, &own.join("files"))?;
        let uuid = format!("00000000-0000-0000-0000-{:012x}", kind.machine_id);
        let guest = AgentGuest {
            name: kind.name,
            uuid: &uuid,
            machine_id: kind.machine_id,
            script: &SCRIPT.replace("WORKLOAD", kind.workload),
            programs: &[kind.program],
            cpus: 1,
            memory_mib: 512,
        };
        guest.pack(&own, kernel, blkkin)?;
        let port = ports.join(format!("{}.sock", kind.name));
        let mut qemu = Command::new("qemu-system-x86_64");
        qemu.args(guest.arguments(&own, kernel, &format!("path={}", port.display())));
        let drive = "if=none,id=disk,format=raw,cache=none,aio=threads";
        qemu.arg("-drive").arg(format!("file={},{drive}", image.display()));
        qemu.args(["-device", &format!("virtio-blk-pci,drive=disk,serial={}", kind.name)]);
        let process = Process::start(&format!("qemu-{}", kind.name), &qemu, folder)?;
        Ok(Self { kind, process, folder: own })
    }

    pub(super) fn pid(&self) -> u32 {
        self.process.pid()
    }

    pub(super) fn description(&self) -> String {
        format!("virtual machine: {}", self.kind.description)
    }

    /// Waits until its agent traces.
    pub(super) fn wait_until_ready(&mut self) -> Result<()> {
        let console = agent::console(&self.folder);
        let ready = || agent::console_line(&read(&console), "ready").is_some();
        self.process
            .wait_until("its agent traces", ready)
            .with_context(|| format!("the console: {}", read(&console)))
    }

    pub(super) fn start_workload(&self) -> Result<()> {
        let mut control = agent::connect_control(&self.folder, Duration::ZERO)?;
        control.write_all(b"go\n").context("cannot write to the guest")
    }

    /// Waits until the workload, the agent and the guest have ended; returns the agent's summary.
    pub(super) fn wait_for_end(&mut self) -> Result<String> {
        let (start, console) = (Instant::now(), agent::console(&self.folder));
        while self.process.is_up() {
            interrupt::check()?;
            if start.elapsed() > WORKLOAD_TIMEOUT {
                bail!("{} did not end within {WORKLOAD_TIMEOUT:?}: {}", self.kind.name, read(&console));
            }
            std::thread::sleep(POLL_INTERVAL);
        }
        let console = read(&console);
        match console.split_once("guest: the agent ended with 0") {
            Some((_, summary)) => Ok(summary.to_owned()),
            None => bail!("the agent of {} failed: {console}", self.kind.name),
        }
    }
}

fn read(console: &Path) -> String {
    String::from_utf8_lossy(&fs::read(console).unwrap_or_default()).into_owned()
}

/// Makes an image with ext4 and the files of the web server.
fn make_image(image: &Path, files: &Path) -> Result<()> {
    fs::create_dir_all(files).with_context(|| format!("cannot make {}", files.display()))?;
    for page in 0..PAGES {
        let path = files.join(format!("{page}.html"));
        fs::write(&path, vec![0xb1; PAGE_BYTES])
            .with_context(|| format!("cannot make {}", path.display()))?;
    }
    File::create(image)
        .and_then(|file| file.set_len(IMAGE_BYTES))
        .with_context(|| format!("cannot make {}", image.display()))?;
    let program = shell::which("mkfs.ext4").context("mkfs.ext4 is not installed")?;
    let tables = "lazy_itable_init=0,lazy_journal_init=0";
    shell::run_quietly(
        Command::new(program).args(["-q", "-F", "-b", "4096", "-E", tables, "-d"]).arg(files).arg(image),
    )
}
