//! USDT notes of a program's file, and their argument strings.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_tracer::enrich::usdt::{arguments, stapsdt_notes::Notes};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(notes) = Notes::parse(bytes) {
        notes.all.iter().for_each(|note| _ = arguments::parse(&note.arguments));
    }
    // The same bytes as an argument string: few inputs are a program with notes.
    if let Ok(arguments) = std::str::from_utf8(bytes).map(arguments::parse) {
        arguments.iter().flatten().for_each(|argument| _ = argument.value(u64::MAX));
    }
});
