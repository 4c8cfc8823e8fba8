//! Listening sockets.
//!
//! *In*: an address. *Out*: connected sockets. *Invariant*: a socket file on which another process
//! listens is never replaced. The listener removes its own file when it is dropped.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::Address;
use crate::socket::Socket;

/// Listening socket, Unix or TCP.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    /// Socket file to remove on drop.
    file: Option<PathBuf>,
}

#[derive(Debug)]
enum Kind {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Binds and listens.
    pub fn bind(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Tcp(address) => Self { kind: Kind::Tcp(TcpListener::bind(address)?), file: None },
            Address::Unix(path) => {
                remove_stale(path);
                Self { kind: Kind::Unix(UnixListener::bind(path)?), file: Some(path.clone()) }
            }
        })
    }

    /// Returns the NBD URI. For port 0 it has the port that the kernel chose.
    pub fn uri(&self) -> String {
        match (&self.kind, &self.file) {
            (Kind::Tcp(listener), _) => {
                let address = listener.local_addr().map(|address| address.to_string());
                format!("nbd://{}", address.unwrap_or_default())
            }
            (Kind::Unix(_), file) => {
                format!("nbd+unix:///?socket={}", file.as_deref().unwrap_or(Path::new("")).display())
            }
        }
    }

    pub(super) fn accept(&self) -> io::Result<Socket> {
        match &self.kind {
            Kind::Unix(listener) => listener.accept().map(|(stream, _)| Socket::Unix(stream)),
            Kind::Tcp(listener) => listener.accept().map(|(stream, _)| Socket::Tcp(stream)),
        }
    }

    /// Duplicates the listener for another thread. The duplicate does not remove the socket file.
    pub(super) fn try_clone(&self) -> io::Result<Self> {
        let kind = match &self.kind {
            Kind::Unix(listener) => Kind::Unix(listener.try_clone()?),
            Kind::Tcp(listener) => Kind::Tcp(listener.try_clone()?),
        };
        Ok(Self { kind, file: None })
    }

    /// Makes [`accept`](Self::accept) fail in all threads, immediately and from now on.
    pub(super) fn shutdown(&self) {
        let descriptor = match &self.kind {
            Kind::Unix(listener) => listener.as_fd(),
            Kind::Tcp(listener) => listener.as_fd(),
        };
        let _ = rustix::net::shutdown(descriptor, rustix::net::Shutdown::Both);
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Some(file) = &self.file {
            // Another process may have removed it.
            let _ = fs::remove_file(file);
        }
    }
}

/// Removes the socket file of a server that was killed.
fn remove_stale(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = || UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && refused() {
        let _ = fs::remove_file(path);
    }
}
