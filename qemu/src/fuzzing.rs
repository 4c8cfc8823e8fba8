//! Entries for `fuzz/`, which only its flags compile.

use crate::block_options::BlockOptions;
use crate::qcow2::Qcow2Header;

/// Reads a command line as /proc has it, and counts the files and NBD servers that it names with their options.
pub fn read_command_line(bytes: &[u8]) -> usize {
    let arguments = bytes.split(|&byte| byte == 0).map(|word| String::from_utf8_lossy(word).into_owned());
    let options = BlockOptions::parse(&arguments.collect::<Vec<_>>());
    let (files, servers) = (options.files(), options.servers());
    let nodes = files.map(|(_, number)| number).chain(servers.map(|(_, number)| number));
    nodes.filter(|number| options.of(*number).is_some()).count()
}

/// Reads the first bytes of an image, and returns whether they are a header.
pub fn read_image_header(bytes: &[u8]) -> bool {
    Qcow2Header::parse(bytes).is_some()
}
