//! Client sockets: one type for Unix and TCP streams.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// Connected stream socket.
#[derive(Debug)]
pub enum Socket {
    /// `AF_UNIX`
    Unix(UnixStream),
    /// `AF_INET`, `AF_INET6`
    Tcp(TcpStream),
}

/// Evaluates the same call on the stream of either variant.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Unix($stream) => $call,
            Socket::Tcp($stream) => $call,
        }
    };
}

impl Socket {
    /// Disables Nagle's algorithm: each reply is complete when it is written, so a delay gains
    /// nothing.
    pub(crate) fn set_nodelay(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_nodelay(true),
            Socket::Unix(_) => Ok(()),
        }
    }

    pub(crate) fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        either!(self, stream => stream.set_nonblocking(on))
    }

    /// Sets the time that one read or write may block; none for no limit.
    pub(crate) fn set_timeout(&self, timeout: Option<Duration>) -> io::Result<()> {
        either!(self, stream => stream.set_read_timeout(timeout))?;
        either!(self, stream => stream.set_write_timeout(timeout))
    }

    /// Shuts the connection down for both ends. The descriptor stays open.
    pub(crate) fn shutdown(&self, how: Shutdown) {
        // The call fails if the connection is shut down already.
        let _ = either!(self, stream => stream.shutdown(how));
    }
}

impl AsFd for Socket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        either!(self, stream => stream.as_fd())
    }
}

impl Read for &Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        either!(self, stream => (&mut &*stream).read(buffer))
    }

    fn read_vectored(&mut self, buffers: &mut [IoSliceMut<'_>]) -> io::Result<usize> {
        either!(self, stream => (&mut &*stream).read_vectored(buffers))
    }
}

impl Write for &Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        either!(self, stream => (&mut &*stream).write(bytes))
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        either!(self, stream => (&mut &*stream).write_vectored(slices))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
