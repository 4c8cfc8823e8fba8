//! A client's socket: Unix or TCP, alike from here on.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

/// A connected one.
#[derive(Debug)]
pub enum Socket {
    /// `AF_UNIX`
    Unix(UnixStream),
    /// `AF_INET`, `AF_INET6`
    Tcp(TcpStream),
}

/// The same call of whichever it is.
macro_rules! either {
    ($socket:expr, $stream:ident => $call:expr) => {
        match $socket {
            Socket::Unix($stream) => $call,
            Socket::Tcp($stream) => $call,
        }
    };
}

impl Socket {
    /// A reply is sent when it is whole: waiting for more of it would only be waiting.
    pub(crate) fn prepare(&self) -> io::Result<()> {
        match self {
            Socket::Tcp(stream) => stream.set_nodelay(true),
            Socket::Unix(_) => Ok(()),
        }
    }

    pub(crate) fn set_nonblocking(&self, on: bool) -> io::Result<()> {
        either!(self, stream => stream.set_nonblocking(on))
    }

    /// How long a read or write may block.
    pub(crate) fn set_patience(&self, limit: Option<Duration>) -> io::Result<()> {
        either!(self, stream => stream.set_read_timeout(limit))?;
        either!(self, stream => stream.set_write_timeout(limit))
    }

    /// Both ends hear of it at once; the descriptor stays.
    pub(crate) fn shut(&self, how: Shutdown) {
        // It may be shut already.
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
