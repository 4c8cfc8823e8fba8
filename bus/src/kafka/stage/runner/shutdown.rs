//! Last save of all partitions, when shutdown was requested.
//!
//! *In*: the owned partitions. *Out*: whether saved states cover all received records.
//!
//! *Invariant*: a rebalance does not cost the last save. While one is under way the coordinator
//! refuses commits. So a refused save is repeated, and rebalances are answered meanwhile, up to a
//! timeout. Otherwise the next owner would repeat the output since the last saved state, and one of
//! another release would number it differently: readers would accept it twice.
//!
//! *Rejected*: only a pause between attempts. A rebalance can wait for this member's answer.

use blkkin_wire::stage::Stage;

use super::super::super::KafkaError;
use super::super::cluster::{Cluster, GroupMember, MemberEvent};
use super::{Runner, SHUTDOWN_TIMEOUT, STOP_POLL};

impl<S: Stage, C: Cluster> Runner<S, C> {
    /// Saves all partitions; returns false if the cluster accepted no save in time.
    pub(super) fn save_at_shutdown(&mut self) -> Result<bool, KafkaError> {
        let until = self.cluster.now() + SHUTDOWN_TIMEOUT;
        loop {
            let all = self.owned.keys().copied().collect::<Vec<_>>();
            let left = until.saturating_duration_since(self.cluster.now());
            if self.save(&all, left)? {
                return Ok(true);
            }
            if self.cluster.now() >= until || !self.answer_rebalance()? {
                return Ok(false);
            }
        }
    }

    /// Takes one event of the group: releases revoked partitions, and takes no assigned ones. A
    /// record is dropped, because it is behind the states that are being saved. Returns whether this
    /// is still a member.
    fn answer_rebalance(&mut self) -> Result<bool, KafkaError> {
        match self.member()?.next(STOP_POLL)? {
            MemberEvent::Assigned(_) => self.member()?.assign(&[])?,
            MemberEvent::Revoked(partitions, lost) => self.revoke(&partitions, lost)?,
            MemberEvent::Fenced(_) | MemberEvent::JoinAgain(_) => return Ok(false),
            MemberEvent::Record(_) | MemberEvent::Nothing => {}
        }
        Ok(true)
    }
}
