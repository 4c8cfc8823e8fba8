//! The NBD server, and what was traced around it.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// The daemon, built beside blkkin.
pub(crate) fn server() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_BIN_EXE_blkkin")).with_file_name("blkkin-nbd");
    let missing = || "blkkin-nbd is not built: cargo build -p blkkin-nbd".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

/// Of the file that a test has the spans written to, in its folder.
pub(crate) fn spans(home: &Path) -> Vec<Value> {
    serde_json::from_slice(&fs::read(home.join("spans.json")).unwrap()).unwrap()
}
