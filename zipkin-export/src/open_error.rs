//! Errors at the start of an exporter.

use std::io;
use std::path::PathBuf;

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
    /// A file of certificates or a key is not usable.
    #[error("cannot use {} as {what}: {why}; {remedy}", path.display())]
    Tls {
        /// Path of the file.
        path: PathBuf,
        /// Purpose of the file.
        what: &'static str,
        /// Reason.
        why: String,
        /// Suggested remedy.
        remedy: &'static str,
    },
    /// The client of a server could not be created.
    #[error("cannot create a client of {server}: {why}; correct the address")]
    Client {
        /// Address of the server.
        server: String,
        /// Reason.
        why: String,
    },
    /// The thread did not start.
    #[error("cannot start the exporter's thread: {0}")]
    Thread(io::Error),
}
