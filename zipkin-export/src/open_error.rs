//! Errors at the start of an exporter.

use std::io;

use crate::atomic_json_file::FileError;

/// Error at the start of an exporter.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is not writable.
    #[error(transparent)]
    File(#[from] FileError),
    /// Another crate implements this destination.
    #[error("{0} cannot be opened here")]
    Unsupported(String),
    /// The thread did not start.
    #[error("cannot start the exporter's thread: {0}")]
    Thread(io::Error),
}
