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
    /// The file of trusted certificate authorities is not usable.
    #[error(
        "cannot use {} as certificate authorities: {why}; set OTEL_EXPORTER_OTLP_CERTIFICATE to a PEM file",
        path.display()
    )]
    Certificate {
        /// Path of the file.
        path: PathBuf,
        /// Reason.
        why: String,
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
