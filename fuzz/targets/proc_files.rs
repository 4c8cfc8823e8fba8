//! Text of `/proc/PID/maps` and `/proc/PID/stat`, whose file names and comm another process
//! chooses.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_otel_context::fuzzing;

fuzz_target!(|bytes: &[u8]| fuzzing::parse_proc_files(&String::from_utf8_lossy(bytes)));
