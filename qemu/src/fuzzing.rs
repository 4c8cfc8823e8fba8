//! Entries for `fuzz/`, which only its flags compile.

use crate::block_options::BlockOptions;

/// Reads a command line as /proc has it, and returns the options of each file that it names.
pub fn read_command_line(bytes: &[u8]) -> usize {
    let arguments = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let options = BlockOptions::parse(&arguments.collect::<Vec<_>>());
    options.files().filter(|(_, number)| options.of(*number).is_some()).count()
}
