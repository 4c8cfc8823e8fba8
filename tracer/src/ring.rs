//! One ring of the kernel's, read where it lies.
//!
//! *In*: the pages that a ring buffer map shares with user space (kernel/bpf/ringbuf.c): one with the consumer's position, one
//! with the producers', and the entries, which go on behind the end with the first ones again, so that none is ever cut. *Out*:
//! each entry's bytes, in the order in which room for it was taken.
//!
//! *Invariant*: bytes that were given out stay as they are until [`Ring::give_back`], since only then the kernel may write
//! there again. An entry whose writer is not done yet ends what can be read.
//!
//! *Rejected*: aya's reader. It gives each entry back as soon as the next is asked for, so the time of an entry cannot be
//! looked at without taking it: entries would be copied to wait for their turn among those of other CPUs. That was half of what the
//! drain thread did. And each giving back is a write to the line that the kernel reads with the next entry that it writes.
//! The whole ring a second time behind itself, as libbpf and aya map it: each page counts twice as memory of the process,
//! 8 MiB a CPU, and only what the longest entry may take is ever read there.

use std::cell::Cell;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use aya::maps::MapData;
use blkkin_probe_abi::record::{CallRecord, FILE_PATH_MAX, FileRecord, Header, PATH_ARG_MAX};
use blkkin_wire::clock::{DurationNs, MonotonicNs};

/// Before each entry: its length, and where its page lies (struct bpf_ringbuf_hdr).
const HEADER: u64 = 8;
/// Of the length: its writer is not done (include/uapi/linux/bpf.h, BPF_RINGBUF_BUSY_BIT).
const BUSY: u32 = 1 << 31;
/// Of the length: its writer thought better of it (BPF_RINGBUF_DISCARD_BIT).
const DISCARDED: u32 = 1 << 30;
/// Where a record has its time (`Header::time_ns`).
const TIME: usize = std::mem::offset_of!(Header, time_ns);

/// The longest entry: of a call with two paths, or of a file.
const ENTRY_MAX: usize = {
    let (call, file) = (size_of::<CallRecord>() + 2 * PATH_ARG_MAX, size_of::<FileRecord>() + FILE_PATH_MAX);
    if call > file { call } else { file }
};

/// How much later than an entry behind it one may be stamped: a record is stamped, an interrupt comes, and what that
/// writes is later and lies before it. Interrupts and what follows them at once take less (softirqs give up after 2 ms:
/// MAX_SOFTIRQ_TIME, kernel/softirq.c).
const ELDERS_WITHIN: DurationNs = DurationNs(2_000_000);

/// Memory shared with the kernel.
#[derive(Debug)]
struct Shared {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: it is memory like any other; who reads it says how.
unsafe impl Send for Shared {}

impl Shared {
    fn map(pages: BorrowedFd<'_>, offset: usize, len: usize, protection: libc::c_int) -> io::Result<Shared> {
        let offset = libc::off_t::try_from(offset).map_err(io::Error::other)?;
        let (anywhere, fd) = (std::ptr::null_mut(), pages.as_raw_fd());
        // SAFETY: a new mapping, at a place that the kernel chooses.
        let start = unsafe { libc::mmap(anywhere, len, protection, libc::MAP_SHARED, fd, offset) };
        if start == libc::MAP_FAILED { Err(io::Error::last_os_error()) } else { Ok(Shared { start, len }) }
    }

    /// A page begins with it.
    fn position(&self) -> &AtomicU64 {
        // SAFETY: the mapping is at least a page long and aligned to pages; both sides use it as 64 bits, atomically.
        unsafe { &*self.start.cast() }
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and nobody borrows from it any more.
        unsafe { libc::munmap(self.start, self.len) };
    }
}

/// One CPU's.
#[derive(Debug)]
pub(crate) struct Ring {
    consumer: Shared,
    /// The producers' position, and behind its page the entries.
    producer: Shared,
    page: usize,
    bytes: u64,
    /// Where the next entry begins, in bytes since the ring was made.
    at: u64,
    /// How far the producers were when last looked at.
    end: u64,
    /// Up to where entries are taken although they are not before the watermark: elders lie behind them.
    elders_until: u64,
    /// From where, and for which watermark, elders were looked for and not found.
    no_elders: Cell<(u64, MonotonicNs)>,
}

/// An entry that its writer has written.
struct Entry<'a> {
    bytes: &'a [u8],
    /// Where the one behind it begins.
    next: u64,
}

impl Ring {
    /// Over a map, which lives as long as it is mapped.
    pub(crate) fn map(map: MapData) -> io::Result<Ring> {
        let info = map.info().map_err(io::Error::other)?;
        Ring::over(map.fd().as_fd(), info.max_entries() as usize)
    }

