//! What user space has done with the records that it read, in memory that may outlive it: a page of a map.
//!
//! *In*: totals, from the thread that drains and from the one that sends. *Out*: the same, to whoever opens the map when they
//! are dead. *Invariant*: killed between any two instructions, what is kept is known to the record: the next totals are put
//! down before a record is put where it will stay, and stand once it is there ([`Ledger::prepare`], [`Ledger::stands`]). Whether a
//! record that was prepared and does not stand is there, the place itself says.
//!
//! Each word has one writer. A map, and not a file: it is gone exactly when the kernel's counters are, by which it is read.

use std::io;
use std::os::fd::{AsFd, AsRawFd};
use std::sync::atomic::{AtomicU64, Ordering};

use aya::maps::MapData;
use aya_obj::generated::bpf_map_type::BPF_MAP_TYPE_ARRAY;
use blkkin_wire::killed::Tally;

/// That user space may map it (include/uapi/linux/bpf.h, BPF_F_MMAPABLE).
const MMAPABLE: u32 = 1 << 10;
const KINDS: usize = 5;
/// "blkkin" and a version: of another release nothing is read.
const FORMAT: u64 = 0x626c_6b6b_696e_0001;

// The words.
const MAGIC: usize = 0;
/// How many records stand.
const STANDS: usize = 1;
const READ: usize = 2;
/// Two of them, in turns: the how manieth record it is, its sequence, and the totals up to it.
const SLOTS: usize = READ + KINDS;
const SLOT: usize = 2 + KINDS;
const SENT: usize = SLOTS + 2 * SLOT;
const ANSWERED: usize = SENT + KINDS;
const WORDS: usize = 64;

const _: () = assert!(ANSWERED + KINDS <= WORDS);

/// A page that two processes may have seen, one after the other.
#[derive(Debug)]
pub struct Ledger {
    start: *mut libc::c_void,
    len: usize,
}

// SAFETY: all access is atomic.
unsafe impl Send for Ledger {}
// SAFETY: as above.
unsafe impl Sync for Ledger {}

/// What a ledger says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Entries {
    /// Read from the rings.
    pub read: Tally,
    /// Where they stay, for sure.
    pub kept: Tally,
    /// The record that may be there too, and what is kept if it is.
    pub prepared: Option<(u64, Tally)>,
    /// Sent without having been put down before.
    pub sent: Tally,
    /// Of these arrived, or known not to.
    pub answered: Tally,
}

impl Ledger {
    /// Makes the map.
    pub(crate) fn create() -> io::Result<(MapData, Ledger)> {
        let bytes = (WORDS * size_of::<u64>()) as u32;
        let array = BPF_MAP_TYPE_ARRAY as u32;
        let definition = aya_obj::Map::new_from_params(array, size_of::<u32>() as u32, bytes, 1, MMAPABLE);
        let map = MapData::create(definition, "blkkin_ledger", None).map_err(io::Error::other)?;
        let ledger = Ledger::over(&map)?;
        ledger.word(MAGIC).store(FORMAT, Ordering::Release);
        Ok((map, ledger))
    }

    /// Opens one that somebody has left.
    pub(crate) fn open(map: &MapData) -> io::Result<Ledger> {
        let ledger = Ledger::over(map)?;
        match ledger.load(MAGIC) {
            FORMAT => Ok(ledger),
            _ => Err(io::Error::other("another release has written it")),
        }
    }

    fn over(map: &MapData) -> io::Result<Ledger> {
        let info = map.info().map_err(io::Error::other)?;
        if (info.value_size() as usize) < WORDS * size_of::<u64>() {
            return Err(io::Error::other("it is shorter than a ledger"));
        }
        // SAFETY: no memory is passed.
        let len = usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).map_err(io::Error::other)?;
        let (anywhere, fd) = (std::ptr::null_mut(), map.fd().as_fd().as_raw_fd());
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: a new mapping, at a place that the kernel chooses; the map keeps its pages while it is mapped.
        let start = unsafe { libc::mmap(anywhere, len, protection, libc::MAP_SHARED, fd, 0) };
        if start == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        Ok(Ledger { start, len })
    }

    /// So much was read from the rings: the whole total.
    pub(crate) fn read(&self, total: &Tally) {
        self.put(READ, total);
    }

    /// The next record, of this sequence, is about to be put where it stays; with it so much is kept, the whole total.
    pub fn prepare(&self, sequence: u64, total: &Tally) {
        let nth = self.load(STANDS) + 1;
        let slot = slot(nth);
        self.store(slot, 0);
        self.store(slot + 1, sequence);
        self.put(slot + 2, total);
        self.store(slot, nth);
    }

    /// It is there.
    pub fn stands(&self) {
        self.store(STANDS, self.load(STANDS) + 1);
    }

    /// So much was sent that is put down nowhere: the whole total.
    pub fn sent(&self, total: &Tally) {
        self.put(SENT, total);
    }

    /// Of this so much was answered: the whole total.
    pub fn answered(&self, total: &Tally) {
        self.put(ANSWERED, total);
    }

    /// All of it, when nobody writes any more.
    pub fn entries(&self) -> Entries {
        let of = |nth: u64| {
            let at = slot(nth);
            (nth > 0 && self.load(at) == nth).then(|| (self.load(at + 1), self.get(at + 2)))
        };
        let stands = self.load(STANDS);
        Entries {
            read: self.get(READ),
            kept: of(stands).map_or_else(Tally::default, |(_, total)| total),
            prepared: of(stands + 1),
            sent: self.get(SENT),
            answered: self.get(ANSWERED),
        }
    }

    fn put(&self, at: usize, total: &Tally) {
        total.numbers().into_iter().enumerate().for_each(|(kind, number)| self.store(at + kind, number));
    }

    fn get(&self, at: usize) -> Tally {
        Tally::from_numbers(std::array::from_fn(|kind| self.load(at + kind)))
    }

    /// In the order of the program, which is all that a kill leaves to chance.
    fn store(&self, at: usize, value: u64) {
        self.word(at).store(value, Ordering::Release);
    }

    fn load(&self, at: usize) -> u64 {
        self.word(at).load(Ordering::Acquire)
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        debug_assert!(at < WORDS);
        // SAFETY: within the page, aligned, and used atomically by everybody.
        unsafe { &*self.start.cast::<AtomicU64>().add(at) }
    }
}

fn slot(nth: u64) -> usize {
    SLOTS + SLOT * (nth % 2) as usize
}

impl Drop for Ledger {
    fn drop(&mut self) {
        // SAFETY: mapped by `over`, and nobody borrows from it any more.
        unsafe { libc::munmap(self.start, self.len) };
    }
}
