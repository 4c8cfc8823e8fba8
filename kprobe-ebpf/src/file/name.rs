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
//! The table of names is written without locks. An entry of which two CPUs wrote parts fails its
//! check, and counts as empty. A displaced file's path is emitted again at its next use.
//!
//! *Rejected*: a comparison of all dentries at each use. It needs no count of moves, and costs 2 ns
//! a level on typed pointers, but 25 ns where the descriptor's table has grown.

use super::{moves, path};
use crate::runtime::percpu::{Naming, PerCpuState};
use aya_ebpf::btf_maps::Array;
use aya_ebpf::macros::btf_map;
use blkkin_probe_abi::counters::PATHS_FAILED;
use blkkin_probe_abi::record::{FileId, NAME_UNREAD};

/// Entries of the table: 512 KiB.
const NAMES_MAX: usize = 16_384;

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

#[btf_map]
static NAMES: Array<KnownName, NAMES_MAX> = Array::new();

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
fn entry(place: u64) -> Option<&'static mut KnownName> {
    let index = (place >> 40) as u32 & (NAMES_MAX as u32 - 1);
    // SAFETY: an entry of the map.
    NAMES.get_ptr_mut(index).map(|entry| unsafe { &mut *entry })
}

/// Returns the number of the file's path, if this state of it is known.
#[inline(always)]
fn known(place: u64, state: u64) -> Option<u64> {
    let known = entry(place)?;
    let is_current = known.state == state && state != 0 && known.check == check(place, state, known.number);
    is_current.then_some(known.number)
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

/// Reads the path of the file in the slot's `naming`, and emits its record unless that was done.
/// Returns the path's number, or [`NAME_UNREAD`].
///
/// A global function: the verifier checks it once instead of at each caller.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn name_file(slot: u64) -> u64 {
    let Some(percpu) = PerCpuState::by_slot(slot as u32) else { return 0 };
    let Some(known) = entry(percpu.naming.place) else { return 0 };
    let emitted = known.number;
    let number = if known.place == percpu.naming.place
        && known.check == check(known.place, known.state, emitted)
        && emitted != 0
        && path::number(slot) == emitted
    {
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
