//! Names of files: which path a descriptor has at this moment, as a number that a `FileRecord` in a
//! ring explains.
//!
//! *In*: a `struct file`, at each system call that uses it. *Out*: `FileId::name`; before the first
//! use of a number, the record with its path.
//!
//! *Invariant*: a number is used for one path only, and a descriptor's number changes with its
//! path. Two things are compared at each use, by plain loads: the file's own dentry (address, hash
//! of its name, d_seq), which shows each rename and removal of this name by any cause; and the
//! machine's count of moves (`moves.rs`), after whose change the whole way up is compared. So the
//! name costs some 5 ns on a file that is in use, and 25 ns a level after a move anywhere.
//!
//! The table of names has sets of four ways, and is written without locks. An entry of which two CPUs
//! wrote parts fails its check, and counts as empty. In a full set the clock chooses the entry that is
//! displaced; it is counted, and the file's path is emitted again at its next use.
//!
//! *Rejected*: one way. With 2,000 of 16,384 entries in use, 12 % of the files displaced each other at
//! every use. *Rejected*: the storage of inodes, which only LSM programs can use (kernel/bpf/bpf_lsm.c).
//!
//! *Rejected*: a comparison of all dentries at each use. It needs no count of moves, and costs 2 ns
//! a level on typed pointers, but 25 ns where the descriptor's table has grown.

use super::{moves, path};
use crate::runtime::percpu::{Naming, PerCpuState};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::{NAMES_DISPLACED, PATHS_FAILED};
use blkkin_probe_abi::record::{FileId, NAME_UNREAD};

/// Sets of the table: 2 MiB.
const SETS: usize = 16_384;
/// Entries of a set: two cache lines.
const WAYS: usize = 4;

/// Name of a file under one of its dentries and mounts.
#[repr(C)]
struct KnownName {
    /// [`FileState::place`] of the file.
    place: u64,
    /// [`FileState::state`] for which the number is known to be true.
    state: u64,
    /// Number of the path, which was emitted.
    number: u64,
    /// [`check`] of the other words.
    check: u64,
}

/// Set of names.
#[repr(C)]
struct NameSet {
    ways: [KnownName; WAYS],
}

#[btf_map]
static NAMES: Array<NameSet, SETS> = Array::new();

/// Identity of a file, its dentry and its mount, and all that its path depends on as far as one look shows.
#[derive(Clone, Copy)]
pub struct FileState {
    /// Hash of the file's identity, and of the addresses of its dentry and its mount.
    place: u64,
    /// Hash of that and of name, d_seq and the count of moves; 0: the path must be read.
    state: u64,
}

impl FileState {
    /// Returns the state of a file with this dentry and mount, by address; `name_hash` and
    /// `sequence` are the dentry's `d_name.hash_len` and `d_seq`.
    #[inline(always)]
    pub fn new(id: &FileId, dentry: u64, mount: u64, name_hash: u64, sequence: u32) -> FileState {
        let identity = id.ino ^ (id.dev as u64) << 44 ^ (id.generation as u64) << 32;
        let way = dentry.rotate_left(20) ^ mount.rotate_left(41);
        let place = (identity ^ way).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let Some(moves) = moves::count() else { return FileState { place, state: 0 } };
        let own = (name_hash ^ (sequence as u64) << 40).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let state = (place ^ own.rotate_left(31) ^ moves).wrapping_mul(0x94d0_49bb_1331_11eb) | 1;
        FileState { place, state }
    }
}

/// Returns the check of an entry.
#[inline(always)]
fn check(place: u64, state: u64, number: u64) -> u64 {
    number.rotate_left(17) ^ place ^ state.rotate_left(40)
}

#[inline(always)]
fn set(place: u64) -> Option<&'static mut NameSet> {
    let index = (place >> 40) as u32 & (SETS as u32 - 1);
    // SAFETY: an entry of the map.
    NAMES.get_ptr_mut(index).map(|set| unsafe { &mut *set })
}

impl KnownName {
    /// Returns whether one CPU wrote the entry, and wrote all of it.
    #[inline(always)]
    fn is_whole(&self) -> bool {
        self.number != 0 && self.check == check(self.place, self.state, self.number)
    }
}

/// Returns the number of the file's path, if this state of it is known.
#[inline(always)]
fn known(place: u64, state: u64) -> Option<u64> {
    if state == 0 {
        return None;
    }
    let set = set(place)?;
    let mut i = 0;
    while i < WAYS {
        let known = &set.ways[i];
        if known.state == state && known.check == check(place, state, known.number) {
            return Some(known.number);
        }
        i += 1;
    }
    None
}

/// Returns the number of the file's path if it is known. Otherwise the slot's `naming` has the file,
/// for [`name_file`]. `file`: address of the file, and of the inode that identifies it.
#[inline(always)]
pub fn known_or_noted(
    percpu: &mut PerCpuState,
    (file, inode): (u64, u64),
    state: FileState,
    now: u64,
) -> Option<u64> {
    let FileState { place, state } = state;
    let number = known(place, state);
    if number.is_none() {
        percpu.naming = Naming { file, inode, now, place, state };
    }
    number
}

/// Returns the number of the file's path, and emits its record before the first use.
#[inline(always)]
pub fn current(percpu: &mut PerCpuState, file: (u64, u64), state: FileState, now: u64) -> u64 {
    match known_or_noted(percpu, file, state, now) {
        Some(number) => number,
        None => name_file(percpu.slot() as u64),
    }
}

/// Returns the way of a set that the file of `place` has, or is to have: an empty one, or the one that
/// the clock chooses.
#[inline(always)]
fn way_of(set: &NameSet, place: u64, now: u64) -> usize {
    let mut found = (now.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 62) as usize;
    let mut i = 0;
    while i < WAYS {
        if set.ways[i].number == 0 {
            found = i;
        }
        i += 1;
    }
    i = 0;
    while i < WAYS {
        if set.ways[i].place == place {
            found = i;
        }
        i += 1;
    }
    found
}

/// Reads the path of the file in the slot's `naming`, and emits its record unless that was done.
/// Returns the path's number, or [`NAME_UNREAD`].
///
/// A global function: the verifier checks it once instead of at each caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn name_file(slot: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    let Some(set) = set(percpu.naming.place) else { return 0 };
    let way = way_of(set, percpu.naming.place, percpu.naming.now);
    // SAFETY: way_of returns less than WAYS, a power of two, of which the verifier sees the mask.
    let known = unsafe { &mut *set.ways.as_mut_ptr().add(way & (WAYS - 1)) };
    let emitted = known.number;
    let same_place = known.place == percpu.naming.place;
    if !same_place && known.is_whole() {
        percpu.count(NAMES_DISPLACED);
    }
    let number = if same_place && known.is_whole() && path::number(slot) == emitted {
        Some(emitted)
    } else {
        path::emit_record(percpu, slot)
    };
    let Some(number) = number else {
        percpu.count(PATHS_FAILED);
        return NAME_UNREAD;
    };
    let (place, state) = (percpu.naming.place, percpu.naming.state);
    *known = KnownName { place, state, number, check: check(place, state, number) };
    number
}
