//! Loaded ELF image in the memory of another process: the search for the thread context's slot.
#![no_main]

use blkkin_fuzz::{AT, InputMemory, fuzz_target};
use blkkin_otel_context::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    let _ = fuzzing::find_slot(&InputMemory(bytes), AT);
});
