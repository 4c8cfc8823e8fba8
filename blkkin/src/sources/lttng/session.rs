//! The LTTng session of blkkin, with the daemons that it needs.
//!
//! *In*: the enabled events. *Out*: a session that a [`Follower`] reads. *Invariant*: blkkin's own
//! parts end with it: first the session, then the daemons that it started, then the folder of its
//! own relay.

use blkkin_lttng_live::live::follow::Follower;
use blkkin_lttng_live::live::reader::ReaderSettings;
use blkkin_ust_bridge::session::gate::Refusals;
use blkkin_ust_bridge::session::lttng_command::{LttngCommand, LttngError};
use blkkin_ust_bridge::session::lttng_daemons::LttngDaemons as Servers;
use blkkin_ust_bridge::session::supervisor::{SessionConfig, SessionSupervisor};
use std::time::Duration;
use tempfile::TempDir;

/// Maximum wait for the streams of other CPUs: shorter than batches wait for updates, and longer
/// than the delay of a consumer daemon on an overloaded machine.
const WAIT_FOR_STREAMS: Duration = Duration::from_millis(1_500);

/// The parts, in drop order.
pub(super) struct LttngSession {
    supervisor: Option<SessionSupervisor>,
    servers: Option<Servers>,
    folder: TempDir,
    plan: SessionConfig,
}

impl LttngSession {
    /// Creates the session.
    pub(super) fn open(events: Vec<String>, folder: TempDir) -> Result<LttngSession, LttngError> {
        let plan = SessionConfig { events, ..SessionConfig::default() };
        let mut session = LttngSession { supervisor: None, servers: None, folder, plan };
        session.create()?;
        Ok(session)
    }

    /// Returns a session that could not be created again.
    #[cfg(test)]
    pub(super) fn lost() -> LttngSession {
        let folder = TempDir::new().expect("a folder");
        LttngSession { supervisor: None, servers: None, folder, plan: SessionConfig::default() }
    }

    fn create(&mut self) -> Result<(), LttngError> {
        let tool = LttngCommand::default();
        let (servers, relay) = Servers::ensure(&tool, None, self.folder.path())?;
        let (supervisor, _stale) = SessionSupervisor::create(tool, relay, self.plan.clone())?;
        (self.supervisor, self.servers) = (Some(supervisor), Some(servers));
        Ok(())
    }

    /// Recreates a session that was destroyed.
    pub(super) fn restart(&mut self) -> Result<(), LttngError> {
        // Remains of the old session would conflict.
        drop(self.supervisor.take());
        drop(self.servers.take());
        self.create()
    }

    /// Returns the session's supervisor; `None` once it ended.
    pub(super) fn supervisor(&mut self) -> Option<&mut SessionSupervisor> {
        self.supervisor.as_mut()
    }

    /// Returns a reader of the session, from its begin.
    pub(super) fn follower(&self) -> Option<Follower> {
        let settings = ReaderSettings { wait_max: WAIT_FOR_STREAMS, ..ReaderSettings::default() };
        self.supervisor.as_ref().map(|supervisor| supervisor.follower(settings))
    }

    /// Returns the refused connections to the relay.
    pub(super) fn refusals(&self) -> Option<&Refusals> {
        self.servers.as_ref().map(|servers| &**servers.refusals())
    }

    /// Flushes and ends the session. The daemons stay until the rest was read.
    pub(super) fn end(&mut self) -> Result<(), LttngError> {
        self.supervisor.take().map_or(Ok(()), SessionSupervisor::end)
    }
}
