//! Timeouts of inactive sources, by the log's time.
//!
//! *In*: the log's time and the source of each record. *Out*: the sources to close and the sources
//! to forget, in the order of their ids.
//!
//! *Invariant*: a function of the records. The log's time is the greatest so far: with `CreateTime`
//! it is the producers' clocks, and may go back.

use std::collections::BTreeMap;

use blkkin_wire::clock::MonotonicNs;
use blkkin_wire::ids::{BootId, Source, StartEpoch};
use blkkin_wire::stage::LogTime;
use serde::{Deserialize, Serialize};

use super::agent_liveness::{AgentLiveness, WINDOW};

/// Log time of the last record of each source.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct SourceTimeouts {
    now: LogTime,
    sources: BTreeMap<Source, LastRecord>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct LastRecord {
    at: LogTime,
    closed: bool,
    agent: AgentLiveness,
    /// Progress of the batches whose numbers had arrived. A spool is sent again at once, so a
    /// steady one is a second agent that is behind the first.
    repeats: AgentLiveness,
}

/// Ids that two agents have in common while both send.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum NodeClaim {
    /// Ids of machine, boot and start: a machine was cloned while its agent ran.
    SameStart,
    /// Machine id and boot id: a machine was cloned while it ran, or it has two agents.
    SameBoot,
    /// The machine id: a machine was cloned with its disk.
    SameNode,
}

/// A timeout that expired.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Timeout {
    Close(Source),
    Forget(Source),
}

impl SourceTimeouts {
    /// Advances the log's time to `at`, and returns the timeouts that expired.
    pub(super) fn advance(
        &mut self,
        at: Option<LogTime>,
        close_after: u64,
        forget_after: u64,
    ) -> Vec<Timeout> {
        let Some(at) = at.filter(|at| *at > self.now) else { return Vec::new() };
        self.now = at;
        let mut due = Vec::new();
        self.sources.retain(|source, last| {
            let idle = at.0.saturating_sub(last.at.0);
            if idle > forget_after {
                due.push(Timeout::Forget(*source));
                return false;
            }
            if idle > close_after && !std::mem::replace(&mut last.closed, true) {
                due.push(Timeout::Close(*source));
            }
            true
        });
        due
    }

    /// Records a batch of `source`. Returns the evidence if its node has two agents now.
    pub(super) fn touch(
        &mut self,
        source: Source,
        watermark: MonotonicNs,
        is_repeated: bool,
    ) -> Option<NodeClaim> {
        let now = self.now;
        let last = self.sources.entry(source).or_default();
        (last.at, last.closed) = (now, false);
        if is_repeated {
            let is_live = last.repeats.receive(now, watermark);
            return (is_live && last.repeats.duration() >= 2 * WINDOW).then_some(NodeClaim::SameStart);
        }
        if !last.agent.receive(now, watermark) {
            return None;
        }
        let agent = last.agent;
        let first = Source { boot: BootId(0), epoch: StartEpoch(0), ..source };
        let of_node = self.sources.range(first..).take_while(|(other, _)| other.node == source.node);
        let others = of_node.filter(|(other, last)| {
            let is_recent = now.0.saturating_sub(last.at.0) < 2 * WINDOW;
            **other != source && is_recent && agent.overlap(&last.agent) >= WINDOW
        });
        let claims =
            others.map(
                |(other, _)| {
                    if other.boot == source.boot { NodeClaim::SameBoot } else { NodeClaim::SameNode }
                },
            );
        claims.min()
    }

