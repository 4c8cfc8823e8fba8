//! System calls whose cost is measured: the cheapest for each kind of argument and file.
//!
//! A measurement is the median of many short chunks. A chunk is 1,000 calls, about 0.3 ms, so that
//! an interrupt or another task on the CPU affects a few chunks and not the figure. Bursts of
//! chunks are separated by pauses, because a full ring makes a traced call cheaper.

use std::ffi::c_long;
use std::fs::File;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::Result;

use crate::process;

/// Name of the file, and of the folder that overlayfs is mounted on.
const FILE: &str = "file";
const MERGED: &str = "merged";
/// Calls per chunk.
const CHUNK: u32 = 1_000;
/// Chunks per burst; the first only warms caches and branch predictors.
const BURST: usize = 5;
/// Pause between bursts: limits the rate to about 400,000 calls/s, which the reader can process.
const PAUSE: Duration = Duration::from_millis(10);

/// Measured system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// `getppid()`: not in the table of traced calls, shows the cost of any other call.
    Getppid,
    /// `msync(0, 0, 0)`: traced, without descriptor and path, returns at once.
    Msync,
    /// `fcntl(fd, F_GETFL)`: with a descriptor, without a position.
    Fcntl,
    /// `lseek(fd, 0, SEEK_CUR)`: with a descriptor and its position.
    Lseek,
    /// `pread64(fd, buffer, 1, 0)` on tmpfs: like lseek, with real work.
    Pread,
    /// `pread64(fd, buffer, 1, 0)` on overlayfs over tmpfs: the file is looked up in the layers.
    PreadOverlay,
    /// `pread64(fd, buffer, 4096, 0)` on tmpfs: a typical read.
    PreadPage,
    /// `readlinkat(AT_FDCWD, "/nonexistent", …)`: with a path.
    Readlink,
}

impl Call {
    /// Every variant.
    pub(crate) const ALL: [Call; 8] = [
        Call::Getppid,
        Call::Msync,
        Call::Fcntl,
        Call::Lseek,
        Call::Pread,
        Call::PreadOverlay,
        Call::PreadPage,
        Call::Readlink,
    ];

    /// Returns the name on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Call::Getppid => "getppid",
            Call::Msync => "msync",
            Call::Fcntl => "fcntl",
            Call::Lseek => "lseek",
            Call::Pread => "pread64",
            Call::PreadOverlay => "pread64-overlay",
            Call::PreadPage => "pread64-4k",
            Call::Readlink => "readlinkat",
        }
    }

    /// Returns the name in tables.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Call::Getppid => "getppid()",
            Call::Msync => "msync(0, 0, 0)",
            Call::Fcntl => "fcntl(fd, F_GETFL)",
            Call::Lseek => "lseek(fd, 0, SEEK_CUR)",
            Call::Pread => "pread64(fd, 1 B) on tmpfs",
            Call::PreadOverlay => "pread64(fd, 1 B) on overlayfs",
            Call::PreadPage => "pread64(fd, 4 KiB) on tmpfs",
            Call::Readlink => "readlinkat(missing path)",
        }
    }

    /// Returns whether the call is in the table of traced calls.
    pub(crate) fn is_traced(self) -> bool {
        self != Call::Getppid
    }

    /// Returns whether the call is about the file of its descriptor, and names no path.
    pub(crate) fn is_on_a_file(self) -> bool {
        !matches!(self, Call::Getppid | Call::Msync | Call::Readlink)
    }

    /// Parses a name from the command line.
    pub(crate) fn by_name(name: &str) -> Option<Call> {
        Call::ALL.into_iter().find(|call| call.name() == name)
    }

    /// Makes the call once.
    #[inline(always)]
    fn once(self, fd: c_long, buffer: &mut [u8; 4096]) {
        let to = buffer.as_mut_ptr();
        // SAFETY: each call gets valid arguments; `buffer` outlives it. The results are not used.
        unsafe {
            match self {
                Call::Getppid => libc::syscall(libc::SYS_getppid),
                Call::Msync => libc::syscall(libc::SYS_msync, 0, 0, 0),
                Call::Fcntl => libc::syscall(libc::SYS_fcntl, fd, c_long::from(libc::F_GETFL), 0),
                Call::Lseek => libc::syscall(libc::SYS_lseek, fd, 0, c_long::from(libc::SEEK_CUR)),
                Call::Pread | Call::PreadOverlay => libc::syscall(libc::SYS_pread64, fd, to, 1, 0),
                Call::PreadPage => libc::syscall(libc::SYS_pread64, fd, to, 4096, 0),
                Call::Readlink => {
                    libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, c"/nonexistent".as_ptr(), to, 1)
                }
            };
        }
    }
}

