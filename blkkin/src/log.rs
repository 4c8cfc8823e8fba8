//! Log lines for the operator, on stderr.

use std::io::{self, Write};

/// Writes one line to stderr, with the program's name in front.
pub(crate) fn info(line: &str) {
    // A closed stderr has no reader.
    let _ = writeln!(io::stderr().lock(), "blkkin: {line}");
}
