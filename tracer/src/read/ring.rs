//! Zero-copy reader of one BPF ring buffer.
//!
//! *In*: the pages that a ring buffer map shares with user space (kernel/bpf/ringbuf.c). One page
//! holds the consumer position, one the producer position, then come the entries. The kernel maps
//! the entries twice in a row, so no entry is split. *Out*: each entry's bytes, in the order of
//! reservation.
//!
//! *Invariant*: returned bytes stay valid until [`Ring::release`], since only then the kernel may
//! overwrite them. An entry that is not submitted yet ends the readable part.
//!
//! *Rejected*: aya's reader. It releases each entry when the next one is requested, so an entry's
//! time cannot be read without consuming it, and entries would be copied while they wait for those
//! of other CPUs. That was half of the reader thread's work. Each release also writes to the cache
//! line that the kernel reads with its next entry. *Rejected*: mapping the whole ring twice, as
//! libbpf and aya do. Each page then counts twice as process memory, 8 MiB per CPU, and only the
//! length of the longest entry is ever read in the second copy.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aya::maps::MapData;
use blkkin_probe_abi::record::{FILE_PATH_MAX, FileRecord, Header, PATH_ARG_MAX, SyscallRecord};
use blkkin_wire::clock::{DurationNs, MonotonicNs};

/// Bytes before each entry: its length and page offset (struct bpf_ringbuf_hdr).
const HEADER: u64 = 8;
/// Flag of the length: the entry is not submitted yet (include/uapi/linux/bpf.h,
/// BPF_RINGBUF_BUSY_BIT).
const BUSY: u32 = 1 << 31;
/// Flag of the length: the entry was discarded (BPF_RINGBUF_DISCARD_BIT).
const DISCARDED: u32 = 1 << 30;
/// Offset of a record's time (`Header::time_ns`).
const TIME: usize = std::mem::offset_of!(Header, time_ns);

/// Maximum entry length: a call with two paths, or a file.
const ENTRY_MAX: usize = {
    let (call, file) =
        (size_of::<SyscallRecord>() + 2 * PATH_ARG_MAX, size_of::<FileRecord>() + FILE_PATH_MAX);
    if call > file { call } else { file }
};

/// Maximum amount by which an entry may be stamped later than an entry after it. A record is
/// reserved after it is stamped; an interrupt in between reserves first with a later time.
/// Interrupts and the softirqs that follow them take less (softirqs yield after 2 ms:
/// MAX_SOFTIRQ_TIME, kernel/softirq.c).
const OLDER_WITHIN: DurationNs = DurationNs(2_000_000);

/// A mapping shared with the kernel.
#[derive(Debug)]
struct SharedPages {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: plain memory; each access states its own synchronization.
unsafe impl Send for SharedPages {}

impl SharedPages {
    fn map(
        pages: BorrowedFd<'_>,
        offset: usize,
        len: usize,
        protection: libc::c_int,
    ) -> io::Result<SharedPages> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (anywhere, fd) = (std::ptr::null_mut(), pages.as_raw_fd());
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe { libc::mmap(anywhere, len, protection, libc::MAP_SHARED, fd, offset) };
        if start == libc::MAP_FAILED {
            Err(io::Error::last_os_error())
        } else {
            Ok(SharedPages { start, len })
        }
    }

    /// Returns the position word at the start of the page.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: the mapping is at least one page long and page-aligned; both sides access the 64
        // bits atomically.
        unsafe { &*self.start.cast() }
    }
}

impl Drop for SharedPages {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and no borrow is left.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// Ring of one CPU.
#[derive(Debug)]
pub(crate) struct Ring {
    consumer: SharedPages,
    /// Producer position, and the entries after its page.
    producer: SharedPages,
    page: usize,
    bytes: u64,
    /// Position of the next entry, in bytes since the ring was created.
    at: u64,
    /// Producer position at the last poll.
    end: u64,
    /// Position up to which entries are consumed although they are not before the watermark: older
    /// entries follow them.
    older_until: u64,
    /// Position and watermark for which no older entries were found.
    no_older: Cell<(u64, MonotonicNs)>,
}

/// A submitted entry.
struct Entry<'a> {
    bytes: &'a [u8],
    /// Position of the entry after this one.
    next: u64,
}

impl Ring {
    /// Maps a ring buffer map, which lives as long as the mapping.
    pub(crate) fn map(map: MapData) -> io::Result<Ring> {
        let info = map.info().map_err(io::Error::other)?;
        Ring::map_pages(map.fd().as_fd(), info.max_entries() as usize)
    }

    /// Maps the pages of a ring with this many bytes.
    pub(crate) fn map_pages(pages: BorrowedFd<'_>, bytes: usize) -> io::Result<Ring> {
        // SAFETY: no memory is passed.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let consumer = SharedPages::map(pages, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        // The kernel maps the entries twice, one behind the other.
        let len = page + bytes + ENTRY_MAX.next_multiple_of(page).min(bytes);
        let producer = SharedPages::map(pages, page, len, libc::PROT_READ)?;
        let at = consumer.position().load(Ordering::Acquire);
        Ok(Ring {
            consumer,
            producer,
            page,
            bytes: bytes as u64,
            at,
            end: at,
            older_until: at,
            no_older: Cell::new((u64::MAX, MonotonicNs(0))),
        })
    }

