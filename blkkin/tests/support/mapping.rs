//! Programs that access a mapped file, with their own clock and the kernel's count of their major
//! faults as witnesses.
//!
//! A program is a forked process. It stores what it observed into memory that it shares with the
//! test.

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::ptr;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::gated_process::GatedProcess;
use super::monotonic::now;

pub(crate) const PAGE: usize = 4096;
const ACCESSES_MAX: usize = 8_192;

/// Kind of access, for each page of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    Load,
    Store,
}

/// Access to a page, by the clock of the program.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Witness {
    pub(crate) address: u64,
    pub(crate) before_ns: u64,
    pub(crate) after_ns: u64,
    /// Increase of ru_majflt in the access.
    pub(crate) major: u64,
}

#[repr(C)]
struct Shared {
    len: usize,
    accesses: [Witness; ACCESSES_MAX],
}

/// A program and what it observed.
pub(crate) struct MappingProgram {
    pub(crate) process: GatedProcess,
    shared: *mut Shared,
}

/// A file with `pages` pages of data that are on the disk and not in memory.
pub(crate) fn cold_file(path: &Path, pages: usize) -> File {
    fs::write(path, vec![b'x'; pages * PAGE]).unwrap();
    let file = File::options().read(true).write(true).open(path).unwrap();
    make_cold(&file);
    file
}

/// Removes the file's pages from memory.
pub(crate) fn make_cold(file: &File) {
    // The whole file system: a later journal commit would be in the middle of the recording.
    rustix::fs::syncfs(file).unwrap();
    // SAFETY: passes numbers only.
    let result = unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    assert_eq!(result, 0);
}

/// A mapping of a file; a forked process keeps its own.
pub(crate) struct Mapping {
    base: usize,
    bytes: usize,
}

impl Mapping {
    /// Returns the address of a page.
    pub(crate) fn page(&self, page: usize) -> usize {
        self.base + page * PAGE
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map`.
        unsafe { libc::munmap(self.base as *mut libc::c_void, self.bytes) };
    }
}

/// Maps a whole file.
pub(crate) fn map(file: &File, access: Access, advice: libc::c_int) -> Mapping {
    let bytes = file.metadata().unwrap().size() as usize;
    let protection = match access {
        Access::Load => libc::PROT_READ,
        Access::Store => libc::PROT_READ | libc::PROT_WRITE,
    };
    // SAFETY: a new mapping of an open file.
    unsafe {
        let base = libc::mmap(ptr::null_mut(), bytes, protection, libc::MAP_SHARED, file.as_raw_fd(), 0);
        assert_ne!(base, libc::MAP_FAILED);
        assert_eq!(libc::madvise(base, bytes, advice), 0);
        Mapping { base: base as usize, bytes }
    }
}

impl MappingProgram {
    /// Forks a program that maps `file` and accesses these pages in order.
    pub(crate) fn new(
        file: &File,
        access: Access,
        advice: libc::c_int,
        pages: impl IntoIterator<Item = usize>,
    ) -> MappingProgram {
        let pages: Vec<usize> = pages.into_iter().collect();
        assert!(pages.len() <= ACCESSES_MAX);
        // Mapped before the fork, so that the program makes no other call.
        let mapping = map(file, access, advice);
        MappingProgram::with(|report| {
            for page in &pages {
                report.access(mapping.page(*page), access);
            }
            0
        })
    }

    /// Forks a program that reports its accesses.
    pub(crate) fn with(body: impl FnOnce(&mut Report) -> i32) -> MappingProgram {
        let (flags, bytes) =
            (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, size_of::<Shared>());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: new memory, which is never unmapped.
        let shared = unsafe { libc::mmap(ptr::null_mut(), bytes, protection, flags, -1, 0) };
        assert_ne!(shared, libc::MAP_FAILED);
        let shared = shared.cast::<Shared>();
        let process = GatedProcess::new(move || {
            // SAFETY: only the child writes.
            let mut report = Report { shared: unsafe { &mut *shared } };
            // The clock and the counter have been called once before they count.
            report.warm_up();
            body(&mut report)
        });
        MappingProgram { process, shared }
    }

    /// Returns what the program observed, after its exit.
    pub(crate) fn accesses(&self) -> Vec<Witness> {
        // SAFETY: the child has ended.
        let shared = unsafe { &*self.shared };
        shared.accesses[..shared.len].to_vec()
    }
}

/// Barrier of two processes.
#[derive(Clone, Copy)]
pub(crate) struct Barrier(&'static AtomicUsize);

impl Barrier {
    pub(crate) fn new() -> Barrier {
        let (flags, protection) =
            (libc::MAP_SHARED | libc::MAP_ANONYMOUS | libc::MAP_POPULATE, libc::PROT_READ | libc::PROT_WRITE);
        // SAFETY: new memory of zeros, which is never unmapped.
        let memory = unsafe { libc::mmap(ptr::null_mut(), PAGE, protection, flags, -1, 0) };
        assert_ne!(memory, libc::MAP_FAILED);
        // SAFETY: aligned, and every value is valid.
        Barrier(unsafe { &*memory.cast::<AtomicUsize>() })
    }

    /// Waits until both have arrived for the `nth` time, from 0.
    pub(crate) fn wait(self, nth: usize) {
        self.0.fetch_add(1, Ordering::SeqCst);
        while self.0.load(Ordering::SeqCst) < 2 * (nth + 1) {
            std::hint::spin_loop();
        }
    }
}

/// Report of a program.
pub(crate) struct Report {
    shared: &'static mut Shared,
}

impl Report {
    /// Accesses one byte.
    #[inline(never)]
    pub(crate) fn access(&mut self, address: usize, access: Access) {
        let address = address as *mut u8;
        let faults = major_faults(libc::RUSAGE_SELF);
        let before_ns = now();
        // SAFETY: mapped memory.
        unsafe {
            match access {
                Access::Load => drop(ptr::read_volatile(address)),
                Access::Store => ptr::write_volatile(address, b'y'),
            }
        }
        let after_ns = now();
        let major = major_faults(libc::RUSAGE_SELF) - faults;
        self.shared.accesses[self.shared.len] =
            Witness { address: address as u64, before_ns, after_ns, major };
        self.shared.len += 1;
    }

    fn warm_up(&mut self) {
        let byte = 0u8;
        self.access((&raw const byte) as usize, Access::Load);
        self.shared.len = 0;
    }
}

/// Returns the major faults of RUSAGE_SELF or RUSAGE_CHILDREN, by the kernel's count.
pub(crate) fn major_faults(of: libc::c_int) -> u64 {
    // SAFETY: integers; the call writes the struct.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(of, &raw mut usage);
        usage.ru_majflt as u64
    }
}
