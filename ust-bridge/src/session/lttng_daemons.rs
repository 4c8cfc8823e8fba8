//! LTTng's session and relay daemons, started if none run.
//!
//! *In*: an optional relay, and a folder for the relay's files. *Out*: daemons that answer.
//!
//! A relay has no password. It therefore listens in a [`PrivateNetwork`]. The session daemon runs
//! outside of it, or runs already, and reaches the relay through the [gate](super::gate).
//!
//! A session daemon holds 6 descriptors for each registered process, and refuses processes beyond
//! its limit. The usual 1024 descriptors are enough for 157 processes. The limit is therefore
//! raised as far as allowed, up to [`FILES_MAX`].
//!
//! *Invariant*: the daemons end with blkkin. They are children in the foreground and receive
//! SIGTERM when [`LttngDaemons`] is dropped. If blkkin is killed, the kernel sends the signal
//! (`PR_SET_PDEATHSIG`). The session daemon then ends its consumer and its sessions.

use std::net::TcpListener;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::gate::{ForwardedPort, Refusals};
use super::lttng_command::{LttngCommand, LttngError, wait};
use super::private_network::PrivateNetwork;
use super::supervisor::Relay;

/// Maximum number of descriptors of a daemon, for 10,900 processes. In containers the hard limit
/// may be 2^30, and a program that allocates memory for each possible descriptor would use a large
/// part of it.
pub const FILES_MAX: u64 = 65_535;
/// Ports of a relay in its private network: LTTng's usual ones.
const CONTROL_PORT: u16 = 5342;
const DATA_PORT: u16 = 5343;
const LIVE_PORT: u16 = 5344;
/// Maximum time until a started daemon answers.
const READY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum time until a daemon exits.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Daemons that this process started.
#[derive(Debug, Default)]
pub struct LttngDaemons {
    started: Vec<Child>,
    /// Ports through which the session daemon reaches the relay.
    ports: Vec<ForwardedPort>,
    refusals: Arc<Refusals>,
}

impl LttngDaemons {
    /// Starts a session daemon and a relay if they are missing, and returns the relay's address. A
    /// started relay writes to `folder`.
    pub fn ensure(
        command: &LttngCommand,
        relay: Option<Relay>,
        folder: &Path,
    ) -> Result<(Self, Relay), LttngError> {
        let mut daemons = Self::default();
        if !command.has_daemon() {
            let agent_port = format!("--agent-tcp-port={}", free_port()?);
            daemons.start(command.command("lttng-sessiond"), &["--no-kernel", &agent_port])?;
            daemons.wait_ready("lttng-sessiond", || command.has_daemon())?;
        }
        let relay = relay.map_or_else(|| daemons.start_relay(command, folder), Ok)?;
        Ok((daemons, relay))
    }

    fn start_relay(&mut self, command: &LttngCommand, folder: &Path) -> Result<Relay, LttngError> {
        let network = Arc::new(PrivateNetwork::create().map_err(LttngError::Network)?);
        let url = |name, port| format!("--{name}-port=tcp://127.0.0.1:{port}");
        let output = format!("--output={}", folder.display());
        let ports = [url("control", CONTROL_PORT), url("data", DATA_PORT), url("live", LIVE_PORT)];
        let mut relay = command.command("lttng-relayd");
        network.contain(&mut relay).map_err(LttngError::Network)?;
        self.start(relay, &[&ports[0], &ports[1], &ports[2], &output])?;
        self.wait_ready("lttng-relayd", || network.connect(LIVE_PORT).is_ok())?;
        let [control, data] = [CONTROL_PORT, DATA_PORT].map(|port| self.forward(&network, port));
        let (control, data) = (control?, data?);
        Ok(Relay { host: "127.0.0.1".to_owned(), control, data, live: LIVE_PORT, network: Some(network) })
    }

    /// Opens a port for the session daemon and returns its number.
    fn forward(&mut self, network: &Arc<PrivateNetwork>, relay_port: u16) -> Result<u16, LttngError> {
        let opened = ForwardedPort::open(Arc::clone(network), relay_port, Arc::clone(&self.refusals));
        let opened = opened.map_err(|error| LttngError::Setup(format!("no port for the relay: {error}")))?;
        let port = opened.port();
        self.ports.push(opened);
        Ok(port)
    }

    /// Returns the refused connections to the relay.
    pub fn refusals(&self) -> &Arc<Refusals> {
        &self.refusals
    }

    /// Returns the number of started daemons.
    pub fn started(&self) -> usize {
        self.started.len()
    }

    fn start(&mut self, mut daemon: Command, args: &[&str]) -> Result<(), LttngError> {
        daemon.args(args).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        prepare(&mut daemon);
        let child = daemon.spawn().map_err(|error| {
            let program = daemon.get_program().to_string_lossy().into_owned();
            LttngError::Start { program, error }
        })?;
        self.started.push(child);
        Ok(())
    }

    fn wait_ready(&mut self, program: &str, ready: impl Fn() -> bool) -> Result<(), LttngError> {
        let begun = Instant::now();
        while !ready() {
            let ended = self.started.last_mut().is_some_and(|child| !matches!(child.try_wait(), Ok(None)));
            if ended || begun.elapsed() > READY_TIMEOUT {
                return Err(LttngError::Setup(format!("{program} does not answer after its start")));
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

impl Drop for LttngDaemons {
    fn drop(&mut self) {
        // The relay first: the session daemon does not wait for it.
        for mut child in self.started.drain(..).rev() {
            terminate(&child);
            wait(&mut child, END_TIMEOUT);
        }
    }
}

fn terminate(child: &Child) {
    // SAFETY: the child was not waited for yet, so its process id is still valid.
    unsafe { libc::kill(child.id() as libc::pid_t, libc::SIGTERM) };
}

/// Sets the death signal and raises the descriptor limit of a daemon.
fn prepare(command: &mut Command) {
    let parent_pid = std::process::id();
    let configure = move || {
        // SAFETY: between fork and exec only async-signal-safe calls are allowed. These are system
        // calls with numbers and a local structure.
        unsafe {
            let mut files = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
            if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut files) == 0 {
                files.rlim_cur = files.rlim_max.min(FILES_MAX).max(files.rlim_cur);
                // A daemon also works with fewer descriptors.
                libc::setrlimit(libc::RLIMIT_NOFILE, &raw const files);
            }
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGTERM);
            // The parent may have exited already.
            if libc::getppid() as u32 != parent_pid {
                return Err(std::io::ErrorKind::NotConnected.into());
            }
        }
        Ok(())
    };
    // SAFETY: `configure` allocates nothing and takes no lock.
    unsafe { command.pre_exec(configure) };
}

fn free_port() -> Result<u16, LttngError> {
    let bound = TcpListener::bind("127.0.0.1:0").and_then(|any| any.local_addr());
    bound.map(|address| address.port()).map_err(|error| LttngError::Setup(format!("no free port: {error}")))
}
