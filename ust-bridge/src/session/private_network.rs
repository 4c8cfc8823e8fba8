//! A network namespace for the relay, which other users cannot enter.
//!
//! *In*: nothing. *Out*: a namespace with a loopback device, which a child enters before it
//! executes a program, and connections into it.
//!
//! *Invariant*: a relay has no password, so each process in its namespace can read and forge
//! traces. The namespace contains only processes that blkkin started in it. Other users cannot
//! enter it: `setns` requires CAP_SYS_ADMIN there.
//!
//! Without CAP_SYS_ADMIN the namespace belongs to a new user namespace, in which blkkin's user has
//! its own id. A process with several threads cannot enter that one, so a short-lived child creates
//! each socket and sends it back.
//!
//! *Rejected*: a Unix socket, because lttng-relayd has none. Entering the namespace in one thread,
//! because that requires CAP_SYS_ADMIN.

use std::fs::File;
use std::io::{self, IoSlice, IoSliceMut, Write};
use std::mem::MaybeUninit;
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::Duration;

use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, connect, recvmsg, sendmsg, socket_with,
    socketpair,
};

/// Maximum time until a connection is accepted.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Descriptors that a child sends back at most.
const DESCRIPTORS_MAX: usize = 2;

/// A network namespace, kept by its descriptors.
#[derive(Debug)]
pub struct PrivateNetwork {
    net: OwnedFd,
    /// User namespace that owns the network; `None` if it is blkkin's own.
    user: Option<OwnedFd>,
}

impl PrivateNetwork {
    /// Creates a namespace and activates its loopback device. Without CAP_SYS_ADMIN this requires
    /// unprivileged user namespaces.
    pub fn create() -> io::Result<Self> {
        let mut created = receive_from_child(|| {
            unshare(libc::CLONE_NEWNET)?;
            activate_loopback()?;
            Ok(vec![File::open("/proc/self/ns/net")?.into()])
        });
        if created.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::PermissionDenied) {
            created = Self::create_with_user_namespace();
        }
        let mut descriptors = created?.into_iter();
        let net = descriptors.next().ok_or(io::ErrorKind::UnexpectedEof)?;
        Ok(Self { net, user: descriptors.next() })
    }

    fn create_with_user_namespace() -> io::Result<Vec<OwnedFd>> {
        // SAFETY: the calls return numbers and cannot fail.
        let (user, group) = unsafe { (libc::geteuid(), libc::getegid()) };
        let maps = [
            ("/proc/self/setgroups", "deny".to_owned()),
            ("/proc/self/uid_map", format!("{user} {user} 1")),
            ("/proc/self/gid_map", format!("{group} {group} 1")),
        ];
        receive_from_child(move || {
            unshare(libc::CLONE_NEWUSER | libc::CLONE_NEWNET)?;
            for (path, content) in &maps {
                File::options().write(true).open(path)?.write_all(content.as_bytes())?;
            }
            activate_loopback()?;
            let open = |path| File::open(path).map(OwnedFd::from);
            Ok(vec![open("/proc/self/ns/net")?, open("/proc/self/ns/user")?])
        })
    }

    /// Makes the command's process enter the namespace before it executes the program.
    pub fn contain(&self, command: &mut Command) -> io::Result<()> {
        let enter = self.entry()?;
        // SAFETY: `enter` only makes system calls.
        unsafe { command.pre_exec(enter) };
        Ok(())
    }

    /// Connects to a port of the namespace's loopback address.
    pub fn connect(&self, port: u16) -> io::Result<TcpStream> {
        let enter = self.entry()?;
        let sockets = receive_from_child(move || {
            enter()?;
            Ok(vec![socket_with(AddressFamily::INET, SocketType::STREAM, SocketFlags::CLOEXEC, None)?])
        })?;
        let socket = sockets.into_iter().next().ok_or(io::ErrorKind::UnexpectedEof)?;
        let stream = TcpStream::from(socket);
        stream.set_write_timeout(Some(CONNECT_TIMEOUT))?;
        connect(&stream, &SocketAddrV4::new(Ipv4Addr::LOCALHOST, port))?;
        stream.set_write_timeout(None)?;
        Ok(stream)
    }

    /// Returns a function that moves a process with one thread into the namespace.
    fn entry(&self) -> io::Result<impl Fn() -> io::Result<()> + Send + Sync + use<>> {
        let user = self.user.as_ref().map(OwnedFd::try_clone).transpose()?;
        let net = self.net.try_clone()?;
        Ok(move || {
            user.iter().try_for_each(|user| set_namespace(user.as_fd(), libc::CLONE_NEWUSER))?;
            set_namespace(net.as_fd(), libc::CLONE_NEWNET)
        })
    }
}

