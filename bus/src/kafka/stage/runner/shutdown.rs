//! Last save of all partitions, when shutdown was requested.
//!
//! *In*: the owned partitions. *Out*: whether saved states cover all received records.
//!
//! *Invariant*: a rebalance does not cost the last save. While one is under way the coordinator
//! refuses commits. So a refused save is repeated, and rebalances are answered meanwhile, up to a
//! timeout. Otherwise the next owner would repeat the output since the last saved state, and one of
//! another release would number it anew: readers would accept it twice.
//!
//! *Rejected*: only a pause between attempts. A rebalance can wait for this member's answer.

use std::time::Instant;

use blkkin_wire::stage::Stage;

use super::super::super::KafkaError;
use super::super::member::MemberEvent;
use super::{SHUTDOWN_TIMEOUT, STOP_POLL, StageRunner};

impl<S: Stage> StageRunner<S> {
    /// Saves all partitions; returns false if the cluster accepted no save in time.
    pub(super) fn save_at_shutdown(&mut self) -> Result<bool, KafkaError> {
        let until = Instant::now() + SHUTDOWN_TIMEOUT;
        loop {
            let all = self.owned.keys().copied().collect::<Vec<_>>();
            let left = until.saturating_duration_since(Instant::now());
            if self.save(&all, left)? {
                return Ok(true);
            }
            if Instant::now() >= until {
                return Ok(false);
            }
            if !self.answer_rebalance()? {
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
            MemberEvent::Fenced(_) | MemberEvent::NameInUse(_) => return Ok(false),
            MemberEvent::Record(_) | MemberEvent::Nothing => {}
        }
        Ok(true)
    }
}
