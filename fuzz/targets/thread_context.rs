//! OpenTelemetry thread context in the memory of another process.
#![no_main]

use blkkin_fuzz::{AT, InputMemory, fuzz_target};
use blkkin_otel_context::thread_context;

fuzz_target!(|bytes: &[u8]| {
    let _ = thread_context::read(&InputMemory(bytes), AT);
});
