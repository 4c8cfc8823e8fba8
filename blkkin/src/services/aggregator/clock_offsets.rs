//! Clock offsets between nodes, estimated from the requests between them.
//!
//! *In*: an estimate by the link stage after each request between two nodes. *Out*: two gauges for
//! each pair: the offset and its error bound. *Invariant*: at most [`PAIRS_MAX`] pairs; beyond that
//! the least recently updated one is dropped.

use std::collections::BTreeMap;

use blkkin_aggregator::stage::link::clock_bounds::ClockBound;
use blkkin_wire::ids::NodeId;

use crate::service::{Labels, MetricFamily, MetricKind, Sample};

/// Maximum number of pairs, with two series each.
const PAIRS_MAX: usize = 1_024;

/// The latest estimate for each pair of client and server node.
#[derive(Debug, Default)]
pub(super) struct ClockOffsets {
    pairs: BTreeMap<(NodeId, NodeId), (u64, ClockBound)>,
    count: u64,
}

impl ClockOffsets {
    pub(super) fn record(&mut self, apart: &ClockBound) {
        self.count += 1;
        self.pairs.insert((apart.client, apart.server), (self.count, *apart));
        if self.pairs.len() > PAIRS_MAX
            && let Some(oldest) = self.pairs.iter().min_by_key(|(_, (noted, _))| *noted).map(|(key, _)| *key)
        {
            self.pairs.remove(&oldest);
        }
    }

    pub(super) fn metric_families(&self) -> [MetricFamily; 2] {
        let family = |name, help, of: fn(&ClockBound) -> f64| {
            let samples = self.pairs.values().map(|(_, apart)| (labels(apart), Sample::Number(of(apart))));
            MetricFamily { name, help, kind: MetricKind::Gauge, samples: samples.collect() }
        };
        [
            family(
                "clock_offset_seconds",
                "The server node's wall clock minus the client node's, from the requests between them",
                |apart| apart.offset as f64 / 1e9,
            ),
            family("clock_offset_error_seconds", "Error bound of blkkin_clock_offset_seconds", |apart| {
                apart.error.0 as f64 / 1e9
            }),
        ]
    }
}

fn labels(apart: &ClockBound) -> Labels {
    [("client", apart.client), ("server", apart.server)]
        .map(|(name, node)| (name, format!("{:032x}", node.0)))
        .to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use blkkin_wire::clock::{DurationNs, MonotonicNs};

    fn apart(client: u128, offset: i64) -> ClockBound {
        let (client, server) = (NodeId(client), NodeId(u128::MAX));
        ClockBound { client, server, at: MonotonicNs(1), offset, error: DurationNs(50_000) }
    }

    #[test]
    fn pair_has_its_latest_offset_and_pairs_are_bounded() {
        let mut clocks = ClockOffsets::default();
        for client in 0..=PAIRS_MAX as u128 {
            clocks.record(&apart(client, 1));
            clocks.record(&apart(1, -2_000_000));
        }
        let [offset, error] = clocks.metric_families();
        assert_eq!((offset.samples.len(), error.samples.len()), (PAIRS_MAX, PAIRS_MAX));
        let of = |client: u128| labels(&apart(client, 0));
        let found = |labels: Labels| {
            offset.samples.iter().find(|(of, _)| *of == labels).map(|(_, sample)| sample.clone())
        };
        assert_eq!(found(of(1)), Some(Sample::Number(-0.002)));
        assert_eq!(found(of(0)), None, "least recently updated");
        assert_eq!(error.samples[0].1, Sample::Number(0.00005));
    }
}
