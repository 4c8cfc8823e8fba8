//! Disks of a virtual machine that an NBD server has, by the connections of its QEMU process.
//!
//! *In*: the names of the connections on which a QEMU process sent NBD requests, as the kernel side has them; the servers that its
//! command line names; and the paths of Unix sockets in its network namespace. *Out*: the disk behind each connection.
//!
//! *Invariant*: a connection has a disk only if it leads to one server of the command line, which one disk alone names.
//! So two exports of one server have none. The handshake, which has the name of the export, is over when a tracer starts.
//! Of two connections to one server that are used at the same time, one may be that of a disk which was attached later: both
//! have none.
//!
//! A disk has a name only by its serial number: no list of this machine has the length of a disk that a server has. Its format
//! must be raw by the command line, since nothing here can read the header of a qcow2 image.
//!
//! *Rejected*: the process's sockets in /proc/PID/net/tcp (they are those of the requests, read later); the order of the
//! connections (a reconnection changes it).

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::Path;

use blkkin_qemu::{NbdDisk as Candidate, NbdServer};
use blkkin_wire::ids::Pid;
use blkkin_wire::virtual_machine::NbdDisk;

use super::machine_disks;

/// Maximum number of bytes of the list of Unix sockets: some 200,000 sockets.
const SOCKETS_MAX: u64 = 16 << 20;
/// Columns before the path: address, references, protocol, flags, type, state, inode (net/unix/af_unix.c, `unix_seq_show`).
const COLUMNS: usize = 7;

/// Connection on which a process sent NBD requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NbdConnection {
    /// Name, as the kernel side has it.
    pub(crate) name: Box<str>,
    /// Number among the process's connections, in the order of their first requests.
    pub(crate) number: u64,
    /// Number of the process's newest connection at the last request on this one.
    pub(crate) newest_at_use: u64,
}

impl NbdConnection {
    /// Returns whether it was used after the first request on a later one.
    fn is_used_with(&self, later: &NbdConnection) -> bool {
        self.number < later.number && later.number <= self.newest_at_use
    }
}

/// Returns the disk behind each of these connections that leads to one. `root` has `proc`.
pub(crate) fn of_connections(
    root: &Path,
    pid: Pid,
    connections: &[NbdConnection],
    disks: &[Candidate],
) -> Vec<NbdDisk> {
    let mut names = disks.iter().map(name_of).collect::<Vec<_>>();
    let mut counts: HashMap<String, u32> = HashMap::new();
    names.iter().flatten().for_each(|name| *counts.entry(name.clone()).or_default() += 1);
    names.iter_mut().for_each(|name| drop(name.take_if(|name| counts.get(name) != Some(&1))));
    let has_unix = disks.iter().any(|disk| matches!(disk.server, NbdServer::Unix(_)));
    let sockets = if has_unix { socket_list(root, pid) } else { String::new() };
    let disk_behind = |connection: &NbdConnection| {
        let far = far_end(&connection.name, &sockets)?;
        let mut behind = disks.iter().zip(&names).filter(|(disk, _)| far.is_of(&disk.server));
        let (_, name) = behind.next().filter(|_| behind.next().is_none())?;
        name.as_deref()
    };
    let behind: Vec<(&NbdConnection, &str)> =
        connections.iter().filter_map(|connection| Some((connection, disk_behind(connection)?))).collect();
    let is_alone = |(one, disk): &&(&NbdConnection, &str)| {
        let mut others = behind.iter().filter(|(_, other)| other == disk).map(|(other, _)| *other);
        !others.any(|other| one.is_used_with(other) || other.is_used_with(one))
    };
    let alone = behind.iter().filter(is_alone);
    alone.map(|(one, disk)| NbdDisk { disk: (*disk).into(), connection: one.name.clone() }).collect()
}

/// Returns the name of a disk whose bytes the server has at the guest's offsets.
fn name_of(disk: &Candidate) -> Option<String> {
    let is_guests = !disk.options.is_backing && disk.options.format.as_deref() == Some("raw");
    machine_disks::name_by_serial(disk.options.serial.as_deref()?).filter(|_| is_guests)
}

/// End of a connection at its server.
enum FarEnd<'a> {
    Tcp(SocketAddr),
    Unix(&'a str),
}

impl FarEnd<'_> {
    fn is_of(&self, server: &NbdServer) -> bool {
        match self {
            FarEnd::Tcp(address) => server.is_at(*address),
            FarEnd::Unix(path) => server.is_path(path),
        }
    }
}

/// Returns the far end of a connection by its name: `ADDRESS:PORT>ADDRESS:PORT` or `unix:BOOT:INODE>INODE`.
fn far_end<'a>(connection: &str, sockets: &'a str) -> Option<FarEnd<'a>> {
    let (near, far) = connection.rsplit_once('>')?;
    if near.starts_with("unix:") {
        return Some(FarEnd::Unix(path_of(sockets, far.parse().ok()?)?));
    }
    Some(FarEnd::Tcp(far.parse().ok()?))
}

/// Returns the list of the Unix sockets in a process's network namespace; an empty one if it is unreadable.
fn socket_list(root: &Path, pid: Pid) -> String {
    let path = root.join(format!("proc/{}/net/unix", pid.0));
    let mut bytes = Vec::new();
    let read = fs::File::open(path).and_then(|list| list.take(SOCKETS_MAX).read_to_end(&mut bytes));
    if read.is_err() { String::new() } else { String::from_utf8_lossy(&bytes).into_owned() }
}

