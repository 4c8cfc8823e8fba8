//! A service manager that keeps descriptors for its service, by sd_notify(3) and sd_listen_fds(3).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;

use tempfile::TempDir;

/// What systemd does for a service with `FileDescriptorStoreMax=`.
pub(crate) struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
    pub(crate) kept: Vec<(String, OwnedFd)>,
}

impl Manager {
    pub(crate) fn new() -> Manager {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Manager { socket, folder, kept: Vec::new() }
    }

    /// The same command, as the manager starts it: with what is kept, from descriptor 3 on.
    pub(crate) fn start(&self, command: Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        let names: Vec<_> = self.kept.iter().map(|(name, _)| name.as_str()).collect();
        shell.env("NOTIFY_SOCKET", self.folder.path().join("notify")).env("FDSTORE", "8");
        shell.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        let kept: Vec<_> = self.kept.iter().map(|(_, descriptor)| descriptor.as_raw_fd()).collect();
        // SAFETY: fcntl and dup2 are async-signal-safe; numbers only. No more than 8 are kept.
        unsafe {
            shell.pre_exec(move || {
                // Out of the way first, so that none is written over before it is moved.
                let mut away = [0; 8];
                for (fd, away) in kept.iter().zip(&mut away) {
                    *away = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 100);
                }
                away.iter().take(kept.len()).zip(3..).for_each(|(fd, place)| {
                    libc::dup2(*fd, place);
                });
                Ok(())
            });
        }
        shell
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.kept.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Takes in what it was told.
    pub(crate) fn hear(&mut self) {
        while let Some((words, descriptor)) = receive(&self.socket) {
            let name = words.lines().find_map(|line| line.strip_prefix("FDNAME="));
            let name = name.unwrap_or_default().to_owned();
            if words.contains("FDSTORE=1") {
                assert!(words.contains("FDPOLL=0"), "else systemd takes a map for broken, and lets it go");
                self.kept.push((name, descriptor.unwrap()));
            } else if words.contains("FDSTOREREMOVE=1") {
                self.kept.retain(|(kept, _)| *kept != name);
            }
        }
    }
}

/// A message, and the descriptor that came with it.
fn receive(socket: &UnixDatagram) -> Option<(String, Option<OwnedFd>)> {
    let (mut words, mut control) = ([0u8; 4096], [0u64; 8]);
    let mut part = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: words.len() };
    // SAFETY: all zeros are a message header without anything.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    // SAFETY: the header points at memory that outlives the call, and says how long it is.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let text = String::from_utf8_lossy(words.get(..usize::try_from(length).ok()?)?).into_owned();
    // SAFETY: the kernel has filled the header in; a control message of rights holds descriptors that are ours now.
    let descriptor = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        (!first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS)
            .then(|| OwnedFd::from_raw_fd(std::ptr::read_unaligned(libc::CMSG_DATA(first).cast::<i32>())))
    };
    Some((text, descriptor))
}