/// File that a call uses, on tmpfs or on overlayfs over tmpfs; removed on drop.
pub(crate) struct Target {
    call: Call,
    file: File,
    folder: PathBuf,
}

impl Target {
    pub(crate) fn new(call: Call) -> Result<Target> {
        let folder = PathBuf::from(format!("/dev/shm/blkkin-bench.{}", std::process::id()));
        std::fs::create_dir_all(&folder)?;
        let file = match call {
            Call::PreadOverlay => File::open(of_lower_layer(&folder)?)?,
            _ => File::options().read(true).write(true).open(page(&folder)?)?,
        };
        Ok(Target { call, file, folder })
    }

    /// Returns ns per call: the median over `chunks` chunks.
    pub(crate) fn measure(&self, chunks: usize) -> f64 {
        let fd = c_long::from(self.file.as_raw_fd());
        let mut buffer = [0; 4096];
        measure_ns(chunks, || self.call.once(fd, &mut buffer))
    }

    /// Makes calls for `time`, at `rate` per second or, with 0, without a limit. Returns their
    /// number.
    pub(crate) fn flood(&self, rate: u64, time: Duration) -> u64 {
        let fd = c_long::from(self.file.as_raw_fd());
        let (start, mut buffer) = (Instant::now(), [0; 4096]);
        let mut made = 0_u64;
        while start.elapsed() < time {
            chunk(&mut || self.call.once(fd, &mut buffer));
            made += u64::from(CHUNK);
            if let Some(due) = made.saturating_mul(1_000_000_000).checked_div(rate) {
                std::thread::sleep(Duration::from_nanos(due).saturating_sub(start.elapsed()));
            }
        }
        made
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        // On tmpfs: what remains uses 4 KiB until the next boot.
        if self.call == Call::PreadOverlay {
            // The file is still open.
            let _ = process::run(Command::new("umount").arg("--lazy").arg(self.folder.join(MERGED)));
        }
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}

/// Writes a file of one page into the folder, and returns its path.
fn page(folder: &Path) -> Result<PathBuf> {
    let path = folder.join(FILE);
    std::fs::write(&path, [0; 4096])?;
    Ok(path)
}

/// Mounts overlayfs over folders of this one, and returns the path of a file of its lower layer.
fn of_lower_layer(folder: &Path) -> Result<PathBuf> {
    let [lower, upper, work, merged] = ["lower", "upper", "work", MERGED].map(|name| folder.join(name));
    for layer in [&lower, &upper, &work, &merged] {
        std::fs::create_dir(layer)?;
    }
    page(&lower)?;
    let layers =
        format!("lowerdir={},upperdir={},workdir={}", lower.display(), upper.display(), work.display());
    process::run(Command::new("mount").args(["-t", "overlay", "-o", &layers, "overlay"]).arg(&merged))?;
    Ok(merged.join(FILE))
}

/// Returns ns per run of `once`: the median over `chunks` chunks.
pub(crate) fn measure_ns(chunks: usize, mut once: impl FnMut()) -> f64 {
    let mut times = Vec::with_capacity(chunks + BURST);
    while times.len() < chunks {
        std::thread::sleep(PAUSE);
        chunk(&mut once);
        times.extend((1..BURST).map(|_| chunk(&mut once)));
    }
    crate::frame::rounds::median(&mut times)
}

#[inline]
fn chunk(once: &mut impl FnMut()) -> f64 {
    let start = Instant::now();
    for _ in 0..CHUNK {
        once();
    }
    start.elapsed().as_nanos() as f64 / f64::from(CHUNK)
}