    /// Forgets a source.
    pub(super) fn remove(&mut self, source: &Source) {
        self.sources.remove(source);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::SOURCE;
    use blkkin_wire::ids::NodeId;

    #[test]
    fn inactive_sources_are_closed_once_and_later_forgotten_by_the_logs_time() {
        let other = Source { node: NodeId(99), ..SOURCE };
        let mut timeouts = SourceTimeouts::default();
        let touch = |timeouts: &mut SourceTimeouts, source| timeouts.touch(source, MonotonicNs(0), false);
        let advance = |timeouts: &mut SourceTimeouts, at| timeouts.advance(Some(LogTime(at)), 30, 100);
        assert_eq!(advance(&mut timeouts, 1_000), []);
        touch(&mut timeouts, SOURCE);
        assert_eq!(advance(&mut timeouts, 1_020), []);
        touch(&mut timeouts, other);
        assert_eq!(advance(&mut timeouts, 1_031), [Timeout::Close(SOURCE)]);
        assert_eq!(advance(&mut timeouts, 1_032), []);
        assert_eq!(advance(&mut timeouts, 500), [], "the log time never goes back");
        assert_eq!(advance(&mut timeouts, 1_101), [Timeout::Forget(SOURCE), Timeout::Close(other)]);
        touch(&mut timeouts, other);
        assert_eq!(advance(&mut timeouts, 1_132), [Timeout::Close(other)]);
        assert_eq!(timeouts.advance(None, 30, 100), []);
    }

    /// Sends a batch each second of `times` (s), whose watermark is `clock` after the log's time.
    fn send(
        timeouts: &mut SourceTimeouts,
        times: std::ops::Range<u64>,
        sources: &[(Source, u64)],
    ) -> Vec<NodeClaim> {
        let mut claims = Vec::new();
        for second in times {
            timeouts.advance(Some(LogTime(second * 1_000)), 30_000, 3_600_000);
            for (source, clock) in sources {
                let watermark = MonotonicNs((second + clock) * 1_000_000_000);
                claims.extend(timeouts.touch(*source, watermark, false));
            }
        }
        claims
    }

    #[test]
    fn two_agents_of_one_node_are_noticed_whatever_their_clocks_read() {
        let other_boot = Source { boot: BootId(9), epoch: StartEpoch(9), ..SOURCE };
        let other_start = Source { epoch: StartEpoch(9), ..SOURCE };
        let other_node = Source { node: NodeId(9), ..SOURCE };
        let cases = [
            (other_boot, Some(NodeClaim::SameNode)),
            (other_start, Some(NodeClaim::SameBoot)),
            (other_node, None),
        ];
        for (other, claim) in cases {
            let mut timeouts = SourceTimeouts::default();
            // The other one is resumed after an hour, with a clock of its own.
            assert_eq!(send(&mut timeouts, 0..3_600, &[(SOURCE, 1_000)]), []);
            let noticed = send(&mut timeouts, 3_600..3_660, &[(SOURCE, 1_000), (other, 50)]);
            assert_eq!(noticed.first().copied(), claim);
            // Once one of them is gone it ends.
            send(&mut timeouts, 3_660..3_690, &[(SOURCE, 1_000)]);
            assert_eq!(send(&mut timeouts, 3_690..3_800, &[(SOURCE, 1_000)]), []);
        }
    }

    #[test]
    fn a_restart_and_the_spool_of_a_killed_agent_are_not_two_agents() {
        let next = Source { epoch: StartEpoch(9), ..SOURCE };
        let mut timeouts = SourceTimeouts::default();
        assert_eq!(send(&mut timeouts, 0..100, &[(SOURCE, 0)]), []);
        // Its successor sends what the killed one had left: 60 s of batches in 20 s.
        for second in 100..120 {
            assert_eq!(send(&mut timeouts, second..second + 1, &[(next, 0)]), []);
            for n in 0..3 {
                let watermark = MonotonicNs((100 + 3 * (second - 100) + n) * 1_000_000_000);
                assert_eq!(timeouts.touch(SOURCE, watermark, false), None);
            }
        }
        assert_eq!(send(&mut timeouts, 120..600, &[(next, 0)]), []);
    }

    #[test]
    fn a_second_agent_of_one_start_that_is_behind_the_first_is_noticed() {
        let mut timeouts = SourceTimeouts::default();
        let mut claims = Vec::new();
        for second in 0..40 {
            send(&mut timeouts, second..second + 1, &[(SOURCE, 3_600)]);
            claims.extend(timeouts.touch(SOURCE, MonotonicNs(second * 1_000_000_000), true));
        }
        assert_eq!(claims, [NodeClaim::SameStart; 2]);
        // A spool that is sent again: all of it in a second.
        let again = (0..100).filter_map(|n| timeouts.touch(SOURCE, MonotonicNs(n * 1_000_000_000), true));
        assert_eq!(again.count(), 0);
    }

    #[test]
    fn a_spool_that_is_sent_with_pauses_is_no_second_agent() {
        // 8 s of batches a second, in bursts of 2 s: in the mean of a burst and a pause as fast as time.
        for pause in 8..30 {
            let mut timeouts = SourceTimeouts::default();
            let (mut log, mut sent) = (0, 0);
            for _ in 0..2 {
                for _ in 0..16 {
                    sent += 1;
                    log += 125;
                    timeouts.advance(Some(LogTime(log)), u64::MAX, u64::MAX);
                    let claim = timeouts.touch(SOURCE, MonotonicNs(sent * 1_000_000_000), true);
                    assert_eq!(claim, None, "pause of {pause} s");
                }
                log += pause * 1_000;
            }
        }
    }
}
