//! A private disk of a test: a loop device over a file in memory, raw or with ext4. If the variable
//! BLKKIN_TEST_DISK names a device (a guest's, see `xtask/src/vm`), that device is used and
//! overwritten.
//!
//! All its files are in one folder below /dev/shm with a name of its own. What a killed test left
//! there is found and removed by the next.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio, id};
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use blkkin_wire::ids::DeviceId;

use super::overlay::MERGED;
use super::tools::{block_device, capture, tool};

const HOME: &str = "/dev/shm";
const PREFIX: &str = "blkkin-test-";
const DISK_VARIABLE: &str = "BLKKIN_TEST_DISK";
/// File of a loop device on the disk.
const UPPER: &str = "upper.img";
/// Mount point of its file system.
const UPPER_MOUNT: &str = "upper";
/// Options of mkfs.ext4. All tables are written at once; otherwise a kernel thread would write them
/// while a test counts.
const MKFS_EXT4: [&str; 4] = ["-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0"];
/// Option of a mount of ext4. Otherwise ext4lazyinit reads the block bitmaps at some moment of the first
/// five seconds, while a test counts (ext4_register_li_request, fs/ext4/super.c).
const NO_PREFETCH: &str = "no_prefetch_block_bitmaps";

/// Writes all data of a file system back; workers of the kernel submit it.
pub(crate) fn sync(folder: &Path) {
    rustix::fs::syncfs(File::open(folder).unwrap()).unwrap();
}

/// The disk; removed when dropped.
pub(crate) struct Disk {
    folder: PathBuf,
    node: String,
    mounted: bool,
}

impl Disk {
    /// Creates a zeroed disk of `bytes` bytes, or returns why there is none.
    pub(crate) fn raw(bytes: u64) -> Result<Disk, String> {
        static LEFTOVERS: Once = Once::new();
        static CREATED: AtomicU32 = AtomicU32::new(0);
        // Once only: later, folders with this process's id are those of other tests in this
        // process.
        LEFTOVERS.call_once(remove_leftovers);
        let number = CREATED.fetch_add(1, Ordering::Relaxed);
        let folder = Path::new(HOME).join(format!("{PREFIX}{}-{number}", id()));
        fs::create_dir_all(&folder).map_err(|error| format!("no folder in {HOME}: {error}"))?;
        let mut disk = Disk { folder, node: String::new(), mounted: false };
        // Written, not only truncated to this length, so that the first write to a block is like
        // any other.
        let zeros = vec![0u8; bytes as usize];
        disk.node = if let Ok(node) = std::env::var(DISK_VARIABLE) {
            // A device that was chosen must work: its failure is no reason to skip.
            let mut device = File::options().write(true).open(&node).unwrap();
            device.write_all(&zeros).and_then(|()| device.sync_all()).unwrap();
            node
        } else {
            let image = disk.folder.join("disk.img");
            fs::write(&image, zeros).map_err(|error| format!("not enough space in {HOME}: {error}"))?;
            capture(tool("losetup").args(["--find", "--show", "--partscan"]).arg(&image))
                .map_err(|error| format!("no loop device: {error}"))?
        };
        disk.set_queue()?;
        Ok(disk)
    }

    /// Prepares the queue: completions stay on the CPU of the driver's worker (queue/rq_affinity =
    /// 0). On the submitter's CPU they would interrupt any task that runs there, and on some
    /// kernels no program runs on top of some tasks. iostats and merges are on, whatever an earlier
    /// test has left on a device that is always the same. A loop device has no scheduler and the size of
    /// requests that it had at first: a test that was killed leaves both to the next user.
    fn set_queue(&self) -> Result<(), String> {
        let name = self.node.rsplit('/').next().unwrap_or_default();
        let set = |(setting, value): (&str, &str)| {
            let path = format!("/sys/block/{name}/queue/{setting}");
            fs::write(&path, value).map_err(|error| format!("{path}: {error}"))
        };
        [("rq_affinity", "0"), ("iostats", "1"), ("nomerges", "0")].into_iter().try_for_each(set)?;
        if !name.starts_with("loop") {
            return Ok(());
        }
        let largest = format!("/sys/block/{name}/queue/max_hw_sectors_kb");
        let largest = fs::read_to_string(&largest).map_err(|error| format!("{largest}: {error}"))?;
        [("scheduler", "none"), ("max_sectors_kb", largest.trim())].into_iter().try_for_each(set)
    }

    /// Creates a disk with ext4, mounted.
    pub(crate) fn ext4(bytes: u64) -> Result<Disk, String> {
        Disk::ext4_with(bytes, &[])
    }

    /// Creates a disk with ext4 and these options of mkfs.ext4, mounted.
    pub(crate) fn ext4_with(bytes: u64, options: &[&str]) -> Result<Disk, String> {
        Disk::formatted(bytes, "ext4", &[&MKFS_EXT4, options].concat())
    }

