//! Entries for the fuzz targets in `fuzz/`, which reach decoders that are not public.

use crate::elf::Image;
use crate::maps::{self, Mappings};
use crate::memory::Memory;
use crate::scan::{field, lookup_in};
use crate::tls::{Libc, in_program};
use crate::{ThreadContextSlot, VARIABLE};

/// Looks for the slot in the image at `at`, as a program's and as a library's under both libcs.
pub fn find_slot(memory: &impl Memory, at: u64) -> Option<ThreadContextSlot> {
    let image = Image::read(memory, at)?;
    image.interpreter_contains(memory, b"ld-musl");
    for libc in [Libc::Glibc, Libc::Musl] {
        lookup_in(memory, &image, false, || libc);
    }
    in_program(&image, image.variable(memory, VARIABLE)?)
}

/// Parses a text as `/proc/PID/maps` and as `/proc/PID/stat`.
pub fn parse_proc_files(text: &str) {
    let mappings = Mappings::parse(text);
    for file in mappings.loaded() {
        mappings.is_in_place(file.file, file.at, 0);
    }
    maps::process_context_mappings(text);
    field(text, 26);
}
