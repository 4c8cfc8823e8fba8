//! Disks of a virtual machine that an NBD server has, by the connections of its QEMU process.
//!
//! *In*: the names of the connections on which a QEMU process sent NBD requests, as the kernel side has them; the drives that
//! its command line has on servers; and the sockets of its network namespace. *Out*: the disk behind each connection.
//!
//! *Invariant*: a connection has a disk only if it leads to one drive of the command line, and if the process has no other
//! open connection that leads there. So two exports of one server have none: the handshake, which has the name of the
//! export, is over when a tracer starts. Nor have two connections to one server, since one of them may be that of a disk that
//! was attached later. A connection that QEMU has lost and made again is one.
//!
//! *Weakness*: the list of Unix sockets does not have the other end of a socket, so there only connections with requests count.
//!
//! A disk has a name only by its serial number: no list of this machine has the length of a disk that a server has. Its format
//! must be raw by the command line, since nothing here can read the header of a qcow2 image.
//!
//! *Hostile input*: a user of the network namespace chooses the paths of Unix sockets, with line breaks. So a socket
//! with two rows in the list has no path.
//!
//! *Rejected*: the order of the connections (a new connection changes it).

use std::collections::{HashMap, HashSet};
use std::fs;
use std::io::Read;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use blkkin_qemu::{NbdDrive, NbdServer};
use blkkin_wire::ids::Pid;
use blkkin_wire::virtual_machine::NbdDisk;

use super::machine_disks;

/// Maximum number of bytes of a list of sockets: some 200,000 sockets.
const SOCKETS_MAX: u64 = 16 << 20;
/// Columns of /proc/net/unix before the path: address, references, protocol, flags, type, state, inode
/// (net/unix/af_unix.c, `unix_seq_show`).
const UNIX_COLUMNS: usize = 7;
/// State of an established connection in /proc/net/tcp (include/net/tcp_states.h).
const ESTABLISHED: &str = "01";

/// Columns of /proc/net/tcp between the state and the inode: queues, timer, retransmissions, user, probes.
const INODE_AFTER_STATE: usize = 5;
/// Maximum number of descriptors of a process that are read.
const DESCRIPTORS_MAX: usize = 65_536;

/// Returns the disk behind each of these connections that is open and leads to one. `root` has `proc`.
pub(crate) fn of_connections(
    root: &Path,
    pid: Pid,
    connections: &[Box<str>],
    drives: &[NbdDrive],
) -> Vec<NbdDisk> {
    let names = names_of(drives);
    let sockets = Sockets::of(root, pid, connections);
    let open = || connections.iter().filter(|connection| sockets.is_open(connection));
    let drive_behind = |connection: &str| {
        let mut behind =
            drives.iter().enumerate().filter(|(_, drive)| sockets.leads_to(connection, &drive.server));
        behind.next().map(|(number, _)| number).filter(|_| behind.next().is_none())
    };
    let behind: Vec<Option<usize>> = open().map(|connection| drive_behind(connection)).collect();
    let is_alone = |drive: usize| {
        let with_requests = behind.iter().filter(|other| **other == Some(drive)).count();
        with_requests == 1 && drives.get(drive).is_some_and(|drive| sockets.count_to(&drive.server) <= 1)
    };
    let disk = |(connection, drive): (&str, &Option<usize>)| {
        let name = names.get(drive.filter(|drive| is_alone(*drive))?)?.as_deref()?;
        Some(NbdDisk { disk: name.into(), connection: connection.into() })
    };
    open().map(|connection| &**connection).zip(&behind).filter_map(disk).collect()
}

/// Returns the names of the drives that have one: by a serial number that no other drive has.
fn names_of(drives: &[NbdDrive]) -> Vec<Option<String>> {
    let mut names: Vec<Option<String>> = drives.iter().map(name_of).collect();
    let shared = machine_disks::shared_names(names.iter().flatten());
    names.iter_mut().for_each(|name| drop(name.take_if(|name| shared.contains(name))));
    names
}

/// Returns the name of a drive if the server has its bytes at the guest's offsets.
fn name_of(drive: &NbdDrive) -> Option<String> {
    let is_guests = !drive.options.is_backing && drive.options.format.as_deref() == Some("raw");
    machine_disks::name_by_serial(drive.options.serial.as_deref()?).filter(|_| is_guests)
}