    /// Over pages as a ring of so many bytes has them.
    pub(crate) fn over(pages: BorrowedFd<'_>, bytes: usize) -> io::Result<Ring> {
        // SAFETY: no memory is passed.
        let page = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let consumer = Shared::map(pages, 0, page, libc::PROT_READ | libc::PROT_WRITE)?;
        let len = page + bytes + ENTRY_MAX.next_multiple_of(page);
        let producer = Shared::map(pages, page, len, libc::PROT_READ)?;
        let at = consumer.position().load(Ordering::Acquire);
        Ok(Ring {
            consumer,
            producer,
            page,
            bytes: bytes as u64,
            at,
            end: at,
            elders_until: at,
            no_elders: Cell::new((u64::MAX, MonotonicNs(0))),
        })
    }

    /// Looks how far the producers are; by how many bytes they went on since.
    pub(crate) fn look(&mut self) -> u64 {
        let before = self.end;
        self.end = self.producer.position().load(Ordering::Acquire);
        self.end - before
    }

    /// The entry at `at` or, where some were given up there, the first behind them. None at the end, and before one that is
    /// not written yet.
    fn entry(&self, mut at: u64) -> Option<Entry<'_>> {
        while at < self.end {
            // SAFETY: the position lies within the entries, a multiple of 8, and the kernel writes this word atomically.
            let word: &AtomicU32 = unsafe { &*self.place(at).cast() };
            let word = word.load(Ordering::Acquire);
            if word & BUSY != 0 {
                return None;
            }
            let len = u64::from(word & !DISCARDED);
            let next = at + HEADER + len.next_multiple_of(8);
            if next > self.end || len > ENTRY_MAX as u64 {
                // No kernel says so. There is no telling where the next one begins: all of it is one entry, and no record.
                return Some(Entry { bytes: &[], next: self.end });
            }
            if word & DISCARDED == 0 {
                // SAFETY: the entry is written, ends before the producers' position, and is not given back while borrowed.
                let bytes = unsafe { std::slice::from_raw_parts(self.place(at + HEADER), len as usize) };
                return Some(Entry { bytes, next });
            }
            at = next;
        }
        None
    }

    /// The entries lie there twice: what begins in the first goes on in the second.
    fn place(&self, position: u64) -> *const u8 {
        // SAFETY: less than the ring's length behind its beginning.
        unsafe { self.producer.start.cast::<u8>().add(self.page + (position % self.bytes) as usize) }
    }

    /// When the next entry was stamped.
    pub(crate) fn head(&self) -> Option<MonotonicNs> {
        self.entry(self.at).map(|entry| time(entry.bytes))
    }

    /// Whether what is next is not written yet: what lies behind it cannot be read.
    pub(crate) fn is_blocked(&self) -> bool {
        self.at < self.end && self.entry(self.at).is_none() && self.has_unwritten()
    }

    /// Whether one that is not written lies before the end; what was given up does not count.
    pub(crate) fn has_unwritten(&self) -> bool {
        let mut at = self.at;
        while at < self.end {
            // SAFETY: as in `entry`.
            let word: &AtomicU32 = unsafe { &*self.place(at).cast() };
            let word = word.load(Ordering::Acquire);
            if word & BUSY != 0 {
                return true;
            }
            at += HEADER + u64::from(word & !DISCARDED).next_multiple_of(8);
        }
        false
    }

    /// Gives `take` the next entry's bytes, and goes on behind it.
    pub(crate) fn take(&mut self, take: impl FnOnce(&[u8])) {
        if let Some(Entry { bytes, next }) = self.entry(self.at) {
            take(bytes);
            self.at = next;
        }
    }

    /// Whether the next entry, which is not before the watermark, is to be taken all the same, as an elder lies behind it.
    pub(crate) fn has_elders(&mut self, watermark: MonotonicNs) -> bool {
        if self.at < self.elders_until {
            return true;
        }
        if self.no_elders.get() == (self.at, watermark) {
            return false;
        }
        let elder = self.ahead().filter(|(time, _)| *time < watermark).last();
        match elder {
            Some((_, next)) => self.elders_until = next,
            None => self.no_elders.set((self.at, watermark)),
        }
        elder.is_some()
    }

    /// The earliest time that an entry not taken yet may have.
    pub(crate) fn earliest(&self) -> Option<MonotonicNs> {
        self.ahead().map(|(time, _)| time).min()
    }

    /// The times of those among which elders of the next one may be, and where each ends.
    fn ahead(&self) -> impl Iterator<Item = (MonotonicNs, u64)> {
        let first = self.entry(self.at);
        let until = first.as_ref().map_or(0, |entry| time(entry.bytes).0.saturating_add(ELDERS_WITHIN.0));
        let entries = std::iter::successors(first, |entry| self.entry(entry.next));
        entries.map(|entry| (time(entry.bytes), entry.next)).take_while(move |(time, _)| time.0 <= until)
    }

    /// The kernel may have the room of what was taken.
    pub(crate) fn give_back(&self) {
        self.consumer.position().store(self.at, Ordering::Release);
    }
}

/// When an entry was stamped; what is too short for a time comes first, and is refused.
fn time(bytes: &[u8]) -> MonotonicNs {
    let word = bytes.get(TIME..TIME + 8).and_then(|word| word.try_into().ok());
    MonotonicNs(word.map_or(0, u64::from_ne_bytes))
}
