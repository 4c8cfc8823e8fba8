//! LTTng's daemons, started where none run and ended with us.
//!
//! A session daemon holds 6 descriptors for each process that it knows, and refuses who comes beyond its limit, so it is given as
//! many as may be given, [`FILES_MAX`] at the most: the usual 1024 are enough for 157.
//!
//! They are children in the foreground, so that their end is known; they get SIGTERM when we are dropped. Where we are
//! killed, the kernel sends it (`PR_SET_PDEATHSIG`): the session daemon then ends its consumer and its sessions.

use std::net::{TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::keeper::Relay;
use super::tool::{Tool, ToolError, wait};

/// Descriptors that a daemon of ours may have: for 10,900 processes. Where a limit is endless (containers have 2^30) who makes room for each
/// descriptor that there could be would take a part of the memory.
pub const FILES_MAX: u64 = 65_535;
/// How long a daemon may take to answer after its start.
const READY_WITHIN: Duration = Duration::from_secs(10);
/// How long one may take to end.
const END_WITHIN: Duration = Duration::from_secs(5);

/// The daemons that we started.
#[derive(Debug, Default)]
pub struct Daemons {
    started: Vec<Child>,
}

impl Daemons {
    /// Sees to it that a session daemon answers, and that a relay listens; says where the relay is. A relay of our own
    /// writes below `folder`.
    pub fn ensure(tool: &Tool, relay: Option<Relay>, folder: &Path) -> Result<(Self, Relay), ToolError> {
        let mut daemons = Self::default();
        if !tool.has_daemon() {
            let agents = format!("--agent-tcp-port={}", free_port()?);
            daemons.start(tool, "lttng-sessiond", &["--no-kernel", &agents])?;
            daemons.ready("lttng-sessiond", || tool.has_daemon())?;
        }
        if let Some(relay) = relay {
            return Ok((daemons, relay));
        }
        let relay = Relay {
            host: "127.0.0.1".to_owned(),
            control: free_port()?,
            data: free_port()?,
            live: free_port()?,
        };
        let url = |name, port| format!("--{name}-port=tcp://{}:{port}", relay.host);
        let output = format!("--output={}", folder.display());
        let ports = [url("control", relay.control), url("data", relay.data), url("live", relay.live)];
        daemons.start(tool, "lttng-relayd", &[&ports[0], &ports[1], &ports[2], &output])?;
        daemons.ready("lttng-relayd", || TcpStream::connect((relay.host.as_str(), relay.live)).is_ok())?;
        Ok((daemons, relay))
    }

    /// How many were started.
    pub fn started(&self) -> usize {
        self.started.len()
    }

    fn start(&mut self, tool: &Tool, program: &str, args: &[&str]) -> Result<(), ToolError> {
        let mut command = tool.command(program);
        command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        prepare(&mut command);
        let child =
            command.spawn().map_err(|error| ToolError::Start { program: program.to_owned(), error })?;
        self.started.push(child);
        Ok(())
    }

    fn ready(&mut self, program: &str, there: impl Fn() -> bool) -> Result<(), ToolError> {
        let begun = Instant::now();
        while !there() {
            let ended = self.started.last_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || begun.elapsed() > READY_WITHIN {
                return Err(ToolError::Setting(format!("{program} was started and does not answer")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for Daemons {
    fn drop(&mut self) {
        // The relay first: the session daemon waits for nobody.
        for mut child in self.started.drain(..).rev() {
            terminate(&child);
            wait(&mut child, END_WITHIN);
        }
    }
}

fn terminate(child: &Child) {
    // SAFETY: a child of ours that nobody has waited for, so the number is still its own.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
}

/// It ends with us, and may open as many files as may be allowed to it.
fn prepare(command: &mut Command) {
    let ours = std::process::id();
    let ask = move || {
        // SAFETY: between fork and exec only calls that are safe in a signal handler may be made: these are system calls, with
        // numbers and a structure that outlives them.
        unsafe {
            let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
                files.rlim_cur = files.rlim_max.min(FILES_MAX).max(files.rlim_cur);
                // It works with fewer.
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // Whoever started it may be gone already.
            if libc::getppid() as u32 != ours {
                return Err(std::io::ErrorKind::NotConnected.into());
            }
        }
        Ok(())
    };
    // SAFETY: `ask` allocates nothing and takes no lock.
    unsafe { command.pre_exec(ask) };
}

fn free_port() -> Result<u16, ToolError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr());
    bound.map(|address| address.port()).map_err(|error| ToolError::Setting(format!("no free port: {error}")))
}
