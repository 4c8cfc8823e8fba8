//! Name of a connection that both of its ends can compute.
//!
//! *In*: a connected socket of the server. *Out*: `client>server`, or an error if the name cannot
//! be computed. *Invariant*: the client, or a tracer of it, computes the same name without any
//! message, and no two concurrent connections have one name.
//!
//! - **TCP**: `ip:port>ip:port`, the client's address first. The client reads both by getsockname
//!   and getpeername. Behind a NAT the two ends compute different names; the link is then missing,
//!   never wrong. Two nodes, or two network namespaces, can use one name for two loopback
//!   connections. The cookies and the clocks distinguish these.
//! - **Unix**: `unix:BOOT:INODE>INODE`, the inodes of the two sockets (as `ls -l /proc/PID/fd` and
//!   `ss -x` print them), the client's first. fstat returns a socket's own inode. The kernel's
//!   socket diagnostics return its peer's (`NETLINK_SOCK_DIAG`, `UDIAG_SHOW_PEER`;
//!   include/uapi/linux/unix_diag.h). The query needs no privilege. It takes a socket of the
//!   caller's network namespace, and its peer may be in another one. An eBPF program reads both by
//!   `unix_sk(sk)->peer`. Inodes repeat on other machines, so the name contains the boot id
//!   (/proc/sys/kernel/random/boot_id), which containers share.
//!
//! *Rejected*: the pid of `SO_PEERCRED` (a process can have several connections, the pid differs
//! between pid namespaces, and it is the connecting process and not the requesting one); the
//! socket's path (the same for all connections); the number of the connection (no other process
//! counts them).

mod sock_diag;

use std::ffi::CString;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use crate::socket::Socket;

/// Name of a connection, and whether it leaves the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConnectionName {
    /// Name as in the module's documentation.
    pub text: CString,
    /// True if the client can be on another machine: TCP with an address other than loopback.
    pub may_be_remote: bool,
}

/// Computes the connection's name from the server's socket.
pub fn of_server_socket(socket: &Socket) -> io::Result<ConnectionName> {
    let Endpoints { peer: client, own: server, scope } = endpoints(socket)?;
    let may_be_remote = match socket {
        Socket::Tcp(stream) => !canonical(stream.local_addr()?).ip().is_loopback(),
        Socket::Unix(_) => false,
    };
    Ok(ConnectionName { text: CString::new(format!("{scope}{client}>{server}"))?, may_be_remote })
}

/// Computes the same name from the client's socket, for a client that is instrumented as well.
pub fn of_client_socket(socket: &Socket) -> io::Result<CString> {
    let Endpoints { peer: server, own: client, scope } = endpoints(socket)?;
    Ok(CString::new(format!("{scope}{client}>{server}"))?)
}

/// Addresses of a connection's two ends.
struct Endpoints {
    peer: String,
    own: String,
    /// Prefix that makes the addresses unique between machines; empty for TCP.
    scope: String,
}

fn endpoints(socket: &Socket) -> io::Result<Endpoints> {
    Ok(match socket {
        Socket::Tcp(stream) => Endpoints {
            peer: canonical(stream.peer_addr()?).to_string(),
            own: canonical(stream.local_addr()?).to_string(),
            scope: String::new(),
        },
        Socket::Unix(stream) => {
            let own = rustix::fs::fstat(stream.as_fd())?.st_ino;
            // Socket inodes have 32 bits (fs/inode.c, `get_next_ino`).
            let own = u32::try_from(own).map_err(|_| io::Error::other("the inode is not a socket's"))?;
            Endpoints {
                peer: sock_diag::peer_inode(own)?.to_string(),
                own: own.to_string(),
                scope: format!("unix:{}:", boot_id()?),
            }
        }
    })
}

fn boot_id() -> io::Result<String> {
    Ok(fs::read_to_string("/proc/sys/kernel/random/boot_id")?.trim_end().to_owned())
}

/// Maps `::ffff:10.0.0.1` to `10.0.0.1`. A dual-stack socket reports an IPv4 client by the former
/// address, the client itself by the latter.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

#[cfg(test)]
#[allow(clippy::print_stdout, reason = "a test prints why it is skipped")]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_name_of_a_unix_connection_has_both_inodes() {
        let (client, server) = UnixStream::pair().unwrap();
        let inode = |stream: &UnixStream| rustix::fs::fstat(stream).unwrap().st_ino;
        let expected = format!("unix:{}:{}>{}", boot_id().unwrap(), inode(&client), inode(&server));
        assert_eq!(of_server_socket(&Socket::Unix(server)).unwrap().text.to_str().unwrap(), expected);
    }

    #[test]
    fn the_client_computes_the_same_name() {
        let (client, server) = UnixStream::pair().unwrap();
        let (client, server) = (Socket::Unix(client), Socket::Unix(server));
        assert_eq!(of_client_socket(&client).unwrap(), of_server_socket(&server).unwrap().text);
        assert_ne!(of_client_socket(&server).unwrap(), of_server_socket(&server).unwrap().text);
    }

    #[test]
    fn a_connection_without_a_peer_has_no_name() {
        let (client, server) = UnixStream::pair().unwrap();
        drop(client);
        assert!(of_server_socket(&Socket::Unix(server)).is_err());
    }

    #[test]
    fn the_name_of_a_tcp_connection_is_the_same_for_both_address_families() {
        for address in ["127.0.0.1:0", "[::]:0"] {
            let Ok(listener) = TcpListener::bind(address) else {
                println!("skipped: cannot listen on {address}");
                continue;
            };
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect(("127.0.0.1", port)).unwrap();
            let server = Socket::Tcp(listener.accept().unwrap().0);
            let expected = format!("{}>{}", client.local_addr().unwrap(), client.peer_addr().unwrap());
            assert_eq!(of_server_socket(&server).unwrap().text.to_str().unwrap(), expected);
            assert!(!of_server_socket(&server).unwrap().may_be_remote, "loopback");
            assert_eq!(
                of_client_socket(&Socket::Tcp(client)).unwrap(),
                of_server_socket(&server).unwrap().text
            );
        }
    }
}
