//! The system calls whose cost is measured: the cheapest that show one thing each.
//!
//! What is measured is the median of many short chunks: a chunk is 1,000 calls, some 0.3 ms, so that an interrupt or
//! another task on the CPU spoils a few chunks and not the figure. Chunks come in bursts with pauses, because a ring
//! that is full makes a traced call cheaper.

use std::ffi::c_long;
use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// Calls of a chunk.
const CHUNK: u32 = 1_000;
/// Chunks of a burst, of which the first only warms caches and branch predictors.
const BURST: usize = 5;
/// Pause between bursts: keeps the rate near 400,000 calls/s, where the reader keeps up.
const PAUSE: Duration = Duration::from_millis(10);

/// A call to measure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Call {
    /// Not in the table of followed calls: shows what any other call pays.
    Getppid,
    /// `msync(0, 0, 0)`: followed, no descriptor, no path, returns at once.
    Msync,
    /// `fcntl(fd, F_GETFL)`: a descriptor, no position.
    Fcntl,
    /// `lseek(fd, 0, SEEK_CUR)`: a descriptor and its position.
    Lseek,
    /// `pread64(fd, buffer, 1, 0)` on tmpfs: as lseek, with real work.
    Pread,
    /// `pread64(fd, buffer, 4096, 0)` on tmpfs: what a program that reads does.
    PreadPage,
    /// `readlinkat(AT_FDCWD, "/nonexistent", …)`: a path.
    Readlink,
}

impl Call {
    /// All of them.
    pub(crate) const ALL: [Call; 7] =
        [Call::Getppid, Call::Msync, Call::Fcntl, Call::Lseek, Call::Pread, Call::PreadPage, Call::Readlink];

    /// As on the command line.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Call::Getppid => "getppid",
            Call::Msync => "msync",
            Call::Fcntl => "fcntl",
            Call::Lseek => "lseek",
            Call::Pread => "pread64",
            Call::PreadPage => "pread64-4k",
            Call::Readlink => "readlinkat",
        }
    }

    /// For people.
    pub(crate) fn title(self) -> &'static str {
        match self {
            Call::Getppid => "getppid()",
            Call::Msync => "msync(0, 0, 0)",
            Call::Fcntl => "fcntl(fd, F_GETFL)",
            Call::Lseek => "lseek(fd, 0, SEEK_CUR)",
            Call::Pread => "pread64(fd, 1 B) on tmpfs",
            Call::PreadPage => "pread64(fd, 4 KiB) on tmpfs",
            Call::Readlink => "readlinkat(missing path)",
        }
    }

    /// Whether it is in the table of calls that are followed.
    pub(crate) fn followed(self) -> bool {
        self != Call::Getppid
    }

    /// From the command line.
    pub(crate) fn by_name(name: &str) -> Option<Call> {
        Call::ALL.into_iter().find(|call| call.name() == name)
    }

    /// Does it once.
    #[inline(always)]
    fn once(self, fd: c_long, buffer: &mut [u8; 4096]) {
        let to = buffer.as_mut_ptr();
        // SAFETY: each call gets what it asks for; `buffer` lives across it. Results do not matter.
        unsafe {
            match self {
                Call::Getppid => libc::syscall(libc::SYS_getppid),
                Call::Msync => libc::syscall(libc::SYS_msync, 0, 0, 0),
                Call::Fcntl => libc::syscall(libc::SYS_fcntl, fd, c_long::from(libc::F_GETFL), 0),
                Call::Lseek => libc::syscall(libc::SYS_lseek, fd, 0, c_long::from(libc::SEEK_CUR)),
                Call::Pread => libc::syscall(libc::SYS_pread64, fd, to, 1, 0),
                Call::PreadPage => libc::syscall(libc::SYS_pread64, fd, to, 4096, 0),
                Call::Readlink => {
                    libc::syscall(libc::SYS_readlinkat, libc::AT_FDCWD, c"/nonexistent".as_ptr(), to, 1)
                }
            };
        }
    }
}

/// A file on tmpfs to call about, gone when dropped.
pub(crate) struct Target {
    file: File,
    path: PathBuf,
}

impl Target {
    pub(crate) fn new() -> io::Result<Target> {
        let path = PathBuf::from(format!("/dev/shm/blkkin-bench.{}", std::process::id()));
        std::fs::write(&path, [0; 4096])?;
        Ok(Target { file: File::options().read(true).write(true).open(&path)?, path })
    }

    /// ns a call: the median over `chunks` chunks.
    pub(crate) fn measure(&self, call: Call, chunks: usize) -> f64 {
        let fd = c_long::from(self.file.as_raw_fd());
        let mut buffer = [0; 4096];
        timed(chunks, || call.once(fd, &mut buffer))
    }

    /// Calls for `time`, `rate` a second or, with 0, as many as it can; how many.
    pub(crate) fn flood(&self, call: Call, rate: u64, time: Duration) -> u64 {
        let fd = c_long::from(self.file.as_raw_fd());
        let (start, mut buffer) = (Instant::now(), [0; 4096]);
        let mut made = 0_u64;
        while start.elapsed() < time {
            chunk(&mut || call.once(fd, &mut buffer));
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
        // On a tmpfs: if it stays, it is 4 KiB until the next boot.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// ns of one: the median over `chunks` chunks.
pub(crate) fn timed(chunks: usize, mut once: impl FnMut()) -> f64 {
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