    /// Creates a disk with this file system, made by its mkfs with these options, mounted.
    pub(crate) fn formatted(bytes: u64, kind: &str, options: &[&str]) -> Result<Disk, String> {
        let mut disk = Disk::raw(bytes)?;
        capture(tool(&format!("mkfs.{kind}")).args(options).arg(&disk.node))?;
        fs::create_dir(disk.mount_point()).unwrap();
        let options = if kind == "ext4" { NO_PREFETCH } else { "defaults" };
        capture(tool("mount").args(["-t", kind, "-o", options]).arg(&disk.node).arg(disk.mount_point()))
            .map_err(|error| format!("no {kind}: {error}"))?;
        disk.mounted = true;
        capture(tool("sync").arg("--file-system").arg(disk.mount_point()))?;
        Ok(disk)
    }

    /// Creates a disk with xfs or btrfs, mounted.
    pub(crate) fn with_file_system(bytes: u64, kind: &str) -> Result<Disk, String> {
        if kind == "ext4" {
            return Disk::ext4(bytes);
        }
        Disk::formatted(bytes, kind, &["-q", "-f"])
    }

    /// Creates a loop device with direct I/O over a file of `bytes` bytes on this disk's file
    /// system. It is removed with the disk.
    pub(crate) fn upper(&self, bytes: u64) -> Result<Upper, String> {
        let upper = self.upper_with(bytes, &["--direct-io=on"])?;
        let direct = format!("/sys/block/{}/loop/dio", upper.name());
        match fs::read_to_string(&direct) {
            Ok(text) if text.trim() == "1" => Ok(upper),
            other => Err(format!("{direct}: {other:?}: this loop device takes no direct I/O")),
        }
    }

    /// Creates a loop device with these options of losetup, as [`upper`](Self::upper) does. Without
    /// any it writes through the page cache of its file.
    pub(crate) fn upper_with(&self, bytes: u64, options: &[&str]) -> Result<Upper, String> {
        self.upper_in(&self.mount_point(), bytes, options)
    }

    /// Creates the device of [`upper_with`](Self::upper_with) over a file in this folder, whose data is on this
    /// disk.
    pub(crate) fn upper_in(&self, folder: &Path, bytes: u64, options: &[&str]) -> Result<Upper, String> {
        let file = folder.join(UPPER);
        // Written, so that its blocks are allocated where they will stay.
        let mut image = File::create(&file).map_err(|error| error.to_string())?;
        image.write_all(&vec![0u8; bytes as usize]).and_then(|()| image.sync_all()).unwrap();
        // fsync leaves inode tables and bitmaps to write-back, which would come half a minute
        // later, between two counts.
        capture(tool("sync").arg("--file-system").arg(self.mount_point()))?;
        let node = capture(tool("losetup").args(["--find", "--show"]).args(options).arg(&file))
            .map_err(|error| format!("no loop device: {error}"))?;
        Ok(Upper { node: PathBuf::from(node), file })
    }

    /// Makes ext4 on a loop device of this disk and mounts it, until the disk is dropped. Returns the
    /// mount point.
    pub(crate) fn mount_upper(&self, upper: &Upper) -> Result<PathBuf, String> {
        let folder = self.folder.join(UPPER_MOUNT);
        fs::create_dir(&folder).unwrap();
        capture(tool("mkfs.ext4").args(MKFS_EXT4).arg(&upper.node))?;
        capture(tool("mount").args(["-t", "ext4", "-o", NO_PREFETCH]).arg(&upper.node).arg(&folder))?;
        sync(&folder);
        Ok(folder)
    }

    /// Adds a partition of the second half, which disappears with the disk. Returns its node.
    pub(crate) fn half(&self) -> Result<PathBuf, String> {
        let sectors = fs::read_to_string(format!("/sys/block/{}/size", self.name())).unwrap();
        let half = sectors.trim().parse::<u64>().unwrap() / 2;
        capture(tool("addpart").arg(&self.node).args(["1", &half.to_string(), &half.to_string()]))
            .map_err(|error| format!("no partition: {error}"))?;
        Ok(PathBuf::from(format!("{}p1", self.node)))
    }

    /// Returns the device node, `/dev/loopN`.
    pub(crate) fn node(&self) -> &Path {
        Path::new(&self.node)
    }

    /// Returns the name, `loopN`.
    pub(crate) fn name(&self) -> &str {
        self.node.trim_start_matches("/dev/")
    }

    /// Returns the device number.
    pub(crate) fn device(&self) -> DeviceId {
        block_device(self.name())
    }

    /// Returns the mount point of its file system.
    pub(crate) fn mount_point(&self) -> PathBuf {
        self.folder.join("mnt")
    }

