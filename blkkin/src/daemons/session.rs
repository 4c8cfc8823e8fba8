//! A session of our own at LTTng, with the daemons that it needs.
//!
//! *In*: which events are wanted. *Out*: a session that a [`Follower`] reads. *Invariant*: what is ours ends with us: first the session,
//! then the daemons that were started for it, then the folder in which a relay of our own has written.

use blkkin_ust_bridge::live::follow::{Follower, Target};
use blkkin_ust_bridge::live::reader::Settings;
use blkkin_ust_bridge::session::daemons::Daemons as Servers;
use blkkin_ust_bridge::session::keeper::{Keeper, Plan};
use blkkin_ust_bridge::session::tool::{Tool, ToolError};
use std::time::Duration;
use tempfile::TempDir;

/// How long the streams of other CPUs are waited for: less than batches wait for words, and more than a consumer daemon on a machine
/// that has too much to do is behind.
const WAIT_FOR_STREAMS: Duration = Duration::from_millis(1_500);

/// The parts, in the order in which they end.
pub(super) struct Session {
    keeper: Option<Keeper>,
    servers: Option<Servers>,
    folder: TempDir,
    plan: Plan,
}

impl Session {
    /// Makes it.
    pub(super) fn open(events: Vec<String>, folder: TempDir) -> Result<Session, ToolError> {
        let plan = Plan { events, ..Plan::default() };
        let mut session = Session { keeper: None, servers: None, folder, plan };
        session.make()?;
        Ok(session)
    }

    fn make(&mut self) -> Result<(), ToolError> {
        let tool = Tool::default();
        let (servers, relay) = Servers::ensure(&tool, None, self.folder.path())?;
        let (keeper, _stale) = Keeper::create(tool, relay, self.plan.clone())?;
        (self.keeper, self.servers) = (Some(keeper), Some(servers));
        Ok(())
    }

    /// Makes another one in place of one that somebody has ended.
    pub(super) fn renew(&mut self) -> Result<(), ToolError> {
        // What is left of the old one would only be in the way.
        drop(self.keeper.take());
        drop(self.servers.take());
        self.make()
    }

    /// Who watches over it; nobody once it was ended.
    pub(super) fn keeper(&mut self) -> Option<&mut Keeper> {
        self.keeper.as_mut()
    }

    /// What reads it, from its begin.
    pub(super) fn follower(&self) -> Option<Follower> {
        let keeper = self.keeper.as_ref()?;
        Some(Follower::new(Target {
            address: keeper.relay().live_address(),
            session: keeper.name().to_owned(),
            settings: Settings { wait_max: WAIT_FOR_STREAMS, ..Settings::default() },
        }))
    }

    /// Has it send what it still has, and end. The daemons stay until that was read.
    pub(super) fn end(&mut self) -> Result<(), ToolError> {
        self.keeper.take().map_or(Ok(()), Keeper::end)
    }
}
