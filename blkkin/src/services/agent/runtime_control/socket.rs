//! Server of `blkkin ctl` at a Unix socket.
//!
//! *In*: requests. *Out*: the answers of the [`Controller`](super::Controller). *Invariant*: only root and a group that the operator names can
//! connect, by the mode of the socket's file, from its first moment on.
//!
//! One client at a time has [`CLIENT_LIMIT`]; so a change ends at most that much late.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileTypeExt, PermissionsExt, lchown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, fchmod};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, socket_with};
use tracing::warn;

use super::RuntimeControl;
use crate::cli::AgentArgs;
use crate::ctl::protocol::{self, REQUEST_MAX, Request};
use crate::error::CliError;
use crate::service::peer_credentials;

/// Time that a client has for its request, and again for the answer.
const CLIENT_LIMIT: Duration = Duration::from_secs(2);
const GROUPS: &str = "/etc/group";
/// Clients that wait for their turn.
const BACKLOG: i32 = 128;

/// An open socket that is not served yet.
pub(crate) struct ControlSocket(UnixListener);

impl ControlSocket {
    /// Opens the socket of the options, with its group; none without the option.
    pub(crate) fn open(args: &AgentArgs) -> Result<Option<ControlSocket>, CliError> {
        let Some(path) = &args.ctl else { return Ok(None) };
        let group = args.ctl_group.as_deref().map(group_id).transpose()?;
        let listener = bind(path, group).map_err(|error| {
            CliError::cannot_trace(
                format!("cannot listen for blkkin ctl at {}", path.display()),
                error,
                "--ctl PATH in a folder where this user may create files, which no other agent uses",
            )
        })?;
        Ok(Some(ControlSocket(listener)))
    }

    /// Serves clients until the process exits.
    pub(super) fn serve(self, control: &RuntimeControl) {
        loop {
            let left = control.lock().end_due(Instant::now());
            match wait(&self.0, left) {
                Ok(false) => {}
                Ok(true) => match self.0.accept() {
                    Ok((client, _)) => serve_client(control, client),
                    Err(error) => pause(&error),
                },
                Err(error) => pause(&error),
            }
        }
    }
}

fn serve_client(control: &RuntimeControl, mut client: UnixStream) {
    let request = protocol::receive::<Request>(&mut client, REQUEST_MAX, CLIENT_LIMIT);
    let answer = match request {
        Ok(request) => control.lock().answer(&request, peer_credentials(&client)),
        Err(error) => control.lock().refused(CliError::usage(
            "bad request to the agent",
            error,
            "blkkin ctl of the same version",
        )),
    };
    // A client that has gone reads no answer; its change is in the log.
    let _ = protocol::send(&mut client, &answer, CLIENT_LIMIT);
}

/// Waits after an error of the socket, such as a lack of file descriptors.
fn pause(error: &io::Error) {
    warn!("blkkin ctl is not served for {} s: {error}", CLIENT_LIMIT.as_secs());
    std::thread::sleep(CLIENT_LIMIT);
}

/// Waits for a client. Returns false after `limit`.
fn wait(listener: &UnixListener, limit: Option<Duration>) -> io::Result<bool> {
    let mut fds = [PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN)];
    let limit = limit.map(|limit| Timespec {
        tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
        tv_nsec: limit.subsec_nanos().into(),
    });
    match poll(&mut fds, limit.as_ref()) {
        Ok(ready) => Ok(ready > 0),
        Err(rustix::io::Errno::INTR) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

/// Binds the socket for root, and for a group. The file of an agent that has ended is replaced.
fn bind(path: &Path, group: Option<u32>) -> io::Result<UnixListener> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        fs::create_dir_all(folder)?;
    }
    let listener = match bind_private(path) {
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
            if !fs::symlink_metadata(path)?.file_type().is_socket() {
                return Err(io::Error::new(error.kind(), "there is a file, which is no socket"));
            }
            match UnixStream::connect(path) {
                Err(refused) if refused.kind() == io::ErrorKind::ConnectionRefused => {}
                _ => return Err(io::Error::new(error.kind(), "another agent listens there")),
            }
            fs::remove_file(path)?;
            bind_private(path)?
        }
        other => other?,
    };
    if let Some(group) = group {
        lchown(path, None, Some(group))?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o660))?;
    }
    Ok(listener)
}

/// Binds a socket to which only this user and root can connect, from its first moment on: the file gets its mode
/// from that of the socket (`unix_bind_bsd`, net/unix/af_unix.c).
fn bind_private(path: &Path) -> io::Result<UnixListener> {
    let address = SocketAddrUnix::new(path)?;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
    fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
    rustix::net::bind(&socket, &address)?;
    rustix::net::listen(&socket, BACKLOG)?;
    Ok(socket.into())
}

/// Returns the number of a group, by its name or number. Groups of directory services have a number only: a
/// statically linked program cannot ask for them.
fn group_id(group: &str) -> Result<u32, CliError> {
    let number = |text: &str| text.parse::<u32>().ok();
    let unknown = |why: String| {
        CliError::usage(
            format!("unknown group `{group}` for --ctl-group"),
            why,
            "--ctl-group with a group of /etc/group, or its number (getent group NAME)",
        )
    };
    if let Some(number) = number(group) {
        return Ok(number);
    }
    let groups = fs::read_to_string(GROUPS).map_err(|error| unknown(format!("{GROUPS}: {error}")))?;
    // name:password:number:members
    let fields = groups.lines().map(|line| line.split(':').collect::<Vec<_>>());
    let found =
        fields.filter(|fields| fields.first() == Some(&group)).find_map(|fields| number(fields.get(2)?));
    found.ok_or_else(|| unknown(format!("{GROUPS} has no group of that name")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_socket_is_private_and_replaces_that_of_an_ended_agent() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run/ctl.sock");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        let first = bind(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        assert!(bind(&path, None).unwrap_err().to_string().contains("another agent"));
        drop(first);
        let _second = bind(&path, None).unwrap();
        assert_eq!(mode(), 0o600);
        let file = folder.path().join("agent.toml");
        fs::write(&file, "sample = 1").unwrap();
        assert!(bind(&file, None).unwrap_err().to_string().contains("no socket"));
        assert!(fs::read_to_string(&file).unwrap().contains("sample"));
        assert_eq!((group_id("root").unwrap(), group_id("4711").unwrap()), (0, 4711));
        assert!(group_id("no-such-group").unwrap_err().why.contains("/etc/group"));
    }
}