fn unshare(flags: libc::c_int) -> io::Result<()> {
    // SAFETY: the call takes a number, and runs in a child with one thread.
    succeeded(unsafe { libc::unshare(flags) })
}

fn set_namespace(namespace: BorrowedFd<'_>, kind: libc::c_int) -> io::Result<()> {
    // SAFETY: the descriptor is open, and the call runs in a child with one thread.
    succeeded(unsafe { libc::setns(namespace.as_raw_fd(), kind) })
}

fn activate_loopback() -> io::Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: zeros are a valid ifreq.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    request.ifr_name[..2].copy_from_slice(&[b'l' as libc::c_char, b'o' as libc::c_char]);
    request.ifr_ifru.ifru_flags = libc::IFF_UP as libc::c_short;
    // SAFETY: the request outlives the call, which reads a name and flags from it.
    succeeded(unsafe { libc::ioctl(socket.as_raw_fd(), libc::SIOCSIFFLAGS as _, &raw const request) })
}

fn succeeded(code: libc::c_int) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Runs `make` in a child process, and returns the descriptors that it opens there.
fn receive_from_child(
    make: impl Fn() -> io::Result<Vec<OwnedFd>> + Send + Sync + 'static,
) -> io::Result<Vec<OwnedFd>> {
    let (ours, theirs) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // The child ends before it executes this program.
    let mut command = Command::new("/proc/self/exe");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let run = move || {
        send_descriptors(theirs.as_fd(), &make()?)?;
        // SAFETY: ends the child without the parent's exit handlers.
        unsafe { libc::_exit(0) }
    };
    // SAFETY: `run` makes system calls and allocates some bytes. Rust's allocator is the C
    // library's, which resets its locks in the child after a fork.
    unsafe { command.pre_exec(run) };
    let spawned = command.spawn();
    // Closes the parent's copy of the child's end.
    drop(command);
    let mut child = spawned?;
    let received = receive_descriptors(ours.as_fd());
    child.wait()?;
    received
}

fn send_descriptors(socket: BorrowedFd<'_>, descriptors: &[OwnedFd]) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let mut borrowed = [socket; DESCRIPTORS_MAX];
    for (slot, descriptor) in borrowed.iter_mut().zip(descriptors) {
        *slot = descriptor.as_fd();
    }
    let sent = &borrowed[..descriptors.len().min(DESCRIPTORS_MAX)];
    if !ancillary.push(SendAncillaryMessage::ScmRights(sent)) {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    sendmsg(socket, &[IoSlice::new(&[1])], &mut ancillary, SendFlags::empty())?;
    Ok(())
}

fn receive_descriptors(socket: BorrowedFd<'_>) -> io::Result<Vec<OwnedFd>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(socket, &mut [IoSliceMut::new(&mut byte)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let rights = ancillary.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(rights) => Some(rights),
        _ => None,
    });
    Ok(rights.flatten().collect())
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn network_is_separate_and_can_be_entered() {
        // Where none can be created, as in some containers, there is nothing to test.
        let Ok(network) = PrivateNetwork::create() else { return };
        let own = std::fs::metadata("/proc/self/ns/net").unwrap();
        let created = File::from(network.net.try_clone().unwrap()).metadata().unwrap();
        assert_ne!(own.ino(), created.ino());
        // A port of this machine is not one of the network.
        let outside = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = outside.local_addr().unwrap().port();
        let refused = network.connect(port).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        let mut command = Command::new("readlink");
        command.arg("/proc/self/ns/net");
        network.contain(&mut command).unwrap();
        let inside = command.output().unwrap();
        assert_eq!(String::from_utf8_lossy(&inside.stdout).trim(), format!("net:[{}]", created.ino()));
    }
}