/// Sockets of a network namespace, as far as some connections need them.
#[derive(Default)]
struct Sockets {
    /// Established TCP connections of the process, by their names.
    tcp: HashSet<String>,
    /// Paths of Unix sockets, by inode; none of a socket without one.
    unix: HashMap<u64, Option<String>>,
}

impl Sockets {
    fn of(root: &Path, pid: Pid, connections: &[Box<str>]) -> Sockets {
        let list = |name: &str| list(&root.join(format!("proc/{}/net/{name}", pid.0)));
        let mut sockets = Sockets::default();
        let wanted: HashSet<u64> =
            connections.iter().filter_map(|name| unix_inodes(name)).flat_map(<[u64; 2]>::from).collect();
        if !wanted.is_empty() {
            sockets.add_unix(&list("unix"), &wanted);
        }
        if connections.iter().any(|name| unix_inodes(name).is_none()) {
            let own = own_sockets(&root.join(format!("proc/{}/fd", pid.0)));
            for name in ["tcp", "tcp6"] {
                let list = list(name);
                let rows = list.lines().filter_map(established).filter(|(_, inode)| own.contains(inode));
                sockets.tcp.extend(rows.map(|(name, _)| name));
            }
        }
        sockets
    }

    fn add_unix(&mut self, list: &str, wanted: &HashSet<u64>) {
        for (inode, path) in list.lines().filter_map(unix_row).filter(|(inode, _)| wanted.contains(inode)) {
            let is_new = self.unix.insert(inode, path.map(str::to_owned)).is_none();
            if !is_new {
                self.unix.insert(inode, None);
            }
        }
    }

    /// Returns whether the process's end of a connection is open.
    fn is_open(&self, connection: &str) -> bool {
        match unix_inodes(connection) {
            Some([own, _]) => self.unix.contains_key(&own),
            None => self.tcp.contains(connection),
        }
    }

    /// Returns the number of TCP connections that lead to a server, with requests or without.
    fn count_to(&self, server: &NbdServer) -> usize {
        let addresses = self.tcp.iter().filter_map(|name| remote_address(name));
        addresses.filter(|address| server.is_at(*address)).count()
    }

    fn leads_to(&self, connection: &str, server: &NbdServer) -> bool {
        match unix_inodes(connection) {
            // A socket that the server accepted has the path at which the server listens.
            Some([_, remote]) => match self.unix.get(&remote) {
                Some(Some(path)) => server.is_path(path),
                _ => false,
            },
            None => remote_address(connection).is_some_and(|address| server.is_at(address)),
        }
    }
}

/// Returns the inodes of a connection named `unix:BOOT:INODE>INODE`, the process's own first.
fn unix_inodes(connection: &str) -> Option<[u64; 2]> {
    let (own, remote) = connection.strip_prefix("unix:")?.rsplit_once('>')?;
    Some([own.rsplit(':').next()?.parse().ok()?, remote.parse().ok()?])
}

/// Returns the remote address of a connection named `ADDRESS:PORT>ADDRESS:PORT`.
fn remote_address(connection: &str) -> Option<SocketAddr> {
    connection.rsplit_once('>')?.1.parse().ok()
}

/// Reads a list of sockets; an empty one if it is unreadable.
fn list(path: &Path) -> String {
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|list| list.take(SOCKETS_MAX).read_to_end(&mut bytes));
    if read.is_err() { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() }
}

/// Returns inode and path of a row of /proc/net/unix.
fn unix_row(row: &str) -> Option<(u64, Option<&str>)> {
    let (mut rest, mut last) = (row, "");
    for _ in 0..UNIX_COLUMNS {
        (last, rest) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
    }
    Some((last.parse().ok()?, (!rest.is_empty()).then_some(rest)))
}

/// Returns the inodes of the sockets that a process has open; none if that is unreadable.
fn own_sockets(descriptors: &Path) -> HashSet<u64> {
    let entries = fs::read_dir(descriptors).into_iter().flatten().flatten();
    let inode = |entry: fs::DirEntry| {
        let link = fs::read_link(entry.path()).ok()?;
        link.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok()
    };
    entries.take(DESCRIPTORS_MAX).filter_map(inode).collect()
}

