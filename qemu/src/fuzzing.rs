//! Entries for `fuzz/`, which only its flags compile.

use crate::block_options::BlockOptions;
use crate::qcow2::Qcow2Header;

/// Reads a command line as /proc has it, and returns the options of each file that it names.
pub fn read_command_line(bytes: &[u8]) -> usize {
    let arguments = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let options = BlockOptions::parse(&arguments.collect::<Vec<_>>());
    options.files().filter(|(_, number)| options.of(*number).is_some()).count()
}

/// Reads the first bytes of an image, and returns whether they are a header.
pub fn read_image_header(bytes: &[u8]) -> bool {
    Qcow2Header::parse(bytes).is_some()
}
