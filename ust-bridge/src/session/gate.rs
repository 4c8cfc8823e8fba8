//! Loopback ports for the session daemon's connections to a relay in a private network.
//!
//! *In*: connections of this machine. *Out*: connections of root and of blkkin's user, forwarded to
//! the relay; all others are closed and counted before a byte is read.
//!
//! The session daemon may already run, and LTTng's relay protocol knows only TCP. The daemon
//! therefore connects to a loopback port, as any user can. TCP carries no credentials, but the
//! kernel reports the owner of each socket of a network namespace, also of the other end of a
//! loopback connection (proc_net_tcp).
//!
//! *Invariant*: an unknown owner is refused. The kernel reports owner 0 for sockets without a
//! process, so only established sockets with an inode count.
//!
//! *Rejected*: the session daemon in the private network too. blkkin cannot move a running one
//! there, and one that blkkin starts also serves other programs of its user.

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, SocketAddrV4, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use super::private_network::PrivateNetwork;

/// Pause after an error of `accept`, such as a lack of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Maximum number of users to report.
const USERS_MAX: usize = 16;
/// Size of a forwarding thread's stack; `io::copy` needs 8 KiB.
const STACK_BYTES: usize = 128 << 10;

/// Refused connections.
#[derive(Debug, Default)]
pub struct Refusals {
    count: AtomicU64,
    users: Mutex<BTreeSet<Option<u32>>>,
}

impl Refusals {
    /// Returns the number of refused connections.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    /// Returns the users of refused connections; `None` for an unknown one.
    pub fn users(&self) -> Vec<Option<u32>> {
        self.users.lock().unwrap_or_else(PoisonError::into_inner).iter().copied().collect()
    }

    fn add(&self, user: Option<u32>) {
        self.count.fetch_add(1, Ordering::Relaxed);
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        if users.len() < USERS_MAX {
            users.insert(user);
        }
    }
}

/// A loopback port that is forwarded to a port of the private network.
#[derive(Debug)]
pub(super) struct ForwardedPort {
    listener: Arc<TcpListener>,
    port: u16,
    closed: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl ForwardedPort {
    /// Opens a free port.
    pub(super) fn open(
        network: Arc<PrivateNetwork>,
        relay_port: u16,
        refusals: Arc<Refusals>,
    ) -> io::Result<Self> {
        let listener = Arc::new(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?);
        let (port, closed) = (listener.local_addr()?.port(), Arc::new(AtomicBool::new(false)));
        let (accepting, ending) = (Arc::clone(&listener), Arc::clone(&closed));
        let thread = Builder::new().name("relay gate".into()).spawn(move || {
            while !ending.load(Ordering::Acquire) {
                match accepting.accept() {
                    Ok((client, _)) => admit(client, &network, relay_port, &refusals),
                    Err(_) if ending.load(Ordering::Acquire) => {}
                    Err(_) => std::thread::sleep(ACCEPT_PAUSE),
                }
            }
        })?;
        Ok(Self { listener, port, closed, thread: Some(thread) })
    }

    /// Returns the port on the loopback address.
    pub(super) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for ForwardedPort {
    fn drop(&mut self) {
        self.closed.store(true, Ordering::Release);
        // Ends the pending `accept`. Without it the thread ends with the process.
        let woken = rustix::net::shutdown(&self.listener, rustix::net::Shutdown::Both).is_ok();
        if let Some(thread) = self.thread.take().filter(|_| woken) {
            let _ = thread.join();
        }
    }
}

/// Forwards the connection of a trusted user.
fn admit(client: TcpStream, network: &PrivateNetwork, relay_port: u16, refusals: &Refusals) {
    // SAFETY: the call returns a number and cannot fail.
    let own = unsafe { libc::geteuid() };
    match peer_user(&client) {
        // Without a relay the client's connection is closed, as by a relay that ended.
        Some(user) if user == 0 || user == own => drop(forward(client, network, relay_port)),
        user => refusals.add(user),
    }
}

fn forward(client: TcpStream, network: &PrivateNetwork, relay_port: u16) -> io::Result<()> {
    let relay = network.connect(relay_port)?;
    client.set_nodelay(true)?;
    relay.set_nodelay(true)?;
    for (from, to) in [(client.try_clone()?, relay.try_clone()?), (relay, client)] {
        let thread = Builder::new().name("relay gate".into()).stack_size(STACK_BYTES);
        thread.spawn(move || copy(&from, &to))?;
    }
    Ok(())
}

/// Copies one direction until it ends, and then ends it at the receiver.
fn copy(mut from: &TcpStream, mut to: &TcpStream) {
    // After an error both directions end, because the sockets of both are closed.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
    let _ = from.shutdown(Shutdown::Read);
}

/// Returns the user that owns the other end of a loopback connection.
fn peer_user(stream: &TcpStream) -> Option<u32> {
    let (SocketAddr::V4(peer), SocketAddr::V4(own)) = (stream.peer_addr().ok()?, stream.local_addr().ok()?)
    else {
        return None;
    };
    owner(&std::fs::read_to_string("/proc/self/net/tcp").ok()?, peer, own)
}

/// Finds the owner of an established connection in the content of /proc/net/tcp.
fn owner(table: &str, local: SocketAddrV4, remote: SocketAddrV4) -> Option<u32> {
    const ESTABLISHED: &str = "01";
    let (local, remote) = (table_address(local), table_address(remote));
    table.lines().find_map(|line| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        let same = fields.get(1..4)? == [&*local, &*remote, ESTABLISHED] && *fields.get(9)? != "0";
        same.then(|| fields.get(7)?.parse().ok())?
    })
}

/// Formats an address as the table does: the address as a number of this machine's byte order.
fn table_address(address: SocketAddrV4) -> String {
    format!("{:08X}:{:04X}", u32::from_ne_bytes(address.ip().octets()), address.port())
}

#[cfg(test)]
mod tests {
    use super::*;

    const TABLE: &str = "\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 100 1 0
   1: 0100007F:A000 0100007F:1F90 01 00000000:00000000 00:00000000 00000000  1000        0 101 1 0
   2: 0100007F:A001 0100007F:1F90 06 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   3: 0100007F:A002 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 0 1 0
   4: 0100007F:A003 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 104 1 0
";

    #[test]
    #[cfg(target_endian = "little")]
    fn only_an_established_socket_of_a_process_has_an_owner() {
        let address = |port| SocketAddrV4::new(Ipv4Addr::LOCALHOST, port);
        let owner = |port| owner(TABLE, address(port), address(8080));
        assert_eq!(owner(0xa000), Some(1000));
        assert_eq!(owner(0xa001), None, "a closed one, for which the kernel reports user 0");
        assert_eq!(owner(0xa002), None, "one without a process, for which the kernel reports user 0");
        assert_eq!(owner(0xa003), Some(0));
        assert_eq!(owner(0xa004), None);
    }

    #[test]
    fn own_connection_has_the_own_user() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (accepted, _) = listener.accept().unwrap();
        // SAFETY: the call returns a number and cannot fail.
        assert_eq!(peer_user(&accepted), Some(unsafe { libc::geteuid() }));
        drop(client);
    }
}