/// Returns name and inode of an established connection, of a row of /proc/net/tcp or tcp6.
fn established(row: &str) -> Option<(String, u64)> {
    let mut columns = row.split_whitespace().skip(1);
    let [local, remote, state] = [columns.next()?, columns.next()?, columns.next()?];
    let inode = columns.nth(INODE_AFTER_STATE)?.parse().ok()?;
    let name = format!("{}>{}", address(local)?, address(remote)?);
    (state == ESTABLISHED).then_some((name, inode))
}

/// Reads an address as /proc/net/tcp has it: words of 32 bits in hexadecimal digits, each in this machine's byte order, and a
/// port (net/ipv4/tcp_ipv4.c, `get_tcp4_sock`).
fn address(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word =
        |at: usize| Some(u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?.to_ne_bytes());
    let ip: IpAddr = match address.len() {
        8 => Ipv4Addr::from(word(0)?).into(),
        32 => {
            let mut bytes = [0; 16];
            for (at, part) in bytes.chunks_mut(4).enumerate() {
                part.copy_from_slice(&word(at)?);
            }
            Ipv6Addr::from(bytes).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(ip, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::symlink;

    use blkkin_qemu::ImageOptions;

    use super::*;

    fn drive(server: NbdServer, serial: Option<&str>, format: Option<&str>) -> NbdDrive {
        let options = ImageOptions {
            format: format.map(str::to_owned),
            serial: serial.map(str::to_owned),
            ..ImageOptions::default()
        };
        NbdDrive { server, options }
    }

    fn tcp(host: &str) -> NbdServer {
        NbdServer::Tcp(host.to_owned(), 10_809)
    }

    const CONNECTIONS: [&str; 3] = [
        "192.0.2.1:40000>192.0.2.2:10809",
        "192.0.2.1:40001>192.0.2.2:10809",
        "[2001:db8::1]:40000>[2001:db8::2]:10809",
    ];
    /// List of the kernel with these connections, one that is closed, and one of another process.
    const TCP: &str = "  sl  local_address rem_address   st tx_queue tr tm->when retrnsmt   uid  timeout inode\n\
        0: 010200C0:9C40 020200C0:2A39 01 00000000:00000000 00:00000000 00000000     0        0 101 1 x\n\
        1: 010200C0:9C41 020200C0:2A39 01 00000000:00000000 00:00000000 00000000     0        0 102 1 x\n\
        2: 010200C0:9C42 020200C0:2A39 06 00000000:00000000 00:00000000 00000000     0        0 0 1 x\n\
        3: 010200C0:9C43 020200C0:2A39 01 00000000:00000000 00:00000000 00000000     0        0 199 1 x\n";
    const TCP6: &str = "x\n0: B80D0120000000000000000001000000:9C40 B80D0120000000000000000002000000:2A39 01 \
        00000000:00000000 00:00000000 00000000     0        0 103 1 x\n";
    /// The list without the second one.
    fn one_connection() -> String {
        TCP.replace("9C41 020200C0:2A39 01", "9C41 020200C0:2A39 06")
    }

    const UNIX: &str = "Num       RefCount Protocol Flags    Type St Inode Path\n\
        0000000000000000: 00000003 00000000 00000000 0001 03    44\n\
        0000000000000000: 00000003 00000000 00000000 0001 03    45 /run/a b.sock\n\
        0000000000000000: 00000003 00000000 00000000 0001 03    46\n\
        0000000000000000: 00000003 00000000 00000000 0001 03    47 /run/a b.sock\n\
        0000000000000000: 00000003 00000000 00000000 0001 03    47 /run/other\n";

    /// Returns the disks behind connections.
    fn found(connections: &[&str], tcp: &str, drives: &[NbdDrive]) -> Vec<(String, String)> {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/7/net");
        fs::create_dir_all(&folder).unwrap();
        let descriptors = root.path().join("proc/7/fd");
        fs::create_dir(&descriptors).unwrap();
        for inode in [101, 102, 103] {
            symlink(format!("socket:[{inode}]"), descriptors.join(inode.to_string())).unwrap();
        }
        for (name, text) in [("unix", UNIX), ("tcp", tcp), ("tcp6", TCP6)] {
            fs::write(folder.join(name), text).unwrap();
        }
        let connections: Vec<Box<str>> = connections.iter().map(|name| Box::from(*name)).collect();
        let disks = of_connections(root.path(), Pid(7), &connections, drives).into_iter();
        disks.map(|disk| (disk.disk.into_string(), disk.connection.into_string())).collect()
    }

    fn pairs<const N: usize>(disks: [(&str, &str); N]) -> Vec<(String, String)> {
        disks.map(|(disk, connection)| (disk.to_owned(), connection.to_owned())).to_vec()
    }

    #[test]
    fn each_connection_has_the_disk_of_its_server() {
        let drives = [
            drive(tcp("192.0.2.2"), Some("far"), Some("raw")),
            drive(tcp("2001:db8::2"), Some("a serial number of more than 20 bytes"), Some("raw")),
            drive(NbdServer::Unix("/run/a b.sock".to_owned()), Some("near"), Some("raw")),
        ];
        let [first, _, sixth] = CONNECTIONS;
        let all = [
            first,
            sixth,
            "unix:boot:44>45",
            "unix:boot:1>45",
            "192.0.2.1:40002>192.0.2.2:10809",
            "nonsense",
        ];
        let expected = pairs([
            ("serial=far", first),
            ("serial=a serial number of m", sixth),
            ("serial=near", "unix:boot:44>45"),
        ]);
        assert_eq!(found(&all, &one_connection(), &drives), expected);
        // A list in which a user has put a row for another's socket.
        assert_eq!(found(&["unix:boot:46>47"], TCP, &drives), pairs([]));
    }

    #[test]
    fn two_open_connections_to_one_server_have_no_disk() {
        let drives = [drive(tcp("192.0.2.2"), Some("far"), Some("raw"))];
        let [first, second, _] = CONNECTIONS;
        assert_eq!(found(&[first, second], TCP, &drives), pairs([]));
        assert_eq!(found(&[first], TCP, &drives), pairs([]), "the other one has sent no request yet");
        assert_eq!(found(&[first, second], &one_connection(), &drives), pairs([("serial=far", first)]));
    }

    #[test]
    fn a_choice_or_an_unknown_format_has_no_disk() {
        let far = |serial, format| drive(tcp("192.0.2.2"), serial, format);
        let disks = |drives: &[NbdDrive]| found(&CONNECTIONS[..1], &one_connection(), drives).len();
        assert_eq!(disks(&[far(Some("far"), Some("raw"))]), 1);
        assert_eq!(
            disks(&[far(Some("far"), Some("raw")), far(Some("other"), Some("raw"))]),
            0,
            "two exports"
        );
        // One of both is a CD without a serial number: it is a choice too.
        assert_eq!(disks(&[far(Some("far"), Some("raw")), far(None, Some("raw"))]), 0);
        let unread = drive(NbdServer::Unknown, None, None);
        assert_eq!(disks(&[far(Some("far"), Some("raw")), unread]), 0);
        let other = drive(tcp("192.0.2.9"), Some("far"), Some("raw"));
        assert_eq!(disks(&[far(Some("far"), Some("raw")), other]), 0, "one serial number");
        for (serial, format) in [(Some("far"), None), (Some("far"), Some("qcow2")), (None, Some("raw"))] {
            assert_eq!(disks(&[far(serial, format)]), 0);
        }
        let mut backing = far(Some("far"), Some("raw"));
        backing.options.is_backing = true;
        assert_eq!(disks(&[backing]), 0);
    }

    #[test]
    fn connections_of_this_machine_are_in_its_list() {
        for host in ["127.0.0.1", "[::1]"] {
            let Ok(listener) = TcpListener::bind(format!("{host}:0")) else { continue };
            let stream = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let [local, remote] = [stream.local_addr(), stream.peer_addr()].map(Result::unwrap);
            let name: Box<str> = format!("{local}>{remote}").into();
            let own = Pid(std::process::id());
            assert!(Sockets::of(Path::new("/"), own, std::slice::from_ref(&name)).is_open(&name));
        }
    }
}
