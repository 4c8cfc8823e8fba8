//! The NBD server of `nbd-server/`, and the spans that a test had written.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::broker::child::KillOnDrop;
use crate::support::live::eventually;

/// Returns the path of the daemon, built into blkkin's target folder.
pub(crate) fn server() -> Result<PathBuf, String> {
    let path = Path::new(env!("CARGO_BIN_EXE_blkkin")).with_file_name("blkkin-nbd");
    let missing = || "blkkin-nbd is not built: cargo build -p blkkin-nbd".to_owned();
    path.exists().then_some(path).ok_or_else(missing)
}

/// Starts the daemon by this command with two threads and its disk. Returns the process and the URI at which it listens.
pub(crate) fn serve(mut command: Command, disk: &Path, listen: &[&str]) -> (KillOnDrop, String) {
    let uri_file = disk.with_extension("uri");
    // Each request has a span, also above the provider's rate.
    command.env("BLKKIN_UST_ROOTS", "0").arg(disk).args(listen).args(["--threads", "2"]);
    let server = command.stdout(fs::File::create(&uri_file).unwrap()).stderr(Stdio::null()).spawn().unwrap();
    let server = KillOnDrop(server);
    // The server prints its address after it has registered with LTTng.
    assert!(eventually(|| fs::metadata(&uri_file).unwrap().len() > 0));
    (server, fs::read_to_string(&uri_file).unwrap().trim().to_owned())
}

/// Reads the spans from the test's file `spans.json`.
pub(crate) fn spans(folder: &Path) -> Vec<Value> {
    serde_json::from_slice(&fs::read(folder.join("spans.json")).unwrap()).unwrap()
}