    /// Reads the producer position; returns the bytes added since the last poll.
    pub(crate) fn poll(&mut self) -> u64 {
        let before = self.end;
        self.end = self.producer.position().load(Ordering::Acquire);
        self.end - before
    }

    /// Returns the entry at `at`, or the first one after discarded entries. None at the end, and
    /// before an unsubmitted entry.
    fn entry(&self, mut at: u64) -> Option<Entry<'_>> {
        while at < self.end {
            // SAFETY: the position is within the entries and a multiple of 8, and the kernel writes
            // this word atomically.
            let word: &AtomicU32 = unsafe { &*self.entry_ptr(at).cast() };
            let word = word.load(Ordering::Acquire);
            if word & BUSY != 0 {
                return None;
            }
            let len = u64::from(word & !DISCARDED);
            let next = at + HEADER + len.next_multiple_of(8);
            if next > self.end || len > ENTRY_MAX as u64 {
                // The kernel never writes such a length. The next entry's position is unknown: the
                // rest is one entry that is not a record.
                return Some(Entry { bytes: &[], next: self.end });
            }
            if word & DISCARDED == 0 {
                // SAFETY: the entry is submitted, ends before the producer position, and is not
                // released while borrowed.
                let bytes = unsafe { std::slice::from_raw_parts(self.entry_ptr(at + HEADER), len as usize) };
                return Some(Entry { bytes, next });
            }
            at = next;
        }
        None
    }

    /// Returns a pointer to a position. An entry that begins in the first copy continues in the
    /// second.
    fn entry_ptr(&self, position: u64) -> *const u8 {
        // SAFETY: less than the ring's length after its start.
        unsafe { self.producer.start.cast::<u8>().add(self.page + (position % self.bytes) as usize) }
    }

    /// Returns the time of the next entry.
    pub(crate) fn peek(&self) -> Option<MonotonicNs> {
        self.entry(self.at).map(|entry| timestamp(entry.bytes))
    }

    /// Returns whether the next entry is not submitted, so that nothing after it can be read.
    pub(crate) fn is_blocked(&self) -> bool {
        self.at < self.end && self.entry(self.at).is_none() && self.has_unwritten()
    }

    /// Returns whether any entry before the end is unsubmitted; discarded entries do not count.
    pub(crate) fn has_unwritten(&self) -> bool {
        let mut at = self.at;
        while at < self.end {
            // SAFETY: as in `entry`.
            let word: &AtomicU32 = unsafe { &*self.entry_ptr(at).cast() };
            let word = word.load(Ordering::Acquire);
            if word & BUSY != 0 {
                return true;
            }
            at += HEADER + u64::from(word & !DISCARDED).next_multiple_of(8);
        }
        false
    }

    /// Passes the next entry's bytes to `take` and advances.
    pub(crate) fn take(&mut self, take: impl FnOnce(&[u8])) {
        if let Some(Entry { bytes, next }) = self.entry(self.at) {
            take(bytes);
            self.at = next;
        }
    }

    /// Returns whether to consume the next entry although it is not before the watermark, because
    /// an older one follows it.
    pub(crate) fn has_older_entries(&mut self, watermark: MonotonicNs) -> bool {
        if self.at < self.older_until {
            return true;
        }
        if self.no_older.get() == (self.at, watermark) {
            return false;
        }
        let older = self.upcoming().filter(|(time, _)| *time < watermark).last();
        match older {
            Some((_, next)) => self.older_until = next,
            None => self.no_older.set((self.at, watermark)),
        }
        older.is_some()
    }

    /// Returns the earliest possible time of an entry that is not consumed yet.
    pub(crate) fn earliest(&self) -> Option<MonotonicNs> {
        self.upcoming().map(|(time, _)| time).min()
    }

    /// Returns times and ends of the entries that may be older than the next one.
    fn upcoming(&self) -> impl Iterator<Item = (MonotonicNs, u64)> {
        let first = self.entry(self.at);
        let until = first.as_ref().map_or(0, |entry| timestamp(entry.bytes).0.saturating_add(OLDER_WITHIN.0));
        let entries = std::iter::successors(first, |entry| self.entry(entry.next));
        entries.map(|entry| (timestamp(entry.bytes), entry.next)).take_while(move |(time, _)| time.0 <= until)
    }

    /// Releases the space of consumed entries to the kernel.
    pub(crate) fn release(&self) {
        self.consumer.position().store(self.at, Ordering::Release);
    }
}

/// Returns the time of an entry. An entry too short for a time sorts first, and is rejected when
/// decoded.
fn timestamp(bytes: &[u8]) -> MonotonicNs {
    let word = bytes.get(TIME..TIME + 8).and_then(|word| word.try_into().ok());
    MonotonicNs(word.map_or(0, u64::from_ne_bytes))
}
