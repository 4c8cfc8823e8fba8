//! A socket that clients connect to.
//!
//! *In*: an address. *Out*: connected sockets. *Invariant*: a socket file that somebody listens on is never taken from
//! them; ours is removed when the listener ends.

use std::fs;
use std::io;
use std::net::TcpListener;
use std::os::fd::AsFd;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::Address;
use crate::socket::Socket;

/// Unix or TCP.
#[derive(Debug)]
pub struct Listener {
    kind: Kind,
    /// Removed at the end.
    file: Option<PathBuf>,
}

#[derive(Debug)]
enum Kind {
    Unix(UnixListener),
    Tcp(TcpListener),
}

impl Listener {
    /// Listens.
    pub fn bind(address: &Address) -> io::Result<Self> {
        Ok(match address {
            Address::Tcp(address) => Self { kind: Kind::Tcp(TcpListener::bind(address)?), file: None },
            Address::Unix(path) => {
                remove_dead(path);
                Self { kind: Kind::Unix(UnixListener::bind(path)?), file: Some(path.clone()) }
            }
        })
    }

    /// Where it is, as NBD's URIs have it: with the port that was free where port 0 was asked for.
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

    /// The same, for another thread. It does not remove the file.
    pub(super) fn again(&self) -> io::Result<Self> {
        let kind = match &self.kind {
            Kind::Unix(listener) => Kind::Unix(listener.try_clone()?),
            Kind::Tcp(listener) => Kind::Tcp(listener.try_clone()?),
        };
        Ok(Self { kind, file: None })
    }

    /// Who waits in [`accept`](Self::accept) gets an error, at once and from then on.
    pub(super) fn shut(&self) {
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
            // Somebody else may have.
            let _ = fs::remove_file(file);
        }
    }
}

/// What a server that was killed has left.
fn remove_dead(path: &Path) {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket());
    let refused = || UnixStream::connect(path).is_err_and(|e| e.kind() == io::ErrorKind::ConnectionRefused);
    if is_socket && refused() {
        let _ = fs::remove_file(path);
    }
}
