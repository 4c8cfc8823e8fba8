//! Command line of a QEMU process, chosen by the process that starts it, and header of an image.
#![no_main]

use blkkin_fuzz::fuzz_target;
use blkkin_qemu::fuzzing;

fuzz_target!(|bytes: &[u8]| {
    fuzzing::read_command_line(bytes);
    fuzzing::read_image_header(bytes);
});
