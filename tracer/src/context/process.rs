//! One process: what it has loaded, and where its threads keep their context.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::Read;

use blkkin_probe_abi::context::Place;

use super::elf::Image;
use super::maps::{Loaded, MappedFile, loaded};
use super::memory::{Memory, ProcessMemory};
use super::tls::{self, Found, Libc};
use super::{VARIABLE, VARIABLE_BYTES};

/// Bytes of a list of mappings that are read: 65,530 of them with names of 180 bytes.
const MAPS_MAX: u64 = 16 << 20;
/// Programs and libraries of one process that are looked at.
const LOADED_MAX: usize = 4_096;

/// Which address space a process has: it has another after execve, and one that was forked has its parent's until then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Space {
    start_stack: u64,
    start_code: u64,
}

/// What a process says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Publishes {
    /// Its threads' contexts are here.
    At(Place),
    /// Nothing.
    Nothing,
    /// Nothing yet: it is being loaded.
    Unsettled,
    /// Two different things: two libraries each have a variable of the name, and their own code uses its own.
    Ambiguous,
}

impl Publishes {
    /// What two of what it has loaded say together.
    fn and(self, other: Publishes) -> Publishes {
        match (self, other) {
            (Publishes::Nothing, other) | (other, Publishes::Nothing) => other,
            (Publishes::At(one), Publishes::At(other)) if same_slot(&one, &other) => Publishes::At(one),
            (Publishes::Unsettled, _) | (_, Publishes::Unsettled) => Publishes::Unsettled,
            _ => Publishes::Ambiguous,
        }
    }
}

/// Whether two places are one: found in two libraries, of which the loader has bound one to the other's.
fn same_slot(one: &Place, other: &Place) -> bool {
    let slot = |place: &Place| (place.kind, place.module, place.offset);
    slot(one) == slot(other)
}

/// The address space of a process, as /proc/PID/stat has it (its 26th and 28th field).
pub(crate) fn space(pid: u32) -> Option<Space> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // A name may have parentheses and spaces in it.
    let (_, rest) = stat.rsplit_once(") ")?;
    let field = |number: usize| rest.split_ascii_whitespace().nth(number - 3)?.parse().ok();
    let space = Space { start_stack: field(28)?, start_code: field(26)? };
    // A process that ends has none; and who may not know is told nothing.
    (space.start_stack != 0).then_some(space)
}

/// Looks at all that a process has loaded; files that are known to have nothing are passed over, and those found to are added.
/// None where it is gone, or became another meanwhile.
pub(crate) fn look(pid: u32, barren: &mut HashSet<MappedFile>) -> Option<(Space, Publishes)> {
    let before = space(pid)?;
    let mut maps = String::new();
    let file = File::open(format!("/proc/{pid}/maps")).ok()?;
    // Names may be anything: what is no text ends the list.
    let _ = file.take(MAPS_MAX).read_to_string(&mut maps);
    let loaded = loaded(&maps);
    let fresh: Vec<Loaded> =
        loaded.iter().filter(|one| !barren.contains(&one.file)).take(LOADED_MAX).copied().collect();
    if fresh.is_empty() {
        return Some((before, Publishes::Nothing));
    }
    let memory = ProcessMemory(pid);
    let program = program_header_at(pid)?;
    let mut found = Publishes::Nothing;
    let mut silent = Vec::new();
    let mut libc = None;
    for Loaded { at, file } in fresh {
        let publishes = match Image::read(&memory, at) {
            Some(image) => {
                let is_program = image.holds(program);
                let libc = || *libc.get_or_insert_with(|| libc_of(&memory, &loaded, program));
                of(&memory, &image, is_program, libc)
            }
            // No ELF file at all; or it is gone.
            None => Publishes::Nothing,
        };
        if publishes == Publishes::Nothing {
            silent.push(file);
        }
        found = found.and(publishes);
    }
    (space(pid)? == before).then(|| {
        barren.extend(silent);
        (before, found)
    })
}

/// What one program or library says.
fn of(memory: &impl Memory, image: &Image, is_program: bool, libc: impl FnOnce() -> Libc) -> Publishes {
    let Some(variable) = image.variable(memory, VARIABLE) else { return Publishes::Nothing };
    if variable.bytes != VARIABLE_BYTES {
        return Publishes::Nothing;
    }
    if is_program {
        return tls::in_program(image, variable).map_or(Publishes::Nothing, Publishes::At);
    }
    match tls::in_library(memory, image, variable, libc()) {
        Found::At(place) => Publishes::At(place),
        Found::Unsettled => Publishes::Unsettled,
        Found::Nowhere => Publishes::Nothing,
    }
}

/// Whose loader the program asks for.
fn libc_of(memory: &impl Memory, loaded: &[Loaded], program: u64) -> Libc {
    let mut images = loaded.iter().filter_map(|one| Image::read(memory, one.at));
    let program = images.find(|image| image.holds(program));
    match program.is_some_and(|image| image.is_interpreted_by(memory, b"ld-musl")) {
        true => Libc::Musl,
        false => Libc::Glibc,
    }
}

/// Where the kernel has put the program's own headers: what it was told to execute, whether or not that asks for an
/// interpreter (AT_PHDR, getauxval(3)).
fn program_header_at(pid: u32) -> Option<u64> {
    const AT_PHDR: u64 = 3;
    let vector = fs::read(format!("/proc/{pid}/auxv")).ok()?;
    let word = |bytes: &[u8]| Some(u64::from_ne_bytes(bytes.try_into().ok()?));
    vector.chunks_exact(16).find_map(|pair| (word(&pair[..8])? == AT_PHDR).then(|| word(&pair[8..]))?)
}

impl Space {
    /// The place, for this address space.
    pub(crate) fn has(self, place: Place) -> Place {
        Place { start_stack: self.start_stack, start_code: self.start_code, ..place }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_probe_abi::context::{PLACE_DYNAMIC, PLACE_STATIC};

    #[test]
    fn two_that_say_different_things_say_nothing() {
        let here = Publishes::At(Place { kind: PLACE_STATIC, offset: 8, anchor: 1, ..Place::default() });
        let bound = Publishes::At(Place { kind: PLACE_STATIC, offset: 8, anchor: 2, ..Place::default() });
        let there = Publishes::At(Place { kind: PLACE_DYNAMIC, offset: 8, module: 2, ..Place::default() });
        assert_eq!(here.and(bound), here);
        assert_eq!(here.and(there), Publishes::Ambiguous);
        assert_eq!(here.and(Publishes::Nothing), here);
        assert_eq!(Publishes::Nothing.and(there), there);
        assert_eq!(here.and(Publishes::Unsettled), Publishes::Unsettled);
        assert_eq!(Publishes::Ambiguous.and(here), Publishes::Ambiguous);
    }

    #[test]
    fn a_process_has_an_address_space_and_one_that_is_none_has_not() {
        assert!(space(std::process::id()).is_some_and(|space| space.start_code > 1));
        assert_eq!(space(u32::MAX), None);
    }
}
