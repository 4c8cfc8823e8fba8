//! A connection's name, as both of its ends find it.
//!
//! *In*: a connected socket of the server. *Out*: `asker>answerer`, or nothing where it cannot be known. *Invariant*: the
//! other end, or whoever watches it, finds the same name without being told, and no two connections have one name at a time.
//!
//! - **TCP**: `ip:port>ip:port`, the client's address first. The client has it from getsockname and getpeername. Behind a
//!   NAT the two ends differ: then they do not meet, which is a missing link and no wrong one. The same name may be in use
//!   on two nodes, or in two network namespaces, where both addresses are loopback's: cookies and clocks have to tell those.
//! - **Unix**: `unix:BOOT:INODE>INODE`, the inodes of the two sockets (what `ls -l /proc/PID/fd` shows and `ss -x` lists), the
//!   client's first. A socket's own is said by fstat; its peer's by the kernel's socket diagnosis (`NETLINK_SOCK_DIAG`,
//!   `UDIAG_SHOW_PEER`; include/uapi/linux/unix_diag.h), which needs no privilege, asks about a socket of one's own network
//!   namespace and answers for a peer in any. A program in the kernel has both by `unix_sk(sk)->peer`. Such numbers
//!   repeat on another machine, so the boot's id (/proc/sys/kernel/random/boot_id) is part of the name; containers share it.
//!
//! *Rejected*: the pid of `SO_PEERCRED` (one process has several connections; it is another number in another pid
//! namespace, and that of who connected, not of who asks), the socket's path (all connections have the same), the order of
//! connections (nobody else counts them).

mod diagnosis;

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use crate::socket::Socket;

/// A connection's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Name {
    /// As above.
    pub text: CString,
    /// The other end may be on another machine: TCP, and not by its loopback.
    pub far: bool,
}

/// The name of the connection whose answering end this is.
pub fn name(socket: &Socket) -> io::Result<Name> {
    let (asker, answerer, place) = ends(socket)?;
    let far = match socket {
        Socket::Tcp(stream) => !plain(stream.local_addr()?).ip().is_loopback(),
        Socket::Unix(_) => false,
    };
    Ok(Name { text: CString::new(format!("{place}{asker}>{answerer}"))?, far })
}

/// The same name, by the asking end: for a client that is instrumented as well.
pub fn name_at_client(socket: &Socket) -> io::Result<CString> {
    let (answerer, asker, place) = ends(socket)?;
    Ok(CString::new(format!("{place}{asker}>{answerer}"))?)
}

/// The other end, this end, and where those names mean something.
fn ends(socket: &Socket) -> io::Result<(String, String, String)> {
    Ok(match socket {
        Socket::Tcp(stream) => {
            (plain(stream.peer_addr()?).to_string(), plain(stream.local_addr()?).to_string(), String::new())
        }
        Socket::Unix(stream) => {
            let own = rustix::fs::fstat(stream.as_fd())?.st_ino;
            // Sockets' inodes are counted by 32 bits (fs/inode.c, `get_next_ino`), and so they are told.
            let own = u32::try_from(own).map_err(|_| io::Error::other("an inode that is no socket's"))?;
            (diagnosis::peer(own)?.to_string(), own.to_string(), format!("unix:{}:", boot()?))
        }
    })
}

fn boot() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// A socket for both families sees an IPv4 client as `::ffff:10.0.0.1`; the client does not.
fn plain(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test says what this machine lacks")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn ends_of_a_unix_connection_agree() {
        let (client, server) = UnixStream::pair().unwrap();
        let inode = |stream: &UnixStream| rustix::fs::fstat(stream).unwrap().st_ino;
        let expected = format!("unix:{}:{}>{}", boot().unwrap(), inode(&client), inode(&server));
        assert_eq!(name(&Socket::Unix(server)).unwrap().text.to_str().unwrap(), expected);
    }

    #[test]
    fn the_client_finds_the_same_name() {
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::Unix(client), Socket::Unix(server));
        assert_eq!(name_at_client(&client).unwrap(), name(&server).unwrap().text);
        assert_ne!(name_at_client(&server).unwrap(), name(&server).unwrap().text);
    }

    #[test]
    fn a_peer_that_is_gone_has_no_name() {
        let (client, server) = UnixStream::pair().unwrap();
        drop(client);
        assert!(name(&Socket::Unix(server)).is_err());
    }

    #[test]
    fn ends_of_a_tcp_connection_agree_whatever_family_the_server_listens_on() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("skipped: no {address} here");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let server = Socket::Tcp(listener.accept().unwrap().0);
            let expected = format!("{}>{}", client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(name(&server).unwrap().text.to_str().unwrap(), expected);
            assert!(!name(&server).unwrap().far, "by its loopback");
            assert_eq!(name_at_client(&Socket::Tcp(client)).unwrap(), name(&server).unwrap().text);
        }
    }
}
