//! Nodes that two agents claim at the same time, for the log, `/health` and metrics.
//!
//! *In*: evidence from the join stage, at least each 10 s while it lasts. *Out*: one warning for
//! each node and kind of evidence, a line of `/health` and a gauge. *Invariant*: at most
//! [`NODES_MAX`] nodes; beyond that the least recently seen one is dropped.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use blkkin_aggregator::stage::NodeClaim;
use blkkin_wire::ids::{NodeId, Source};
use tracing::warn;

use crate::service::{MetricFamily, MetricKind, Sample};

/// Maximum number of nodes.
const NODES_MAX: usize = 1_024;
/// Time after which a node without new evidence has one agent again: six times the interval of
/// evidence.
const FORGET_AFTER: Duration = Duration::from_secs(60);
/// Number of nodes that `/health` names.
const NAMED_MAX: usize = 3;

/// The latest evidence for each node.
#[derive(Debug, Default)]
pub(super) struct ContestedNodes(BTreeMap<NodeId, (Instant, NodeClaim)>);

impl ContestedNodes {
    pub(super) fn record(&mut self, source: &Source, claim: NodeClaim, now: Instant) {
        self.0.retain(|_, (at, _)| now.saturating_duration_since(*at) < FORGET_AFTER);
        let previous = self.0.insert(source.node, (now, claim));
        if previous.is_none_or(|(_, previous)| previous != claim) {
            warn!(node = format!("{:032x}", source.node.0), "two agents claim one node: {}", describe(claim));
        }
        if self.0.len() > NODES_MAX
            && let Some(oldest) = self.0.iter().min_by_key(|(_, (at, _))| *at).map(|(node, _)| *node)
        {
            self.0.remove(&oldest);
        }
    }

    fn current(&self, now: Instant) -> impl Iterator<Item = (&NodeId, NodeClaim)> {
        let current = move |(at, _): &(Instant, NodeClaim)| now.saturating_duration_since(*at) < FORGET_AFTER;
        self.0.iter().filter(move |(_, seen)| current(seen)).map(|(node, (_, claim))| (node, *claim))
    }

    /// Returns the line of `/health`, if there is such a node.
    pub(super) fn note(&self, now: Instant) -> Option<String> {
        let count = self.current(now).count();
        let named = self.current(now).take(NAMED_MAX);
        let named: Vec<String> =
            named.map(|(node, claim)| format!("{:032x} ({})", node.0, describe(claim))).collect();
        let more = if count > NAMED_MAX { format!(" and {} more", count - NAMED_MAX) } else { String::new() };
        (count > 0).then(|| format!("join: two agents claim one node: {}{more}", named.join(", ")))
    }

    pub(super) fn metric_family(&self, now: Instant) -> MetricFamily {
        MetricFamily {
            name: "aggregator_nodes_contested",
            help: "Nodes that two agents claim at the same time: a cloned machine, or two agents on one",
            kind: MetricKind::Gauge,
            samples: vec![(Vec::new(), Sample::Number(self.current(now).count() as f64))],
        }
    }
}

fn describe(claim: NodeClaim) -> &'static str {
    match claim {
        NodeClaim::SameStart => "a machine was cloned while its agent ran: restart both agents",
        NodeClaim::SameBoot => "a running machine was cloned, or has two agents",
        NodeClaim::SameNode => "two machines have one /etc/machine-id",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::ids::{BootId, StartEpoch};

    #[test]
    fn contested_nodes_are_named_bounded_and_end() {
        let mut nodes = ContestedNodes::default();
        let start = Instant::now();
        assert_eq!(nodes.note(start), None);
        for node in 0..2 * NODES_MAX as u128 {
            let source = Source { node: NodeId(node), boot: BootId(1), epoch: StartEpoch(1) };
            nodes.record(&source, NodeClaim::SameNode, start + Duration::from_micros(node as u64));
        }
        let now = start + Duration::from_secs(30);
        assert_eq!(nodes.metric_family(now).samples[0].1, Sample::Number(NODES_MAX as f64));
        let note = nodes.note(now).unwrap();
        assert!(
            note.contains(&format!("{NODES_MAX:032x} (two machines have one /etc/machine-id)")),
            "{note}"
        );
        assert!(note.ends_with("and 1021 more"), "{note}");
        assert_eq!(nodes.note(start + Duration::from_secs(61)), None);
    }
}
