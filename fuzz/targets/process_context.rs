//! OpenTelemetry process context in the memory of another process, and its payload. The input is
//! the memory, and also a payload alone, so that no length in a header need fit.
#![no_main]

use blkkin_fuzz::{AT, InputMemory, fuzz_target};
use blkkin_otel_context::{process_context, resource};

fuzz_target!(|bytes: &[u8]| {
    let _ = resource::decode(bytes);
    if let Ok(context) = process_context::read(&InputMemory(bytes), AT) {
        assert!(context.payload.len() <= bytes.len());
        let _ = resource::decode(&context.payload);
    }
});