    /// Returns the path of a file next to the disk's, in memory.
    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// Reads the whole disk, past the content of before in the device's page cache.
    pub(crate) fn content(&self) -> Vec<u8> {
        let mut node = File::open(&self.node).unwrap();
        // SAFETY: passes numbers only.
        unsafe { libc::posix_fadvise(node.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let mut content = Vec::new();
        node.read_to_end(&mut content).unwrap();
        content
    }

    /// Makes 64 direct reads, by dd.
    pub(crate) fn make_64_reads(&self) {
        let from = format!("if={}", self.node);
        let args = [&from, "of=/dev/null", "bs=4k", "count=64", "iflag=direct"];
        assert!(Command::new("dd").args(args).stderr(Stdio::null()).status().unwrap().success());
    }

    /// Reads the kernel's counts of this disk.
    pub(crate) fn statistics(&self) -> Statistics {
        statistics(self.name())
    }
}

/// A loop device over a file of a [`Disk`].
pub(crate) struct Upper {
    pub(crate) node: PathBuf,
    file: PathBuf,
}

impl Upper {
    /// Returns the name, `loopN`.
    pub(crate) fn name(&self) -> &str {
        self.node.file_name().unwrap().to_str().unwrap()
    }

    /// Returns the device number.
    pub(crate) fn device(&self) -> DeviceId {
        block_device(self.name())
    }

    /// Returns the map of its sectors to the lower disk as (first here, first there, sectors), from
    /// the file system itself (FIEMAP, by filefrag).
    pub(crate) fn extents(&self) -> Vec<(u64, u64, u64)> {
        let output = capture(tool("filefrag").args(["-v", "-b512"]).arg(&self.file)).unwrap();
        let numbers = |line: &str| -> Option<[u64; 4]> {
            let fields = line.split(|c: char| !c.is_ascii_digit()).filter(|word| !word.is_empty());
            let numbers: Vec<u64> = fields.filter_map(|word| word.parse().ok()).collect();
            // Columns: number, first and last here, first and last there, length.
            let [number, first, _, lower_first, _, length, ..] = numbers[..] else { return None };
            line.trim_start().starts_with(&format!("{number}:")).then_some([
                number,
                first,
                lower_first,
                length,
            ])
        };
        let extents: Vec<_> = output
            .lines()
            .filter_map(numbers)
            .map(|[_, first, lower_first, length]| (first, lower_first, length))
            .collect();
        assert!(!extents.is_empty(), "{output}");
        extents
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        remove(&self.folder);
    }
}

/// Completed requests and the sectors that they moved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Statistics {
    pub(crate) requests: u64,
    pub(crate) sectors: u64,
}

/// Reads the columns of a device's `stat` (Documentation/block/stat.rst).
pub(crate) fn stat_columns(name: &str) -> Vec<u64> {
    let text = fs::read_to_string(format!("/sys/block/{name}/stat")).unwrap();
    text.split_whitespace().map(|word| word.parse().unwrap()).collect()
}

/// Reads the kernel's counts of the device of this name.
pub(crate) fn statistics(name: &str) -> Statistics {
    let columns = stat_columns(name);
    // Documentation/block/stat.rst: reads, writes and discards, each with requests first and
    // sectors third.
    let sum = |offset: usize| [0, 4, 11].map(|group| columns[group + offset]).iter().sum();
    Statistics { requests: sum(0), sectors: sum(2) }
}

impl Statistics {
    /// Returns the difference to an earlier reading.
    pub(crate) fn since(self, earlier: Statistics) -> Statistics {
        Statistics { requests: self.requests - earlier.requests, sectors: self.sectors - earlier.sectors }
    }
}

fn remove_leftovers() {
    for entry in fs::read_dir(HOME).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let numbers = name.strip_prefix(PREFIX).and_then(|numbers| numbers.split('-').next());
        let owner = numbers.and_then(|pid| pid.parse::<u32>().ok());
        if owner.is_some_and(|pid| pid == id() || !Path::new(&format!("/proc/{pid}")).exists()) {
            remove(&entry.path());
        }
    }
}

/// Unmounts, detaches and removes; each step may find nothing to do.
fn remove(folder: &Path) {
    let mount_point = folder.join("mnt");
    unmount(&folder.join(UPPER_MOUNT));
    for merged in MERGED.into_iter().rev() {
        detach(&mount_point.join(merged).join(UPPER));
        unmount(&mount_point.join(merged));
    }
    detach(&mount_point.join(UPPER));
    unmount(&mount_point);
    detach(&folder.join("disk.img"));
    let _ = fs::remove_dir_all(folder);
}

fn unmount(mount_point: &Path) {
    if is_mounted(mount_point) {
        let _ = capture(tool("umount").arg(mount_point)).inspect_err(|error| println!("{error}"));
    }
}

/// Detaches the loop devices over an image.
pub(crate) fn detach(image: &Path) {
    for device in devices_over(image) {
        let _ = capture(tool("losetup").arg("--detach").arg(device)).inspect_err(|error| println!("{error}"));
    }
}

fn is_mounted(mount_point: &Path) -> bool {
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    mounts.lines().filter_map(|line| line.split(' ').nth(4)).any(|found| Path::new(found) == mount_point)
}

fn devices_over(image: &Path) -> Vec<String> {
    let listed = capture(tool("losetup").arg("--associated").arg(image)).unwrap_or_default();
    listed.lines().filter_map(|line| Some(line.split_once(':')?.0.to_owned())).collect()
}