/// Returns the path of a socket. One that a server accepted has the path at which the server listens.
fn path_of(sockets: &str, inode: u64) -> Option<&str> {
    sockets.lines().find_map(|line| {
        let (mut rest, mut last) = (line, "");
        for _ in 0..COLUMNS {
            (last, rest) = rest.trim_start().split_once(' ').unwrap_or((rest.trim_start(), ""));
        }
        (last.parse() == Ok(inode) && !rest.is_empty()).then_some(rest)
    })
}

#[cfg(test)]
mod tests {
    use blkkin_qemu::{Aio, CacheMode, ImageOptions};

    use super::*;

    fn candidate(server: NbdServer, serial: Option<&str>, format: Option<&str>) -> Candidate {
        let options = ImageOptions {
            node: None,
            format: format.map(str::to_owned),
            aio: Aio::Threads,
            cache: CacheMode::default(),
            is_backing: false,
            device: None,
            serial: serial.map(str::to_owned),
            iothreads: Vec::new(),
        };
        Candidate { server, options }
    }

    fn tcp(host: &str) -> NbdServer {
        NbdServer::Tcp(host.to_owned(), 10_809)
    }

    /// Returns the disks behind three connections over TCP and one over a Unix socket.
    fn found(disks: &[Candidate]) -> Vec<(String, String)> {
        let root = tempfile::tempdir().unwrap();
        let folder = root.path().join("proc/7/net");
        fs::create_dir_all(&folder).unwrap();
        let rows = "Num       RefCount Protocol Flags    Type St Inode Path\n\
            0000000000000000: 00000003 00000000 00000000 0001 03    44\n\
            0000000000000000: 00000003 00000000 00000000 0001 03    45 /run/a b.sock\n";
        fs::write(folder.join("unix"), rows).unwrap();
        let connections = [
            "192.0.2.1:40000>192.0.2.2:10809",
            "192.0.2.1:40001>192.0.2.2:10809",
            "[2001:db8::1]:40000>[2001:db8::2]:10809",
            "unix:boot:44>45",
            "unix:boot:45>44",
            "unix:boot:44>x",
            "nonsense",
        ];
        let disks = of_connections(root.path(), Pid(7), &numbered(&connections), disks).into_iter();
        disks.map(|disk| (disk.disk.into_string(), disk.connection.into_string())).collect()
    }

    /// Returns connections that follow each other.
    fn numbered(names: &[&str]) -> Vec<NbdConnection> {
        let all = names.iter().zip(0..);
        all.map(|(name, number)| NbdConnection { name: (*name).into(), number, newest_at_use: number })
            .collect()
    }

    #[test]
    fn each_connection_has_the_disk_of_its_server() {
        let disks = [
            candidate(tcp("192.0.2.2"), Some("far"), Some("raw")),
            candidate(tcp("2001:db8::2"), Some("a serial number of more than 20 bytes"), Some("raw")),
            candidate(NbdServer::Unix("/run/a b.sock".to_owned()), Some("near"), Some("raw")),
        ];
        let expected = [
            ("serial=far", "192.0.2.1:40000>192.0.2.2:10809"),
            ("serial=far", "192.0.2.1:40001>192.0.2.2:10809"),
            ("serial=a serial number of m", "[2001:db8::1]:40000>[2001:db8::2]:10809"),
            ("serial=near", "unix:boot:44>45"),
        ];
        assert_eq!(
            found(&disks),
            expected.map(|(disk, connection)| (disk.to_owned(), connection.to_owned()))
        );
    }

    #[test]
    fn connections_to_one_server_that_are_used_at_the_same_time_have_no_disk() {
        let disks = [
            candidate(tcp("192.0.2.2"), Some("far"), Some("raw")),
            candidate(tcp("192.0.2.3"), Some("other"), Some("raw")),
        ];
        let names = ["a:1>192.0.2.2:10809", "a:2>192.0.2.3:10809", "a:3>192.0.2.2:10809"];
        let of = |newest_at_use: [u64; 3]| {
            let mut connections = numbered(&names);
            connections.iter_mut().zip(newest_at_use).for_each(|(one, used)| one.newest_at_use = used);
            of_connections(Path::new("/"), Pid(7), &connections, &disks).len()
        };
        // The first one was used next to the second, which leads to another server, and ended before the third.
        assert_eq!(of([1, 2, 2]), 3);
        assert_eq!(of([2, 2, 2]), 1);
    }

    #[test]
    fn a_choice_or_an_unknown_format_has_no_disk() {
        let far = |serial, format| candidate(tcp("192.0.2.2"), serial, format);
        let alone = found(&[far(Some("far"), Some("raw"))]);
        assert_eq!(alone.len(), 2);
        let two_exports = [far(Some("far"), Some("raw")), far(Some("other"), Some("raw"))];
        assert_eq!(found(&two_exports), []);
        // One of both is a CD without a serial number: it is a choice too.
        assert_eq!(found(&[far(Some("far"), Some("raw")), far(None, Some("raw"))]), []);
        let one_serial =
            [far(Some("far"), Some("raw")), candidate(tcp("192.0.2.9"), Some("far"), Some("raw"))];
        assert_eq!(found(&one_serial), []);
        for (serial, format) in [(Some("far"), None), (Some("far"), Some("qcow2")), (None, Some("raw"))] {
            assert_eq!(found(&[far(serial, format)]), []);
        }
        let mut backing = far(Some("far"), Some("raw"));
        backing.options.is_backing = true;
        assert_eq!(found(&[backing]), []);
    }
}
