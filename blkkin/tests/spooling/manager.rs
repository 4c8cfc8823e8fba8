//! A service manager that stores descriptors for its service, by sd_notify(3) and sd_listen_fds(3).

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::CommandExt;
use std::process::Command;

use tempfile::TempDir;

/// The descriptor store that systemd has for a service with `FileDescriptorStoreMax=`.
pub(crate) struct Manager {
    socket: UnixDatagram,
    folder: TempDir,
    pub(crate) stored: Vec<(String, OwnedFd)>,
}

impl Manager {
    pub(crate) fn new() -> Manager {
        let folder = tempfile::tempdir().unwrap();
        let socket = UnixDatagram::bind(folder.path().join("notify")).unwrap();
        socket.set_nonblocking(true).unwrap();
        Manager { socket, folder, stored: Vec::new() }
    }

    /// Returns the command as the manager starts it: with the stored descriptors from descriptor 3
    /// on.
    pub(crate) fn start(&self, command: Command) -> Command {
        let mut shell = Command::new("sh");
        shell.args(["-c", "export LISTEN_PID=$$; exec \"$@\"", "sh"]);
        shell.arg(command.get_program()).args(command.get_args());
        let names: Vec<_> = self.stored.iter().map(|(name, _)| name.as_str()).collect();
        shell.env("NOTIFY_SOCKET", self.folder.path().join("notify")).env("FDSTORE", "8");
        shell.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
        let stored: Vec<_> = self.stored.iter().map(|(_, descriptor)| descriptor.as_raw_fd()).collect();
        // SAFETY: fcntl and dup2 are async-signal-safe and take numbers only. At most 8 descriptors
        // are stored.
        unsafe {
            shell.pre_exec(move || {
                // Moved to high numbers first, so that no descriptor is overwritten before it is
                // moved.
                let mut moved = [0; 8];
                for (fd, moved) in stored.iter().zip(&mut moved) {
                    *moved = libc::fcntl(*fd, libc::F_DUPFD_CLOEXEC, 100);
                }
                moved.iter().take(stored.len()).zip(3..).for_each(|(fd, target)| {
                    libc::dup2(*fd, target);
                });
                Ok(())
            });
        }
        shell
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.stored.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Processes the notifications that have arrived.
    pub(crate) fn receive_notifications(&mut self) {
        while let Some((message_text, descriptors)) = receive(&self.socket) {
            let name = message_text.lines().find_map(|line| line.strip_prefix("FDNAME="));
            let name = name.unwrap_or_default().to_owned();
            if message_text.contains("FDSTORE=1") {
                assert!(
                    message_text.contains("FDPOLL=0"),
                    "without it systemd polls the map, sees an error and drops it"
                );
                assert_eq!(descriptors.len(), 2, "both maps by one message");
                // In no order that the agent may rely on.
                descriptors
                    .into_iter()
                    .for_each(|descriptor| self.stored.insert(0, (name.clone(), descriptor)));
            } else if message_text.contains("FDSTOREREMOVE=1") {
                self.stored.retain(|(stored, _)| *stored != name);
            }
        }
    }
}

/// Receives a notification and the descriptors that came with it.
fn receive(socket: &UnixDatagram) -> Option<(String, Vec<OwnedFd>)> {
    let (mut message_text, mut control) = ([0u8; 4096], [0u64; 8]);
    let mut part = libc::iovec { iov_base: message_text.as_mut_ptr().cast(), iov_len: message_text.len() };
    // SAFETY: a message header of zeros is valid and empty.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    (message.msg_iov, message.msg_iovlen) = (&raw mut part, 1);
    (message.msg_control, message.msg_controllen) = (control.as_mut_ptr().cast(), size_of_val(&control) as _);
    // SAFETY: the header points to memory that outlives the call, with its length.
    let length = unsafe { libc::recvmsg(socket.as_raw_fd(), &raw mut message, libc::MSG_CMSG_CLOEXEC) };
    let text = String::from_utf8_lossy(message_text.get(..usize::try_from(length).ok()?)?).into_owned();
    // SAFETY: the kernel has filled the header in; an SCM_RIGHTS message contains descriptors that
    // this process owns now, as many as its length has room for.
    let descriptors = unsafe {
        let first = libc::CMSG_FIRSTHDR(&raw const message);
        let is_rights = !first.is_null() && (*first).cmsg_type == libc::SCM_RIGHTS;
        let bytes = if is_rights { (*first).cmsg_len - libc::CMSG_LEN(0) as usize } else { 0 };
        let descriptor = |at| std::ptr::read_unaligned(libc::CMSG_DATA(first).cast::<i32>().add(at));
        (0..bytes / size_of::<i32>()).map(|at| OwnedFd::from_raw_fd(descriptor(at))).collect()
    };
    Some((text, descriptors))
}
