//! Client sockets: one type for Unix and TCP streams.

use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt;

/// TCP keepalive: a connection to an unreachable peer ends after two minutes.
const KEEPALIVE_IDLE: Duration = Duration::from_secs(60);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_PROBES: u32 = 6;

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

    /// Makes the kernel end a TCP connection whose peer is unreachable, also while it is idle.
    pub(crate) fn set_keepalive(&self) -> io::Result<()> {
        let Socket::Tcp(stream) = self else { return Ok(()) };
        sockopt::set_tcp_keepidle(stream, KEEPALIVE_IDLE)?;
        sockopt::set_tcp_keepintvl(stream, KEEPALIVE_INTERVAL)?;
        sockopt::set_tcp_keepcnt(stream, KEEPALIVE_PROBES)?;
        Ok(sockopt::set_socket_keepalive(stream, true)?)
    }

    /// Returns whether neither end can send any more.
    pub(crate) fn is_hung_up(&self) -> bool {
        // The kernel reports errors and hang-ups without being asked.
        self.is_ready(PollFlags::empty())
    }

    /// Returns whether a read, or a write, would not block now.
    pub(crate) fn is_ready(&self, flags: PollFlags) -> bool {
        let mut socket = [PollFd::new(self, flags)];
        poll(&mut socket, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
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
