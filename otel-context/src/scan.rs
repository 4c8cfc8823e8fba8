//! Scan of one process: its loaded files, and the TLS slot of its thread contexts.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};

use crate::elf::Image;
use crate::maps::{self, LoadedFile, MappedFile, Mappings};
use crate::memory::{FaultTracking, Memory, ProcessMemory};
use crate::negative_cache::{NegativeCache, ScanTime};
use crate::tls::{self, Libc, ThreadContextSlot, TlsLocation, TlsLookup};
use crate::{VARIABLE, VARIABLE_BYTES};

/// Maximum bytes of a list of mappings: 65,530 of them with names of 180 bytes.
const MAPS_MAX: u64 = 16 << 20;
/// Maximum number of programs and libraries per process.
const LOADED_MAX: usize = 4_096;

/// Identity of an address space. execve replaces it; a forked process has its parent's until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AddressSpace {
    /// Start of the stack (`mm->start_stack`).
    pub start_stack: u64,
    /// Start of the program's code (`mm->start_code`).
    pub start_code: u64,
}

/// Result of looking for the slot of thread contexts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlotLookup {
    /// The slot.
    At(ThreadContextSlot),
    /// No thread context.
    NotFound,
    /// Not known yet: a library is being loaded.
    Loading,
    /// Two libraries define the variable with different slots, each for its own code.
    Ambiguous,
}

impl SlotLookup {
    /// Combines the results of two loaded files.
    fn merge(self, other: SlotLookup) -> SlotLookup {
        match (self, other) {
            (SlotLookup::NotFound, other) | (other, SlotLookup::NotFound) => other,
            (SlotLookup::At(one), SlotLookup::At(other)) if same_slot(&one, &other) => SlotLookup::At(one),
            (SlotLookup::Loading, _) | (_, SlotLookup::Loading) => SlotLookup::Loading,
            _ => SlotLookup::Ambiguous,
        }
    }
}

/// Returns whether two results denote one slot, found in two libraries of which the loader has
/// bound one to the other.
fn same_slot(one: &ThreadContextSlot, other: &ThreadContextSlot) -> bool {
    let key = |slot: &ThreadContextSlot| match slot.location {
        TlsLocation::Static { offset } => (None, offset),
        TlsLocation::Dynamic { module, offset, .. } => (Some(module), offset),
    };
    key(one) == key(other)
}

/// Reason why a process could not be scanned.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ScanError {
    /// The process has exited, or executed another program meanwhile.
    #[error("the process has exited or executed another program")]
    Gone,
    /// Access is denied.
    #[error("access to the memory of the process is denied")]
    Denied,
}

impl From<io::Error> for ScanError {
    fn from(error: io::Error) -> ScanError {
        if error.kind() == io::ErrorKind::PermissionDenied { ScanError::Denied } else { ScanError::Gone }
    }
}

/// Address space of a process; none if it has exited or access is denied.
pub fn address_space(pid: u32) -> Option<AddressSpace> {
    try_address_space(pid).ok()
}

/// Reads fields 26 and 28 of /proc/PID/stat.
fn try_address_space(pid: u32) -> Result<AddressSpace, ScanError> {
    // A comm is cut at 15 bytes, possibly within a character.
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let [start_code, start_stack] = [26, 28].map(|number| field(&stat, number));
    // An exiting process has neither; a reader without access gets 1 and 0 (do_task_stat,
    // fs/proc/array.c).
    match (start_code, start_stack) {
        (Some(1), Some(0)) => Err(ScanError::Denied),
        (Some(start_code), Some(start_stack)) if start_stack != 0 => {
            Ok(AddressSpace { start_stack, start_code })
        }
        _ => Err(ScanError::Gone),
    }
}

pub(crate) fn field(stat: &str, number: usize) -> Option<u64> {
    // A comm may contain parentheses and spaces.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

/// Contexts that a scan found in a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanResult {
    /// Address space that was scanned.
    pub address_space: AddressSpace,
    /// Slot of the thread contexts.
    pub slot: SlotLookup,
    /// Addresses of process context mappings.
    pub process_contexts: Vec<u64>,
    /// Programs and libraries, each as often as it is loaded.
    pub loaded: Vec<MappedFile>,
}

