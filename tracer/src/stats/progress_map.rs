//! User space's progress with the records that it read, in one page of an mmapable BPF array that
//! can outlive the process.
//!
//! *In*: running totals, from the reader thread and from the sender thread. *Out*: the same totals,
//! read by the process that opens the map after a crash. *Invariant*: a kill between any two
//! instructions leaves the durable total known to within one record. [`ProgressMap::prepare`]
//! writes the next totals before a record is stored durably; [`ProgressMap::commit`] validates them
//! afterwards. Whether a record that was prepared and not committed is stored, the store itself
//! reports.
//!
//! Each word has one writer. *Rejected*: a file. A map disappears exactly when the kernel's
//! counters do, and the two are read together.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_ARRAY;
use blkkin_wire::crash_report::RecordCounts;

/// Map flag that allows user space to mmap the map (include/uapi/linux/bpf.h, BPF_F_MMAPABLE).
const MMAPABLE: u32 = 1 << 10;
const KINDS: usize = 5;
/// Magic "blkkin" and a format version. A map with another value is not read.
const FORMAT: u64 = 0x626c_6b6b_696e_0001;

// Word offsets.
const MAGIC: usize = 0;
/// Word with the number of committed records.
const COMMITTED: usize = 1;
const READ: usize = 2;
/// Two alternating slots, each with the record's ordinal number, its sequence, and the totals
/// including it.
const SLOTS: usize = READ + KINDS;
const SLOT: usize = 2 + KINDS;
const SENT: usize = SLOTS + 2 * SLOT;
const ACKNOWLEDGED: usize = SENT + KINDS;
/// Word with the number of calls that the path filter dropped; 0 in the map of an earlier release.
const EXCLUDED: usize = ACKNOWLEDGED + KINDS;
const WORDS: usize = 64;

const _: () = assert!(EXCLUDED < WORDS);

/// The mapped page. Two processes may map it one after the other.
#[derive(Debug)]
pub struct ProgressMap {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: all access is atomic.
unsafe impl Send for ProgressMap {}
// SAFETY: as above.
unsafe impl Sync for ProgressMap {}

/// Contents of a [`ProgressMap`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Records read from the rings.
    pub read: RecordCounts,
    /// Calls among `read` that the path filter dropped.
    pub excluded: u64,
    /// Records that are certainly stored durably.
    pub durable: RecordCounts,
    /// Sequence of the record that may be stored as well, and the durable total if it is.
    pub prepared: Option<(u64, RecordCounts)>,
    /// Records sent without having been stored durably first.
    pub sent: RecordCounts,
    /// Records among `sent` that were acknowledged, or are known to have failed.
    pub acknowledged: RecordCounts,
}

impl ProgressMap {
    /// Creates the map.
    pub(crate) fn create() -> io::Result<(MapData, ProgressMap)> {
        let bytes = (WORDS * size_of::<u64>()) as u32;
        let array = BPF_MAP_TYPE_ARRAY as u32;
        let definition = aya_obj::Map::new_from_params(array, size_of::<u32>() as u32, bytes, 1, MMAPABLE);
        let map = MapData::create(definition, "blkkin_ledger", None).map_err(io::Error::other)?;
        let progress = ProgressMap::map(&map)?;
        progress.word(MAGIC).store(FORMAT, Ordering::Release);
        Ok((map, progress))
    }

    /// Opens a map that another process left behind.
    pub(crate) fn open(map: &MapData) -> io::Result<ProgressMap> {
        let progress = ProgressMap::map(map)?;
        match progress.load(MAGIC) {
            FORMAT => Ok(progress),
            _ => Err(io::Error::other("its format is that of another release")),
        }
    }

    fn map(map: &MapData) -> io::Result<ProgressMap> {
        let info = map.info().map_err(io::Error::other)?;
        if (info.value_size() as usize) < WORDS * size_of::<u64>() {
            return Err(io::Error::other("too short for a progress map"));
        }
        // SAFETY: no memory is passed.
        let len = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let (anywhere, fd) = (std::ptr::null_mut(), map.fd().as_fd().as_raw_fd());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping at an address that the kernel chooses; the map keeps its pages
        // while mapped.
        let start = unsafe { libc::mmap(anywhere, len, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(ProgressMap { start, len })
    }

    /// Sets the total of records read from the rings, and of the calls among them that the path filter
    /// dropped.
    pub(crate) fn set_read(&self, total: &RecordCounts, excluded: u64) {
        self.store(EXCLUDED, excluded);
        self.store_counts(READ, total);
    }

    /// Announces that the record with this sequence is about to be stored durably; `total` includes
    /// it.
    pub fn prepare(&self, sequence: u64, total: &RecordCounts) {
        let ordinal = self.load(COMMITTED) + 1;
        let slot = slot(ordinal);
        self.store(slot, 0);
        self.store(slot + 1, sequence);
        self.store_counts(slot + 2, total);
        self.store(slot, ordinal);
    }

    /// Confirms that the prepared record is stored.
    pub fn commit(&self) {
        self.store(COMMITTED, self.load(COMMITTED) + 1);
    }

    /// Sets the total of records sent without durable storage.
    pub fn set_sent(&self, total: &RecordCounts) {
        self.store_counts(SENT, total);
    }

    /// Sets the total of records among `sent` whose outcome is known.
    pub fn set_acknowledged(&self, total: &RecordCounts) {
        self.store_counts(ACKNOWLEDGED, total);
    }

    /// Reads all words. Exact only once the writers have ended.
    pub fn progress(&self) -> Progress {
        let of = |ordinal: u64| {
            let at = slot(ordinal);
            (ordinal > 0 && self.load(at) == ordinal).then(|| (self.load(at + 1), self.load_counts(at + 2)))
        };
        let committed = self.load(COMMITTED);
        Progress {
            read: self.load_counts(READ),
            excluded: self.load(EXCLUDED),
            durable: of(committed).map_or_else(RecordCounts::default, |(_, total)| total),
            prepared: of(committed + 1),
            sent: self.load_counts(SENT),
            acknowledged: self.load_counts(ACKNOWLEDGED),
        }
    }

    fn store_counts(&self, at: usize, total: &RecordCounts) {
        total.to_array().into_iter().enumerate().for_each(|(kind, number)| self.store(at + kind, number));
    }

    fn load_counts(&self, at: usize) -> RecordCounts {
        RecordCounts::from_array(std::array::from_fn(|kind| self.load(at + kind)))
    }

    /// Stores in program order, so a kill can only cut the sequence short.
    fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < WORDS);
        // SAFETY: within the page, aligned, and accessed atomically by every user.
        unsafe { &*self.start.cast::<AtomicU64>().add(at) }
    }
}

fn slot(ordinal: u64) -> usize {
    SLOTS + SLOT * (ordinal % 2) as usize
}

impl Drop for ProgressMap {
    fn drop(&mut self) {
        // SAFETY: mapped by `map_pages`, and no borrow is left.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
