//! Command line of a QEMU process, chosen by the process that starts it.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_qemu::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::read_command_line(bytes);
});
