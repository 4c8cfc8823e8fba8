//! The NBD server of `nbd-server/`, and the spans that a test had written.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;

/// Returns the path of the daemon, built into blkkin's target folder.
pub(crate) fn server() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_BIN_EXE_blkkin")).with_file_name("blkkin-nbd");
    let missing = || "blkkin-nbd is not built: cargo build -p blkkin-nbd".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

/// Reads the spans from the test's file `spans.json`.
pub(crate) fn spans(folder: &Path) -> Vec<Value> {
    serde_json::from_slice(&fs::read(folder.join("spans.json")).unwrap()).unwrap()
}
