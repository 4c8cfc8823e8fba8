//! Virtual machine of which the QEMU process listens on a Unix socket.
//!
//! *In*: the path of a socket; `/proc/PID/net/unix` and `/proc/PID/fd` of QEMU's processes. *Out*: the machine.
//!
//! *Invariant*: its process has the socket open that listens at this path, and no other process of QEMU has.
//!
//! The kernel reports of a connection which process began to listen (SO_PEERCRED). That is another one where libvirt opens
//! the socket and hands it over (`-chardev socket,fd=…`).
//!
//! *Rejected*: the name of the socket's file or folder (libvirt's has the name of the domain only by default).

use std::collections::HashSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::image::in_root;
use crate::machines::{Machine, machines};

/// Maximum number of bytes of a list of sockets that are read: some 100,000 sockets.
const LIST_MAX: u64 = 16 << 20;
/// Flag of a socket that listens (`__SO_ACCEPTCON`, include/linux/net.h).
const LISTENS: u32 = 1 << 16;

/// Returns the virtual machine of which the process of QEMU listens on a socket; none if the caller may not read which files
/// it has open. `root` is the folder that has `proc`.
pub fn machine_listening_on(root: &Path, socket: &Path) -> Option<Machine> {
    let about = fs::metadata(socket).ok()?;
    let identity = (about.dev(), about.ino());
    let mut found = machines(root).ok()?.into_iter().filter(|machine| {
        let process = root.join("proc").join(machine.pid.to_string());
        listens(&process, identity).is_some_and(|listens| listens)
    });
    found.next().filter(|_| found.next().is_none())
}

/// Returns whether a process has a socket open that listens at the path of this file.
fn listens(process: &Path, file: (u64, u64)) -> Option<bool> {
    let list = BufReader::new(File::open(process.join("net/unix")).ok()?.take(LIST_MAX));
    let sockets = list.split(b'\n').map_while(Result::ok);
    let listening: HashSet<String> = sockets
        .filter_map(|line| {
            let line = String::from_utf8_lossy(&line).into_owned();
            let (inode, path) = listening_socket(&line)?;
            let about = fs::metadata(in_root(process, Path::new(path))).ok()?;
            ((about.dev(), about.ino()) == file).then(|| format!("socket:[{inode}]"))
        })
        .collect();
    if listening.is_empty() {
        return Some(false);
    }
    let mut links =
        fs::read_dir(process.join("fd")).ok()?.flatten().filter_map(|entry| fs::read_link(entry.path()).ok());
    Some(links.any(|link| link.to_str().is_some_and(|link| listening.contains(link))))
}

/// Returns inode and path of a socket that listens, of a line of the list (unix(7), `/proc/net/unix`):
/// `0000000000000000: 00000002 00000000 00010000 0001 01 54321 /run/a.sock`.
fn listening_socket(line: &str) -> Option<(u64, &str)> {
    // Numbers are padded, and a path may have blanks.
    let mut rest = line;
    let mut words = std::iter::from_fn(|| {
        let (word, others) = rest.trim_start().split_once(' ')?;
        rest = others;
        Some(word)
    });
    let flags = u32::from_str_radix(words.nth(3)?, 16).ok()?;
    let inode = words.nth(2)?.parse().ok()?;
    (flags & LISTENS != 0 && rest.starts_with('/')).then_some((inode, rest))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn a_process_listens_on_a_socket_that_another_one_opened() {
        let folder = tempfile::tempdir().unwrap();
        let [path, other] = ["a b.sock", "other.sock"].map(|name| folder.path().join(name));
        let listener = UnixListener::bind(&path).unwrap();
        let _other = UnixListener::bind(&other).unwrap();
        let _connected = UnixStream::connect(&path).unwrap();
        let identity = |path: &Path| {
            let about = fs::metadata(path).unwrap();
            (about.dev(), about.ino())
        };
        let of_path = identity(&path);
        let process = Path::new("/proc/self");
        assert_eq!(listens(process, of_path), Some(true));
        // This one may have inherited other descriptors, and this one not.
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let of_child = listens(&Path::new("/proc").join(child.id().to_string()), of_path);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(of_child, Some(false));
        // The file remains when the socket is closed.
        drop(listener);
        assert_eq!(listens(process, of_path), Some(false));
        assert_eq!(listens(&folder.path().join("none"), of_path), None);
        assert_eq!(machine_listening_on(Path::new("/"), &other), None);
    }

    #[test]
    fn a_line_of_the_list_has_inode_and_path() {
        let line = |inode| format!("ffff8880: 00000002 00000000 00010000 0001 01 {inode:>5} /run/a b.sock");
        for inode in [7, 1_054_321] {
            assert_eq!(listening_socket(&line(inode)), Some((inode, "/run/a b.sock")));
        }
        let others = [
            "Num       RefCount Protocol Flags    Type St Inode Path",
            "ffff8880: 00000003 00000000 00000000 0001 03 54322 /run/a.sock",
            "ffff8880: 00000002 00000000 00010000 0001 01 54323 @abstract",
            "ffff8880: 00000002 00000000 00010000 0001 01 54324",
            "",
        ];
        assert_eq!(others.map(listening_socket), [None; 5]);
    }
}