/// Scans everything that a process has loaded, except files in the cache. Files without the
/// variable are added to the cache if they were mapped from before the scan until after it. A file
/// unloaded meanwhile may be gone or replaced; if it was loaded again, the caller reports the
/// mapping to [`NegativeCache::on_mapped`].
pub fn scan(pid: u32, cache: &mut NegativeCache) -> Result<ScanResult, ScanError> {
    let begin_ns = monotonic_ns();
    let before = try_address_space(pid)?;
    let maps = read_maps(pid)?;
    let (mappings, process_contexts) = (Mappings::parse(&maps), maps::process_context_mappings(&maps));
    let loaded = mappings.loaded();
    let files = loaded.iter().map(|loaded_file| loaded_file.file).collect();
    let uncached: Vec<LoadedFile> = loaded
        .iter()
        .filter(|loaded_file| !cache.contains(loaded_file.file))
        .take(LOADED_MAX)
        .copied()
        .collect();
    if uncached.is_empty() {
        let slot = SlotLookup::NotFound;
        return Ok(ScanResult { address_space: before, slot, process_contexts, loaded: files });
    }
    let memory = ProcessMemory(pid);
    // An address in the program's own image, whether or not it has an interpreter. (The auxiliary
    // vector has one too, but only the process's own user may open that file, whatever capabilities
    // a reader has.)
    let program = before.start_code;
    // Memory needs more rights than mappings (Yama). Denied memory must not look empty.
    memory.check_access(program)?;
    let mut found = SlotLookup::NotFound;
    let mut without_variable = Vec::new();
    let mut libc = None;
    for loaded_file in uncached {
        let tracked = FaultTracking::new(&memory);
        let slot = match Image::read(&tracked, loaded_file.at) {
            Some(image) if !is_fully_mapped(&image, loaded_file.file, &mappings) => SlotLookup::Loading,
            Some(image) => {
                let is_program = image.contains(program);
                let libc = || *libc.get_or_insert_with(|| libc_of(&memory, &loaded, program));
                lookup_in(&tracked, &image, is_program, libc)
            }
            // Not an ELF file, or it is gone.
            None => SlotLookup::NotFound,
        };
        match slot {
            SlotLookup::NotFound if tracked.faulted.get() => {}
            SlotLookup::NotFound => without_variable.push(loaded_file),
            _ => cache.mark_publisher(loaded_file.file),
        }
        found = found.merge(slot);
    }
    if !without_variable.is_empty() {
        let still_loaded: HashSet<LoadedFile> =
            Mappings::parse(&read_maps(pid)?).loaded().into_iter().collect();
        without_variable.retain(|loaded_file| still_loaded.contains(loaded_file));
    }
    if address_space(pid) != Some(before) {
        return Err(ScanError::Gone);
    }
    let time = ScanTime { pid, begin_ns, end_ns: monotonic_ns() };
    without_variable.into_iter().for_each(|loaded_file| cache.insert(loaded_file.file, time));
    Ok(ScanResult { address_space: before, slot: found, process_contexts, loaded: files })
}

/// Reads CLOCK_MONOTONIC, in ns.
fn monotonic_ns() -> u64 {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is writable, and this clock always exists.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    time.tv_sec as u64 * 1_000_000_000 + time.tv_nsec as u64
}

fn read_maps(pid: u32) -> Result<String, ScanError> {
    let mut maps = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps"))?;
    // A list up to a read error is still useful.
    let _ = file.take(MAPS_MAX).read_to_end(&mut maps);
    // File names need not be UTF-8.
    Ok(String::from_utf8_lossy(&maps).into_owned())
}

/// Returns whether the loader has mapped all segments. Before that, another part of the file, or
/// nothing, is at a segment's address.
fn is_fully_mapped(image: &Image, file: MappedFile, mappings: &Mappings) -> bool {
    image.dynamic_readable
        && image.parts.iter().all(|part| mappings.is_in_place(file, part.address, part.offset))
}

/// Looks for the slot in one program or library.
pub(crate) fn lookup_in(
    memory: &impl Memory,
    image: &Image,
    is_program: bool,
    libc: impl FnOnce() -> Libc,
) -> SlotLookup {
    let Some(variable) = image.variable(memory, VARIABLE) else { return SlotLookup::NotFound };
    if variable.bytes != VARIABLE_BYTES {
        return SlotLookup::NotFound;
    }
    if is_program {
        return tls::in_program(image, variable).map_or(SlotLookup::NotFound, SlotLookup::At);
    }
    match tls::in_library(memory, image, variable, libc()) {
        TlsLookup::At(slot) => SlotLookup::At(slot),
        TlsLookup::NotRelocated => SlotLookup::Loading,
        TlsLookup::NotFound => SlotLookup::NotFound,
    }
}

/// Returns the libc of the program, by the loader that it requests.
fn libc_of(memory: &impl Memory, loaded: &[LoadedFile], program: u64) -> Libc {
    let mut images = loaded.iter().filter_map(|loaded_file| Image::read(memory, loaded_file.at));
    let program = images.find(|image| image.contains(program));
    match program.is_some_and(|image| image.interpreter_contains(memory, b"ld-musl")) {
        true => Libc::Musl,
        false => Libc::Glibc,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn differing_slots_are_ambiguous() {
        let at = |location, library| SlotLookup::At(ThreadContextSlot { location, library: Some(library) });
        let dynamic =
            TlsLocation::Dynamic { module: 2, offset: 8, dtv_offset: 8, dtv_length_offset: 0, dtv_stride: 8 };
        let here = at(TlsLocation::Static { offset: 8 }, 1);
        let bound = at(TlsLocation::Static { offset: 8 }, 2);
        let there = at(dynamic, 1);
        assert_eq!(here.merge(bound), here);
        assert_eq!(here.merge(there), SlotLookup::Ambiguous);
        assert_eq!(here.merge(SlotLookup::NotFound), here);
        assert_eq!(SlotLookup::NotFound.merge(there), there);
        assert_eq!(here.merge(SlotLookup::Loading), SlotLookup::Loading);
        assert_eq!(SlotLookup::Ambiguous.merge(here), SlotLookup::Ambiguous);
    }

    #[test]
    fn live_process_has_an_address_space_and_exited_one_has_none() {
        assert!(address_space(std::process::id()).is_some_and(|space| space.start_code > 1));
        assert_eq!(address_space(u32::MAX), None);
        assert_eq!(scan(u32::MAX, &mut NegativeCache::new()), Err(ScanError::Gone));
    }
}
