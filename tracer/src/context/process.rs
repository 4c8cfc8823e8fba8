//! One process: what it has loaded, and where its threads keep their context.

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{self, Read};

use blkkin_probe_abi::context::Place;

use super::barren::Barren;
use super::elf::Image;
use super::maps::{self, Loaded, MappedFile, Mappings};
use super::memory::{Memory, Noted, ProcessMemory};
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

/// Why nothing was seen of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unseen {
    /// It is gone, or became another meanwhile.
    Gone,
    /// This process may not look at it.
    Denied,
}

impl From<io::Error> for Unseen {
    fn from(error: io::Error) -> Unseen {
        if error.kind() == io::ErrorKind::PermissionDenied { Unseen::Denied } else { Unseen::Gone }
    }
}

/// The address space of a process; none where there is none, or where it may not be known.
pub(crate) fn space(pid: u32) -> Option<Space> {
    space_or_why(pid).ok()
}

/// As /proc/PID/stat has it (its 26th and 28th field).
fn space_or_why(pid: u32) -> Result<Space, Unseen> {
    // A thread's name is cut at 15 bytes, wherever that is.
    let stat = fs::read(format!("/proc/{pid}/stat"))?;
    let stat = String::from_utf8_lossy(&stat);
    let [start_code, start_stack] = [26, 28].map(|number| field(&stat, number));
    // A process that ends has neither; and who may not know is told 1 and 0 (do_task_stat, fs/proc/array.c).
    match (start_code, start_stack) {
        (Some(1), Some(0)) => Err(Unseen::Denied),
        (Some(start_code), Some(start_stack)) if start_stack != 0 => Ok(Space { start_stack, start_code }),
        _ => Err(Unseen::Gone),
    }
}

fn field(stat: &str, number: usize) -> Option<u64> {
    // A name may have parentheses and spaces in it.
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split_ascii_whitespace().nth(number - 3)?.parse().ok()
}

/// What a look sees.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) space: Space,
    pub(crate) publishes: Publishes,
    /// Where it may say who it is.
    pub(crate) said: Vec<u64>,
}

/// Looks at all that a process has loaded; files that are known to have nothing are passed over, and those found to are added: if they
/// were there from before the look until behind it. What is unloaded meanwhile is not there, or another library is in its place.
pub(crate) fn look(pid: u32, barren: &mut Barren) -> Result<Seen, Unseen> {
    let before = space_or_why(pid)?;
    let maps = maps_of(pid)?;
    let (mappings, said) = (Mappings::of(&maps), maps::said(&maps));
    let loaded = mappings.loaded();
    let fresh: Vec<Loaded> =
        loaded.iter().filter(|one| !barren.has(one.file)).take(LOADED_MAX).copied().collect();
    if fresh.is_empty() {
        return Ok(Seen { space: before, publishes: Publishes::Nothing, said });
    }
    let memory = ProcessMemory(pid);
    // An address of the program's own: what the kernel was told to execute, whether or not that asks for an interpreter. (The
    // auxiliary vector has another, but only the process's own user may open that file, whatever capabilities others have.)
    let program = before.start_code;
    // Memory takes more rights than names do (Yama). What may not be read is not empty.
    memory.may_be_read(program)?;
    let mut found = Publishes::Nothing;
    let mut silent = Vec::new();
    let mut libc = None;
    for one in fresh {
        let noted = Noted::of(&memory);
        let publishes = match Image::read(&noted, one.at) {
            Some(image) if !is_whole(&image, one.file, &mappings) => Publishes::Unsettled,
            Some(image) => {
                let is_program = image.holds(program);
                let libc = || *libc.get_or_insert_with(|| libc_of(&memory, &loaded, program));
                of(&noted, &image, is_program, libc)
            }
            // No ELF file at all; or it is gone.
            None => Publishes::Nothing,
        };
        match publishes {
            Publishes::Nothing if noted.missed.get() => {}
            Publishes::Nothing => silent.push(one),
            _ => barren.tells(one.file),
        }
        found = found.and(publishes);
    }
    if !silent.is_empty() {
        let still: HashSet<Loaded> = Mappings::of(&maps_of(pid)?).loaded().into_iter().collect();
        silent.retain(|one| still.contains(one));
    }
    if space(pid) != Some(before) {
        return Err(Unseen::Gone);
    }
    silent.into_iter().for_each(|one| barren.add(one.file));
    Ok(Seen { space: before, publishes: found, said })
}

fn maps_of(pid: u32) -> Result<String, Unseen> {
    let mut maps = Vec::new();
    let file = File::open(format!("/proc/{pid}/maps"))?;
    // What could be read before an error is a list, too.
    let _ = file.take(MAPS_MAX).read_to_end(&mut maps);
    // Names may be anything.
    Ok(String::from_utf8_lossy(&maps).into_owned())
}

/// False as long as a loader has more to map of it: what is where its data belongs is another part of the file, or nothing.
fn is_whole(image: &Image, file: MappedFile, mappings: &Mappings) -> bool {
    image.is_read && image.parts.iter().all(|part| mappings.has(file, part.address, part.offset))
}

/// What one program or library says.
pub(super) fn of(
    memory: &impl Memory,
    image: &Image,
    is_program: bool,
    libc: impl FnOnce() -> Libc,
) -> Publishes {
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
        assert_eq!(look(u32::MAX, &mut Barren::new()), Err(Unseen::Gone));
    }
}
